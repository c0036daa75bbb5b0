"""The contents of summary.json: one table of figures, each with its meaning and its computation.

With A[m, j] the accuracy of model m on the n[j] test images of hospital j, M models, N hospitals.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import isfinite, nan
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from learning.intervals import Figure
from pages.figures import FIGURES, Assessment, Headline, measured_rows
from pages.verdicts.model import Verdict
from pages.verdicts.run import add_baseline, judge_rewind, judge_run
from server_app import measures, tasks, timing
from server_app.assessments import assess, figure_everywhere, headline, pool
from server_app.data import data_of
from server_app.embeddings import embeddings_of
from server_app.measures import IN_TASK, OF_TASK, Round, RoundEvents, average, mean
from strategies.engine.events import Event, visits
from strategies.protocol.files import LARGE, expand, read_json
from strategies.protocol.shapes import SHAPE

NAME = "summary.json"  # in a result directory
End = Literal["value", "low", "high"]  # of a figure
Curves = dict[str, list[float] | dict[str, list[float]]]
# Prefixes of a hospital's metrics of its synthetic images.
SYNTHETIC = re.compile(
    "gan-|fid|frechet-|ada-|release-(?!passed)|held-out-|diversity-|mml-|projection-"
)


class _Share(TypedDict):
    name: str
    share: float


# Rows of `assessments` and `pooled`, as far as other people's files are checked
_ROW = {
    **dict.fromkeys(("kind", "model", "hospital"), str),
    "held": bool,
    **dict.fromkeys(FIGURES, Figure | None),
    "largest_class": _Share | None,
    "classes": list[dict[str, object]],
}
_Row = TypedDict("_Row", _ROW, total=False)  # type: ignore[misc]


class _Images(TypedDict):
    images: float | None
    fingerprint: str | None


class _Data(TypedDict, total=False):
    kind: str | None
    train: _Images
    test: _Images


class _Tasks(TypedDict, total=False):
    begins: list[int]
    accuracy: list[list[float]]
    matrix: list[list[float]]
    hospitals: list[list[str]]
    forgetting: list[float]
    backward_transfer: list[float]
    own_streams: bool


@dataclass(frozen=True)
class Record:
    """The data of a run from which its summary is computed."""

    strategy: str
    events: Sequence[Event]  # all events of the run
    rounds: Sequence[Round]  # the finished rounds
    wall_seconds: float
    error: str  # the reason of a failure; empty if the run did not fail
    resumed: int = 0  # number of times that the run was resumed
    classes: Sequence[str] = ()  # names of the classes, in order
    timed: bool = False  # whether there are figures over time
    tasks: Sequence[int] = ()  # the task of each round of the run; 0 = no tasks
    own_streams: bool = False  # whether each hospital has a task order, or durations, of its own
    enrolment: Mapping[str, Sequence[str]] = field(default_factory=dict)  # empty = not planned
    began: str = ""  # start and end of the run, ISO 8601; empty = unknown
    ended: str = ""
    version: str = ""  # of the server's app
    code: str = ""  # `code_hash` of the server

    @cached_property
    def evaluated_rounds(self) -> list[Round]:
        """The rounds that were evaluated."""
        return [each for each in self.rounds if each.is_evaluated]

    @cached_property
    def last_round(self) -> Round:
        """The last evaluated round; an empty round if there is none."""
        return self.evaluated_rounds[-1] if self.evaluated_rounds else measure_round(0, [], False)

    @cached_property
    def hospitals(self) -> list[str]:
        """The hospitals that answered at least once."""
        return measures.participants(self.events)

    @cached_property
    def visits(self) -> list[Event]:
        """All visits of the run."""
        return visits(self.events)

    @cached_property
    def models(self) -> list[str]:
        """The lineages of all visits, sorted."""
        return sorted({event.lineage for event in self.visits})

    @cached_property
    def failures(self) -> list[dict[str, Any]]:
        """The rows of `Summary.failures`."""
        keys = ("round", "hop", "verb", "hospital", "lineage", "outcome", "reason")
        failed = [event for event in self.events if event.outcome != "ok"]
        return [{key: getattr(event, key) for key in keys} for event in failed]

    @cached_property
    def assessments(self) -> list[Assessment]:
        """The rows of `Summary.assessments`."""
        return assess(self.last_round, self.events, self.classes)

    @cached_property
    def pooled(self) -> list[Assessment]:
        """The rows of `Summary.pooled`."""
        return pool(self.assessments)

    @cached_property
    def headline(self) -> Headline | None:
        """The figure to show first."""
        return headline(self.assessments, self.last_round)

    @cached_property
    def versions(self) -> list[dict[str, Any]]:
        """The rows of `Summary.visits`."""
        return [row for each in self.evaluated_rounds for row in each.visits]

    @cached_property
    def task_figures(self) -> dict[str, Any]:
        """The figures over tasks; empty without tasks."""
        if not any(self.tasks):
            return {}
        rounds = self.evaluated_rounds
        accuracies = {each.number: each.task_accuracies for each in rounds}
        at = {each.number: each.tasks_at for each in rounds}
        return tasks.measure(self.tasks, accuracies, at, self.own_streams)

    @cached_property
    def comparable_rounds(self) -> list[Round]:
        """The evaluated rounds with one set of test images: with tasks, those of the last task."""
        last = (self.task_figures.get("begins") or [0])[-1]
        return [each for each in self.evaluated_rounds if each.number >= last]

    def matrix(self, metric: str) -> list[list[float]]:
        """A metric of the last round by model (rows) and hospital."""
        tests = self.last_round.tests
        return [
            [tests.get((model, hospital), {}).get(metric, nan) for hospital in self.hospitals]
            for model in self.models
        ]


def run_figure(compute: Callable[[Record], Any], shape: Any = None) -> Any:
    """A field of `Summary`, with the function that computes it and its type in JSON, if wider."""
    return field(metadata={"run": compute} | ({SHAPE: shape} if shape else {}))


def round_figure(compute: Callable[[RoundEvents], float], label: str = "") -> Any:
    """A figure of each round; the figure of a run is the figure of its last evaluated round.

    `label` is its name in the log's line of a round; empty = not in that line.
    """
    return field(metadata={"round": compute, "label": label})


def _home_figure(metric: str, label: str = "") -> Any:
    """1/N Σ A[held by j, j]: the model that j holds after the hand-off."""
    return round_figure(lambda r: average(r.home_tests.values(), metric), label)


def _federation_figure(metric: str, end: End = "value", label: str = "") -> Any:
    """1/(M·N) ΣΣ A[m, j], or an end of its interval, if it is an estimate."""
    return round_figure(lambda r: r.federation[metric][end], label)


def _ensemble_figure(metric: str, label: str = "") -> Any:
    """1/N Σ A[mean of all models, j]."""
    return round_figure(lambda r: average(r.ensemble.values(), metric), label)


def _status(run: Record) -> str:
    if run.error:
        return "failed"
    return "completed with failures" if run.failures else "completed"


def _worth(run: Record) -> list[Verdict]:
    everywhere = figure_everywhere(run.assessments, run.last_round.figures)
    holders = {hospital for _, hospital in run.last_round.held_pairs}
    found = judge_run(run.headline, everywhere, run.assessments, run.pooled, holders)
    return [*found, *judge_rewind(measures.last_leg_loss(run.events), len(run.classes))]


def _mean_standalone(run: Record) -> float:
    rows = measured_rows(run.assessments, "standalone")
    return mean(row["balanced_accuracy"]["value"] for row in rows)


def _best_figures(run: Record) -> dict[str, float]:
    names = [name for name in run.last_round.figures if name.endswith("accuracy")]
    figures = [each.figures for each in run.comparable_rounds]
    return {name: max(filter(isfinite, (f[name] for f in figures)), default=nan) for name in names}


def _synthetic(run: Record) -> dict[str, dict[str, float]]:
    found = {
        event.hospital: {k: v for k, v in event.metrics.items() if SYNTHETIC.match(k)}
        for event in run.events
        if event.verb == "query.prepare" and "release-passed" in event.metrics
    }
    return dict(sorted(found.items()))


def _epsilon_spent(run: Record) -> dict[str, float]:
    known = (event for event in run.events if "epsilon-spent" in event.metrics)
    return dict(sorted({e.hospital: e.metrics["epsilon-spent"] for e in known}.items()))


def _time_figures(run: Record) -> dict[str, Any]:
    rounds = [each.number for each in run.evaluated_rounds]
    return timing.measure(run.events, rounds) if run.timed else {}


@dataclass(frozen=True)
class Summary:
    """The contents of summary.json, where NaN is null.

    Accuracies are fractions in [0, 1], of the last evaluated round. Figures over all models exist
    only if `evaluate.cross` is true and no model has layers that stay at a hospital. With
    "sample:k" only the federation's figures exist, as estimates.

    An estimate is `{"value", "low", "high"}`, with the ends of a 95 % interval over patients (over
    images where no patients are named), or None. Details are measured once, after the last round;
    in other rounds the ends are NaN. An estimate with noise also has `noise`, the standard
    deviation of the noise, and a wider interval. The headline is an estimate with the name of its
    `figure`, its `round`, and the numbers of `hospitals`, `models`, `images` and `patients` behind
    it. A row of `assessments` has `kind`, `model`, `hospital`, `held` (whether the hospital holds
    the model after the last round), `images`, `patients` (None if none are named), and

        balanced_accuracy, accuracy, auroc, ece     estimates; ece is the calibration error
        largest_class    its `name` and its `share` of the images
        gain             balanced accuracy minus that of the hospital's own model; an estimate
        compared         by the gain: `better`, `worse`, `not shown`, or empty
        classes          for each class `name`, `images`, `patients`, `right` answers, `recall`,
                         its operating point `threshold`, and there its `sensitivity` and
                         `specificity` against the rest; None where nothing is reported
        confusion        number of images by true class (rows) and predicted class, or None
        calibration      for each bin of the reliability plot the confidences `from` and `to`, the
                         number of `images`, their mean `confidence`, and the share `right`
    """

    strategy: str = run_figure(attrgetter("strategy"))
    # `completed`, `completed with failures` (of a hospital, at some time) or `failed`.
    status: str = run_figure(_status)
    # The reason of a failure; empty if the run did not fail.
    error: str = run_figure(attrgetter("error"))
    # The number of finished rounds.
    rounds: int = run_figure(lambda run: run.rounds[-1].number if run.rounds else 0)
    # The hospitals that answered at least once, sorted.
    hospitals: list[str] = run_figure(attrgetter("hospitals"))
    # The lineages that a hospital was asked to train, sorted.
    models: list[str] = run_figure(attrgetter("models"))
    # The names of the classes, in the order of every list of classes; empty if unknown.
    classes: list[str] = run_figure(lambda run: [*run.classes])
    # The figure to show first, or None if no model was tested; see above.
    headline: Headline | None = run_figure(attrgetter("headline"))
    # The verdicts on the run, in order (pages/verdicts): each has the `text`, its `judgement`
    # (`good`, `bad`, `open` = not shown either way, `note`), its subject `about` (`run`, `noise`,
    # `hospital`, `class`), and the `hospital`, `model` and `class`.
    worth: list[dict[str, str]] = run_figure(_worth)
    # One row per model and hospital that tested it after the last evaluated round (`kind` =
    # `model`), per ensemble and hospital, and per hospital for its own model before the first
    # hand-off (`standalone`); see above.
    assessments: list[dict[str, Any]] = run_figure(attrgetter("assessments"), list[_Row])
    # One row per model, and one for the ensemble, over the test images of all hospitals that tested
    # it; AUROC and calibration error are means over these hospitals.
    pooled: list[dict[str, Any]] = run_figure(attrgetter("pooled"), list[_Row])
    # Per hospital the `kind` of its images, the `images`, `patients`, `classes` and `fingerprint`
    # of its `train` and `test` images, the number of further `unusable` images, and
    # `own_settings`, the settings that its node-config replaces.
    data: dict[str, dict[str, Any]] = run_figure(
        lambda run: data_of(run.events, run.classes), dict[str, _Data]
    )
    # The standard deviation of the hospitals' noise in the federation's balanced accuracy; NaN if
    # it is exact. If not all pairs are tested, also with a sample of them, it is that in the
    # personalized one; without balanced accuracies, in the accuracy.
    noise: float = round_figure(attrgetter("noise"))
    # 1/N Σ A[held by j, j]: the model that j holds after the hand-off.
    personalized_accuracy: float = _home_figure("accuracy", "held (accuracy)")
    personalized_balanced_accuracy: float = _home_figure("balanced-accuracy", "held")
    personalized_auroc: float = _home_figure("auroc")
    # 1/(M·N) ΣΣ A[m, j]: the mean over all pairs of model and hospital. If a sample of the pairs is
    # tested (`evaluate.cross`), it is an estimate; `low` and `high` are the ends of its 95 %
    # interval. They are NaN if all pairs are tested, or too few.
    federation_accuracy: float = _federation_figure("accuracy", label="accuracy")
    federation_balanced_accuracy: float = _federation_figure(
        "balanced-accuracy", label="balanced accuracy"
    )
    federation_auroc: float = _federation_figure("auroc")
    federation_accuracy_low: float = _federation_figure("accuracy", "low")
    federation_accuracy_high: float = _federation_figure("accuracy", "high")
    federation_balanced_accuracy_low: float = _federation_figure("balanced-accuracy", "low")
    federation_balanced_accuracy_high: float = _federation_figure("balanced-accuracy", "high")
    federation_auroc_low: float = _federation_figure("auroc", "low")
    federation_auroc_high: float = _federation_figure("auroc", "high")
    # 1/N Σ A[mean of all models, j]: the ensemble (`evaluate.ensemble`).
    ensemble_accuracy: float = _ensemble_figure("accuracy", "ensemble (accuracy)")
    ensemble_balanced_accuracy: float = _ensemble_figure("balanced-accuracy", "ensemble")
    ensemble_auroc: float = _ensemble_figure("auroc")
    # ΣΣ n[j]·A[m, j] / (M·Σ n[j]): the federation's accuracy with equal weights of images.
    pooled_federation_accuracy: float = round_figure(
        lambda r: measures.pooled_accuracy(r.complete_tests.values())
    )
    # 1/N Σ std of A[., j] (M - 1): the spread of the models.
    disagreement: float = round_figure(lambda r: r.disagreement("accuracy"))
    balanced_disagreement: float = round_figure(lambda r: r.disagreement("balanced-accuracy"))
    # The mean over hospitals of their own models before the first hand-off.
    standalone_balanced_accuracy: float = run_figure(_mean_standalone)
    # 1/N Σ A[model named j, j]: models at the hospitals where they started.
    origin_accuracy: float = round_figure(
        lambda r: average((r.tests[pair] for pair in r.tests if pair[0] == pair[1]), "accuracy")
    )
    # 1/(2·N) ΣΣ A[m, j], FedRewind's Eq. 4.11; equal to the federation's accuracy if M = 2.
    fa_as_printed: float = round_figure(
        lambda r: r.federation["accuracy"]["value"] * len(r.models) / 2
    )
    # 1/N Σ A[trained by j, j]: the last model that j trained in the round, right after that visit.
    accuracy_after_visit: float = round_figure(lambda r: mean(r.visit_accuracies()))
    # The mean over the visits of the round.
    train_loss: float = round_figure(
        lambda r: average((event.metrics for event in r.visits), "train-loss")
    )
    # With tasks, the mean of the accuracies on the tasks so far, with equal weights of tasks.
    accuracy_over_tasks: float = round_figure(
        lambda r: mean(r.task_accuracies(OF_TASK).values()), "over tasks"
    )
    # The same if the answer is chosen among the classes of the image's task (Task-IL); NaN if tasks
    # share classes.
    accuracy_within_tasks: float = round_figure(lambda r: mean(r.task_accuracies(IN_TASK).values()))
    # The mean over all tasks but the last; NaN before an evaluated round of the last task.
    forgetting: float = run_figure(lambda run: mean(run.task_figures.get("forgetting", ())))
    # The same; also NaN if each hospital has a task order of its own.
    backward_transfer: float = run_figure(
        lambda run: mean(run.task_figures.get("backward_transfer", ()))
    )
    # Per hospital, `mean` and `std` (N - 1) of all models tested there; `balanced_mean` and
    # `balanced_std` of their balanced accuracy.
    node_convergence: dict[str, dict[str, float]] = run_figure(
        lambda run: measures.convergence(run.hospitals, run.last_round.tests)
    )
    # A; rows as in `models`, columns as in `hospitals`.
    accuracy_matrix: list[list[float]] = run_figure(lambda run: run.matrix("accuracy"))
    balanced_accuracy_matrix: list[list[float]] = run_figure(
        lambda run: run.matrix("balanced-accuracy")
    )
    # The figures of rounds as lists over the evaluated rounds: their numbers in `round`, in `held`
    # the personalized accuracy of each hospital, in `held_balanced` its balanced accuracy, in
    # `seconds` the time from the first message to the last answer (virtual in virtual time).
    history: dict[str, Any] = run_figure(
        lambda run: measures.history(run.evaluated_rounds, run.last_round.figures, run.hospitals),
        Curves,
    )
    # One row per tested version of a model, in order: its `round`, `hop`, `epochs` and `lineage`,
    # the `hospital` that trained it in that hop (empty if none did, or several, as for an average),
    # `global_accuracy` = Σ n[j]·A[m, j] / Σ n[j], `global_balanced_accuracy` (needs
    # `evaluate.per_class`) over all test images together, and in `own_accuracies` the accuracy at
    # each hospital.
    visits: list[dict[str, Any]] = run_figure(attrgetter("versions"))
    # `mean` and `std` (N - 1) of the global accuracy, `balanced_mean` and `balanced_std` of the
    # balanced one, over all tested visits of the last `LAST_ROUNDS` rounds, and of the last task.
    # Where one model goes from hospital to hospital, `std` is the amplitude of its oscillation.
    last_rounds: dict[str, float] = run_figure(
        lambda run: measures.last_rounds(run.comparable_rounds)
    )
    # The first round with the highest federation balanced accuracy (without it, personalized one).
    # It is chosen on test data, as in the papers, and so flatters the method; with tasks among the
    # rounds of the last one. Rounds may have different hospitals: one that is away moves the mean.
    best_round: int | None = run_figure(lambda run: measures.best_round(run.comparable_rounds))
    # The highest value of each accuracy over the evaluated rounds, also chosen on test data, and of
    # the hospitals of that round.
    best: dict[str, float] = run_figure(_best_figures)
    # The time from the start of the run to its end. Before an interruption, only the time up to the
    # last checkpoint counts.
    wall_seconds: float = run_figure(attrgetter("wall_seconds"))
    # The start and the end of the run by the server's clock, in ISO 8601; empty = unknown.
    began: str = run_figure(attrgetter("began"))
    ended: str = run_figure(attrgetter("ended"))
    # The version of the server's app, and the hash of its code, which hospitals approve.
    version: str = run_figure(attrgetter("version"))
    code: str = run_figure(attrgetter("code"))
    # The number of times that the run was resumed.
    resumed: int = run_figure(attrgetter("resumed"))
    # Summed over hospitals: their reported time for each of `PHASES`, and in `wait` the rest of the
    # time between message and answer.
    seconds: dict[str, float] = run_figure(lambda run: measures.seconds(run.events))
    # Bytes to all hospitals together, and from them; and the mean of their sum over successful
    # visits.
    bytes_sent: int = run_figure(lambda run: sum(event.bytes_sent for event in run.events))
    bytes_received: int = run_figure(lambda run: sum(event.bytes_received for event in run.events))
    bytes_per_hop: float = run_figure(
        lambda run: mean(e.bytes_sent + e.bytes_received for e in run.visits if e.outcome == "ok")
    )
    # Per hospital the number of its successful `visits` and of their `epochs`, the rounds with a
    # successful visit (`visited`), and the rounds with a failed one (`missed`).
    participation: dict[str, dict[str, Any]] = run_figure(
        lambda run: measures.participation(run.hospitals, run.visits)
    )
    # With DP-SGD or noised sums, per hospital the ε of its privacy account after its last visit. δ
    # is `train.dp.delta` or `sums.delta`.
    epsilon_spent: dict[str, float] = run_figure(_epsilon_spent)
    # One row per failure: `round`, `hop`, `verb`, `hospital`, `lineage`, `outcome`, `reason`.
    failures: list[dict[str, Any]] = run_figure(attrgetter("failures"))
    # Per hospital that made synthetic images, their figures.
    synthetic: dict[str, dict[str, float]] = run_figure(_synthetic)
    # One row per hospital and task for which the server asked for embeddings: `hospital`, `task` (1
    # without tasks), `kind`, the `count` received (0 = none), and `figures` of their check.
    embeddings: list[dict[str, Any]] = run_figure(lambda run: embeddings_of(run.events, run.tasks))
    # With the setting `enrolment`, the state of each hospital in each task: `active`, `left` or
    # `not-yet`. A hospital that is not active gets no message, and misses no visit.
    enrolment: dict[str, list[str]] = run_figure(
        lambda run: {name: [*states] for name, states in run.enrolment.items()}
    )
    # With tasks (server_app/tasks.py), lists over tasks: the round in which each task
    # `begins`, the `accuracy` on it after each evaluated round, and after its last evaluated round
    # its row of `matrix` R and the `hospitals` that reported an accuracy on a task. Over all tasks
    # but the last: `forgetting` and `backward_transfer`, over the hospitals that were measured at
    # both times. Also `own_streams`: whether each hospital has a task order, or durations, of its
    # own.
    tasks: dict[str, Any] = run_figure(attrgetter("task_figures"), _Tasks)
    # Only for asynchronous runs and runs in virtual time: server_app/timing.py.
    over_time: dict[str, Any] = run_figure(_time_figures)

    @classmethod
    def read(cls, directory: str | Path, *, any_version: bool = False) -> Self:
        """The summary of a run that has ended, from its result directory.

        With `any_version` another version may have written the file; missing figures are then empty
        or NaN.

        Raises:
            OSError: There is no summary.json.
            FileError: The file is damaged, or another version of this app wrote it.
        """
        path = expand(directory) / NAME
        return read_json(path, cls, any_version=any_version, times=LARGE)


_OF_RUN, _OF_ROUND, LABELS = (
    {each.name: each.metadata[kind] for each in fields(Summary) if each.metadata.get(kind)}
    for kind in ("run", "round", "label")
)


def measure_round(number: int, events: Iterable[Event], cross: bool | str) -> Round:
    """The figures of one round, from `RoundEvents.events`; `cross` is `Strategy.cross`."""
    known = RoundEvents(number, [*events], cross)
    return Round(
        number=number,
        trained=frozenset(event.hospital for event in known.visits),
        tests=known.tests,
        ensemble=known.ensemble,
        is_evaluated=any(isfinite(each.get("accuracy", nan)) for each in known.tests.values()),
        task_accuracies=known.task_accuracies(OF_TASK),
        tasks_at=known.tasks_at,
        held_pairs=known.held_pairs,
        figures={name: compute(known) for name, compute in _OF_ROUND.items()},
        visits=known.tested_versions(),
        began=known.span[0],
        ended=known.span[1],
    )


def summarise(run: Record) -> Summary:
    """The figures of a run, from all its events and its finished rounds."""
    found: dict[str, Any] = {name: compute(run) for name, compute in _OF_RUN.items()}
    return Summary(**found | run.last_round.figures)


def judge_with_baseline(summary: Summary, baseline: Summary) -> Summary:
    """The summary with verdicts on the comparison of its models with a baseline's models."""
    runs = (summary, baseline)
    everywhere = [figure_everywhere(each.assessments, vars(each)) for each in runs]
    rows = [measured_rows(each.assessments) for each in runs]
    tests = {"At home": [[row for row in each if row["held"]] for each in rows]}
    # The interval of a sample of pairs does not cover the choice of patients.
    if all(each and "sampled" not in each for each in everywhere):
        tests["Everywhere"] = rows
    epochs = [{name: row["epochs"] for name, row in each.participation.items()} for each in runs]
    # Who has left by the plan, or has not come yet, holds no model and reports none.
    away = {name for name, states in summary.enrolment.items() if states[-1] != "active"}
    members = {*summary.hospitals, *baseline.hospitals} - away
    worth = add_baseline(summary.worth, baseline.strategy, tests, epochs, members)
    return replace(summary, worth=worth)
