"""Does the runs of a table: a run for each row and seed. It then prints the table.

The table is one of benchmarks/, or your own file.

    uv run fedhandoff reproduce feder_digits
    uv run fedhandoff reproduce ~/own.toml --seeds 0,1,2,3,4
    uv run fedhandoff reproduce --vary strategy=cwt,feder --vary train.epochs=1,3

A table is a TOML file. It needs `rows`, and each row needs a `name`; all else is optional:

    title = "..."                          # the title, with the paper
    hospitals = 3                          # hospitals of every run; a row may have its own number
    seeds = [0, 1]                         # each row has a run for each seed
    folds = 5                              # and for each fold of the training images, with the
                                           # settings num-folds and fold
    columns = ["federation_accuracy"]      # see `list_columns`
    [settings]                             # of all rows, as in pyproject.toml; {data} stands for
    dataset = "npz:{data}/x.npz"           # the folder of --data, and {images} for its folders
    [[rows]]
    name = "FedER"                         # without a comma, for --rows
    settings.strategy = "feder"            # the settings of this row
    lost = 0.2                             # share of visits that do not take place
    leaves_after = 4                       # one hospital leaves after this round
                                           # (benchmarks/losses.py)
    paper.federation_accuracy = 0.83       # or [mean, std], in the unit of summary.json; `beside`
                                           # at the top names the source if it is not the paper

A completed run is not done again, so an interrupted table goes on where it stopped. GANs are
trained once: all runs share a store in the output folder. `fedhandoff compare` says how
certain the differences between rows are.
"""

import csv
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache, reduce
from itertools import product
from operator import getitem
from pathlib import Path
from shlex import quote
from statistics import fmean, median, stdev
from typing import Any, TypedDict

from flwr.common.config import flatten_dict

from benchmarks.losses import AWAY, NONE, Losses
from benchmarks.markdown import commit, gpu_names, machine, table_head, table_row
from benchmarks.simulation import USUAL, RunFailed, run, run_warm, superlink
from client_app.datasets.own import own_data
from deploy.running import lock
from server_app.check import check
from server_app.summary import Summary
from strategies.protocol.console import duration
from strategies.protocol.files import (
    LARGE,
    expand,
    parse_toml,
    read_by_hand,
    read_json,
    write_whole,
)
from strategies.protocol.run_config import read_config
from strategies.protocol.settings import MAY_CHANGE, Settings, SettingsError, complete, defaults
from strategies.protocol.shapes import ShapeError, from_value
from strategies.protocol.tested import TESTED
from strategies.registry import strategy_of
from warm.workers import Workers

Values = Callable[[Mapping[str, Any]], list[float | None]]
TABLES = {path.stem: path for path in Path(__file__).parent.glob("*.toml")}
COLUMNS = [
    "federation_balanced_accuracy",
    "federation_accuracy",
    "personalized_balanced_accuracy",
    "personalized_accuracy",
    "wall_seconds",
]


class TableError(ValueError):
    """A table's description cannot be used."""


class DescribedRow(TypedDict, total=False):
    """A row in a TOML file; the first key is required."""

    name: str
    hospitals: int
    settings: dict[str, object]
    paper: dict[str, float | list[float]]
    lost: float
    leaves_after: int


class DescribedTable(TypedDict, total=False):
    """A table in a TOML file; the first key is required."""

    rows: list[DescribedRow]
    title: str
    beside: str
    hospitals: int
    seeds: list[int]
    folds: int
    columns: list[str]
    settings: dict[str, object]


@dataclass(frozen=True)
class Repeat:
    """The seed of a run of a row, and its fold; folds = 0: the table has none."""

    seed: int
    folds: int = 0
    fold: int = 0

    @property
    def settings(self) -> dict[str, int]:
        """The settings of the run beside those of its row."""
        fold = {"num-folds": self.folds, "fold": self.fold} if self.folds else {}
        return {"seed": self.seed, **fold}

    def __str__(self) -> str:
        fold = f", fold {self.fold}" if self.folds else ""
        return f"seed {self.seed}{fold}"


