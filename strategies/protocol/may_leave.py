"""The records that may leave a hospital: the complete list.

An answer to the server has the records that `ANSWERS` lists for its verb, only card fields from
`CARD`, and only metrics from `METRICS`; or it is one failure from `Failure`. A # in a name stands
for a number. Everything else is refused (`check_answer`): at the hospital before it leaves, and at
the server when it arrives. Values are checked, too: a text of the wrong kind, or a number outside
its range, does not leave. parcel.py describes the records of a parcel. No message is ever pickled.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from strategies.protocol.data_sets import KINDS
from strategies.protocol.keys import is_key
from strategies.protocol.names import is_array_name, is_name, names_hospital
from strategies.protocol.records import find_record
from strategies.protocol.tested import TESTED

NUMBER = re.compile("(?<![0-9])(0|[1-9][0-9]{0,5})(?![0-9])")  # in a name
PARCEL_RECORDS = {
    "model": ArrayRecord,
    "buffer": ArrayRecord,
    "memory": ArrayRecord,
    "embeddings": ArrayRecord,
    "sums": ArrayRecord,
    "optimizer": ArrayRecord,
    "manifest": ConfigRecord,
}
ANSWERS: dict[str, dict[str, type]] = {
    "query.live": {},
    "query.enrol": {"metrics": MetricRecord, "card": ConfigRecord},
    "query.prepare": {
        "model": ArrayRecord,
        "buffer": ArrayRecord,
        "manifest": ConfigRecord,
        "metrics": MetricRecord,
        "card": ConfigRecord,
    },
    "train": {
        "model": ArrayRecord,
        "memory": ArrayRecord,
        "embeddings": ArrayRecord,  # only if the order asks for them
        "sums": ArrayRecord,  # of features, with the learner `sums` alone
        "optimizer": ArrayRecord,  # Adam's moments, if the run's `train.optimizer-state` travels
        "manifest": ConfigRecord,
        "metrics": MetricRecord,
        # The model after each epoch but the last, if the order asks for `snapshots`.
        "epoch-#/model": ArrayRecord,
        "epoch-#/manifest": ConfigRecord,
    },
    "evaluate": {"metrics": MetricRecord},
}
MAX_CLASSES = 1000
# In one answer. So many, of the longest names, fit in a line of the server's file
# (strategies.engine.events.LONGEST).
MOST_METRICS = 1_000_000
# Settings that a hospital's node-config may replace: how it trains, and files of its own.
OWN_FILES = (
    "pretrained",
    "filver.pretrain",
    "gan.lpips-weights",
    "gan.inception-weights",
    "mah.auxiliary",
    "ser.oracle",
    "twf.teacher",
)
OWN_SETTINGS = ("model", "train.batch-size", "train.learning-rate", *OWN_FILES)


def _is_text(value: object, longest: int = 100) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= longest


def are_classes(value: object) -> bool:
    """Whether a value can be the names of classes."""
    return isinstance(value, list) and len(value) <= MAX_CLASSES and all(map(_is_text, value))


def _is_shape(value: object) -> bool:
    sides = value if isinstance(value, list) else []
    return len(sides) == 3 and all(type(side) is int and 0 < side < 2**16 for side in sides)


def _matches(pattern: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _are_settings(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= len(OWN_SETTINGS)
        and all(_is_text(text) and str(text).partition("=")[0] in OWN_SETTINGS for text in value)
    )


_is_hash = _matches("(keyed-)?[0-9a-f]{16}")
CARD: dict[str, Callable[[object], bool]] = {
    "hospital": lambda value: isinstance(value, str) and names_hospital(value),  # its name
    "classes": are_classes,  # the names of its classes
    "shape": _is_shape,  # of its images: channels, height, width
    "frozen": _matches("[0-9a-f]{64}"),  # hash of the weights that made features of its images
    "identity": is_key,  # the public half of its keys
    "release": lambda value: _is_text(value, 300),  # the release check's result
    "dossier": _matches("[0-9a-f]{64}"),  # hash of its buffer's dossier; the dossier stays
    # The kind of its data set, without name or path
    "data": _matches(f"({'|'.join(KINDS)})( of DICOM files)?"),
    "train-images": _is_hash,  # hash of the training images, keyed with a secret of the hospital
    "test-images": _is_hash,
    "own-settings": _are_settings,  # settings that its node-config replaces, without names of files
}


@dataclass(frozen=True)
class Range:
    """The values that a figure may have."""

    low: float
    high: float
    unknown: bool = False  # whether it may be NaN or infinite
    least: float = 0.0  # the least value above 0

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return self.unknown
        return self.low <= value <= self.high and not 0 < value < self.least


# The server divides by counts, and adds up figures: no result may be too large for a float.
COUNT, SECONDS, SHARE = Range(0, 1e12, least=1), Range(0, 1e9), Range(0, 1)
AMOUNT, FIGURE = Range(0, 1e12), Range(-1e100, 1e100, unknown=True)
# A perceptual distance has the name of its measure: LPIPS, or an untrained network of the same
# shape if there are no trained weights.
DISTANCES = [f"{weights}-{net}" for weights in ("lpips", "untrained") for net in ("squeeze", "vgg")]
# After the last round (client_app.release.details). Such a name may also end in -low or -high, the
# ends of a 95 % interval. Sensitivity and specificity are of class # against the others at its
# operating point, a probability chosen on training images.
_WITH_INTERVAL = {
    **dict.fromkeys(TESTED, SHARE),
    "calibration-error": SHARE,  # expected calibration error
    "gain": Range(-1, 1),  # in balanced accuracy, over the model that the hospital trained alone
    "recall-of-class-#": SHARE,
    "sensitivity-of-class-#": SHARE,
    "specificity-of-class-#": SHARE,
    "right-in-bin-#": SHARE,  # among the answers with a confidence of # to # + 1 tenths
}
METRICS: Mapping[str, Range] = {
    "num-train": COUNT,  # images the hospital trains on
    "num-test": COUNT,  # images it tests on
    "num-quarantined": COUNT,  # images it has and cannot use
    "num-train-patients": COUNT,  # patients of these images, if known
    "num-test-patients": COUNT,
    "train-images-of-class-#": COUNT,
    "test-images-of-class-#": COUNT,
    "num-examples": COUNT,  # images behind the metrics of this answer
    "train-loss": FIGURE,  # mean over the last epoch of a visit
    **_WITH_INTERVAL,
    **{f"{name}-{end}": each for name, each in _WITH_INTERVAL.items() for end in ("low", "high")},
    "accuracy-after-visit": SHARE,  # on the hospital's own test images
    "accuracy-of-task-#": SHARE,  # where images arrive in tasks: on the test images of task #
    "accuracy-in-task-#": SHARE,  # the same, with the task's classes as the only answers
    # The standard deviation of the noise in a figure; absent if the figure is exact.
    **{f"{name}-noise": SHARE for name in (*TESTED, "gain")},
    # With `evaluate.per-class`: test images of a class, and the number with a right answer.
    "images-of-class-#": COUNT,
    "right-of-class-#": AMOUNT,  # no whole number if the share has noise
    "threshold-of-class-#": SHARE,  # its operating point
    "answers-#-of-class-#": COUNT,  # images of the second class # for which the answer is the first
    "images-in-bin-#": COUNT,
    "confidence-in-bin-#": SHARE,  # mean of these answers
    "num-patients": COUNT,  # patients behind the metrics of this answer, if known
    "patients-of-class-#": COUNT,
    # 1 if a visit could not use the buffer in this place of its order, from 0
    "buffer-unused-#": SHARE,
    "refused": Range(4200, 4299),  # the hospital could not test a model: a number of `Failure`
    "seconds-prepare": SECONDS,
    "seconds-train": SECONDS,
    "seconds-evaluate": SECONDS,
    "seconds-serialise": SECONDS,
    # The hospital's GAN: iterations of both phases, Fréchet distance of its images to the real
    # ones (`fid`, or in the features of another network), probability of ADA, and 1 if the
    # privacy loss has had a part in it, else 0.
    "gan-iterations": COUNT,
    "gan-private": SHARE,
    # ε and δ of a generator with a guarantee.
    "gan-epsilon": FIGURE,
    "gan-delta": SHARE,
    # With `train.dp`: ε of all the hospital's releases with noise, this visit included.
    "epsilon-spent": FIGURE,
    "fid": FIGURE,
    "frechet-classifier": FIGURE,
    "frechet-untrained": FIGURE,
    "ada-p": SHARE,
    # The check of the buffer (audit/copies.py): shares of images; `release-nearer-p`, the
    # probability that a generator which memorised nothing gives a buffer so near to these.
    "release-passed": SHARE,
    "release-discarded": SHARE,
    "release-refused": SHARE,
    "release-median-rank": SHARE,
    "held-out-refused": SHARE,
    "release-nearer-to-training": SHARE,
    "release-nearer-p": SHARE,
    # The check of embeddings (audit/embeddings.py): share that an attacker links to their image,
    # and share of an image that is restored; bits that an embedding reveals of its image.
    "embedding-linked": SHARE,
    "embedding-inverted": SHARE,
    "embedding-bits-median": AMOUNT,
    "embedding-bits-most": AMOUNT,
    # Mean distance of a synthetic image to the nearest training image (PLAN's mmL).
    **{f"mml-{distance}": FIGURE for distance in DISTANCES},
    # Mean distance of two images of one class; of real images to their projections.
    **{f"diversity-{kind}-{d}": FIGURE for kind in ("real", "synthetic") for d in DISTANCES},
    **{f"projection-{kind}-{d}": FIGURE for kind in ("plain", "private") for d in DISTANCES},
}


class Failure(IntEnum):
    """The kinds of failure; the number is the code of Flower's Error."""

    SETTINGS = 4201  # the settings of the run cannot be used
    DATA = 4202  # the hospital's data cannot be used
    PARCEL = 4203  # the parcel that arrived was refused
    DIVERGED = 4204  # training diverged: the model is useless, and did not leave
    TIMEOUT = 4205  # no answer within the time allowed
    CRASHED = 4206  # an unforeseen error; its details stay in the hospital's own log
    UNDECLARED = 4207  # the answer held something that may not leave a hospital
    GONE = 4208  # the hospital is not connected
    RELEASE = 4209  # the hospital's synthetic images may not leave it
    POLICY = 4210  # the hospital's policy does not allow it
    LEDGER = 4211  # the hospital cannot write its ledger, so nothing leaves
    USELESS = 4212  # the model that arrived is useless: its last trainer has failed

    @property
    def outcome(self) -> str:
        """Its name in the records of the server and of a hospital."""
        return self.name.lower()


