"""How far honest visits stay from what is taken for a blow-up (docs/methods.md).

    uv run python -m benchmarks.judgement                       # all tables of benchmarks/
    uv run python -m benchmarks.judgement judgement cwc_digits

Every row is run once, shortened for a CPU: at most 5 hospitals (those of the table `judgement` as
they are), 3 rounds (2 for each of 2 tasks), 2 epochs and 32 pixels, without GANs. Images that are
not here are replaced: skin by two sites of it where --data has them, all others by digits. Printed
are, for each table, the largest figures of all its visits, and the share of their time that the
judgement took.
"""

import argparse
import logging
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import Context, Message
from flwr.common.config import flatten_dict
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.markdown import print_head, print_row, where
from benchmarks.reproduce import TABLES
from client_app import handlers, visit
from client_app.app import app
from client_app.judge import Judge
from learning.judgement import HOPELESS, WORSE, loss_of
from learning.packing import as_arrays
from strategies.engine.strategy import RunError
from strategies.protocol.settings import Settings
from strategies.protocol.soundness import LARGEST, MOVED, moved
from tests.fakes import FakeGrid, Ledger, context, go, run_config

# What a row says of a machine, of files that are not here, and of GANs.
LEFT_OUT = (
    *("workers", "pretrained", "filver.pretrain", "twf.teacher", "ser.oracle", "enrolment"),
    *(
        "classes",
        "test-fraction",
        "test-per-class",
        "num-folds",
        "fold",
        "task-spread",
        "train.batch-sizes",
    ),
)
SITES = ("ham_vienna_dias", "msk4")
KEPT = "judgement"


class Watched(Judge):
    """Notes what it sees, and how long it takes."""

    largest: ClassVar[dict[str, float]] = defaultdict(float)

    def __init__(self, *asked: Any) -> None:
        began = time.perf_counter()
        super().__init__(*asked)
        self.note("arrived", self.loss)
        self.largest["judging"] += time.perf_counter() - began

    def note(self, name: str, value: float) -> None:
        """Keep the largest."""
        self.largest[name] = max(self.largest[name], value)

    def check_visit(self) -> None:
        """Note the same again, after the visit."""
        began = time.perf_counter()
        super().check_visit()
        self.largest["judging"] += time.perf_counter() - began
        self.largest["visits"] += 1
        arrays = as_arrays(self.network.state_dict())
        self.note("moved", moved(arrays, self.arrays))
        sizes = [float(abs(each).max()) for each in arrays.values() if each.dtype.kind == "f"]
        self.note("size", max(sizes))
        self.note("worse", loss_of(self.network, self.images) / max(1.0, self.loss))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judgement")
    parser.add_argument("tables", nargs="*", help="default: all")
    parser.add_argument("--data", type=Path, default=Path(), help="folder with skin/<site>")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for name in ("_task_id", "_run_id", "_node_id"):  # Flower makes messages only inside a run
        setattr(TaskIdentity, name, 1)
    for each in (visit, handlers):
        setattr(each, "Judge", Watched)  # noqa: B010  (for mypy)
    print(where())
    limits = [f"{limit:,.0f}" for limit in (LARGEST, MOVED, WORSE, HOPELESS)]
    print_head(
        *("table", "rows", "visits", "refused", f"number (limit {limits[0]})"),
        *(f"moved ({limits[1]})", f"loss after ({limits[2]})", f"on arrival ({limits[3]})", "time"),
    )
    for name in given.tables or sorted(TABLES):
        Watched.largest.clear()
        refused, spent = Counter[str](), 0.0
        rows = list(_rows(name, given.data))
        for hospitals, settings in rows:
            ledger = _run(hospitals, settings)
            refused.update(e.outcome for e in ledger.events if e.outcome in ("diverged", "useless"))
            spent += sum(event.metrics.get("seconds-train", 0.0) for event in ledger.events)
        seen = Watched.largest
        print_row(
            *(name, len(rows), seen["visits"], refused.total()),
            *(f"{seen[key]:.3g}" for key in ("size", "moved", "worse", "arrived")),
            f"{seen['judging'] / spent:.1%}" if spent else "",
        )


def _rows(name: str, data: Path) -> Any:
    """The rows of a table as they are run: hospitals and settings; each once."""
    table, known = tomllib.loads(TABLES[name].read_text("utf-8")), []
    for row in table["rows"]:
        own = {**flatten_dict(table.get("settings")), **flatten_dict(row.get("settings"))}
        chosen = {key: value for key, value in own.items() if key not in LEFT_OUT}
        hospitals = row.get("hospitals", table.get("hospitals", 2))
        if chosen.get("feder.variant") == "synthetic-only" or chosen.get("learner") == "mah":
            continue
        if chosen.get("centralized.data", "real") != "real":
            continue
        if name != KEPT:
            hospitals, chosen = _shortened(hospitals, chosen, data)
        chosen |= {"feder.buffer-size": 0, "evaluate.every": 1000, "min-hospitals": 1}
        chosen = {key: value for key, value in chosen.items() if not key.startswith("gan.")}
        if (hospitals, chosen) not in known:
            known.append((hospitals, chosen))
    return known


def _shortened(hospitals: int, settings: dict[str, Any], data: Path) -> tuple[int, dict[str, Any]]:
    hospitals, skin = min(hospitals, 5), "skin" in str(settings.get("dataset"))
    more: dict[str, Any] = {"num-server-rounds": 3, "dataset": "digits"}
    if settings.get("partition") == "site":
        more["partition"] = "dirichlet"
    if skin and (data / "skin" / SITES[0]).exists():
        folders = ",".join(str((data / "skin" / each).resolve()) for each in SITES)
        more |= {"dataset": f"manifest:{folders}", "partition": "site"}
        hospitals = len(SITES)
    if int(settings.get("tasks", 1)) > 1:
        more |= {"tasks": 2, "task-classes": 0, "num-server-rounds": 4}
    if "image-size" in settings or str(settings.get("model")).startswith("resnet"):
        more["image-size"] = 32
    more["train.epochs"] = min(int(settings.get("train.epochs", 3)), 3)
    return hospitals, {**settings, **more}


def _answer(place: Context, message: Message) -> Message:
    return app(message, place)


def _run(hospitals: int, settings: dict[str, Any]) -> Ledger:
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as folder:
        config = {**run_config(**{"strategy": settings["strategy"]}), **settings}
        places = [context(k, hospitals, config, **{"store-dir": folder}) for k in range(hospitals)]
        grid = FakeGrid({place.node_id: partial(_answer, place) for place in places})
        try:
            go(Settings.parse(config), grid, ledger)
        except RunError as error:
            print(f"{settings}: {error}")
    return ledger


if __name__ == "__main__":
    main()
