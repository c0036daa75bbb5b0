"""What may leave a hospital: the complete list.

An answer to the server holds the records that `ANSWERS` lists for its verb, with no card field but
those in `CARD` and no metric but those in `METRICS`, or it is one failure out of `Failure`. A # in
a name stands for a number. Anything else is refused, at the hospital before it leaves and at the
server when it arrives (`check_answer`). What the records of a parcel hold is in parcel.py. Nothing
that travels is ever pickled.
"""

import re
from enum import IntEnum

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

PARCEL_RECORDS = {
    "model": ArrayRecord,
    "buffer": ArrayRecord,
    "memory": ArrayRecord,
    "manifest": ConfigRecord,
}
_LABELS = {"manifest": ConfigRecord, "metrics": MetricRecord}
ANSWERS: dict[str, dict[str, type]] = {
    "query.live": {},
    "query.enrol": {"metrics": MetricRecord, "card": ConfigRecord},
    "query.prepare": {**PARCEL_RECORDS, "metrics": MetricRecord, "card": ConfigRecord},
    "train": {
        "model": ArrayRecord,
        "memory": ArrayRecord,
        **_LABELS,
        # The model after each epoch but the last, if the order asks for `snapshots`.
        "epoch-#/model": ArrayRecord,
        "epoch-#/manifest": ConfigRecord,
    },
    "evaluate": {"metrics": MetricRecord},
}
CARD = frozenset(
    {
        "hospital",  # its name
        "classes",  # the names of its classes
        "shape",  # of its images: channels, height, width
        "identity",  # the public half of its keys
        "release",  # the release check's result
    }
)
# Perceptual distances carry the name of what measured them: LPIPS, or an untrained network of the
# same shape where there are no trained weights.
DISTANCES = [
    f"{weights}-{net}" for weights in ("lpips", "untrained") for net in ("alex", "squeeze", "vgg")
]
METRICS = frozenset(
    {
        "num-train",  # images the hospital trains on
        "num-test",  # images it tests on
        "num-quarantined",  # images it has and cannot use
        "num-examples",  # images behind the metrics of this answer
        "train-loss",  # mean over the last epoch of a visit
        "accuracy",
        "accuracy-after-visit",  # on the hospital's own test images
        "balanced-accuracy",
        "auroc",
        # With `evaluate.per-class`: test images of a class, and how many of them the model gets.
        "images-of-class-#",
        "right-of-class-#",
        "seconds-prepare",
        "seconds-train",
        "seconds-evaluate",
        "seconds-serialise",
        # The hospital's GAN: iterations of both phases, Fréchet distance of its images to the real
        # ones (`fid`, or in the features of the hospital's own classifier), probability of ADA, and
        # whether (1 or 0) the privacy loss has had a part in it.
        "gan-iterations",
        "gan-private",
        "fid",
        "frechet-classifier",
        "ada-p",
        # The check of the buffer (gan.audit); distances as fractions of the pixels' range, or
        # perceptual.
        "release-passed",
        "release-discarded",
        "release-refused",
        "release-nearer-to-training",
        *(
            f"{figure}-{distance}"
            for figure in ("release-threshold", "release-nearest", "release-median")
            for distance in ("pixels", *DISTANCES)
        ),
        *(
            f"{figure}-{distance}"
            for figure in ("held-out-nearest", "held-out-median")
            for distance in ("pixels", *DISTANCES)
        ),
        # Mean distance of two images of one class; of real images to their projections.
        *(f"diversity-{kind}-{d}" for kind in ("real", "synthetic") for d in DISTANCES),
        *(f"projection-{kind}-{d}" for kind in ("plain", "private") for d in DISTANCES),
    }
)


class Failure(IntEnum):
    """Why a hospital did not do its part; the number is the code of the Flower Error."""

    SETTINGS = 4201  # the settings of the run cannot be used
    DATA = 4202  # the hospital's data cannot be used
    PARCEL = 4203  # the parcel that arrived was refused
    DIVERGED = 4204  # training gave a model that is not finite
    TIMEOUT = 4205  # no answer within the time allowed
    CRASHED = 4206  # an unforeseen error; its details stay in the hospital's own log
    UNDECLARED = 4207  # the answer held something that may not leave a hospital
    GONE = 4208  # the hospital is not connected
    RELEASE = 4209  # the hospital's synthetic images may not leave it
    POLICY = 4210  # the hospital's policy does not allow it


class UndeclaredError(ValueError):
    """An answer holds something that `ANSWERS`, `CARD` or `METRICS` does not list."""


def check_answer(verb: str, content: RecordDict) -> None:
    """Refuse an answer that holds anything which may not leave a hospital.

    Raises:
        UndeclaredError: Names the record, card field or metric.
    """
    declared = ANSWERS.get(verb.replace("train.rewind", "train"), {})
    for name, record in content.items():
        if type(record) is not declared.get(_pattern_of(name)):
            raise UndeclaredError(
                f"The record '{name}' may not leave a hospital in answer to {verb}."
            )
    if extra := set(content.get("card", {})) - CARD:
        raise UndeclaredError(f"The card field '{min(extra)}' may not leave a hospital.")
    for key, value in content.get("metrics", {}).items():
        if metric_of(key) not in METRICS or isinstance(value, list):
            raise UndeclaredError(f"The metric '{key}' may not leave a hospital.")


def metric_of(key: str) -> str:
    """The name in `METRICS` of a metric, which may stand behind the name of a model."""
    return _pattern_of(key.rpartition("/")[2])


def _pattern_of(name: str) -> str:
    return re.sub("[0-9]+", "#", name)
