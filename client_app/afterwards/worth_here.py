"""Assessments of a past run's models at the hospital.

The figures that left the hospital have noise. The hospital has its own images, so it can compute
exact figures: those of a run without a policy, as in a simulation (client_app.release.details).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from sklearn.metrics import roc_curve
from torch import Tensor

from client_app.afterwards.home import load_file
from client_app.afterwards.past_run import PastRun
from client_app.hospital import Hospital
from client_app.release.details import Details, Outputs
from client_app.release.disclosure import open_disclosure
from client_app.request import Clock, Inquiry
from client_app.run import run_folder
from learning.errors import DivergedError
from pages.figures import Assessment, assessment
from pages.verdicts.home import ALL_ROUNDS, OWN_SUMS
from strategies.protocol.order import Order


def released_assessments(past: PastRun) -> list[Assessment]:
    """Released assessments of models, of their mean, and of the own model before hand-offs."""
    return [
        _assessment(about, past.site, figures, past.classes, _own_name(past))
        for about, figures in past.released_figures().items()
        if "balanced-accuracy" in figures
    ]


def open_details(past: PastRun, hospital: Hospital) -> Details:
    """The source of models' exact figures, at the hospital as in the run."""
    order = Order(0, 0, past.site, list(hospital.data.classes), "plain", past.run)
    run = run_folder(hospital.store, past.run)
    inquiry = Inquiry("", order, Clock(math.inf), hospital, run, None)
    return Details(open_disclosure(inquiry))


def exact_assessments(past: PastRun, details: Details) -> list[Assessment]:
    """Test each model at home again on the hospital's test images; return exact assessments.

    Raises:
        ModelError: A model cannot be loaded.
    """
    hospital = details.disclosure.request.hospital
    rows, longer, own_outputs = [], past.alone_file.exists(), None
    if longer:
        own_outputs = details.outputs("", load_file(past.alone_file)[0].to(hospital.device))
    if figures := details.alone_figures(own_outputs):
        own = ALL_ROUNDS if longer else _own_name(past)
        rows.append(_assessment("standalone", past.site, figures, hospital.data.classes, own))
    outputs: list[Outputs] = []
    for lineage, file in past.files.items():
        outputs.append(details.outputs("", load_file(file)[0].to(hospital.device)))
        rows += assess(details, outputs[-1], lineage)
    if len(outputs) > 1:
        mean, seen = (
            torch.stack([getattr(each, part) for each in outputs]).mean(0)
            for part in ("test", "seen")
        )
        rows += assess(details, Outputs("", mean, seen), "ensemble")
    return rows


def own_lineages(past: PastRun) -> set[str]:
    """The lineages that no other hospital has trained."""
    own = {name for name, manifest in past.models.items() if {*manifest.visited} == {past.site}}
    return own | ({past.site} - past.models.keys())


def assess(details: Details, outputs: Outputs, about: str) -> list[Assessment]:
    """The exact assessment of a model with its ROC curves; empty if its outputs are not finite."""
    hospital = details.disclosure.request.hospital
    try:
        figures = details.disclosure.test_figures(outputs.model, outputs.test)
    except DivergedError:
        return []
    classes = hospital.data.classes
    row = _assessment(about, hospital.name, details.figures(outputs, figures), classes)
    return [{**row, "roc": _roc(hospital.data.test.labels, outputs.test)}]


def _roc(labels: Tensor, outputs: Tensor) -> list[tuple[list[float], list[float]]]:
    """False and true positive rates of each class; empty if all images or none are of the class."""
    truth, scores = labels.cpu().numpy(), outputs.cpu().numpy()
    curves = []
    for k in range(scores.shape[1]):
        own = truth == k
        known = 0 < own.sum() < len(own)
        false, true, _ = roc_curve(own, scores[:, k]) if known else (np.empty(0),) * 3
        curves.append((false.tolist(), true.tolist()))
    return curves


def _own_name(past: PastRun) -> str:
    """The name of the hospital's own model of a run."""
    return OWN_SUMS if past.strategy == "sums" else past.site


def _assessment(
    about: str, site: str, figures: Mapping[str, float], classes: Sequence[str], own: str = ""
) -> Assessment:
    """An assessment of a model, the "ensemble", or the model `own` ("standalone")."""
    kind = about if about in ("ensemble", "standalone") else "model"
    model = {"ensemble": "", "standalone": own}.get(about, about)
    known = {name: float(value) for name, value in figures.items()}
    return assessment(kind, model, site, known, classes)