@dataclass(frozen=True)
class Column:
    """A column of figures."""

    heading: str  # the title, with the unit
    scale: float  # the factor from the unit of summary.json to that of the table
    # Returns the figures in a summary; None = not measured. A cell shows the mean and the standard
    # deviation (N - 1) over the figures of all seeds, and the number of figures if some were not
    # measured.
    values: Values


@dataclass(frozen=True)
class Row:
    """A row: the settings that differ from pyproject.toml, and the paper's figures by column.

    Its name ends with the settings that vary; `name_in_file` does not.
    """

    name: str
    name_in_file: str
    hospitals: int
    settings: dict[str, Any]
    paper: dict[str, list[float]]
    losses: Losses = NONE


@dataclass(frozen=True)
class Table:
    """The checked content of a TOML file."""

    title: str
    beside: str
    seeds: list[int]
    folds: int
    columns: dict[str, Column]
    rows: list[Row]

    @property
    def repeats(self) -> list[Repeat]:
        """The runs of each row."""
        folds = range(max(self.folds, 1))
        return [Repeat(seed, self.folds, fold) for seed in self.seeds for fold in folds]


def reproduce(
    name: str | None,
    data: Sequence[Path],
    output: Path | None,
    rows: str | None,
    seeds: Sequence[int] | None,
    hospitals: int | None,
    vary: Sequence[str],
    workers: int,
    command: str,
) -> bool:
    """Do the missing runs of a table, then print the table and write it to a file.

    `name` and `vary` are as in `read_table`, `data` as in `check_table`, `rows` as in `choose`.
    `seeds` and `hospitals` replace the table's. Runs and table are in `output`; None =
    ~/fedhandoff/benchmarks/<name>. `workers` is the number of warm processes; 0 = Flower's engine.
    The table has the `command` that repeats it.

    Returns:
        Whether all runs are completed now.

    Raises:
        TableError, SettingsError: The table or a setting cannot be used.
        DeployError: Another process does runs in the output folder.
    """
    described = read_table(name, vary)
    changes = {"seeds": seeds, "hospitals": hospitals}
    described |= {key: value for key, value in changes.items() if value}
    table = check_table(described | {"rows": choose(described["rows"], rows)}, data)
    usual = Path.home() / "fedhandoff" / "benchmarks" / Path(name or "sweep").stem
    output = Path(os.path.realpath(output or usual))
    for row in table.rows:
        _check_here(row, table.repeats[0], output)
        if row.losses != NONE and not workers:
            raise TableError(f"Row '{row.name}' loses visits, which needs --workers.")

    output.mkdir(parents=True, exist_ok=True)
    store = {"XDG_DATA_HOME": str(output / "store")}
    with (
        lock(output, "A table"),
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as running,
    ):

        @cache
        def flower() -> dict[str, str]:
            """The SuperLink of all runs; the first run starts it."""
            place = Path(folder) / "superlink"
            return running.enter_context(superlink(place, **store))

        @cache
        def warm() -> Workers:
            """The warm processes of all runs; the first run starts them."""
            log = running.enter_context((output / "log.txt").open("a", encoding="utf-8"))
            return running.enter_context(Workers(workers, store, log))

        def start(output_dir: Path, row: Row, settings: dict[str, Any]) -> Path:
            if workers:
                return run_warm(warm(), output_dir, row.hospitals, settings, row.losses)
            gpus = min(1.0, len(gpu_names()) / row.hospitals)
            return run(flower(), output_dir, row.hospitals, settings, gpus=gpus)

        # Warm processes keep the code with which they started; Flower reads it for each run.
        complete = run_missing(table, output, start, cache(commit) if workers else commit)
    text = render(table, output, command)
    write_whole(output / "table.md", text)
    print(f"\n{text}\nHow sure are the differences? uv run fedhandoff compare {quote(str(output))}")
    return complete


