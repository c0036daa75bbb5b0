"""Compares methods over their runs: test performance, intervals of differences, and costs.

The runs of one method differ only in `seed` and `fold`. Two methods are compared over the seeds
that both have. A seed fixes the partition and the split of the images, so both methods have used
the same images. With d_s the difference at seed s between the means over folds and over hospitals
that both runs tested at, the interval is Student's (Biometrika 6, 1908), clipped to possible
differences:

    mean(d) ± t_{0.975, n−1} · std(d) / √n
Fewer than `SEEDS` seeds have no interval: for two seeds, t is 12.7. Nor has a difference that is
the same at every seed, except 0: no spread between seeds can be estimated from it.

Seeds are the units because only they are independent repetitions: hospitals and folds of one seed
share models or images.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations
from math import inf, isfinite, nan
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from learning.intervals import Figure, mean_over_splits, number, without_interval
from pages.figures import ROUNDING, direction
from pages.verdicts import methods
from pages.verdicts.methods import SEEDS
from server_app.measures import mean, spread
from server_app.runs import METRICS, CompletedRun, find
from strategies.protocol.settings import MAY_CHANGE, Settings, SettingsError
from strategies.protocol.text import amount, setting_text

MOST_CELLS = 1_000_000  # ordered pairs of methods, times hospitals


@dataclass(frozen=True)
class Column:
    """A figure by which methods are compared."""

    name: str  # in summary.json and in the CSV file
    heading: tuple[str, str]  # two lines for people
    metric: str = ""  # the metric in assessments; empty = no figures by hospital
    held: bool = False  # whether only held models count
    digits: int = 3  # after the point
    signed: bool = False  # whether it may be below 0
    most: float = 1.0  # the largest possible difference of two methods

    @property
    def constant(self) -> str:
        """The answer with a constant figure; empty if there is none."""
        return METRICS[self.metric].constant if self.metric else ""

    def figure(self, run: CompletedRun, hospital: str) -> float:
        """The figure of a run, over all hospitals or at one; NaN if it was not measured."""
        value = run.figures.get(self.name, nan)
        if not hospital or not isfinite(value):
            return nan if hospital else value
        return run.tests.get((self.metric, hospital, self.held), nan)

    def tested_at(self, run: CompletedRun) -> set[str]:
        """The hospitals behind the figure of a run, if it has figures by hospital."""
        return {hospital for hospital in run.hospitals if isfinite(self.figure(run, hospital))}


# The first column is shown first; the terminal shows only this one by hospital and by pairs.
COLUMNS = (
    Column("federation_balanced_accuracy", ("everywhere", "balanced"), "balanced_accuracy"),
    Column("federation_accuracy", ("everywhere", "accuracy"), "accuracy"),
    Column("personalized_balanced_accuracy", ("at home", "balanced"), "balanced_accuracy", True),
    Column("personalized_accuracy", ("at home", "accuracy"), "accuracy", True),
)
# Columns of runs whose images arrive in tasks (server_app/tasks.py).
OVER_TASKS = (
    Column("accuracy_over_tasks", ("over tasks", "accuracy")),
    Column("accuracy_within_tasks", ("within tasks", "accuracy")),
    Column("forgetting", ("over tasks", "forgetting")),
    Column("backward_transfer", ("over tasks", "transfer back"), signed=True, most=2.0),
)
# Further columns of the CSV file and of the page; the terminal shows only those over tasks.
MORE = (
    *(
        Column(f"{kind}_{name}", (place, figure.heading), name, held)
        for name, figure in METRICS.items()
        if figure.is_mean
        for kind, place, held in (
            ("federation", "everywhere", False),
            ("personalized", "at home", True),
        )
    ),
    Column("ensemble_balanced_accuracy", ("ensemble", "balanced")),
    Column("ensemble_accuracy", ("ensemble", "accuracy")),
    *OVER_TASKS,
)
COSTS = (
    Column("wall_seconds", ("time", "s"), digits=0, most=inf),
    Column("megabytes", ("traffic", "MB"), digits=1, most=inf),
)

# Settings that decide which images are used, and which of them are tested on. With other values, a
# seed stands for other images.
DATA = ("dataset", "images", "classes", "max-quarantined", "hospitals")
SPLIT = (
    "partition",
    "partition-alpha",
    "partition-classes",
    "test-fraction",
    "test-balanced",
    "test-per-class",
    "validation-fraction",
    "num-folds",
    "tasks",
    "task-cut",
    "task-classes",
    "task-order",
    "task-spread",
    "enrolment",
)
_REPEATED = {"seed", "fold"}
# Facts of a run that are not settings of its server.
_FACTS = {"hospitals", "images", "code", "visits", "own-settings"}
# Settings of all methods; the others belong to one method.
_COMMON = {field.name.replace("_", "-") for field in fields(Settings)}


@dataclass(frozen=True)
class Method:
    """Runs that differ only in their seeds and folds."""

    name: str  # its strategy, and the settings that differ between methods of that strategy
    facts: dict[str, Any]  # its settings; and `hospitals`, `images` and `code` if known
    runs: dict[tuple[int, int], CompletedRun]  # by seed and fold

    @property
    def images(self) -> list[Any]:
        """The facts that must be equal for a seed to stand for the same images."""
        return [self.facts.get(key) for key in (*DATA, *SPLIT)]

    def values(self, column: Column, hospital: str = "") -> list[float]:
        """The measured figures of the runs, over all hospitals or at one."""
        every = (column.figure(run, hospital) for run in self.runs.values())
        return [value for value in every if isfinite(value)]

    @property
    def title(self) -> str:
        """Its name, with the number of runs, seeds and folds."""
        seeds, folds = ({key[place] for key in self.runs} for place in (0, 1))
        seed = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, sorted(seeds)))}"
        parts = [f"{amount(len(self.runs), 'run')}, {seed}"]
        if len(folds) > 1:
            parts.append(f"{len(folds)} folds")
        if len(codes := self.facts.get("code", ())) > 1:
            parts.append(f"{len(codes)} versions of the code")
        if broken := sum(run.status != "completed" for run in self.runs.values()):
            parts.append(f"{broken} with failures of hospitals")
        return f"{self.name} ({', '.join(parts)})"

    def cell(self, column: Column, hospital: str = "") -> str:
        """Mean and standard deviation, as far as they exist; for costs only the mean."""
        values, digits = self.values(column, hospital), column.digits
        if not values:
            return "–"
        known = len(values) > 1 and digits > 1
        return f"{mean(values):.{digits}f}" + (f"±{spread(values):.{digits}f}" if known else "")

    def constant(self, column: Column) -> float:
        """The figure of a constant answer; NaN = unknown."""
        return mean(run.constant.get(column.metric, nan) for run in self.runs.values())

    def curve(self, column: Column) -> dict[int, float]:
        """The figure after each evaluated round, mean over the runs that have it."""
        found: dict[int, list[float]] = {}
        for run in self.runs.values():
            for round_, value in run.curves.get(column.name, {}).items():
                found.setdefault(round_, []).append(value)
        return {round_: fmean(values) for round_, values in sorted(found.items())}


@dataclass(frozen=True)
class Difference:
    """The difference of a figure between two methods, over the seeds that both have."""

    first: Method
    second: Method
    by_seed: dict[int, float]  # first minus second
    most: float = inf  # the largest possible difference

    @cached_property
    def figure(self) -> Figure | None:
        """The mean, with a 95 % interval by Student's t if it has one."""
        if not self.by_seed:
            return None
        values = [*self.by_seed.values()]
        mean = fmean(values)
        if len(values) < SEEDS or (mean and spread(values) < ROUNDING):
            return without_interval(mean)
        figure = mean_over_splits(values)
        low, high = max(figure["low"], -self.most), min(figure["high"], self.most)
        return {**figure, "low": low, "high": high}

    @property
    def has_interval(self) -> bool:
        """Whether the difference has an interval."""
        return self.figure is not None and isfinite(self.figure["low"])

    @property
    def higher_method(self) -> str:
        """The name of the method that is shown to be higher; empty if none is."""
        names = {"better": self.first.name, "worse": self.second.name}
        return names.get(direction(self.figure), "") if self.figure else ""

    @property
    def cells(self) -> list[str]:
        """The methods, the number of seeds, the difference, and its verdict."""
        seeds = len(self.by_seed)
        return [
            f"{self.first.name} − {self.second.name}",
            amount(seeds, "seed"),
            number(self.figure, signed=True) if self.figure else "–",
            methods.judge_difference(seeds, self.has_interval, self.higher_method),
        ]


