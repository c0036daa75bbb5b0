"""The adapter for this app, which runs in Flower's engine or in warm processes (`workers`).

It is a process of its own, so that its memory is measured like that of the peers.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.simulation import events_of, run, run_warm, superlink
from warm.workers import Workers

PROCESSES = 2
STRATEGY = {"handoff": "cwt-serial", "fedavg": "fedavg", "rotation": "rwt"}


def settings_of(job: dict[str, Any], data: Path) -> dict[str, Any]:
    """The settings of this app for a job."""
    return {
        "dataset": f"npz:{data}",
        "partition": "iid",
        "model": "mlp",
        "mlp.hidden": "256,256",
        "strategy": STRATEGY[job["method"]],
        "num-server-rounds": job["rounds"],
        "train.epochs": 1,
        "train.batch-size": job["batch_size"],
        "train.optimizer": "sgd",
        "train.learning-rate": job["learning_rate"],
        "evaluate.every": job["rounds"],
        "evaluate.cross": False,
        "min-hospitals": job["hospitals"],
    }


def marks_of(events: list[dict[str, Any]], ended: float) -> list[tuple[int, float]]:
    """The boundaries of rounds: the end of the preparations, then the end of each last visit.

    The events have times since the start of the run. `ended` is in seconds since 1970, as in the
    marks.
    """
    began = ended - events[-1]["time"]
    ready = max(event["time"] for event in events if event["verb"] == "query.prepare")
    trained = {e["round"]: e["time"] for e in events if e["verb"].startswith("train")}
    return [(number, began + when) for number, when in [(0, ready), *sorted(trained.items())]]


def main() -> None:
    """Do the job in the folder that the environment names."""
    engine, data = sys.argv[1], Path(sys.argv[2])
    folder = Path(os.environ["PEER_FOLDER"])
    job = json.loads((folder / "job.json").read_text("utf-8"))
    settings, hospitals = settings_of(job, data), job["hospitals"]
    if engine == "flower":
        with superlink(folder / "superlink") as flower:
            result = run(flower, folder / "runs", hospitals, settings)
    else:
        variables = {"XDG_DATA_HOME": str(folder / "data")}
        with (
            (folder / "log.txt").open("w", encoding="utf-8") as log,
            Workers(PROCESSES, variables, log) as workers,
        ):
            result = run_warm(workers, folder / "runs", hospitals, settings)
    summary = json.loads((result / "summary.json").read_text("utf-8"))
    ended = (result / "metrics.jsonl").stat().st_mtime  # a line is written when it happens
    marks = "".join(json.dumps(mark) + "\n" for mark in marks_of(events_of(result), ended))
    (folder / "marks.jsonl").write_text(marks, encoding="utf-8")
    left = {
        "accuracy": summary["personalized_accuracy"],  # the one model, at all hospitals
        "bytes_per_visit": summary["bytes_per_hop"],
        "python": sys.version.split()[0],
    }
    (folder / "result.json").write_text(json.dumps(left), encoding="utf-8")


if __name__ == "__main__":
    main()
