"""The policy: the limits that a hospital sets for every run.

It is the hospital's own file; `fedhandoff policy` writes one. The defaults are in
policy.toml beside this file. A simulation has one owner and no policy.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from audit import LEAST
from client_app.authority.node_config import OwnError
from gan.presets import choose_preset
from learning.settings import LwFSettings, ReservoirSettings, SERSettings, TwFSettings
from strategies.engine.strategy import Strategy
from strategies.protocol.code import code_hash
from strategies.protocol.declared import (
    MOST_DELTA,
    MOST_EPSILON,
    AboveZero,
    Amount,
    Count,
    OneOrMore,
    Share,
    ShareBelowOne,
    TwoOrMore,
    bounds,
    choice,
    declare,
    near_miss,
    pattern,
    read,
)
from strategies.protocol.embeddings import PARTS
from strategies.protocol.files import parse_toml, read_by_hand, reason_of, write_new
from strategies.protocol.learners import BY_TASK, WITH_MEMORY, WITH_RESERVOIR
from strategies.protocol.may_leave import METRICS, OWN_FILES
from strategies.protocol.settings import PUBLIC, Settings
from strategies.protocol.sums import SumsSettings
from strategies.registry import STRATEGIES, strategy_of

DEFAULTS = Path(__file__).with_name("policy.toml")


class PolicyError(ValueError):
    """The hospital's policy does not allow a run.

    The error's text goes to the server, and names only the table of the rule.

    Args:
        rule: The rule, as "table.name"; the hospital's own log names it.
        requested: The value that the run asks for.
        allowed: The allowed values, in words.
    """

    def __init__(self, rule: str, requested: object, allowed: str) -> None:
        super().__init__(f"The hospital's policy ([{rule.partition('.')[0]}]) does not allow it.")
        self.rule, self.requested, self.allowed = rule, requested, allowed

    def explain(self) -> str:
        """The rule, for the hospital's own log."""
        refusal = f"Refused by the policy: {self.rule} allows {self.allowed}"
        return f"{refusal}; the value is {self.requested!r}."


LEARNERS = tuple(filter(None, get_args(get_type_hints(Settings)["learner"])))
# The figures that may be withheld. Averaging needs `num-examples`, and `refused` is no figure. The
# interval and the noise of a figure are withheld with it.
FIGURES = tuple(
    name
    for name in METRICS
    if name not in ("num-examples", "refused") and not re.search("-(low|high|noise)$", name)
)


@dataclass(frozen=True)
class Ruling:
    """The ruling of one rule on a run."""

    rule: str  # the rule, as "table.name"
    allowed: str  # the allowed values, in words
    requested: object  # the value that the run asks for
    holds: bool  # whether the rule allows that value


class Rules:
    """A table of rules. Rules named max-... or min-... limit a number."""

    table: ClassVar[str]

    def __init_subclass__(cls, table: str) -> None:
        cls.table = table

    def ruling(self, name: str, asked: float) -> Ruling:
        """The ruling of a limit on a number."""
        rule, limit = f"{self.table}.{name}", getattr(self, name.replace("-", "_"))
        if name.startswith("min-"):
            return Ruling(rule, f"{limit:.15g} or more", asked, asked >= limit)
        return Ruling(rule, f"{limit:.15g} or less", asked, asked <= limit)

    def uphold(self, name: str, asked: float) -> None:
        """Raise a `PolicyError` if a number is beyond a limit."""
        uphold(self.ruling(name, asked))


_Hash = Annotated[str, pattern("[0-9a-f]{64}", "hashes of 64 digits, from 0 to f")]
_Weights = Annotated[str, pattern(r"\S+", "hashes, or values of the setting 'pretrained'")]
_Class = Annotated[str, pattern(r"\S(.*\S)?", "names without blanks around them")]
_Method = Annotated[str, choice((*STRATEGIES, *LEARNERS))]
_Embedding = Annotated[str, choice(PARTS)]
_Private = Annotated[str, choice(("training", "buffers", "sums"))]
_Figure = Annotated[str, choice(FIGURES)]