def read_table(name: str | None, vary: Sequence[str] = ()) -> dict[str, Any]:
    """Read a table, and repeat each row for all values of the settings that vary.

    Args:
        name: The name of a table in benchmarks/, or the path of a TOML file; None = a table of one
            row, with the default settings.
        vary: Settings with their values, such as "strategy=cwt,feder"; a value with a comma stands
            in single quotes.

    Raises:
        TableError: There is no such table, it cannot be read, or it has an unknown key.
        SettingsError: A setting is unknown.
    """
    if name is None and not vary:
        raise TableError(f"Name a TOML file, or one of {', '.join(sorted(TABLES))}; or --vary.")
    described = _read(name) if name else {"title": "Sweep", "rows": [{"name": ""}]}
    settings: dict[str, list[Any]] = {}
    for key, values in map(_values, vary):
        if key in settings:
            raise TableError(f"--vary names '{key}' twice: give all values in one, as {key}=A,B.")
        settings[key] = values
    named = [key for key, values in settings.items() if len(values) > 1] or list(settings)
    rows = []
    for row, *each in product(described["rows"], *settings.values()):
        chosen = dict(zip(settings, each, strict=True))
        names = [f"{key}={chosen[key]}".replace(",", " ") for key in named]
        name = " ".join(filter(None, [row["name"], *names]))
        own = {**flatten_dict(row.get("settings")), **chosen}
        rows.append({**row, "name": name, "name_in_file": row["name"], "settings": own})
    return {**described, "rows": rows}


def _read(name: str) -> dict[str, Any]:
    path = TABLES.get(name, expand(name))
    try:
        described = parse_toml(read_by_hand(path))
    except OSError as error:
        near = get_close_matches(name, TABLES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(TABLES))}."
        text = f"'{name}' is neither a table in benchmarks/ nor a file that can be read; {hint}"
        raise TableError(text) from error
    except ValueError as error:
        raise TableError(f"{path} is not TOML: {error}") from error
    try:
        from_value(described, DescribedTable)
    except ShapeError as error:
        raise TableError(f"{path} cannot be used: {error}.") from error
    _check_keys(str(path), described, DescribedTable)
    if not described["rows"]:
        raise TableError(f"{path} has no row: write one or more, each as [[rows]].")
    for row in described["rows"]:
        _check_keys(f"A row of {path}", row, DescribedRow)
    return described


def _check_keys(where: str, found: Mapping[str, Any], shape: type) -> None:
    known = list(shape.__annotations__)
    if known[0] not in found:
        raise TableError(f"{where} has no '{known[0]}'.")
    if unknown := found.keys() - set(known):
        raise TableError(f"{where} has {_list(unknown)}; it may have {', '.join(known)}.")


def _values(text: str) -> tuple[str, list[Any]]:
    """A setting and its values, of the type of its default."""
    key, _, values = text.partition("=")
    complete({key: values})  # refuses a name that is unknown
    if not values:
        raise TableError(f"--vary is '{text}': write a setting with values, as train.epochs=1,3.")
    return key, [
        _value(defaults()[key], each) for each in next(csv.reader([values], quotechar="'"))
    ]


def _value(default: Any, text: str) -> Any:
    try:
        return text if isinstance(default, str) else parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text  # refused later, in a message that names the allowed values


