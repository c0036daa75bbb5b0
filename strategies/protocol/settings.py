"""The settings of a run: [tool.flwr.app.config] in pyproject.toml, checked once and frozen.

Defaults live in pyproject.toml alone. Flower flattens its tables (`[...config.train] epochs` is
`train.epochs`) and refuses unknown keys, but checks neither types nor ranges; `Settings.parse`
does, and every error names the key, the value and what is allowed. What one method or one learner
reads alone stands beside it, in a frozen dataclass for `Settings.section`.

A seed is a setting too, so the one source of randomness, `rng_for`, stands here.
"""

import hashlib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from strategies.protocol.redaction import redacted

BY_CLASSES = ("classes", "shared-classes")  # values of `task-cut` by which a task is some classes
PUBLIC = "public:"  # how a setting begins that names a file of public images
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
# Settings that may change when a run is resumed.
MAY_CHANGE = {
    *("resume", "hop-timeout", "prepare-timeout", "min-hospitals", "output-dir", "tracking"),
}

SectionT = TypeVar("SectionT")


class SettingsError(ValueError):
    """A setting has a value that cannot be used. The text shows no password or token."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))


@dataclass(frozen=True)
class DPSettings:
    """Training with a guarantee, by DP-SGD: the keys `train.dp.*`."""

    noise_multiplier: float
    clipping_norm: float
    delta: float

    def __post_init__(self) -> None:
        noise, norm, key = self.noise_multiplier, self.clipping_norm, "train.dp.noise-multiplier"
        require(noise == 0 or noise >= 0.1, key, noise, "0, or 0.1 or more")
        require(norm > 0, "train.dp.clipping-norm", norm, "above 0")
        require(0 < self.delta < 1, "train.dp.delta", self.delta, "above 0, and below 1")


@dataclass(frozen=True)
class TrainSettings:
    """How a hospital trains a model that visits it: the keys `train.*`."""

    epochs: int
    batch_size: int
    batch_sizes: str
    class_balance: Literal["none", "sampler", "loss"]
    focal_gamma: float
    optimizer: Literal["adam", "sgd"]
    learning_rate: float
    weight_decay: float
    halve_every: int
    augment: Literal["none", "flip", "flip-rotate", "crop-flip-cutout", "affine-colour"]
    dp: DPSettings

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "train.epochs", self.epochs, "1 or more")
        require(self.batch_size >= 2, "train.batch-size", self.batch_size, "2 or more")
        _require_numbers("train.batch-sizes", self.batch_sizes, 2)
        require(self.learning_rate > 0, "train.learning-rate", self.learning_rate, "above 0")
        require(self.weight_decay >= 0, "train.weight-decay", self.weight_decay, "0 or more")
        require(0 <= self.focal_gamma <= 10, "train.focal-gamma", self.focal_gamma, "0 to 10")
        require(self.halve_every >= 0, "train.halve-every", self.halve_every, "0 or more")
        # A class's weights follow from all images.
        apart = not self.dp.noise_multiplier or self.class_balance == "none"
        allowed = "none with a train.dp.noise-multiplier above 0"
        require(apart, "train.class-balance", self.class_balance, allowed)

    def check_learner(self, learner: str) -> None:
        """Refuse DP-SGD with a learner that does more with images than cross-entropy.

        Raises:
            SettingsError: It does.
        """
        allowed = f"0 with the learner '{learner}': DP-SGD is for 'plain' alone"
        noise = self.dp.noise_multiplier
        require(not noise or learner == "plain", "train.dp.noise-multiplier", noise, allowed)

    def in_round(self, server_round: int) -> "TrainSettings":
        """Those of a round, whose learning rate may have been halved."""
        halved = server_round // self.halve_every if self.halve_every else 0
        return replace(self, learning_rate=math.ldexp(self.learning_rate, -halved))

    def at(self, hospital: int) -> "TrainSettings":
        """Those of a simulated hospital, from 0: `batch-sizes` are dealt out in turn."""
        size = in_turn(self.batch_sizes, hospital)
        return replace(self, batch_size=int(size)) if size else self


@dataclass(frozen=True)
class EvaluateSettings:
    """When and how widely models are tested: the keys `evaluate.*`."""

    every: int
    epochs: bool
    cross: bool | str
    ensemble: bool
    per_class: bool

    def __post_init__(self) -> None:
        require(self.every >= 1, "evaluate.every", self.every, "1 or more")
        if isinstance(self.cross, str):
            fits = re.fullmatch("sample:[0-9]{1,6}", self.cross) is not None and self.sample > 1
            allowed = "true or false, or 'sample:' and a number of 2 or more"
            require(fits, "evaluate.cross", self.cross, allowed)

    @property
    def sample(self) -> int:
        """At how many hospitals that do not hold it a model is tested; 0 = no sample is drawn."""
        return int(self.cross.removeprefix("sample:")) if isinstance(self.cross, str) else 0


@dataclass(frozen=True)
class GANSettings:
    """The hospitals' generative models: the keys `gan.*`."""

    method: Literal["stylegan2-ada", "dp-mean-embedding"]
    epsilon: float
    delta: float
    preset: str
    sampler: Literal["random", "linear", "plan", "lci", "lci-plan", "k-salsa", "k-salsa-plan"]
    clusters: str
    k: int
    kl: Literal["uniform", "printed"]
    iterations: int
    privacy_weight: float
    privacy_reduction: Literal["mean", "sum"]
    lpips_weights: str
    inception_weights: str
    projections: int

    def __post_init__(self) -> None:
        require(self.epsilon > 0, "gan.epsilon", self.epsilon, "above 0")
        require(0 < self.delta < 1, "gan.delta", self.delta, "above 0, and below 1")
        _require_numbers("gan.clusters", self.clusters, 2)
        require(self.k >= 2, "gan.k", self.k, "2 or more")
        require(self.iterations >= 0, "gan.iterations", self.iterations, "0 or more")
        require(self.privacy_weight >= 0, "gan.privacy-weight", self.privacy_weight, "0 or more")
        require(self.projections >= 0, "gan.projections", self.projections, "0 or more")
        for key in ("lpips_weights", "inception_weights"):
            path = getattr(self, key)
            allowed = "an absolute path, or empty"
            usable = not path or Path(path).is_absolute()
            require(usable, f"gan.{key.replace('_', '-')}", path, allowed)

    @property
    def least_averaged(self) -> int | None:
        """The fewest training images behind a code; None if none is made of theirs."""
        if self.sampler.startswith("k-salsa"):
            return self.k
        return 2 if self.sampler.startswith("lci") else None

    def at(self, hospital: int) -> "GANSettings":
        """Those of a simulated hospital, from 0: `clusters` are dealt out in turn."""
        return replace(self, clusters=in_turn(self.clusters, hospital))