@declare
class CodeRules(Rules, table="code"):
    """The table `code`."""

    approved: list[_Hash]

    def judge(self) -> Iterator[Ruling]:
        """The ruling on the code of this installation."""
        if approved := self.approved:
            code = code_hash()
            yield Ruling("code.approved", ", ".join(approved), code, code in approved)


@declare
class RunRules(Rules, table="runs"):
    """The table `runs`."""

    strategies: list[_Method]
    sealed_only: bool
    max_rounds: OneOrMore
    max_epochs: OneOrMore
    max_hours: Amount
    max_visits: Count

    def judge(self, strategy: Strategy) -> Iterator[Ruling]:
        """The rulings on the methods, the length and the seal of a run."""
        settings, learners = strategy.settings, _learners_of(strategy)
        epochs = max(kind.epochs for kind in strategy.kinds())
        if "lwf" in learners:
            epochs += settings.section("lwf", LwFSettings).warm_up
        if "twf" in learners:
            own = settings.section("twf", TwFSettings)
            epochs += own.teacher_epochs * own.teacher.startswith(PUBLIC)
        names = [settings.strategy, settings.learner]
        if settings.strategy == "fedrewind":
            names.append(settings.run_config["rewind.base"])
        if settings.learner == "ser":
            names.append(settings.section("ser", SERSettings).learner)
        named = ", ".join(self.strategies)
        for name in filter(None, names):
            fits = not named or name in self.strategies
            yield Ruling("runs.strategies", named or "all", name, fits)
        allowed = "sealed runs" if self.sealed_only else "sealed runs and open ones"
        asked = "a sealed run" if settings.sealed else "an open run"
        fits = settings.sealed or not self.sealed_only
        yield Ruling("runs.sealed-only", allowed, asked, fits)
        yield self.ruling("max-rounds", settings.num_server_rounds)
        yield self.ruling("max-epochs", epochs)
        seconds = max(settings.hop_timeout, settings.prepare_timeout)
        yield self.ruling("max-hours", seconds / 3600)


@declare
class ImageRules(Rules, table="images"):
    """The table `images`."""

    classes: list[_Class]
    max_size: OneOrMore
    max_quarantined: ShareBelowOne
    min_train_patients: TwoOrMore
    min_batch: TwoOrMore

    @property
    def least_kept(self) -> int:
        """Least number of images that a learner keeps of a task, where a share of it is kept."""
        return max(self.min_train_patients, self.min_batch)

    def judge(self, strategy: Strategy) -> Iterator[Ruling]:
        """The rulings on the images of a training step."""
        settings = strategy.settings
        yield self.ruling("max-size", settings.image_size)
        yield self.ruling("min-batch", settings.train.batch_size)
        learners = {*_learners_of(strategy)}
        if not WITH_RESERVOIR & learners:
            return
        kept = settings.section("reservoir", ReservoirSettings)
        if kept.size:  # a step also trains on these images
            size = kept.size // settings.tasks if BY_TASK & learners else kept.size
            yield self.ruling("min-train-patients", size)
            yield self.ruling("min-batch", min(kept.batch_size, size))


@declare
class ModelRules(Rules, table="models"):
    """The table `models`."""

    max_megabytes: Amount
    weights: list[_Weights]
    max_membership: Share
    allow_optimizer: bool

    def judge(self, strategy: Strategy) -> Iterator[Ruling]:
        """The rulings on what leaves beside a model, and on models that no attack tests."""
        state, states = strategy.settings.train.optimizer_state, ["fresh"]
        states += ["travels"] if self.allow_optimizer else []
        yield Ruling("models.allow-optimizer", " or ".join(states), state, state in states)
        tested = strategy.settings.evaluate
        if strategy.tests_every_visit and tested.cross is True and tested.epochs:
            fits, asked = self.max_membership == 1, "the models of all epochs"
            allowed = asked if fits else "the last model of a visit, which is attacked"
            yield Ruling("models.max-membership", allowed, asked, fits)

    def judge_weights(self, source: str, hash_: str) -> Ruling:
        """The ruling on pretrained weights: the setting `pretrained`, and their SHA-256."""
        fits = not (source and self.weights) or bool({source, hash_} & {*self.weights})
        asked = f"{source} {hash_}".strip() or "random weights"
        return Ruling("models.weights", ", ".join(self.weights) or "all", asked, fits)