def check_table(described: Mapping[str, Any], data: Sequence[Path]) -> Table:
    """Check a table, except what needs the images.

    `data` are the folders of --data.

    Raises:
        TableError: Two parts of the table do not fit together, or the value of a setting cannot be
            used.
    """
    hospitals, seeds = described.get("hospitals", max(2, len(data))), described.get("seeds", [0])
    chosen = described.get("columns", COLUMNS)
    fewest = min(row.get("hospitals", hospitals) for row in described["rows"])
    if fewest < 1:
        raise TableError(f"'hospitals' is {fewest}: give 1 or more.")
    known = list_columns(fewest)
    if unknown := set(chosen) - known.keys():
        raise TableError(f"No column is called {_list(unknown)}. There are: {', '.join(known)}.")
    if len({*seeds}) != len(seeds) or not seeds:
        raise TableError(f"The seeds are {seeds}: give one or more, each once.")
    first = Repeat(seeds[0], described.get("folds", 0))
    rows = []
    for row in described["rows"]:
        own = {**flatten_dict(described.get("settings")), **flatten_dict(row.get("settings"))}
        if taken := own.keys() & {*first.settings, "output-dir", "resume"}:
            raise TableError(
                f"Row '{row['name']}' sets {_list(taken)}, but a row has several runs: use "
                "--seeds, --output, or 'seeds' and 'folds' of the table."
            )
        settings = {key: _fill_in(value, data) for key, value in own.items()}
        try:
            for seed in seeds:
                strategy_of(Settings.parse(complete({**settings, **first.settings, "seed": seed})))
        except SettingsError as error:
            raise TableError(f"Row '{row['name']}': {error}") from error
        paper = {
            name: figure if isinstance(figure, list) else [figure]
            for name, figure in row.get("paper", {}).items()
        }
        if unknown := paper.keys() - set(chosen):
            raise TableError(f"The table has no column {_list(unknown)} (row {row['name']}).")
        losses = Losses(row.get("lost", 0.0), row.get("leaves_after", 0))
        if not 0 <= losses.share < 1:
            raise TableError(f"Row '{row['name']}': 'lost' is a share, from 0 to below 1.")
        if not folder_name(row["name"]):
            raise TableError(f"Row '{row['name']}' needs a name with a letter or a digit.")
        names = (row["name"], row["name_in_file"])
        rows.append(Row(*names, row.get("hospitals", hospitals), settings, paper, losses))
    if len({folder_name(row.name) for row in rows}) < len(rows):
        raise TableError("Two rows have one name, or names that differ only in signs like +.")
    columns = {name: known[name] for name in chosen}
    title, beside = described.get("title", "Own table"), described.get("beside", "paper")
    return Table(title, beside, seeds, first.folds, columns, rows)


def _check_here(row: Row, repeat: Repeat, output: Path) -> None:
    """Check that this machine has all that a row needs."""
    config = complete({**row.settings, **repeat.settings, "output-dir": str(output)})
    try:
        check(config, hospitals=row.hospitals)
    except SettingsError as error:
        raise TableError(f"Row '{row.name}': {error}") from error


def list_columns(hospitals: int) -> dict[str, Column]:
    """All columns that a table may have, by name.

    They are the accuracies, AUROCs and disagreements of summary.json, `forgetting` and
    `backward_transfer`, and:

        best_<accuracy>  the highest over the evaluated rounds, chosen on test data
        last_5_<accuracy>
                         the mean over the last 5 evaluated rounds
        hospital-0, ...  the accuracy of all models at a hospital; the numbers are in the order of
                         the hospitals' names. FedER calls it "node convergence"
        after-visit-hospital-0, ...
                         the accuracy, at a hospital, of the model that it trained last. FedER calls
                         it "node performance". FedER's test sets have as many images of each class,
                         so there it equals the balanced accuracy
        last_rounds_mean, last_rounds_std, last_rounds_balanced_mean, last_rounds_balanced_std
                         mean and standard deviation of the pooled (balanced) accuracy over all
                         visits of the last 10 rounds
        rounds_to_75     the first round with a pooled accuracy of 75 %; needs evaluate.every = 1
        epochs_to_75     the epochs of all hospitals until then, for methods in which one model goes
                         from hospital to hospital; needs evaluate.every = 1
        bytes_per_hop    bytes to and from a hospital at a visit
        megabytes        megabytes to and from all hospitals in the run
        seconds_per_round
                         the median over the evaluated rounds
        wall_seconds     the wall time of the run, with the training of GANs that were missing
        projection_plain, projection_private
                         the perceptual distance of training images from their projections by the
                         hospitals' GANs, before and after the phase with the privacy loss; needs
                         gan.projections
        mml              the perceptual distance of the GANs' synthetic images from the nearest
                         training image, in the mean
        frechet          the distance of the GANs' synthetic images from the real ones
        gan_private      the share of GANs that were trained with the privacy loss
    """
    tested = (name.replace("-", "_") for name in TESTED)
    wanted = "|".join([*tested, "accuracy", "disagreement", "forgetting", "transfer"])
    columns = {
        field.name: Column(f"{field.name.replace('_', ' ')}, %", 100, _scalar(field.name))
        for field in fields(Summary)
        if re.search(wanted, field.name) and field.name != "accuracy_matrix"
    }
    accuracies = [name for name in columns if "accuracy" in name]
    for name in accuracies:
        heading = f"best {columns[name].heading}"
        columns[f"best_{name}"] = Column(heading, 100, _scalar("best", name))
        heading = f"{name.replace('_', ' ')}, mean of last 5 rounds, %"
        columns[f"last_5_{name}"] = Column(heading, 100, _last_5(name))
    for index in range(hospitals):
        name = f"hospital-{index:0{len(str(hospitals - 1))}}"
        columns[name] = Column(f"all models at {name}, %", 100, _all_models_at(index))
        heading = f"{name} after its visit, %"
        columns[f"after-visit-{name}"] = Column(heading, 100, _after_visit_at(index))
    for part, heading in (
        ("mean", "mean of last 10 rounds, %"),
        ("std", "oscillation (std of last 10 rounds), %"),
        ("balanced_mean", "balanced, mean of last 10 rounds, %"),
        ("balanced_std", "balanced, oscillation (std of last 10 rounds), %"),
    ):
        columns[f"last_rounds_{part}"] = Column(heading, 100, _scalar("last_rounds", part))
    plain, private = (_synthetic(f"projection-{kind}-") for kind in ("plain", "private"))
    return columns | {
        "rounds_to_75": Column("rounds to 75 %", 1, _rounds_to_75),
        "epochs_to_75": Column("epochs to 75 %", 1, _epochs_to_75),
        "bytes_per_hop": Column("MB per hop", 1e-6, _scalar("bytes_per_hop")),
        "megabytes": Column("MB", 1e-6, lambda s: [s["bytes_sent"] + s["bytes_received"]]),
        "seconds_per_round": Column("s per round", 1, _seconds_per_round),
        "wall_seconds": Column("wall time, s", 1, _scalar("wall_seconds")),
        "projection_plain": Column("projection, plain, × 1000", 1000, plain),
        "projection_private": Column("projection, private, × 1000", 1000, private),
        "mml": Column("mmL, × 1000", 1000, _synthetic("mml-")),
        "frechet": Column("Fréchet distance", 1, _synthetic("fid", "frechet-")),
        "gan_private": Column("GANs with privacy loss, %", 100, _synthetic("gan-private")),
    }


