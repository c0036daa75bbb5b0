"""The figures of a buffer, and the names under which they leave."""

from collections.abc import Mapping

from client_app.buffer.job import Job, some
from gan.quality import within_class_diversity
from learning.samples import Samples
from strategies.protocol.may_leave import METRICS, UndeclaredError


def diversity(job: Job, samples: Samples) -> dict[str, float]:
    """Mean distance of two images of a class: of the buffer, and of as many real images."""
    kinds = {"real": some(job.learnt, len(samples)), "synthetic": samples}
    return {
        f"diversity-{kind}-perceptual": within_class_diversity(
            each.images, each.labels, job.distance
        )
        for kind, each in kinds.items()
    }


def declared(figures: Mapping[str, float], job: Job) -> dict[str, float]:
    """The figures under the names that leave: "perceptual" becomes the name of the distance.

    Raises:
        UndeclaredError: A name is not in METRICS.
    """
    named = {key.replace("perceptual", job.distance.name): each for key, each in figures.items()}
    if undeclared := sorted(named.keys() - METRICS):
        raise UndeclaredError(
            f"The figure '{undeclared[0]}' is not declared: add it to METRICS in "
            "strategies/protocol/may_leave.py, or do not measure it."
        )
    return named