@dataclass(frozen=True)
class ReleaseSettings:
    """The check before synthetic images leave a hospital: the keys `release.*`."""

    quantile: float
    max_discarded: float
    without_privacy: bool
    min_class_images: int
    max_membership: float
    untested: bool
    shadow_generators: int

    def __post_init__(self) -> None:
        most = self.max_membership
        require(0 <= most <= 1, "release.max-membership", most, "0 to 1")
        shadows = self.shadow_generators
        allowed = "0, or an even number"
        require(shadows >= 0 and shadows % 2 == 0, "release.shadow-generators", shadows, allowed)
        share, allowed = self.max_discarded, "0 or more, and below 1"
        require(0 <= self.quantile < 1, "release.quantile", self.quantile, allowed)
        require(0 <= share < 1, "release.max-discarded", share, allowed)
        fewest = self.min_class_images
        require(fewest >= 1, "release.min-class-images", fewest, "1 or more")


@dataclass(frozen=True)
class MLPSettings:
    """The multi-layer perceptron: the keys `mlp.*`."""

    hidden: str

    def __post_init__(self) -> None:
        allowed = "widths of 1 or more, separated by commas, such as '256,256'"
        require(_are_numbers(self.hidden, 1), "mlp.hidden", self.hidden, allowed)

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each hidden layer, first layer first."""
        return tuple(int(width) for width in self.hidden.split(","))


@dataclass(frozen=True)
class AsyncSettings:
    """How models move that do not move in rounds, and in what time: the keys `async.*`."""

    choose: Literal["shortest", "uniform"]
    tests: Literal["next", "idle"]
    seconds: str
    replay: str

    def __post_init__(self) -> None:
        try:
            usable = all(0 < seconds < math.inf for seconds in self.of_visits)
        except ValueError:
            usable = False
        allowed = "numbers above 0, separated by commas, such as '1,1,20', or empty"
        require(usable, "async.seconds", self.seconds, allowed)
        usable = not self.replay or self.replay.startswith("~") or Path(self.replay).is_absolute()
        allowed = "an absolute path, or one that starts with ~, or empty"
        require(usable, "async.replay", self.replay, allowed)

    @property
    def of_visits(self) -> list[float]:
        """Seconds of virtual time that a visit takes at simulated hospitals, in turn."""
        return [float(each) for each in self.seconds.split(",")] if self.seconds else []


@dataclass(frozen=True)
class Settings:
    """All settings of a run; a field's key is its name with dashes."""

    strategy: str
    num_server_rounds: int
    dataset: str
    partition: Literal["iid", "dirichlet", "classes", "site"]
    partition_alpha: float
    partition_classes: int
    classes: str
    tasks: int
    task_cut: Literal["classes", "shared-classes", "permuted", "given"]
    task_classes: int
    task_order: Literal["same", "shuffled"]
    task_spread: float
    test_fraction: float
    test_balanced: bool
    test_per_class: str
    validation_fraction: float
    num_folds: int
    fold: int
    max_quarantined: float
    model: str
    pretrained: str
    image_size: int
    image_fit: Literal["squash", "pad", "crop"]
    image_channels: Literal[0, 3]
    pixels: Literal["unit", "symmetric", "per-image"]
    seed: int
    cpu_threads: int
    workers: int
    baseline: Literal["", "standalone"]
    output_dir: str
    tracking: str
    wire_dtype: Literal["float32", "float16"]
    sealed: bool
    asynchronous: bool
    learner: Literal["", "derpp", "er-ace", "lwf", "mah", "oewc", "pass", "rehearsal", "ser", "twf"]
    enrolment: str
    resume: str
    min_hospitals: int
    hop_timeout: float
    prepare_timeout: float
    train: TrainSettings
    evaluate: EvaluateSettings
    gan: GANSettings
    release: ReleaseSettings
    mlp: MLPSettings
    tables: tuple[tuple[str, Any], ...]  # what methods and learners read themselves: `section`

    def __post_init__(self) -> None:
        require(
            self.num_server_rounds >= 1, "num-server-rounds", self.num_server_rounds, "1 or more"
        )
        require(self.partition_alpha > 0, "partition-alpha", self.partition_alpha, "above 0")
        require(
            self.partition_classes >= 1, "partition-classes", self.partition_classes, "1 or more"
        )
        names = self.class_names
        distinct = len(set(names)) == len(names) != 1
        require(distinct, "classes", self.classes, "two or more different names, or empty")
        tasks, size, rounds = self.tasks, self.task_classes, self.num_server_rounds
        require(tasks >= 1, "tasks", tasks, "1 or more")
        allowed = f"{tasks} or more, a round for each of the 'tasks'"
        require(rounds >= tasks, "num-server-rounds", rounds, allowed)
        require(size >= 0, "task-classes", size, "0 or more")
        spread = self.task_spread
        allowed = f"0 or more, and so small that with {rounds} rounds each of {tasks} tasks has one"
        require(spread >= 0 and rounds * (1 - spread) >= tasks, "task-spread", spread, allowed)
        allowed = f"0 with the task-cut '{self.task_cut}'"
        require(size == 0 or self.task_cut in BY_CLASSES, "task-classes", size, allowed)
        for key in ("test_fraction", "validation_fraction", "max_quarantined"):
            share, allowed = getattr(self, key), "0 or more, and below 1"
            require(0 <= share < 1, key.replace("_", "-"), share, allowed)
        _require_numbers("test-per-class", self.test_per_class, 1)
        folds = self.num_folds
        require(folds == 0 or folds >= 2, "num-folds", folds, "0, or 2 or more")
        require(0 <= self.fold < max(folds, 1), "fold", self.fold, "0 or more, below num-folds")
        apart = folds == 0 or self.validation_fraction == 0
        require(apart, "num-folds", folds, "0 with a validation-fraction above 0")
        usable = self.pretrained in ("", "imagenet") or Path(self.pretrained).is_absolute()
        allowed = "imagenet, an absolute path, or empty"
        require(usable, "pretrained", self.pretrained, allowed)
        require(self.image_size >= 0, "image-size", self.image_size, "0 or more")
        require(self.seed >= 0, "seed", self.seed, "0 or more")
        require(1 <= self.cpu_threads <= 1024, "cpu-threads", self.cpu_threads, "1 to 1024")
        require(-1 <= self.workers <= 1024, "workers", self.workers, "-1 to 1024")
        require(self.min_hospitals >= 1, "min-hospitals", self.min_hospitals, "1 or more")
        require(self.hop_timeout > 0, "hop-timeout", self.hop_timeout, "above 0 seconds")
        patience = self.prepare_timeout
        require(patience > 0, "prepare-timeout", patience, "above 0 seconds")
        # The working directory of a Flower process is not the user's.
        allowed = "an absolute path, or one that starts with ~"
        for key, folder in (("output-dir", self.output_dir), ("resume", self.resume or "~")):
            usable = folder.startswith("~") or Path(folder).is_absolute()
            require(usable, key, folder, f"{allowed}, or empty" if key == "resume" else allowed)

    @property
    def class_names(self) -> list[str]:
        """The classes of the federation; empty if the hospitals are to name them."""
        return [name.strip() for name in self.classes.split(",") if name.strip()]

    @property
    def own_streams(self) -> bool:
        """Whether tasks arrive at each hospital in an order, or for durations, of its own."""
        return self.tasks > 1 and (self.task_order == "shuffled" or self.task_spread > 0)

    @property
    def asynchrony(self) -> AsyncSettings:
        """The table `async`, whose name no attribute can have.

        Raises:
            SettingsError: A value has the wrong type or range.
        """
        return self.section("async", AsyncSettings)

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> "Settings":
        """Check a Flower run config and freeze it.

        Raises:
            SettingsError: A key is missing, or its value has the wrong type or range, or holds a
                password or token.
        """
        for key, value in run_config.items():
            allowed = "without a password or token, since settings are written into files and "
            allowed += "pages: leave it to an environment variable of the process that needs it"
            text = value if isinstance(value, str) else _shown(value)
            require(redacted(text) == text, key, value, allowed)
        known = set(_keys(cls, ""))
        tables = tuple(sorted((k, v) for k, v in run_config.items() if k not in known))
        return read_section({**run_config, "tables": tables}, cls)

    def section(self, table: str, kind: type[SectionT]) -> SectionT:
        """The settings of one table that a method or a learner names in a frozen dataclass.

        Raises:
            SettingsError: A key is missing, or its value has the wrong type or range.
        """
        return read_section(dict(self.tables), kind, f"{table}.")

    @property
    def run_config(self) -> dict[str, Any]:
        """The run config that `parse` would read these settings from."""
        own = {key: _value(self, key) for key in _keys(type(self), "")}
        return {**own, **dict(self.tables)}


