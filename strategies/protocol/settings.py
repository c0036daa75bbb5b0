"""The settings of a run: [tool.flwr.app.config] in pyproject.toml, checked once and frozen.

All defaults are in pyproject.toml. Flower flattens its tables (`[...config.train] epochs` is
`train.epochs`) and refuses unknown keys. `Settings.parse` checks types and ranges; each error names
the key, the value and the allowed values. Settings of a single method or learner are declared in
its file, in a frozen dataclass for `Settings.section`.

The seed is a setting, so the one source of random numbers, `rng_for`, is here.
"""

import hashlib
import math
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator

from strategies.protocol.declared import (
    LARGEST,
    AboveZero,
    Amount,
    Count,
    Delta,
    Epsilon,
    OneOrMore,
    Passes,
    Share,
    ShareBelowOne,
    TwoOrMore,
    bounds,
    condition,
    declare,
    excerpt,
    keys_of,
    near_miss,
    pattern,
    read,
    refusal,
    zero_or,
)
from strategies.protocol.learners import OtherLearner, ReplayingLearner
from strategies.protocol.redaction import redact

BY_CLASSES = ("classes", "shared-classes")  # values of `task-cut`: a task is a set of classes
PUBLIC = "public:"  # prefix of a setting that names a file of public images
MAX_SIDE = 4096  # pixels of an image
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
# Settings that may change when a run is resumed.
MAY_CHANGE = {
    "resume",
    "hop-timeout",
    "prepare-timeout",
    "min-hospitals",
    "output-dir",
    "tracking",
    "workers",
}

TableT = TypeVar("TableT")


