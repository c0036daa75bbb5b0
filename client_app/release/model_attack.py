"""Membership inference on a model before the hospital hands it on.

Attacks (audit/model.py) ask of the hospital's own images, from what the model says of them,
whether it was trained on them: training images against test images. What they find stays here: in
the hospital's log, in `runs/<run>/membership.jsonl` of its store, and in its own report. With the
policy's `models.max-membership` below 1 each model is attacked, by its loss, and one that leaks
for sure, perhaps more than that, does not leave; else only models of the last round are attacked,
and none is refused.
What is attacked in the last round is attacked by MemGuard's network, too, as the thesis has it.

Here, as of a buffer, a leak is the excess over members against members, as a share of what an
attack would have that is always right. A simulation has no policy, and nothing is attacked.
"""

import json
import logging

import torch
from torch import nn

from audit.membership import exceeds
from audit.model import Predictions, audit_model
from audit.report import Report
from client_app.authority.policy import ModelRules
from client_app.request import Request, log_once
from learning.evaluation import probabilities
from learning.samples import Samples
from strategies.protocol.parcel import Manifest

MOST = 2000  # images of each kind that are asked about
SEEDS, EPOCHS = 1, 100  # of MemGuard's network, which the thesis trains with 5 and 400
FILE = "membership.jsonl"


def attack_model(request: Request, network: nn.Module, label: Manifest, rules: ModelRules) -> None:
    """Attack a model that was trained here, and note what comes of it.

    Args:
        request: To train it.
        network: The model, as it would leave.
        label: Of its parcel.
        rules: What the hospital allows.

    Raises:
        PolicyError: It leaks more than the hospital allows.
        DeadlineError: The deadline has passed.
    """
    hospital, limit = request.hospital, rules.max_membership
    last = request.order.round == hospital.settings.num_server_rounds
    if len(hospital.data.train) < 2 or not len(hospital.data.test):
        log_once("No model is attacked: the hospital has no two training images, or no test image.")
        return
    with request.clock.measure("evaluate"):
        members, others = (
            _predictions(network, part, request.clock.deadline)
            for part in (hospital.data.train, hospital.data.test)
        )
        report = audit_model(members, others, limit, SEEDS if last else 0, EPOCHS)
    _note(request, label, report)
    for each in report.leaks:
        rules.uphold("max-membership", each.high if exceeds(each, limit) else 0.0)


def _predictions(network: nn.Module, part: Samples, deadline: float) -> Predictions:
    """What the model says of some images of the hospital, at random if there are many."""
    rows = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[:MOST]
    chosen = part[rows.to(part.labels.device)]
    return Predictions(probabilities(network, chosen.images, deadline).nan_to_num(), chosen.labels)


def _note(request: Request, label: Manifest, report: Report) -> None:
    log, leak = logging.getLogger("flwr"), report.evidence["leak"]
    few = "" if report.evidence["able"] else "; the hospital has too few images to tell"
    log.info(
        "%s: attacks on the model of %s (round %s) tell %.0f%% to %.0f%% of who was trained on%s.",
        *(request.hospital.name, label.lineage, label.round),
        *(100 * max(leak[end], 0.0) for end in ("low", "high")),
        few,
    )
    noted = {"lineage": label.lineage, "round": label.round, "hop": label.hop, **report.evidence}
    path = request.run.folder / FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            path.chmod(0o600)
            file.write(json.dumps(noted) + "\n")
    except OSError as error:  # a run is never disturbed by what is kept at home
        log.warning("What attacks found cannot be kept (%s).", error)
