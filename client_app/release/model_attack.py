"""Membership inference on a model before its hand-off.

Attacks (audit/model.py) use the model's outputs to separate the hospital's training images from its
test images of the same tasks. The results stay here: in the hospital's log, in
`runs/<run>/membership.jsonl` of its store, and in its own report. docs/privacy/buffers.md says
which models are attacked. In the last round, MemGuard's network attacks too, as in the thesis.
"""

import json
import logging

import numpy as np
from torch import nn

from audit.membership import exceeds
from audit.model import Predictions, audit_model
from audit.report import Report
from client_app.authority.policy import ModelRules
from client_app.datasets.pool import LocalSamples
from client_app.request import Request, log_once
from client_app.store import append_text
from learning.evaluation import probabilities
from learning.samples import one_of_each
from strategies.protocol.parcel import Manifest

MOST = 2000  # training patients, and test patients, in an attack
EPOCHS = 100  # of MemGuard's network; the thesis uses five networks and 400 epochs
FILE = "membership.jsonl"


def attack_model(request: Request, network: nn.Module, label: Manifest, rules: ModelRules) -> None:
    """Attack a model that was trained here, and write down the result.

    Raises:
        PolicyError: The model leaks more than the policy allows, or cannot be attacked.
        DeadlineError: The deadline has passed.
    """
    hospital, limit = request.hospital, rules.max_membership
    train, held_out = hospital.data.train, hospital.data.held_out
    last = request.order.round == hospital.settings.num_server_rounds
    if len(np.unique(train.patients)) < 2 or not len(held_out):
        log_once("A model is not attacked: this needs 2 training patients and 1 test image.")
        rules.uphold("max-membership", 1.0)
        return
    with request.clock.measure("evaluate"):
        members, others = (
            _predictions(network, part, request.clock.deadline) for part in (train, held_out)
        )
        report = audit_model(members, others, limit, EPOCHS if last else 0)
    _note(request, label, report)
    for each in report.leaks:
        rules.uphold("max-membership", each["high"] if exceeds(each, limit) else 0.0)


def _predictions(network: nn.Module, part: LocalSamples, deadline: float) -> Predictions:
    """The model's outputs for one image of each patient, of `MOST` random patients at most."""
    rows = one_of_each(part.patients)[:MOST]
    chosen = part[rows.to(part.labels.device)]
    return Predictions(probabilities(network, chosen.images, deadline).nan_to_num(), chosen.labels)


def _note(request: Request, label: Manifest, report: Report) -> None:
    log, leak = logging.getLogger("flwr"), report.evidence["leak"]
    few = "" if report.evidence["able"] else "; the hospital has too few images for a verdict"
    log.info(
        "%s: attacks on the model of %s (round %s) reveal %.0f%% to %.0f%% of training members%s.",
        *(request.hospital.name, label.lineage, label.round),
        *(100 * max(leak[end], 0.0) for end in ("low", "high")),
        few,
    )
    noted = {"lineage": label.lineage, "round": label.round, "hop": label.hop, **report.evidence}
    try:
        append_text(request.run.folder / FILE, json.dumps(noted) + "\n")
    except OSError as error:  # a failure to write results at home never stops a run
        log.warning("The results of attacks cannot be written (%s).", error)
