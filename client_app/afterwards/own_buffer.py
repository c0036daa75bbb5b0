"""What a hospital's synthetic images are worth at home, and which of its own they are most like.

A model is trained on them alone, as FedER-B does (`feder.variant = synthetic-only`), and tested on
the hospital's own test images. It is no model of the run: it trains for `PASSES` passes or
`SECONDS`, so that a report can be waited for. The search takes 20 s for 512 synthetic and 1,000
training images of 28 pixels on one core. Real images are on the hospital's own page alone.
"""

import time
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from audit.search import Search
from client_app.afterwards.alone import settings_of
from client_app.afterwards.past_run import OwnBuffer, PastRun
from client_app.afterwards.worth_here import model_assessments
from client_app.hospital import Hospital
from client_app.release.details import Details
from learning.learners.plain import Learner, Received
from learning.samples import Samples
from learning.training import train
from pages.figures import Assessment
from strategies.protocol.console import Pace
from strategies.protocol.settings import rng_for

PASSES, SECONDS = 30, 60.0  # of training, at most
PAIRS = 10  # nearest pairs that are shown
SEARCHED = 2000  # synthetic images that the nearest are looked for of


@dataclass(frozen=True, eq=False)
class Pair:
    """A synthetic image and the training image that it is most like.

    Attributes:
        label: The class of the synthetic one.
        synthetic: uint8 [C, H, W].
        real: uint8 [C, H, W].
        unexplained: The share of the synthetic one that the real one, changed in the way that fits
            best, does not explain: 0 for a copy.
    """

    label: str
    synthetic: Tensor
    real: Tensor
    unexplained: float


@dataclass(frozen=True, eq=False)
class Examination:
    """What came of it.

    Attributes:
        worth: Figures of the model that was trained on the synthetic images alone; None if its
            outputs are no numbers.
        passes: Over the synthetic images.
        seconds: That the training took.
        pairs: The nearest first.
    """

    worth: Assessment | None
    passes: int
    seconds: float
    pairs: list[Pair]


def examine(past: PastRun, buffer: OwnBuffer, hospital: Hospital, details: Details) -> Examination:
    """Train on the synthetic images of a past run alone, and look for what they are most like.

    Args:
        past: The run.
        buffer: The images that left in it.
        hospital: As it was in the run.
        details: Of its assessments.

    Raises:
        SettingsError: The settings of the run are not known.
        ModelError: No model can be built.
    """
    settings = settings_of(past)
    hospital = replace(hospital, settings=settings)
    samples = buffer.samples.to(hospital.device)
    torch.set_num_threads(settings.cpu_threads)
    network = hospital.first_model().to(hospital.device)
    learner = Learner(network, samples, settings, Received())
    pace, began, passes = Pace("trains on synthetic images alone", "images"), time.monotonic(), 0
    while passes < PASSES and time.monotonic() < began + SECONDS:
        passes += 1
        rng = rng_for(settings.seed, "visit", passes, 1, hospital.name)
        train(learner, settings.train.round_settings(passes), 1, rng, inf, progress=pace)
    seconds = time.monotonic() - began
    worth = next(iter(model_assessments(details, network, "synthetic images alone")), None)
    pairs = nearest_pairs(samples, hospital.data.train, hospital.data.classes)
    return Examination(worth, passes, seconds, pairs)


def nearest_pairs(synthetic: Samples, training: Samples, classes: tuple[str, ...]) -> list[Pair]:
    """The synthetic images that are most like a training image, each with that one."""
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
