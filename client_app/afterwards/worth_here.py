"""What the models of a past run are worth at the hospital: their assessments.

The figures that the hospital told have noise. Its own images are at hand, so it can have exact
ones: those that it would tell without a policy, as in a simulation (client_app.release.details).
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from client_app.afterwards.again import hospital_again
from client_app.afterwards.home import load_file
from client_app.afterwards.past_run import Figures, PastRun
from client_app.authority.policy import Policy
from client_app.release.details import Details, Said
from client_app.release.disclosure import open_disclosure
from client_app.request import Clock, Inquiry
from client_app.run import run_folder
from learning.errors import DivergedError
from pages.figures import Assessment, assessment
from pages.verdicts.home import AS_LONG
from strategies.protocol.order import Order


def released_assessments(past: PastRun) -> list[Assessment]:
    """What the hospital told of models, of their mean, and of its own before the first hand-off."""
    return [
        _assessment(about, past.site, figures, past.classes)
        for about, figures in past.released_figures().items()
        if "balanced-accuracy" in figures
    ]


def exact_assessments(past: PastRun, data_dir: Path, policy: Policy | None) -> list[Assessment]:
    """The same, exact: each model at home is tested again on the hospital's own test images.

    Args:
        past: The run.
        data_dir: The hospital's images, or its manifest, as in the run.
        policy: That of the run; None in a simulation.

    Raises:
        DataError: The images cannot be used, or are not those of the run.
        ModelError: A model cannot be loaded.
    """
    hospital = hospital_again(past, data_dir, policy)
    classes, device, store = hospital.data.classes, hospital.device, hospital.store
    order = Order(0, 0, past.site, list(classes), "plain", past.run)
    run = run_folder(store, past.run)
    disclosure = open_disclosure(Inquiry("", order, Clock(math.inf), hospital, run, None))
    details = Details(disclosure)
    rows = []
    longer = past.alone.exists()
    said_alone = details.ask("", load_file(past.alone)[0].to(device)) if longer else None
    if alone := details.alone_figures(said_alone):
        rows.append(_assessment("standalone", past.site, alone, classes))
        rows[-1]["model"] = AS_LONG if longer else past.site
    said: list[Said] = []
    for lineage, file in past.files.items():
        said.append(details.ask("", load_file(file)[0].to(device)))
        rows += _assessments(details, said[-1], lineage, classes)
    if len(said) > 1:
        mean, seen = (
            torch.stack([getattr(each, part) for each in said]).mean(0) for part in ("test", "seen")
        )
        rows += _assessments(details, Said("", mean, seen), "ensemble", classes)
    return rows


def own_lineages(past: PastRun) -> set[str]:
    """The models in which no other hospital had a part."""
    own = {name for name, manifest in past.models.items() if {*manifest.visited} == {past.site}}
    return own | ({past.site} - past.models.keys())


def _assessments(
    details: Details, said: Said, about: str, classes: Sequence[str]
) -> list[Assessment]:
    """What is said of a model; nothing if its outputs are no numbers."""
    try:
        figures = details.disclosure.test_figures(said.model, said.test)
    except DivergedError:
        return []
    site = details.disclosure.request.hospital.name
    return [_assessment(about, site, details.figures(said, figures), classes)]


def _assessment(about: str, site: str, figures: Figures, classes: Sequence[str]) -> Assessment:
    kind = about if about in ("ensemble", "standalone") else "model"
    model = {"ensemble": "", "standalone": site}.get(about, about)
    known = {name: float(value) for name, value in figures.items()}
    return assessment(kind, model, site, known, classes)
