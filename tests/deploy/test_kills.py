"""A deployment whose processes are killed at random moments, again and again: no model is lost.

`FEDHANDOFF_KILLS=50 uv run pytest -n 0 -m slow -s tests/deploy/test_kills.py` kills fifty times.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.demo import HOSPITALS, hospitals, server, write_images
from strategies.engine import checkpoint
from strategies.engine.checkpoint import CheckpointError
from strategies.protocol.parcel import check_parcel, load

KINDS = ("flwr-serverapp", "flower-superlink", "flower-supernode", "flwr-clientapp")
KILLS = int(os.environ.get("FEDHANDOFF_KILLS", 3))  # with each method
PAUSE = 10.0  # seconds, at most, from one kill to the next
ROUNDS = 4
METHODS = {
    "in rounds": f"strategy='cwt' evaluate.every={ROUNDS}",
    "in queues": "strategy='rwt' asynchronous=true evaluate.every=2",
}
SETTINGS = (
    f"model='mlp' num-server-rounds={ROUNDS} train.epochs=1 min-hospitals=1 hop-timeout=40 "
    "prepare-timeout=60"
)


def processes(folder, kind=""):
    """Processes, of a kind, of all that have Flower's files below a folder; and whose they are."""
    found = {}
    home = f"FLWR_HOME={folder}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            _, ours, path = (process / "environ").read_bytes().partition(home)
            if ours and f"/{kind}".encode() in (process / "cmdline").read_bytes():
                found[int(process.name)] = path.partition(b"\0")[0].decode().split("/")[0]
    return found


class Killer:
    """Kills a process of a random kind whenever a random moment has come."""

    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        self.began = time.monotonic()
        self.kills = 0
        self.kinds = []  # those to come; every kind comes equally often
        self.moment = self.began
        self.place = None  # of the run when its server was killed last

    def strike(self, place, begun):
        """Kill a process if it is time and the run has begun; of which kind it was.

        The run is at this place.
        """
        now = time.monotonic()
        if self.kills == KILLS or now < self.moment or not begun:
            return ""
        if not self.kinds:
            self.kinds = self.rng.sample(KINDS, len(KINDS))
        kind = self.kinds[0]
        alive = processes(self.folder, kind)
        if kind == "flwr-serverapp" and place == self.place:
            return ""  # else a slow machine would never get to the end of a hop
        if not alive:
            self.moment = now + self.rng.uniform(0, 4)  # anywhere in the life of the next one
            return ""
        victim = self.rng.choice(sorted(alive))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self.kills += 1
            print(f"{now - self.began:6.1f} s: {kind} of {alive[victim]} killed", flush=True)
        if kind == "flwr-serverapp":
            self.place = place
        self.moment = now + self.rng.uniform(0, PAUSE)
        return self.kinds.pop(0)


class Operator:
    """Does one run, and resumes it whenever it fails, as docs/deployment.md says."""

    def __init__(self, folder, output, method):
        self.folder, self.output, self.method = folder, output, method
        self.commands = []
        self.result = None

    def start(self):
        config = f"{METHODS[self.method]} {SETTINGS} output-dir='{self.output}'"
        if self.result:
            config = str(self.result / "checkpoint" / "resume.toml")
        command = [sys.executable, "-m", "cli", "server", "run"]
        command += ["--server", str(self.folder / "server"), "--run-config", config]
        with (self.output / f"{len(self.commands)}.log").open("wb") as log:
            self.commands.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))

    def run(self, killer):
        """Do the run while the killer is about; which hospitals have trained each model.

        No model may be lost on the way, and no checkpoint be damaged.
        """
        self.output.mkdir()
        self.start()
        visits: dict[str, list[str]] = {}
        killed = 0.0  # when a ServerApp was
        while not (self.result and completed(self.result)):
            # In queues nothing is new before the first visit.
            begun = any(visits.values()) or self.method == "in rounds"
            if killer.strike(visits, begun) == "flwr-serverapp":
                killed = time.monotonic()
            if self.result:
                before, visits = visits, visits_of(self.result)
                assert all(visits[name][: len(path)] == path for name, path in before.items())
            else:
                states = list(self.output.glob("*/checkpoint/state.json"))
                self.result = states[0].parents[1] if states else None
            # Flower needs a minute to notice; but what it has just begun it may begin once more.
            dead = killed and time.monotonic() > killed + 15
            if self.commands[-1].poll() or (dead and not processes(self.folder, "flwr-serverapp")):
                self.start()
                killed = 0.0
            time.sleep(0.5)
        ends = [command.wait(120) for command in self.commands]
        assert ends.count(0) <= 1  # a run that was killed is no success
        return visits_of(self.result)