def _scalar(*keys: str) -> Values:
    """The figure at nested keys of a summary."""
    return lambda summary: [reduce(getitem, keys, summary)]  # type: ignore[list-item]


def _last_5(key: str) -> Values:
    def values(summary: Mapping[str, Any]) -> list[float | None]:
        measured = [figure for figure in summary["history"][key][-5:] if figure is not None]
        return [fmean(measured) if measured else None]

    return values


def _all_models_at(index: int) -> Values:
    return lambda summary: [accuracies[index] for accuracies in summary["accuracy_matrix"]]


def _after_visit_at(index: int) -> Values:
    def values(summary: Mapping[str, Any]) -> list[float | None]:
        hospital = summary["hospitals"][index]
        own = [v["own_accuracies"] for v in summary["visits"] if v["hospital"] == hospital]
        return [own[-1].get(hospital) if own else None]

    return values


def _synthetic(*prefixes: str) -> Values:
    """Figures of the hospitals' GANs. The end of a figure's name is the method of measurement."""
    return lambda summary: [
        figure
        for figures in summary["synthetic"].values()
        for name, figure in figures.items()
        if name.startswith(prefixes)
    ]


def _rounds_to_75(summary: Mapping[str, Any]) -> list[float | None]:
    return [next((visit["round"] for visit in summary["visits"] if _is_75(visit)), None)]


def _epochs_to_75(summary: Mapping[str, Any]) -> list[float | None]:
    epochs: dict[tuple[int, int], int] = {}  # at a visit, so far
    for visit in summary["visits"]:
        epochs[visit["round"], visit["hop"]] = visit["epochs"]
        if visit["hospital"] and _is_75(visit):
            return [sum(epochs.values())]
    return [None]


def _seconds_per_round(summary: Mapping[str, Any]) -> list[float | None]:
    seconds = summary["history"]["seconds"]
    return [median(seconds) if seconds else None]


def _is_75(visit: Mapping[str, Any]) -> bool:
    accuracy = visit["global_accuracy"]
    return accuracy is not None and accuracy >= 0.75