class SettingsError(ValueError):
    """A setting has a value that cannot be used. The text shows no password or token."""

    def __init__(self, text: str) -> None:
        super().__init__(redact(text))


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Refuse a setting (SettingsError) if `condition` is false."""
    if not condition:
        raise SettingsError(refusal(key, value, allowed))


def _numbers(lowest: int) -> AfterValidator:
    """An annotation of texts that are empty, or whole numbers separated by commas."""
    allowed = f"numbers of {lowest} or more, separated by commas, such as '32,8', or empty"
    return condition(lambda text: not text or _are_numbers(text, lowest), allowed)


def _are_numbers(text: str, lowest: int) -> bool:
    each = [number.strip() for number in text.split(",")]
    return all(re.fullmatch("[0-9]{1,9}", one) and int(one) >= lowest for one in each)


def _is_cross(chosen: bool | str) -> bool:
    if isinstance(chosen, bool):
        return True
    return bool(re.fullmatch("sample:[0-9]{1,6}", chosen)) and int(chosen[7:]) > 1


def _are_seconds(text: str) -> bool:
    try:
        return not text or all(0 < float(each) < math.inf for each in text.split(","))
    except ValueError:
        return False


_KSalsa = Literal["k-salsa", "k-salsa-blind", "k-salsa-plan", "k-salsa-blind-plan"]
_Augment = Literal["none", "flip", "flip-rotate", "crop-flip", "crop-flip-cutout", "affine-colour"]
_CROSS = "true or false, or 'sample:' and a number of 2 or more"
_SECONDS = "numbers above 0, separated by commas, such as '1,1,20', or empty"
_WEIGHTS = "imagenet, package:efficientnet-lite0, an absolute path, or empty"
_WIDTHS = "widths of 1 or more, separated by commas, such as '256,256'"
# The working directory of a Flower process is not the user's.
_PLACE = "an absolute path, or one that starts with ~"
_OptionalFile = Annotated[str, pattern("(/.*)?", "an absolute path, or empty")]
_OptionalPlace = Annotated[str, pattern("([/~].*)?", f"{_PLACE}, or empty")]


@declare
class DPSettings:
    """Training with a guarantee, by DP-SGD: the keys `train.dp.*`."""

    noise_multiplier: Annotated[float, zero_or(0.1, 1000)]
    # Noise in float32 is no smaller. Larger gradients are of no use, and larger noise neither.
    clipping_norm: Annotated[float, bounds(1e-6, 1000)]
    delta: Delta


@declare
class TrainSettings:
    """The training of a model at a hospital: the keys `train.*`."""

    epochs: Passes
    batch_size: TwoOrMore
    batch_sizes: Annotated[str, _numbers(2)]
    class_balance: Literal["none", "sampler", "loss"]
    focal_gamma: Annotated[float, bounds(0, 10)]
    optimizer: Literal["adam", "sgd"]
    optimizer_state: Literal["fresh", "travels"]
    learning_rate: AboveZero
    weight_decay: Amount
    halve_every: Count
    augment: _Augment
    freeze: Literal["none", "statistics", "body"]
    dp: DPSettings

    def __post_init__(self) -> None:
        # The weight of a class depends on all images.
        apart = not self.dp.noise_multiplier or self.class_balance == "none"
        allowed = "none with a train.dp.noise-multiplier above 0"
        require(apart, "train.class-balance", self.class_balance, allowed)
        has_state = self.optimizer == "adam" or self.optimizer_state == "fresh"
        allowed = "fresh with train.optimizer 'sgd', which has no momentum and so no state"
        require(has_state, "train.optimizer-state", self.optimizer_state, allowed)

    def check_learner(self, learner: str) -> None:
        """Refuse (SettingsError) DP-SGD with any learner but `plain`: their losses have more."""
        allowed = f"0 with the learner '{learner}': DP-SGD is for 'plain' alone"
        noise = self.dp.noise_multiplier
        require(not noise or learner == "plain", "train.dp.noise-multiplier", noise, allowed)

    def round_settings(self, server_round: int) -> "TrainSettings":
        """The settings of a round, with the learning rate halved every `halve-every` rounds."""
        halved = server_round // self.halve_every if self.halve_every else 0
        rate = math.ldexp(self.learning_rate, -halved)  # 0 after a thousand times
        return replace(self, learning_rate=rate or sys.float_info.min)

    def hospital_settings(self, hospital: int) -> "TrainSettings":
        """The settings of a simulated hospital, from 0; hospitals take `batch-sizes` in turn."""
        size = turn_value(self.batch_sizes, hospital)
        return replace(self, batch_size=int(size)) if size else self


@declare
class EvaluateSettings:
    """The rounds and the extent of tests: the keys `evaluate.*`."""

    every: OneOrMore
    epochs: bool
    cross: Annotated[bool | str, condition(_is_cross, _CROSS)]
    ensemble: bool
    per_class: bool

    @property
    def sample(self) -> int:
        """The number of hospitals that test a model without holding it; 0 = no sample is drawn."""
        return int(self.cross.removeprefix("sample:")) if isinstance(self.cross, str) else 0


@declare
class GANSettings:
    """The hospitals' generative models: the keys `gan.*`."""

    method: Literal["stylegan2-ada", "dp-mean-embedding", "class-gaussians"]
    epsilon: Epsilon
    delta: Delta
    preset: str
    sampler: Literal["random", "linear", "plan", "lci", "lci-plan", _KSalsa]
    clusters: Annotated[str, _numbers(2)]
    k: TwoOrMore
    kl: Literal["uniform", "printed"]
    iterations: Count
    privacy_weight: Amount
    privacy_reduction: Literal["mean", "sum"]
    lpips_weights: _OptionalFile
    inception_weights: _OptionalFile
    projections: Count

    @property
    def least_averaged(self) -> int | None:
        """The smallest number of training images behind a code; None without such codes."""
        if self.sampler.startswith("k-salsa"):
            return self.k
        return 2 if self.sampler.startswith("lci") else None

    def hospital_settings(self, hospital: int) -> "GANSettings":
        """The settings of a simulated hospital, from 0; hospitals take `clusters` in turn."""
        return replace(self, clusters=turn_value(self.clusters, hospital))


@declare
class ReleaseSettings:
    """The check before synthetic images leave a hospital: the keys `release.*`."""

    quantile: ShareBelowOne
    max_discarded: ShareBelowOne
    without_privacy: bool
    min_class_images: OneOrMore
    max_membership: Share
    untested: bool
    shadow_generators: Annotated[
        int, condition(lambda n: 0 <= n <= 256 and n % 2 == 0, "0, or an even number up to 256")
    ]