@declare
class ReleaseRules(Rules, table="release"):
    """The table `release`."""

    buffers: bool
    max_images: Count
    max_buffers: Count
    min_quantile: Share
    max_discarded_share: Share
    min_class_training_images: OneOrMore
    min_averaged: Count
    min_privacy_weight: Amount
    allow_without_privacy: bool
    max_gan_iterations: Count
    max_membership_leak: Share
    allow_untested: bool

    def judge(self, strategy: Strategy) -> Iterator[Ruling]:
        """The rulings on a buffer, and on the model that generates it."""
        gan, check = strategy.settings.gan, strategy.settings.release
        size = strategy.buffer_size
        allowed = "a buffer or none" if self.buffers else "no buffer"
        asked = "a buffer" if size else "no buffer"
        yield Ruling("release.buffers", allowed, asked, self.buffers or not size)
        yield self.ruling("max-images", size)
        yield self.ruling("min-quantile", check.quantile)
        yield self.ruling("max-discarded-share", check.max_discarded)
        yield self.ruling("min-class-training-images", check.min_class_images)
        yield self.ruling("max-membership-leak", check.max_membership)
        if size and check.max_membership < 1:  # a run may not choose that its buffer is untested
            allowed = f"a feder.buffer-size of 0, or of {LEAST} or more (an attack needs {LEAST})"
            yield Ruling("release.max-membership-leak", allowed, size, size >= LEAST)
        without = self.allow_without_privacy
        if size and gan.method == "class-gaussians":
            yield self.ruling("min-averaged", check.min_class_images)
            allowed = "a generator with a privacy loss"
            allowed = f"{allowed} or without" if without else allowed
            yield Ruling("release.allow-without-privacy", allowed, gan.method, without)
        if gan.method == "stylegan2-ada":
            if (averaged := gan.least_averaged) is not None:
                yield self.ruling("min-averaged", min(averaged, check.min_class_images))
            weight = gan.privacy_weight
            yield self.ruling("min-privacy-weight", weight)
            allowed = "a buffer without it" if without else "a privacy-weight above 0"
            fits = weight > 0 or without
            yield Ruling("release.allow-without-privacy", allowed, weight, fits)
            trained = choose_preset(gan.preset, gan.iterations).most_iterations
            yield self.ruling("max-gan-iterations", trained * (1 + check.shadow_generators))


@declare
class EmbeddingRules(Rules, table="embeddings"):
    """The table `embeddings`."""

    kinds: list[_Embedding]
    max_bits: Amount
    max_linked: Share
    max_inverted: Share
    max_samples: Count

    def judge(self, kind: str, figures: Mapping[str, float]) -> Iterator[Ruling]:
        """The rulings on embeddings of a kind, and on the figures of their audit."""
        yield Ruling("embeddings.kinds", ", ".join(self.kinds) or "none", kind, kind in self.kinds)
        # A missing figure is NaN, which is not below a limit.
        yield self.ruling("max-linked", figures.get("embedding-linked", math.nan))
        yield self.ruling("max-inverted", figures.get("embedding-inverted", math.nan))
        if kind == "sampled":  # only noise bounds the information in an embedding
            yield self.ruling("max-bits", figures.get("embedding-bits-most", math.nan))


@declare
class SumRules(Rules, table="sums"):
    """The table `sums`."""

    allow: bool
    min_class_patients: OneOrMore
    min_hospitals: TwoOrMore
    max_membership: Share

    def judge(self, settings: Settings) -> Iterator[Ruling]:
        """The rulings on sums of features; none for another strategy."""
        if settings.strategy != "sums":
            return
        asked = "sums in a sealed run" if settings.sealed else "sums in an open run"
        allowed = "sums in a sealed run" if self.allow else "no sums of features"
        yield Ruling("sums.allow", allowed, asked, self.allow and settings.sealed)