def _fill_in(value: Any, data: Sequence[Path]) -> Any:
    """Replace {data} or {images} in a setting by the folders of --data."""
    if not isinstance(value, str) or not re.search("{(data|images)}", value):
        return value
    if "{images}" in value:
        if len(data) < 2:
            raise TableError("Name the folders of two hospitals or more: --data A,B.")
        kinds, paths = zip(*(own_data(str(each)).split(":", 1) for each in data), strict=True)
        if len({*kinds}) > 1:
            raise TableError(
                "All hospitals need a manifest.csv (docs/data.md), or none of them: "
                + ", ".join(f"{path} is a {kind}" for kind, path in zip(kinds, paths, strict=True))
            )
        return value.replace("{images}", f"{kinds[0]}:{','.join(paths)}")
    if len(data) != 1:
        raise TableError(f"'{value}' needs one folder of data: name it with --data.")
    return value.replace("{data}", str(data[0]))


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def choose(rows: list[dict[str, Any]], names: str | None) -> list[dict[str, Any]]:
    """The rows of `read_table` with these names, which commas separate; None = all rows.

    The name of a row in the file stands for all rows that --vary makes of it.

    Raises:
        TableError: A name belongs to no row.
    """
    if names is None:
        return rows
    wanted = {name.strip() for name in names.split(",")}
    if unknown := wanted - {row[key] for row in rows for key in ("name", "name_in_file")}:
        every = dict.fromkeys(row["name_in_file"] or row["name"] for row in rows)
        raise TableError(f"No row is called {_list(unknown)}. There are: {', '.join(every)}.")
    return [row for row in rows if {row["name"], row["name_in_file"]} & wanted]


def run_missing(
    table: Table,
    output: Path,
    start: Callable[[Path, Row, dict[str, Any]], Path],
    state: Callable[[], str] = commit,
) -> bool:
    """Do the runs that are not completed yet, and print the name of each.

    `start` does a run, by its output-dir, row and settings, and returns the result folder. `state`
    returns the commit of its code; it is asked before the run.

    Returns:
        Whether all runs are completed now.
    """
    runs = [(row, repeat) for repeat in table.repeats for row in table.rows]
    for number, (row, repeat) in enumerate(runs, 1):
        place, folder = f"[{number}/{len(runs)}] {row.name}, {repeat}", _folder(row, repeat, output)
        if completed_result(row, repeat, output):
            print(f"{place}: completed before", flush=True)
            continue
        print(f"{place}: under way in {folder}", flush=True)
        began, of_run = time.monotonic(), state()
        try:
            result = start(folder, row, {**row.settings, **repeat.settings})
            write_whole(result / "visits", str(row.losses))  # for `compare`
            write_whole(result / "commit", of_run)
            summary = read_summary(result)
            reasons = sorted({failure["reason"] for failure in summary["failures"]})
            outcome = ": ".join([summary["status"], *reasons])
        except RunFailed as error:
            outcome = f"failed: {error}"
        print(f"{place}: {outcome}, {duration(time.monotonic() - began)}", flush=True)
    return all(completed_result(row, repeat, output) for row, repeat in runs)


def completed_result(row: Row, repeat: Repeat, output: Path) -> Path | None:
    """The newest completed result of a row and repeat with the present settings, or None."""
    wanted = {**defaults(), **row.settings, **repeat.settings}
    for key in ("output-dir", "resume", *USUAL):
        del wanted[key]
    for path in sorted(_folder(row, repeat, output).glob("*/commit"), reverse=True):
        summary = read_summary(path.parent)
        config = read_config(path.parent / "config.toml")
        same = wanted.items() <= config.items() and len(summary["data"]) == row.hospitals
        if same and is_complete(path.parent):
            return path.parent
    return None


def is_complete(result: Path) -> bool:
    """Whether a run has completed, without failures that were not meant to be."""
    summary, visits = read_summary(result), result / "visits"
    # A run in which a buffer may not leave is complete: its hospital takes part without one.
    failures = {each["reason"] for each in summary["failures"] if each["outcome"] != "release"}
    meant = {AWAY} if visits.exists() and visits.read_text("utf-8") else set()
    return failures <= meant and summary["status"] != "failed"