@dataclass(frozen=True)
class Comparison:
    """The methods of some runs, and their differences."""

    methods: list[Method]  # in order of their names
    left_out: dict[Path, str]  # places without a comparable run, and the reasons

    @property
    def hospitals(self) -> list[str]:
        """The hospitals of all runs, sorted."""
        return sorted({h for m in self.methods for run in m.runs.values() for h in run.hospitals})

    @property
    def most_runs(self) -> int:
        """The largest number of runs of a method."""
        return max((len(each.runs) for each in self.methods), default=0)

    @property
    def about(self) -> str:
        """The sentences on what the figures are."""
        return methods.explain(self.most_runs, len(self.methods))

    @property
    def noise(self) -> str:
        """The remark on methods whose figures have noise; empty if there are none."""
        noised = [
            each.name
            for each in self.methods
            if any(isfinite(run.figures["noise"]) for run in each.runs.values())
        ]
        return methods.describe_noise(noised) if noised else ""

    @property
    def conclusions(self) -> list[str]:
        """A sentence about the models that hospitals hold, and one about all models everywhere."""
        home = self._conclusion(COLUMNS[2], "At home, with the model that a hospital holds")
        return [*home, *self._conclusion(COLUMNS[0], "Everywhere, every model at every hospital")]

    def _conclusion(self, column: Column, where: str) -> list[str]:
        differences = [each for each in self.differences(column) if each.by_seed]
        if not differences:
            return []
        compared = [method for e in differences for method in (e.first, e.second)]
        best = max(compared, key=lambda method: mean(method.values(column)))
        known = {m.name: (0, "") for m in self.methods if m is not best and m.values(column)}
        for each in differences:
            if best in (each.first, each.second):
                other = each.second if each.first is best else each.first
                known[other.name] = len(each.by_seed), each.higher_method
        value, constant = mean(best.values(column)), best.constant(column)
        return [methods.conclude(where, best.name, value, constant, known)]

    @property
    def pairs(self) -> list[tuple[Method, Method]]:
        """The pairs of methods that have worked on the same images."""
        return [(a, b) for a, b in combinations(self.methods, 2) if a.images == b.images]

    def differences(self, column: Column, hospital: str = "") -> list[Difference]:
        """The difference of each pair, over all hospitals or at one."""
        pairs = ((a, b, _seed_differences(a, b, column, hospital)) for a, b in self.pairs)
        return [Difference(*each, column.most) for each in pairs]

    @property
    def different_settings(self) -> list[tuple[str, str, str]]:
        """The differences between methods in common settings: kind, key, and values."""
        keys = dict.fromkeys(key for method in self.methods for key in method.facts)
        rows = []
        for key in sorted(keys, key=lambda key: (key not in DATA, key not in SPLIT)):
            if key == "strategy" or key.partition(".")[0] not in _COMMON | _FACTS:
                continue
            having: dict[str, list[str]] = {}
            for method in self.methods:
                having.setdefault(_text(method.facts.get(key)), []).append(method.name)
            if len(having) > 1:
                kind = "data" if key in DATA else "split" if key in SPLIT else "setting"
                values = "; ".join(
                    f"{value} ({methods.list_methods(who)})" for value, who in having.items()
                )
                rows.append((kind, key, values))
        return rows + self._other_images()

    def _other_images(self) -> list[tuple[str, str, str]]:
        """The seeds at which the images of a pair differ although their settings are equal."""
        return [
            (
                "data",
                f"images at seed {repeat[0]}",
                f"differ between {methods.list_methods([a.name, b.name])}",
            )
            for a, b in self.pairs
            for repeat in a.runs.keys() & b.runs.keys()
            if not _have_same_images(a.runs[repeat], b.runs[repeat])
        ]