@declare
class PrivacyRules(Rules, table="privacy"):
    """The table `privacy`."""

    require: list[_Private]
    max_epsilon: Annotated[float, bounds(0, MOST_EPSILON)]
    max_delta: Annotated[float, bounds(0, MOST_DELTA)]

    def judge(self, strategy: Strategy) -> Iterator[Ruling]:
        """The rulings on a run; the account adds the ε spent before."""
        settings, gan = strategy.settings, strategy.settings.gan
        sums = settings.section("sums", SumsSettings) if settings.strategy == "sums" else None
        guaranteed = gan.method == "dp-mean-embedding" and strategy.buffer_size > 0
        learners = {kind.learner for kind in strategy.kinds()}
        trained = settings.train.dp.noise_multiplier > 0
        if "training" in self.require:
            fits = trained and learners == {"plain"}  # other learners do not use the noise
            asked = "with noise" if fits else "without noise"
            yield Ruling("privacy.require", "training with train.dp", asked, fits)
        if "buffers" in self.require:
            fits = guaranteed or not strategy.buffer_size
            yield Ruling("privacy.require", "buffers of dp-mean-embedding", gan.method, fits)
        if "sums" in self.require:
            exact = WITH_MEMORY if sums and sums.epsilon else {*WITH_MEMORY, "sums"}
            allowed, asked = f"none of {', '.join(sorted(exact))}", ", ".join(sorted(learners))
            yield Ruling("privacy.require", allowed, asked, not learners & exact)
        guarantees = [(gan.epsilon, gan.delta)] * guaranteed
        if sums and sums.epsilon:
            guarantees.append((sums.epsilon, sums.delta))
        deltas = [delta for _, delta in guarantees] + [settings.train.dp.delta] * trained
        largest = self.ruling("max-epsilon", max((each for each, _ in guarantees), default=0.0))
        most = self.ruling("max-delta", max(deltas, default=0))
        none = "no differential privacy, no guarantee"  # an ε of 0 would read as perfect privacy
        if not guarantees:
            asked = "noise at every visit: the account adds up ε" if deltas else none
            largest = replace(largest, requested=asked, holds=True)
        if not deltas:
            most = replace(most, requested=none, holds=True)
        yield largest
        yield most


