"""The settings of a run: [tool.flwr.app.config] in pyproject.toml, checked once and frozen.

Defaults live in pyproject.toml alone. Flower flattens its tables (`[...config.train] epochs` is
`train.epochs`) and refuses unknown keys, but checks neither types nor ranges; `Settings.parse`
does, and every error names the key, the value and what is allowed.

A seed is a setting too, so the one source of randomness, `rng_for`, stands here.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

SectionT = TypeVar("SectionT")


class SettingsError(ValueError):
    """A setting has a value that cannot be used."""


@dataclass(frozen=True)
class TrainSettings:
    """How a hospital trains a model that visits it: the keys `train.*`."""

    epochs: int
    batch_size: int
    optimizer: Literal["adam", "sgd"]
    learning_rate: float
    weight_decay: float
    augment: Literal["none", "flip", "flip-rotate"]

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "train.epochs", self.epochs, "1 or more")
        _require(self.batch_size >= 2, "train.batch-size", self.batch_size, "2 or more")
        _require(self.learning_rate > 0, "train.learning-rate", self.learning_rate, "above 0")
        _require(self.weight_decay >= 0, "train.weight-decay", self.weight_decay, "0 or more")


@dataclass(frozen=True)
class EvaluateSettings:
    """When and how widely models are tested: the keys `evaluate.*`."""

    every: int
    epochs: bool
    cross: bool
    ensemble: bool
    per_class: bool

    def __post_init__(self) -> None:
        _require(self.every >= 1, "evaluate.every", self.every, "1 or more")


@dataclass(frozen=True)
class FedERSettings:
    """FedER: the keys `feder.*`."""

    variant: Literal["full", "buffer-only", "synthetic-only"]
    replay_weight: float
    buffer_size: int

    def __post_init__(self) -> None:
        weight, size = self.replay_weight, self.buffer_size
        _require(0 <= weight < 1, "feder.replay-weight", weight, "0 or more, and below 1")
        _require(size >= 0, "feder.buffer-size", size, "0 or more")
        if self.variant == "synthetic-only":
            _require(size > 0, "feder.buffer-size", size, "1 or more with variant synthetic-only")


@dataclass(frozen=True)
class GANSettings:
    """The hospitals' generative models: the keys `gan.*`."""

    preset: str
    iterations: int
    privacy_weight: float
    privacy_reduction: Literal["mean", "sum"]
    lpips_weights: str
    inception_weights: str
    projections: int

    def __post_init__(self) -> None:
        _require(self.iterations >= 0, "gan.iterations", self.iterations, "0 or more")
        _require(self.privacy_weight >= 0, "gan.privacy-weight", self.privacy_weight, "0 or more")
        _require(self.projections >= 0, "gan.projections", self.projections, "0 or more")
        for key in ("lpips_weights", "inception_weights"):
            path = getattr(self, key)
            allowed = "an absolute path, or empty"
            usable = not path or Path(path).is_absolute()
            _require(usable, f"gan.{key.replace('_', '-')}", path, allowed)


@dataclass(frozen=True)
class ReleaseSettings:
    """The check before synthetic images leave a hospital: the keys `release.*`."""

    quantile: float
    max_discarded: float
    min_class_images: int

    def __post_init__(self) -> None:
        share, allowed = self.max_discarded, "0 or more, and below 1"
        _require(0 <= self.quantile < 1, "release.quantile", self.quantile, allowed)
        _require(0 <= share < 1, "release.max-discarded", share, allowed)
        fewest = self.min_class_images
        _require(fewest >= 1, "release.min-class-images", fewest, "1 or more")


@dataclass(frozen=True)
class CentralizedSettings:
    """The centralised baselines: the keys `centralized.*`."""

    data: Literal["real", "synthetic", "both"]