def _have_same_images(first: CompletedRun, second: CompletedRun) -> bool:
    common = first.images.keys() & second.images.keys()
    pairs = [(first.images[hospital], second.images[hospital]) for hospital in common]
    return all(one[key] == other[key] for one, other in pairs for key in one.keys() & other.keys())


def _seed_differences(a: Method, b: Method, column: Column, hospital: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for repeat in sorted(a.runs.keys() & b.runs.keys()):
        one, other = a.runs[repeat], b.runs[repeat]
        ours, theirs = _figures(column, (one, other), hospital)
        if isfinite(ours - theirs) and _have_same_images(one, other):
            # Equal means of different numbers may differ in their last bit.
            found.setdefault(repeat[0], []).append(round(ours - theirs, 12))
    return {seed: fmean(folds) for seed, folds in found.items()}


def _figures(column: Column, runs: Sequence[CompletedRun], hospital: str) -> list[float]:
    """A figure of two runs, at one hospital or over the hospitals that have it in both runs.

    NaN if it has no figures by hospital, and other hospitals are behind it in each run.
    """
    if runs[0].behind.get(column.name) != runs[1].behind.get(column.name):
        return [nan, nan]
    if not hospital and column.metric:
        tested = [column.tested_at(run) for run in runs]
        if tested[0] != tested[1]:
            both = tested[0] & tested[1]
            return [mean(column.figure(run, h) for h in both) for run in runs]
    return [column.figure(run, hospital) for run in runs]


def compare(places: Iterable[Path]) -> Comparison:
    """Find the runs in some places, and group them by method.

    Raises:
        SettingsError: There are too many differences to compute.
    """
    runs, left_out = find(places)
    groups: dict[tuple[Any, ...], dict[tuple[int, int], CompletedRun]] = {}
    for run in sorted(runs, key=lambda run: run.path.name):
        facts = {key: run.settings[key] for key in run.settings.keys() - MAY_CHANGE - _REPEATED}
        group = groups.setdefault((*sorted(facts.items()), *run.hospitals), {})
        repeat = run.settings["seed"], run.settings["fold"]
        if older := group.get(repeat):
            reason = f"has the settings and seed of {run.path}, which is compared in its place"
            left_out[older.path] = reason
        group[repeat] = run
    hospitals = {name for run in runs for name in run.hospitals}
    if (cells := len(groups) ** 2 * len(hospitals)) > MOST_CELLS:
        raise SettingsError(
            f"{len(groups)} methods at {len(hospitals)} hospitals make {cells:,} differences; at "
            f"most {MOST_CELLS:,} are computed: name fewer folders."
        )
    facts_of = [_facts(list(group.values())) for group in groups.values()]
    names = _names(facts_of)
    methods = [
        Method(name, facts, dict(sorted(group.items())))
        for name, facts, group in zip(names, facts_of, groups.values(), strict=True)
    ]
    return Comparison(sorted(methods, key=attrgetter("name")), left_out)


def _facts(runs: Sequence[CompletedRun]) -> dict[str, Any]:
    hidden = MAY_CHANGE | _REPEATED
    facts = {key: value for key, value in runs[0].settings.items() if key not in hidden}
    codes = {run.code for run in runs} - {""}
    hospitals, kinds = tuple(runs[0].hospitals), runs[0].kinds
    images = {"images": sorted(kinds)} if kinds else {}  # they may differ from `dataset`
    known = {"code": sorted(codes)} if codes else {}
    return {**facts, "hospitals": hospitals, **images, **known}


def _names(facts_of: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each method; numbers tell names apart that shortened values make equal."""
    found: list[str] = []
    for name in (_name(facts, facts_of) for facts in facts_of):
        same = (name, *(f"{name} ({number})" for number in range(2, len(facts_of) + 1)))
        found.append(next(each for each in same if each not in found))
    return found


def _name(facts: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """The strategy, and the settings that differ between methods of this strategy."""
    alike = [other for other in every if other["strategy"] == facts["strategy"]]
    parts = [
        f"{key:.24}={_shorten(facts.get(key))}"
        for key in facts
        if key not in ("code", "images") and any(other.get(key) != facts[key] for other in alike)
    ]
    return ", ".join([_shorten(facts["strategy"]), *parts])


def _shorten(value: Any) -> str:
    if isinstance(value, tuple):
        return str(len(value))
    text = setting_text(value)
    return text if len(text) <= 24 else f"…{text[-23:]}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} ({', '.join(value)})"
    if isinstance(value, list):
        return ", ".join(value)
    return "not there" if value is None else setting_text(value)