def newest_runs(output: Path) -> Iterator[tuple[str, Path]]:
    """The rows and result folders of the completed runs below the output folder of a table.

    Of each repeat it is the newest run. Runs with other settings than the newest of their row are
    left out.
    """
    results = filter(is_complete, (path.parent for path in output.glob("*/*/*/commit")))
    facts: dict[str, dict[str, Any]] = {}  # by row, of its newest run
    newest: dict[Path, Path] = {}  # by repeat
    for result in sorted(results, key=lambda result: result.name, reverse=True):
        found = facts_of(result)
        if facts.setdefault(result.parent.parent.name, found) == found:
            newest.setdefault(result.parent, result)
    for repeat in sorted(newest):
        yield repeat.parent.name, newest[repeat]


def facts_of(result: Path) -> dict[str, Any]:
    """All that is the same for the runs of a row."""
    config, visits = read_config(result / "config.toml"), result / "visits"
    facts = {key: config[key] for key in config.keys() - MAY_CHANGE - {"seed", "fold"}}
    lost = visits.read_text("utf-8") if visits.exists() else ""
    return {**facts, "hospitals": len(read_summary(result)["data"]), "visits": lost}


def render(table: Table, output: Path, command: str) -> str:
    """The completed runs as Markdown, beside the paper's figures, with the command to repeat them.

    A last column counts the buffers that were released, of those that hospitals made, if any were.

    `command` did the runs.
    """
    with_paper = {name for row in table.rows for name in row.paper}
    lines, commits = [], set()
    for row in table.rows:
        found = [completed_result(row, repeat, output) for repeat in table.repeats]
        results = [result for result in found if result is not None]
        commits |= {(result / "commit").read_text("utf-8") for result in results}
        summaries = [read_summary(result) for result in results]
        missing = f" ({len(results)} of {len(found)} runs)" if None in found else ""
        line = [row.name + missing]
        for name, column in table.columns.items():
            figures = [value for summary in summaries for value in column.values(summary)]
            measured = [figure for figure in figures if figure is not None]
            partly = 0 < len(measured) < len(figures)
            count = f" ({len(measured)} of {len(figures)})" if partly else ""
            line.append(cell(mean_and_std(measured), column.scale) + count)
            if name in with_paper:
                line.append(cell(row.paper.get(name, []), column.scale))
        outcomes = [failure["outcome"] for each in summaries for failure in each["failures"]]
        left = sum(len(summary["synthetic"]) for summary in summaries)
        made = left + outcomes.count("release")
        lines.append([*line, f"{left} of {made}" if made else "–"])
    titles = [""]
    for name, column in table.columns.items():
        titles += [column.heading, table.beside] if name in with_paper else [column.heading]
    if any(line[-1] != "–" for line in lines):
        titles.append("buffers released")
    else:
        lines = [line[:-1] for line in lines]
    markdown = "\n".join([table_head(titles), *map(table_row, lines)])
    seeds, states = ", ".join(map(str, table.seeds)), ", ".join(sorted(commits))
    folds = f", {table.folds} folds each" if table.folds else ""
    return (
        f"## {table.title}\n\n    {command}\n\n"
        f"Seeds {seeds}{folds}. Commit {states}; {machine()}.\n\n{markdown}\n"
    )


def mean_and_std(figures: list[float]) -> list[float]:
    """Mean and standard deviation (N - 1), as far as they exist."""
    return [fmean(figures), stdev(figures)] if len(figures) > 1 else figures


def cell(figures: Sequence[float], scale: float) -> str:
    """[], [mean] or [mean, std] as text."""
    return " ± ".join(f"{scale * figure:.1f}" for figure in figures) or "–"


def _folder(row: Row, repeat: Repeat, output: Path) -> Path:
    return output / folder_name(row.name) / folder_name(f"{repeat} {row.losses}")


def folder_name(name: str) -> str:
    """A folder's name for the name of a row or a repeat."""
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def read_summary(result: Path) -> dict[str, Any]:
    """summary.json of a result folder."""
    return read_json(result / "summary.json", dict[str, object], times=LARGE)