@dataclass(frozen=True)
class MLPSettings:
    """The multi-layer perceptron: the keys `mlp.*`."""

    hidden: str

    def __post_init__(self) -> None:
        widths = self.hidden.split(",")
        allowed = "widths of 1 or more, separated by commas, such as '256,256'"
        _require(
            all(width.strip().isdecimal() and int(width) >= 1 for width in widths),
            "mlp.hidden",
            self.hidden,
            allowed,
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each hidden layer, first layer first."""
        return tuple(int(width) for width in self.hidden.split(","))


@dataclass(frozen=True)
class FedProxSettings:
    """FedProx: the keys `fedprox.*`."""

    mu: float

    def __post_init__(self) -> None:
        _require(self.mu >= 0, "fedprox.mu", self.mu, "0 or more")


@dataclass(frozen=True)
class RewindSettings:
    """FedRewind: the keys `rewind.*`."""

    base: Literal["cwt", "rwt", "fedavg"]
    fraction: float
    partner: Literal["previous", "random"]
    batch_norm: Literal["train", "reference"]

    def __post_init__(self) -> None:
        allowed = "0 or more, and below 0.5"
        _require(0 <= self.fraction < 0.5, "rewind.fraction", self.fraction, allowed)

    def epochs(self, total: int) -> int:
        """Those of the rewind leg, out of a visit's: λE, rounded up."""
        # 0.07 · 100 is 7.000000000000001 in floating point.
        return ceil(round(self.fraction * total, 9))


@dataclass(frozen=True)
class CWCSettings:
    """Cyclical weight consolidation: the keys `cwc.*`."""

    strength: float
    decay: float
    importance: Literal["si", "ewc"]
    damping: float

    def __post_init__(self) -> None:
        _require(self.strength >= 0, "cwc.strength", self.strength, "0 or more")
        _require(0 <= self.decay <= 1, "cwc.decay", self.decay, "from 0 to 1")
        _require(self.damping > 0, "cwc.damping", self.damping, "above 0")


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
    test_fraction: float
    test_balanced: bool
    validation_fraction: float
    num_folds: int
    fold: int
    max_quarantined: float
    model: str
    pretrained: str
    image_size: int
    image_fit: Literal["squash", "pad", "crop"]
    image_channels: Literal[0, 3]
    seed: int
    cpu_threads: int
    output_dir: str
    wire_dtype: Literal["float32", "float16"]
    sealed: bool
    resume: str
    min_hospitals: int
    hop_timeout: float
    prepare_timeout: float
    train: TrainSettings
    evaluate: EvaluateSettings
    feder: FedERSettings
    gan: GANSettings
    release: ReleaseSettings
    centralized: CentralizedSettings
    mlp: MLPSettings
    fedprox: FedProxSettings
    rewind: RewindSettings
    cwc: CWCSettings

    def __post_init__(self) -> None:
        _require(
            self.num_server_rounds >= 1, "num-server-rounds", self.num_server_rounds, "1 or more"
        )
        _require(self.partition_alpha > 0, "partition-alpha", self.partition_alpha, "above 0")
        _require(
            self.partition_classes >= 1, "partition-classes", self.partition_classes, "1 or more"
        )
        names = self.class_names
        distinct = len(set(names)) == len(names) != 1
        _require(distinct, "classes", self.classes, "two or more different names, or empty")
        for key in ("test_fraction", "validation_fraction", "max_quarantined"):
            share, allowed = getattr(self, key), "0 or more, and below 1"
            _require(0 <= share < 1, key.replace("_", "-"), share, allowed)
        folds = self.num_folds
        _require(folds == 0 or folds >= 2, "num-folds", folds, "0, or 2 or more")
        _require(0 <= self.fold < max(folds, 1), "fold", self.fold, "0 or more, below num-folds")
        apart = folds == 0 or self.validation_fraction == 0
        _require(apart, "num-folds", folds, "0 with a validation-fraction above 0")
        usable = self.pretrained in ("", "imagenet") or Path(self.pretrained).is_absolute()
        allowed = "imagenet, an absolute path, or empty"
        _require(usable, "pretrained", self.pretrained, allowed)
        _require(self.image_size >= 0, "image-size", self.image_size, "0 or more")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")
        _require(self.cpu_threads >= 1, "cpu-threads", self.cpu_threads, "1 or more")
        _require(self.min_hospitals >= 1, "min-hospitals", self.min_hospitals, "1 or more")
        _require(self.hop_timeout > 0, "hop-timeout", self.hop_timeout, "above 0 seconds")
        patience = self.prepare_timeout
        _require(patience > 0, "prepare-timeout", patience, "above 0 seconds")
        if self.strategy == "fedrewind":
            epochs = self.train.epochs
            _require(
                2 * self.rewind.epochs(epochs) < epochs,
                "rewind.fraction",
                self.rewind.fraction,
                f"0, or so small that train.epochs = {epochs} leaves an epoch before two legs of "
                f"{self.rewind.epochs(epochs)}: take more epochs, 3 at least",
            )
        # The working directory of a Flower process is not the user's.
        allowed = "an absolute path, or one that starts with ~"
        for key, folder in (("output-dir", self.output_dir), ("resume", self.resume or "~")):
            usable = folder.startswith("~") or Path(folder).is_absolute()
            _require(usable, key, folder, allowed + ", or empty" * (key == "resume"))

    @property
    def models(self) -> list[str]:
        """Names of the networks that hospitals start with, dealt out to them in turn."""
        return [name.strip() for name in self.model.split(",")]

    @property
    def class_names(self) -> list[str]:
        """The classes of the federation; empty if the hospitals are to name them."""
        return [name.strip() for name in self.classes.split(",") if name.strip()]

    @classmethod
    def parse(cls, run_config: Mapping[str, Any]) -> "Settings":
        """Check a Flower run config and freeze it.

        Raises:
            SettingsError: A key is missing, or its value has the wrong type or range.
        """
        return _section(run_config, "", cls)


def rng_for(
    seed: int, purpose: str, server_round: int = 0, hop: int = 0, hospital: str = ""
) -> np.random.Generator:
    """The random numbers of one purpose, at one place and time of a run.

    They depend on the arguments alone: not on what was drawn before, nor on the process or the
    order in which hospitals answer.
    """
    place = f"{seed}/{purpose}/{server_round}/{hop}/{hospital}".encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(place).digest(), "big"))


def _section(run_config: Mapping[str, Any], prefix: str, section: type[SectionT]) -> SectionT:
    """Build one frozen dataclass from the keys that start with `prefix`."""
    hints = get_type_hints(section)
    values: dict[str, Any] = {}
    for field in fields(section):  # type: ignore[arg-type]
        key = prefix + field.name.replace("_", "-")
        hint = hints[field.name]
        if is_dataclass(hint):
            values[field.name] = _section(run_config, f"{key}.", hint)  # type: ignore[arg-type]
        elif key not in run_config:
            raise SettingsError(
                f"The setting '{key}' is missing: give it a value in pyproject.toml."
            )
        else:
            values[field.name] = _typed(key, run_config[key], hint)
    return section(**values)


def _typed(key: str, value: Any, hint: Any) -> Any:
    """Return `value` as the type that `hint` asks for."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        known = value in choices and type(value) is type(choices[0])  # False is no 0
        _require(known, key, value, f"one of {', '.join(map(str, choices))}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)  # TOML writes 1.0 as 1
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    fits = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    _require(fits, key, value, words[hint])
    return value


def _require(condition: bool, key: str, value: Any, allowed: str) -> None:
    if not condition:
        raise SettingsError(f"The setting '{key}' is {value!r}; it must be {allowed}.")