@declare
class FigureRules(Rules, table="figures"):
    """The table `figures`."""

    withheld: list[_Figure]
    smallest_group: OneOrMore
    max_models: OneOrMore
    max_detailed: Count

    def judge(self, settings: Settings) -> Iterator[Ruling]:
        """The ruling on the number of models that a run tests at least."""
        yield self.ruling("max-models", -(-settings.num_server_rounds // settings.evaluate.every))


@declare
class MachineRules(Rules, table="machine"):
    """The table `machine`."""

    max_memory_gb: Amount
    max_disk_gb: AboveZero


@declare
class Policy:
    """All rules of a hospital."""

    code: CodeRules
    runs: RunRules
    images: ImageRules
    models: ModelRules
    release: ReleaseRules
    embeddings: EmbeddingRules
    sums: SumRules
    privacy: PrivacyRules
    figures: FigureRules
    machine: MachineRules

    @classmethod
    def read(cls, path: Path | None = None) -> "Policy":
        """The policy in a file. Rules that are not in the file have their defaults.

        Raises:
            OwnError: The file cannot be read, or has an unknown table, rule or value.
        """
        try:
            text = read_by_hand(path) if path else ""
        except (OSError, ValueError) as error:
            raise OwnError("policy", f"{path} cannot be read: {reason_of(error)}") from error
        return _parse(text, path)

    def judge(self, settings: Settings) -> Iterator[Ruling]:
        """The rulings on the settings of a run."""
        strategy = strategy_of(settings)
        yield from self.code.judge()
        yield from self.runs.judge(strategy)
        yield from self.figures.judge(settings)
        yield from self.images.judge(strategy)
        yield from self.models.judge(strategy)
        yield from self.release.judge(strategy)
        yield from self.privacy.judge(strategy)
        yield from self.sums.judge(settings)

    def remarks(self, settings: Settings) -> Iterator[str]:
        """Yield sentences on what the settings of a run do not decide: embeddings, and files."""
        asked = [each.embeddings for each in strategy_of(settings).kinds()]
        kind, kinds = max(asked), self.embeddings.kinds
        if kind in kinds:
            yield f"Embeddings ({kind}) leave if their audit stays within the rules 'embeddings'."
        elif kind:  # the hospital takes part in the run and keeps them
            named = ", ".join(kinds) or "empty"
            yield f"Embeddings ({kind}) stay here: embeddings.kinds is {named}."
        weights = self.models.judge_weights(settings.pretrained, "")
        if not weights.holds:
            yield (
                f"The weights {settings.pretrained!r} are refused unless models.weights has their "
                f"SHA-256; it has {weights.allowed}."
            )
        for key in named_files(settings.run_config):
            yield f"The file of '{key}' is refused unless the hospital's node-config names its own."

    def check(self, settings: Settings) -> None:
        """Raise a `PolicyError` about the first rule that the settings of a run break."""
        for ruling in self.judge(settings):
            uphold(ruling)


def named_files(run_config: Mapping[str, Any]) -> list[str]:
    """The settings in which a run names a file: a hospital opens only files of its own choice."""
    names = ((key, str(run_config[key]).removeprefix(PUBLIC)) for key in OWN_FILES)
    return [key for key, name in names if Path(name).is_absolute()]


def explain(rulings: Sequence[Ruling]) -> str:
    """The rulings on a run as a table, and whether the policy allows the run."""
    rows = [("rule", "allows", "the run asks for", "")]
    rows += [(r.rule, r.allowed, str(r.requested), "" if r.holds else "REFUSED") for r in rulings]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    broken = sum(not ruling.holds for ruling in rulings)
    verdict = (
        f"refuses this run ({broken} of {len(rulings)} rules)" if broken else "allows this run"
    )
    return "\n".join([*lines, f"The policy {verdict}."])


def write_policy(path: Path) -> None:
    """Write the default policy, with its comments, to a new file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_new(path, DEFAULTS.read_bytes())


def uphold(ruling: Ruling) -> None:
    """Raise a `PolicyError` if the rule does not hold."""
    if not ruling.holds:
        raise PolicyError(ruling.rule, ruling.requested, ruling.allowed)


def _learners_of(strategy: Strategy) -> list[str]:
    """The learners of a run's visits, and the one that `ser` wraps."""
    learners = [kind.learner for kind in strategy.kinds()]
    if "ser" in learners:
        learners.append(strategy.settings.section("ser", SERSettings).learner)
    return learners


@lru_cache(maxsize=8)  # each message reads the file
def _parse(text: str, path: Path | None) -> Policy:
    """The policy in the text of a file."""
    rules = _rules(DEFAULTS.read_text("utf-8"))
    try:
        own = _rules(text)
    except ValueError as error:
        raise OwnError("policy", f"{path} cannot be read: {error}") from error
    policy, problems = read(rules | own, Policy)
    for rule in own.keys() - rules.keys():
        problems[rule] = f"there is no rule '{rule}'{near_miss(rule, rules)}"
    if policy is None or problems:
        lines = {rule: _line_of(text, rule) for rule in problems}
        texts = [
            f"line {lines[rule]}: {problems[rule]}" if lines[rule] else problems[rule]
            for rule in sorted(lines, key=lines.__getitem__)
        ]
        sign = "," if all(lines.values()) else ":"
        raise OwnError("policy", f"{path}{sign} {' '.join(texts)}")
    return policy


def _rules(text: str) -> dict[str, Any]:
    """The rules in the text of a file, as "table.name"."""
    rules: dict[str, Any] = {}
    known = get_type_hints(Policy)
    for table, entries in parse_toml(text).items():
        if isinstance(entries, dict) and (entries or table in known):
            rules |= {f"{table}.{name}": value for name, value in entries.items()}
        else:
            # Not a rule in a table, so no known rule has this name, not even "runs.max-rounds" = 1.
            rules[f'"{table}"' if "." in table else table] = entries
    return rules


def _line_of(text: str, rule: str) -> int:
    """The line of a rule, from 1; 0 if the rule has no line of its own."""
    table, named = "", re.compile(r"\s*[\"']?([\w.-]+?)[\"']?\s*=")
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*\[\s*([^\]]+?)\s*\]", line):
            table = found[1]
            if table == rule:
                return number
        elif (found := named.match(line)) and rule in (f"{table}.{found[1]}", found[1]):
            return number
    return 0
