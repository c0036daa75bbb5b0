"""The contents of summary.json, the figures of a run."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypedDict

from pages.figures import Assessment, Figure, Headline, mean_over_hospitals
from pages.verdicts.run import add_baseline
from server_app.assessments import figure_everywhere
from strategies.protocol.files import read_json
from strategies.protocol.shapes import SHAPE

NAME = "summary.json"  # in a result directory
Curves = dict[str, list[float] | dict[str, list[float]]]


class _Share(TypedDict):
    name: str
    share: float


class _Row(TypedDict, total=False):
    kind: str
    model: str
    hospital: str
    largest_class: _Share | None
    classes: list[dict[str, object]]


class _Data(TypedDict, total=False):
    kind: str | None


class _Tasks(TypedDict, total=False):
    begins: list[int]
    accuracy: list[list[float]]
    matrix: list[list[float]]
    forgetting: list[float]
    backward_transfer: list[float]
    own_streams: bool


@dataclass(frozen=True)
class Summary:
    """The contents of summary.json, where NaN is null.

    Accuracies are fractions in [0, 1], of the last evaluated round, and defined at the top of this
    file. Figures over all models exist only if `evaluate.cross` is true; of
    those, the federation's are estimated with "sample:k".

    Attributes:
        strategy: Its name.
        status: `completed`, `completed with failures` (of a hospital, at some time) or `failed`.
        error: Why the run failed; empty if it did not.
        rounds: Rounds finished.
        hospitals: Those that answered at least once, sorted.
        models: Lineages that a hospital was asked to train, sorted.
        classes: Their names, in the order of every list of classes; empty if they are not settled.
        headline: The one figure to show first, or None if no model was tested; see below.
        worth: What may be said of the run, in words and in order (pages/verdicts): each with the
            `text`, its `judgement` (`good`, `bad`, `open` = not shown either way, `note`), what it
            is `about` (`run`, `noise`, `hospital`, `class`), and of which `hospital`, `model` and
            `class`.
        assessments: One row per model and hospital that tested it after the last evaluated round
            (`kind` = `model`), per ensemble and hospital, and per hospital for its own model before
            the first hand-off (`standalone`); see below.
        pooled: One row per model, and one for the ensemble: the test images of all hospitals put
            together; AUROC and calibration error are means over hospitals.
        data: Per hospital what its images are (`kind`), the `images`, `patients`, `classes` and
            `fingerprint` of its `train` and `test` images, how many more are `unusable`, and
            `own_settings`, which its node-config replaces.
        noise: The standard deviation of the noise that hospitals have put into the federation's
            balanced accuracy (without it: the personalized; or the accuracy); NaN if it is exact.
        federation_accuracy: With `federation_balanced_accuracy` and `federation_auroc` beside it.
        federation_accuracy_low: With `federation_accuracy_high`, and the same of balanced accuracy
            and AUROC, the ends of the 95 % interval of a federation figure that is estimated from a
            sample of pairs (`evaluate.cross = "sample:k"`); NaN if all pairs are tested, or few.
        ensemble_accuracy: The same of the mean probability of all models (`evaluate.ensemble`).
        pooled_federation_accuracy: The same, every image counting alike.
        disagreement: With `balanced_disagreement`, of the balanced accuracy.
        personalized_accuracy: With `personalized_balanced_accuracy` and `personalized_auroc`.
        standalone_balanced_accuracy: Of each hospital's own model before the first hand-off.
        origin_accuracy: Of the model that started at a hospital, wherever it is.
        fa_as_printed: The federation accuracy times half the number of models (Eq. 4.11).
        accuracy_after_visit: Of the last model that each hospital trained in the round.
        train_loss: Mean over the visits of the round.
        accuracy_over_tasks: With tasks, the mean of the accuracies on each task so far.
        accuracy_within_tasks: The same if only classes of an image's own task can be the answer
            (Task-IL); NaN where tasks share classes.
        forgetting: Over all tasks but the last; NaN before a round of the last was evaluated.
        backward_transfer: Likewise; NaN where each hospital has a task order of its own.
        node_convergence: Per hospital, `mean` and `std` (N - 1) of all models tested there;
            `balanced_mean` and `balanced_std` of their balanced accuracy.
        accuracy_matrix: A; rows as in `models`, columns as in `hospitals`.
        balanced_accuracy_matrix: The same of balanced accuracy.
        history: The figures above as lists over the evaluated rounds, whose numbers are in `round`;
            `held` lists the personalized accuracy of each hospital, `held_balanced` its balanced
            accuracy, `seconds` the wall time.
        visits: One row per version of a model that was tested, in order: its `round`, `hop`,
            `epochs` and `lineage`, the `hospital` that trained it there and then (empty if several
            did, whose models were averaged, or none), `global_accuracy`, `global_balanced_accuracy`
            (needs `evaluate.per_class`), and under `own_accuracies` that at each hospital.
        last_rounds: `mean` and `std` (N - 1) of the global accuracy, `balanced_mean` and
            `balanced_std` of the balanced one, over all finished visits of the last `LAST_ROUNDS`
            rounds. Where one model goes from hospital to hospital, `std` is the amplitude of its
            oscillation.
        best_round: The first one with the highest federation balanced accuracy (without one:
            personalized). It is chosen on test data, as papers do, and so flatters the method.
        best: The highest of each accuracy over the evaluated rounds, also chosen on test data.
        wall_seconds: From the start of the run to its end. If it was interrupted, only the time up
            to its last checkpoint before that counts.
        resumed: How many times the run was resumed.
        seconds: Summed over hospitals: the time that they report for each of `PHASES`; as `wait`,
            the rest of the time between a message and its answer.
        bytes_sent: To all hospitals together.
        bytes_received: From all hospitals together.
        bytes_per_hop: Mean over successful visits of the bytes to and from the hospital.
        participation: Per hospital the number of its `visits`, the rounds in which it `visited` a
            model, and the rounds in which it `missed` a visit that was asked of it.
        epsilon_spent: With DP-SGD, per hospital the ε of its privacy account after its last visit,
            at the δ of `train.dp.delta`.
        failures: Which hospitals failed, when, at what and why.
        synthetic: Per hospital that made synthetic images, what it measured of them.
        embeddings: One row per hospital and task of which it was asked for embeddings of images:
            `hospital`, `task` (1 without tasks), `kind`, the `count` that came, 0 if it sent none,
            and under `figures` what it told of their check.
        enrolment: If it was planned (`enrolment`), per hospital what it was in each task: `active`,
            `left` or `not-yet`. Whoever is not active is asked nothing, and misses nothing.
        tasks: With tasks (server_app/over_tasks.py), in lists over them: with which round each task
            `begins`, the `accuracy` on it after each evaluated round, the row of `matrix` R after
            its last round; over all but the last the `forgetting` and `backward_transfer` of each;
            and whether hospitals have their `own_streams`.
        over_time: Of asynchronous runs, and those in virtual time: server_app/over_time.py.

    An estimate is `{"value", "low", "high"}`, with the ends of a 95 % interval over patients (over
    images where none are named), or None. Details are measured once, after the last round; in other
    rounds the ends are None. One with noise also has its standard deviation, as `noise`, and its
    interval is wider by that. The headline is an estimate with the `figure` that it is of, its
    `round`, and the numbers of `hospitals`, `models`, `images` and `patients` behind it. A row of
    `assessments` has `kind`, `model`, `hospital`, whether the hospital has `held` the model after
    the last round, `images`, `patients` (None if none are named), and

        balanced_accuracy, accuracy, auroc, ece     estimates; ece is the calibration error
        largest_class    its `name` and `share`: the accuracy of always answering it
        gain             balanced accuracy less that of the hospital's own model; an estimate
        compared         by the gain: `better`, `worse`, `not shown`, or empty
        classes          for each class `name`, `images`, `patients`, `right` answers, `recall`, and
                         at its operating point `threshold` its `sensitivity` and `specificity`
                         against the rest; None for a class of which nothing is told
        confusion        images by what they show (rows) and what the model answers
        calibration      for each bin of the reliability plot `from` and `to` which confidence, how
                         many `images`, their mean `confidence`, and how many are `right`
    """

    strategy: str
    status: str
    error: str
    rounds: int
    hospitals: list[str]
    models: list[str]
    classes: list[str]
    headline: Headline | None = field(metadata={SHAPE: dict[str, object] | None})
    worth: list[dict[str, str]]
    assessments: list[dict[str, Any]] = field(metadata={SHAPE: list[_Row]})
    pooled: list[dict[str, Any]] = field(metadata={SHAPE: list[_Row]})
    data: dict[str, dict[str, Any]] = field(metadata={SHAPE: dict[str, _Data]})
    noise: float
    federation_accuracy: float
    federation_balanced_accuracy: float
    federation_auroc: float
    federation_accuracy_low: float
    federation_accuracy_high: float
    federation_balanced_accuracy_low: float
    federation_balanced_accuracy_high: float
    federation_auroc_low: float
    federation_auroc_high: float
    ensemble_accuracy: float
    ensemble_balanced_accuracy: float
    ensemble_auroc: float
    pooled_federation_accuracy: float
    disagreement: float
    balanced_disagreement: float
    personalized_accuracy: float
    personalized_balanced_accuracy: float
    personalized_auroc: float
    standalone_balanced_accuracy: float
    origin_accuracy: float
    fa_as_printed: float
    accuracy_after_visit: float
    train_loss: float
    accuracy_over_tasks: float
    accuracy_within_tasks: float
    forgetting: float
    backward_transfer: float
    node_convergence: dict[str, dict[str, float]]
    accuracy_matrix: list[list[float]]
    balanced_accuracy_matrix: list[list[float]]
    history: dict[str, Any] = field(metadata={SHAPE: Curves})
    visits: list[dict[str, Any]]
    last_rounds: dict[str, float]
    best_round: int | None
    best: dict[str, float]
    wall_seconds: float
    resumed: int
    seconds: dict[str, float]
    bytes_sent: int
    bytes_received: int
    bytes_per_hop: float
    participation: dict[str, dict[str, Any]]
    epsilon_spent: dict[str, float]
    failures: list[dict[str, Any]]
    synthetic: dict[str, dict[str, float]]
    embeddings: list[dict[str, Any]]
    enrolment: dict[str, list[str]]
    tasks: dict[str, Any] = field(metadata={SHAPE: _Tasks})
    over_time: dict[str, Any]

    @classmethod
    def read(cls, directory: str | Path, *, any_version: bool = False) -> Self:
        """The summary of a run that has ended, from its result directory.

        Args:
            directory: The directory.
            any_version: Whether another version may have written it; figures that it does not have
                are empty or NaN then.

        Raises:
            OSError: There is no summary.json.
            FileError: It is damaged, or another version of this app wrote it.
        """
        path = Path(directory).expanduser() / NAME
        return read_json(path, cls, any_version=any_version)


def judge_beside(summary: Summary, baseline: Summary) -> Summary:
    """The summary with whether its models are better than those of a baseline."""
    held = _held(summary)
    means = {
        "At home": (_mean(held), _mean(_held(baseline))),
        "Everywhere": (_everywhere(summary), _everywhere(baseline)),
    }
    worth = add_baseline(summary.worth, baseline.strategy, means, held)
    return replace(summary, worth=worth)


def _held(summary: Summary) -> list[Assessment]:
    return [row for row in summary.assessments if row["held"] and row["balanced_accuracy"]]


def _mean(rows: list[Assessment]) -> Figure | None:
    return mean_over_hospitals(rows, "balanced_accuracy") if rows else None


def _everywhere(summary: Summary) -> Figure | None:
    return figure_everywhere(summary.assessments, vars(summary))