def defaults() -> dict[str, Any]:
    """The default of every setting, by its key.

    Raises:
        SettingsError: This is not a checkout of the app: pyproject.toml is not there.
    """
    from flwr.common.config import flatten_dict  # imports an HTTP client, which no message needs

    try:
        project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(
            f"The defaults of the settings are in {PYPROJECT}, which is not there: run this in a "
            "checkout of the app."
        ) from error
    return {**flatten_dict(project["tool"]["flwr"]["app"]["config"])}


def merged(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of all settings with some changes.

    Raises:
        SettingsError: There is no setting of a name.
    """
    known = defaults()
    for key, value in changes.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "pyproject.toml lists all."
            raise SettingsError(f"There is no setting '{key}' (here {value!r}); {hint}")
    return {**known, **changes}


def read_section(values: Mapping[str, Any], section: type[SectionT], prefix: str = "") -> SectionT:
    """Build one frozen dataclass from the values whose keys start with `prefix`.

    An annotation beside a type has a method `refuses`: it is given a value, or each of a list, and
    says what is allowed instead, or nothing.

    Raises:
        SettingsError: A key is missing, or its value has the wrong type or range.
    """
    hints = get_type_hints(section, include_extras=True)
    found: dict[str, Any] = {}
    for field in fields(section):  # type: ignore[arg-type]
        key = prefix + field.name.replace("_", "-")
        hint = hints[field.name]
        if is_dataclass(hint):
            found[field.name] = read_section(values, hint, f"{key}.")  # type: ignore[arg-type]
        elif key not in values:
            raise SettingsError(
                f"The setting '{key}' is missing: give it a value in pyproject.toml."
            )
        else:
            found[field.name] = _typed(key, values[key], hint)
    return section(**found)


def rng_for(
    seed: int, purpose: str, server_round: int = 0, hop: int = 0, hospital: str = ""
) -> np.random.Generator:
    """The random numbers of one purpose, at one place and time of a run.

    They depend on the arguments alone: not on what was drawn before, nor on the process or the
    order in which hospitals answer.
    """
    place = f"{seed}/{purpose}/{server_round}/{hop}/{hospital}".encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(place).digest(), "big"))


def in_turn(text: str, hospital: int) -> str:
    """What a simulated hospital, from 0, gets of values that are separated by commas."""
    values = [value.strip() for value in text.split(",")]
    return values[hospital % len(values)]


def _require_numbers(key: str, text: str, lowest: int) -> None:
    """Refuse a setting that is neither empty nor numbers separated by commas."""
    allowed = f"numbers of {lowest} or more, separated by commas, such as '32,8', or empty"
    require(not text or _are_numbers(text, lowest), key, text, allowed)


def _are_numbers(text: str, lowest: int) -> bool:
    """Whether a text is whole numbers, of up to nine digits, separated by commas."""
    each = [number.strip() for number in text.split(",")]
    return all(re.fullmatch("[0-9]{1,9}", one) and int(one) >= lowest for one in each)


def _keys(section: type[Any], prefix: str) -> Iterator[str]:
    """The keys of a section, and of the sections in it."""
    for name, hint in get_type_hints(section).items():
        key = prefix + name.replace("_", "-")
        if is_dataclass(hint):
            yield from _keys(hint, f"{key}.")  # type: ignore[arg-type]
        elif get_origin(hint) is not tuple:
            yield key


def _value(section: Any, key: str) -> Any:
    return reduce(getattr, key.replace("-", "_").split("."), section)


def _typed(key: str, value: Any, hint: Any) -> Any:
    """Return `value` as the type that `hint` asks for."""
    if get_origin(hint) is tuple:
        return value
    if get_origin(hint) is Annotated:
        kind, *marks = get_args(hint)
        typed = _typed(key, value, kind)
        for each in typed if isinstance(typed, list) else [typed]:
            for mark in marks:
                allowed = mark.refuses(each)
                require(not allowed, key, value, allowed)
        return typed
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        known = value in choices and type(value) is type(choices[0])  # False is no 0
        named = ", ".join(str(each) or "''" for each in choices)
        require(known, key, value, f"one of {named}")
        return value
    if isinstance(value, int):  # as Flower's messages hold them; larger ones are no floats
        require(-(2**63) <= value < 2**63, key, value, "a number of at most 18 digits")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)  # TOML writes 1.0 as 1
    if get_origin(hint) is list:
        texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
        require(texts, key, value, "a list of texts")
        return value
    words: dict[Any, str] = {
        bool: "true or false",
        bool | str: "true or false, or a text",
        int: "a whole number",
        float: "a number, and finite",
        str: "a text",
    }
    fits = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    fits = fits and not (hint is float and not math.isfinite(value))
    require(fits, key, value, words[hint])
    return value


def require(condition: bool, key: str, value: Any, allowed: str) -> None:
    """Refuse a setting that is not as `condition` says.

    Raises:
        SettingsError: Names the key, the value and what is allowed.
    """
    if not condition:
        raise SettingsError(f"The setting '{key}' is {_shown(value)}; it must be {allowed}.")


def _shown(value: Any) -> str:
    """A value as Python writes it; of a number it writes no more than some thousand digits."""
    try:
        return repr(value)
    except ValueError:
        return "a number without end"