class Failed(Error):
    """A failure; Flower sends only its code, a `Failure`, and its reason in words.

    `rule` is the broken rule of the policy, for the hospital's ledger; empty for other failures.
    """

    def __init__(self, code: int, reason: str, rule: str = "") -> None:
        super().__init__(code, reason)
        self.rule = rule


class UndeclaredError(ValueError):
    """An answer holds something that `ANSWERS`, `CARD` or `METRICS` does not list."""


def check_answer(verb: str, content: RecordDict, sent: RecordDict | None = None) -> None:
    """Refuse an answer to a verb that holds anything which may not leave a hospital.

    With the message `sent`, the answer may have no model, epoch or figures that this does not ask
    for.

    Raises:
        UndeclaredError: A record, array, card field or metric may not leave; names it.
    """
    declared = ANSWERS.get(verb.replace("train.rewind", "train"), {})
    metrics = find_record(content, "metrics", MetricRecord) or MetricRecord()
    abouts = {name.rpartition("/")[0] for name in (*content, *metrics)}
    order = find_record(sent or RecordDict(), "order", ConfigRecord) or ConfigRecord()
    asked = {about for about in abouts if sent is None or _is_asked(about, order, sent)}
    tested = {about for about in asked if verb == "evaluate" and is_name(about)}
    for name, record in content.items():
        fits = type(record) is declared.get(_pattern_of(name))
        fits &= name != "sums" or sent is None or order.get("learner") == "sums"
        if not fits or ("/" in name and name.rpartition("/")[0] not in asked):
            raise UndeclaredError(
                f"The record '{_quote(name)}' may not leave a hospital in answer to {verb}."
            )
        if isinstance(record, ArrayRecord) and (bad := [k for k in record if not is_array_name(k)]):
            raise UndeclaredError(f"An array called '{_quote(bad[0])}' may not leave a hospital.")
    for field, value in (find_record(content, "card", ConfigRecord) or {}).items():
        if field not in CARD or not CARD[field](value):
            raise UndeclaredError(
                f"The card field '{_quote(field)}' or its value may not leave a hospital."
            )
    if len(metrics) > MOST_METRICS:
        raise UndeclaredError(f"{len(metrics)} metrics in one answer may not leave a hospital.")
    for key, figure in metrics.items():
        about, slash, metric = key.rpartition("/")
        named = not slash or about in tested
        allowed = METRICS.get(_pattern_of(metric))
        if not named or allowed is None or isinstance(figure, list) or figure not in allowed:
            raise UndeclaredError(
                f"The metric '{_quote(key)}' or its value may not leave a hospital."
            )


def _is_asked(about: str, order: ConfigRecord, sent: RecordDict) -> bool:
    """Whether a message asks for the model after this epoch, or for figures of this model."""
    if about == "standalone":
        return bool(order.get("final"))
    if epoch := re.fullmatch("epoch-([0-9]{1,6})", about):
        return bool(order.get("snapshots")) and 0 < int(epoch[1]) < int(str(order.get("epochs")))
    return f"{about}/model" in sent or (about == "ensemble" and bool(order.get("ensemble")))


def metric_of(key: str) -> str:
    """The name in `METRICS` of a metric, without a model's name before it."""
    return _pattern_of(key.rpartition("/")[2])


def _pattern_of(name: str) -> str:
    """The name with # for each number; empty for a name with a # of its own."""
    return "" if "#" in name else NUMBER.sub("#", name)


def _quote(name: str) -> str:
    """The text of an unchecked name, for an error."""
    return ascii(name[:80])[1:-1]