@declare
class MLPSettings:
    """The multi-layer perceptron: the keys `mlp.*`."""

    hidden: Annotated[str, condition(lambda text: _are_numbers(text, 1), _WIDTHS)]

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each hidden layer, first layer first."""
        return tuple(int(width) for width in self.hidden.split(","))


@declare
class AsyncSettings:
    """The movement of models without rounds, and virtual time: the keys `async.*`."""

    choose: Literal["shortest", "uniform"]
    tests: Literal["next", "idle"]
    seconds: Annotated[str, condition(_are_seconds, _SECONDS)]
    replay: _OptionalPlace

    @property
    def visit_seconds(self) -> list[float]:
        """Seconds of virtual time for a visit; simulated hospitals take them in turn."""
        return [float(each) for each in self.seconds.split(",")] if self.seconds else []


@declare
class Settings:
    """All settings of a run."""

    strategy: str
    num_server_rounds: Passes
    dataset: str
    partition: Literal["iid", "dirichlet", "classes", "site"]
    partition_alpha: AboveZero
    partition_classes: OneOrMore
    classes: str
    tasks: OneOrMore
    task_cut: Literal["classes", "shared-classes", "permuted", "given"]
    task_classes: Count
    task_order: Literal["same", "shuffled"]
    task_spread: Amount
    test_fraction: ShareBelowOne
    test_balanced: bool
    test_per_class: Annotated[str, _numbers(1)]
    validation_fraction: ShareBelowOne
    num_folds: Annotated[Count, condition(lambda n: n != 1, "0, or 2 or more")]
    fold: Count
    max_quarantined: ShareBelowOne
    model: str
    pretrained: Annotated[str, pattern("(imagenet|package:efficientnet-lite0|/.*)?", _WEIGHTS)]
    image_size: Annotated[int, bounds(0, MAX_SIDE)]
    image_fit: Literal["squash", "pad", "crop"]
    image_channels: Annotated[int, condition(lambda n: n in (0, 3), "one of 0, 3")]
    pixels: Literal["", "unit", "symmetric", "per-image", "imagenet", "lite"]
    seed: Annotated[int, bounds(0, LARGEST)]
    cpu_threads: Annotated[int, bounds(1, 1024)]
    workers: Annotated[int, bounds(-1, 1024)]
    baseline: Literal["", "standalone"]
    output_dir: Annotated[str, pattern("[/~].*", _PLACE)]
    tracking: str
    wire_dtype: Literal["float32", "float16"]
    sealed: bool
    asynchronous: bool
    learner: Literal["", ReplayingLearner, OtherLearner]
    enrolment: str
    resume: _OptionalPlace
    min_hospitals: OneOrMore
    hop_timeout: AboveZero
    prepare_timeout: AboveZero
    train: TrainSettings
    evaluate: EvaluateSettings
    gan: GANSettings
    release: ReleaseSettings
    mlp: MLPSettings
    tables: tuple[tuple[str, Any], ...]  # read by methods and learners with `section`

    def __post_init__(self) -> None:
        names = self.class_names
        distinct = len(set(names)) == len(names) != 1 and bool(names) == bool(self.classes)
        require(distinct, "classes", self.classes, "two or more different names, or empty")
        tasks, rounds, spread = self.tasks, self.num_server_rounds, self.task_spread
        allowed = f"{tasks} or more, a round for each of the 'tasks'"
        require(rounds >= tasks, "num-server-rounds", rounds, allowed)
        allowed = f"0 or more, and so small that each of {tasks} tasks has one of {rounds} rounds"
        require(rounds * (1 - spread) >= tasks, "task-spread", spread, allowed)
        allowed = f"0 with the task-cut '{self.task_cut}'"
        fits = self.task_classes == 0 or self.task_cut in BY_CLASSES
        require(fits, "task-classes", self.task_classes, allowed)
        folds = self.num_folds
        require(self.fold < max(folds, 1), "fold", self.fold, "0 or more, below num-folds")
        method, frozen = self.gan.method, self.train.freeze == "body"
        allowed = "stylegan2-ada or dp-mean-embedding with train.freeze 'none'"
        require(frozen or method != "class-gaussians", "gan.method", method, allowed)
        apart = folds == 0 or self.validation_fraction == 0
        require(apart, "num-folds", folds, "0 with a validation-fraction above 0")

    @property
    def class_names(self) -> list[str]:
        """The classes of the federation; empty if the hospitals name them."""
        return [name.strip() for name in self.classes.split(",") if name.strip()]

    @property
    def networks(self) -> set[str]:
        """The names in `model`, which simulated hospitals take in turn."""
        return {name.strip() for name in self.model.split(",")}

    @property
    def own_streams(self) -> bool:
        """Whether each hospital has an order, or durations, of tasks of its own."""
        return self.tasks > 1 and (self.task_order == "shuffled" or self.task_spread > 0)

    @property
    def asynchrony(self) -> AsyncSettings:
        """The table `async`; the word itself is reserved in Python."""
        return self.section("async", AsyncSettings)

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> "Settings":
        """Check a Flower run config and freeze it.

        Raises:
            SettingsError: Names each key that is missing, or whose value has the wrong type or
                range, or holds a password or token.
        """
        allowed = (
            "without a password or token, since settings are written into files and pages: leave "
            "it to an environment variable of the process that needs it"
        )
        for key, value in run_config.items():
            text = str(value) if isinstance(value, str | bytes) else ""
            require(redact(text) == text, key, value, allowed)
        known = {*keys_of(cls)}
        tables = tuple(sorted((k, v) for k, v in run_config.items() if k not in known))
        return _read_table({**run_config, "tables": tables}, cls)

    def section(self, table: str, kind: type[TableT]) -> TableT:
        """The settings of one table that a method or a learner declares.

        Raises:
            SettingsError: Names each key that is missing, or whose value cannot be used.
        """
        return _read_table(dict(self.tables), kind, f"{table}.")

    @property
    def run_config(self) -> dict[str, Any]:
        """The run config from which `parse` would read these settings."""
        values = {
            key: reduce(getattr, key.replace("-", "_").split("."), self)
            for key in keys_of(Settings)
            if key != "tables"
        }
        return {**values, **dict(self.tables)}


def defaults() -> dict[str, Any]:
    """The default of every setting, by its key."""
    return dict(_read_defaults(PYPROJECT))


@cache
def _read_defaults(pyproject: Path) -> Mapping[str, Any]:
    from flwr.common.config import flatten_dict  # imports an HTTP client, which no message needs

    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(
            f"The defaults of the settings are in {pyproject}, which is not there: run this in a "
            "checkout of the app."
        ) from error
    return flatten_dict(project["tool"]["flwr"]["app"]["config"])


def complete(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of all settings with some changes; a SettingsError if a name is no setting."""
    known = defaults()
    strange = [
        f"There is no setting '{key}' (here {excerpt(value)})"
        + near_miss(key, known, "pyproject.toml lists all")
        for key, value in changes.items()
        if key not in known
    ]
    if strange:
        raise SettingsError(" ".join(strange))
    return {**known, **changes}


def rng_for(
    seed: int, purpose: str, server_round: int = 0, hop: int = 0, hospital: str = ""
) -> np.random.Generator:
    """The random numbers of one purpose, at one place and time of a run.

    They depend on the arguments alone: not on earlier draws, the process, or the order in which
    hospitals answer.
    """
    place = f"{seed}/{purpose}/{server_round}/{hop}/{hospital}".encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(place).digest(), "big"))


def turn_value(text: str, hospital: int) -> str:
    """The value for a simulated hospital, from 0; hospitals take values between commas in turn."""
    values = [value.strip() for value in text.split(",")]
    return values[hospital % len(values)]


def _read_table(values: Mapping[str, Any], table: type[TableT], prefix: str = "") -> TableT:
    """Build a declared table, or raise SettingsError with all its wrong values."""
    built, problems = read(values, table, prefix)
    if built is None:
        raise SettingsError(" ".join(problems.values()))
    return built