def completed(result):
    there = (result / "checkpoint" / "state.json").exists()
    return (result / "summary.json").exists() and not there


def visits_of(result):
    """Which hospitals have trained each model, as the parcels say that the server has on disk."""
    for attempt in range(20):
        try:
            if completed(result):
                labels = [check_parcel(load(path)) for path in (result / "parcels").iterdir()]
            else:
                state, _ = checkpoint.load(result / "checkpoint", dict[str, object])
                labels = [state.shelf.label(model.parcel) for model in state.models.values()]
        except CheckpointError:  # files go while they are read, if the server writes new ones
            if attempt == 19:
                raise
            time.sleep(0.1)
        else:
            return {label.lineage: label.visited for label in labels}


def check(result, visits, method):
    """The summary of a run must name everything that did not succeed."""
    summary = json.loads((result / "summary.json").read_text())
    events = [json.loads(line) for line in (result / "metrics.jsonl").read_text().splitlines()]
    turns = [event for event in events if event["verb"] == "train"]
    ready = [e for e in events if e["verb"] == "query.prepare" and e["outcome"] == "ok"]
    assert {*visits} == {event["hospital"] for event in ready}
    if method == "in rounds":
        for hospital in summary["hospitals"]:
            rounds = [turn["round"] for turn in turns if turn["hospital"] == hospital]
            assert rounds == list(range(rounds[0], ROUNDS + 1))
    else:
        for lineage in visits:
            numbers = [turn["hop"] for turn in turns if turn["lineage"] == lineage]
            assert numbers == [*range(1, len(numbers) + 1)]
        good = {turn["round"] for turn in turns if turn["outcome"] == "ok"}
        assert good == {*range(1, ROUNDS + 1)}
    for lineage, path in visits.items():
        mine = [turn for turn in turns if turn["lineage"] == lineage and turn["outcome"] == "ok"]
        assert [turn["hospital"] for turn in mine] == path
    failed = [event for event in events if event["outcome"] != "ok"]
    assert [each["reason"] for each in summary["failures"]] == [each["reason"] for each in failed]
    assert summary["status"] == ("completed with failures" if failed else "completed")
    assert all(each["hospital"] and each["reason"] for each in failed)
    assert "parcel" not in {each["outcome"] for each in failed}  # nobody was sent an old model
    return summary


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """The folder of a server and its hospitals, which wait for runs."""
    folder = tmp_path_factory.mktemp("consortium")
    write_images(folder / "images")
    with server(folder) as address, hospitals(folder, address):
        yield folder
    assert not processes(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "seed"), [("in rounds", 9), ("in queues", 2)])
def test_kills_at_random_moments_lose_no_model(method, seed, consortium, tmp_path):
    """Together the two begin with every kind of process."""
    killer = Killer(consortium, seed)
    while killer.kills < KILLS:
        operator = Operator(consortium, tmp_path / f"runs-after-{killer.kills}-kills", method)
        visits = operator.run(killer)
        summary = check(operator.result, visits, method)
        print(
            f"{time.monotonic() - killer.began:6.1f} s: {killer.kills} kills; "
            f"{summary['status']}, resumed {summary['resumed']} times, "
            f"{sum(map(len, visits.values()))} of {ROUNDS * len(HOSPITALS)} visits, "
            f"{dict(Counter(each['outcome'] for each in summary['failures']))}",
            flush=True,
        )
