"""Test performance from a hospital's synthetic images, and their nearest training images.

A model trains on the synthetic images alone, as in FedER-B (`feder.variant = synthetic-only`). The
hospital tests it on its own test images. The model is not part of the run: it trains for at most
`PASSES` passes or `SECONDS` seconds, so that the report is soon complete. The search takes 20 s for
512 synthetic and 1,000 training images of 28 pixels on one core. Real images appear only on the
hospital's own page.
"""

import time
from dataclasses import dataclass, replace
from math import inf

from torch import Tensor

from audit.search import Search
from client_app.afterwards.alone import settings_of
from client_app.afterwards.past_run import PastRun
from client_app.afterwards.worth_here import assess
from client_app.hospital import Hospital
from client_app.release.buffer.job import Release
from client_app.release.details import Details
from learning.cpu import prepare_cpu
from learning.learners.plain import Learner, Received
from learning.samples import Samples
from learning.training import train
from pages.figures import Assessment
from strategies.protocol.console import Pace
from strategies.protocol.settings import rng_for

PASSES, SECONDS = 30, 60.0  # limits of training
PAIRS = 10  # nearest pairs on the page
SEARCHED = 2000  # synthetic images with a search for the nearest training image


@dataclass(frozen=True, eq=False)
class Pair:
    """A synthetic image of class `label` and its nearest training image, both uint8 [C, H, W].

    The best comparison of the search leaves a share of the synthetic image unexplained: 0 for a
    copy, and for a mixture of training images.
    """

    label: str
    synthetic: Tensor
    real: Tensor
    unexplained: float


@dataclass(frozen=True, eq=False)
class Examination:
    """The result of the examination."""

    # Figures of the model that trained on the synthetic images alone; None if its outputs are not
    # finite
    worth: Assessment | None
    passes: int  # number of passes over the synthetic images
    seconds: float  # time of training
    pairs: list[Pair]  # nearest pairs, the nearest first


def examine(past: PastRun, buffer: Release, hospital: Hospital, details: Details) -> Examination:
    """Train on the synthetic images of a past run alone, and find their nearest training images.

    Raises:
        SettingsError: The settings of the run are unknown.
        ModelError: The model cannot be built.
    """
    settings = settings_of(past)
    hospital = replace(hospital, settings=settings)
    samples = buffer.samples.to(hospital.device)
    prepare_cpu(settings.cpu_threads)
    network = hospital.first_model().to(hospital.device)
    learner = Learner(network, samples, settings, Received())
    pace, began, passes = Pace("trains on synthetic images alone", "images"), time.monotonic(), 0
    while passes < PASSES and time.monotonic() < began + SECONDS:
        passes += 1
        rng = rng_for(settings.seed, "visit", passes, 1, hospital.name)
        train(learner, settings.train.round_settings(passes), 1, rng, inf, progress=pace)
    seconds = time.monotonic() - began
    rows = assess(details, details.outputs("", network), "synthetic images alone")
    pairs = nearest_pairs(samples, hospital.data.train, hospital.data.classes)
    return Examination(rows[0] if rows else None, passes, seconds, pairs)


def nearest_pairs(synthetic: Samples, training: Samples, classes: tuple[str, ...]) -> list[Pair]:
    """The `PAIRS` synthetic images nearest to a training image, each with that image."""
    search, images = Search(training.images), synthetic.images[:SEARCHED]
    found = search(images)
    unexplained = found.residuals.amin(dim=1)
    return [
        Pair(
            classes[int(synthetic.labels[row])],
            images[row],
            training.images[found.index[row]],
            float(unexplained[row].exp()),
        )
        for row in unexplained.argsort(stable=True)[:PAIRS].tolist()
    ]
