"""Membership inference on a model before the hospital hands it on.

Attacks (learning.membership) ask of the hospital's own images, from what the model says of them,
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
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from client_app.authority.policy import ModelRules, at_most, uphold
from client_app.request import Request, log_once
from learning.evaluation import probabilities
from learning.intervals import Estimate
from learning.membership import Contrast, Predictions, contrast, exceeds, network_attack
from learning.samples import Samples
from strategies.protocol.parcel import Manifest

MOST = 2000  # images of each kind that are asked about
SEEDS, EPOCHS = 1, 100  # of MemGuard's network, which the thesis trains with 5 and 400
RULE, FILE = "models.max-membership", "membership.jsonl"


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
        found = contrast(-members.losses().cpu().numpy(), -others.losses().cpu().numpy())
        leak, able = found.leak(), _able(found, limit)
        noted = {
            **{"lineage": label.lineage, "round": label.round, "hop": label.hop},
            **{"limit": limit, "leak": asdict(leak), "by-loss": asdict(found), "able": able},
        }
        if last and min(len(members.labels), len(others.labels)) >= 4:
            by_network = network_attack(members, others, SEEDS, EPOCHS)
            noted["by-network"] = asdict(by_network.overall)
    _note(request, noted, leak)
    for each in found.leaks():
        uphold(at_most(RULE, each.high if exceeds(each, limit) else 0.0, limit))


def _predictions(network: nn.Module, part: Samples, deadline: float) -> Predictions:
    """What the model says of some images of the hospital, at random if there are many."""
    rows = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[:MOST]
    chosen = part[rows.to(part.labels.device)]
    return Predictions(probabilities(network, chosen.images, deadline).nan_to_num(), chosen.labels)


def _able(found: Contrast, limit: float) -> bool:
    """The positive control: whether a model that tells them all apart would be noticed."""
    members, others = np.ones(found.attack.members), np.zeros(found.attack.others)
    return contrast(members, others).leak().low > min(limit, 0.5)


def _note(request: Request, noted: dict[str, object], leak: Estimate) -> None:
    log = logging.getLogger("flwr")
    few = "" if noted["able"] else "; the hospital has too few images to tell"
    log.info(
        "%s: attacks on the model of %s (round %s) tell %.0f%% to %.0f%% of who was trained on%s.",
        *(request.hospital.name, noted["lineage"], noted["round"]),
        *(100 * max(end, 0.0) for end in (leak.low, leak.high)),
        few,
    )
    path = request.run.folder / FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            path.chmod(0o600)
            file.write(json.dumps(noted) + "\n")
    except OSError as error:  # a run is never disturbed by what is kept at home
        log.warning("What attacks found cannot be kept (%s).", error)
