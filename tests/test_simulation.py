"""The app as users start it: `flwr run` on Flower's simulation engine, with real processes."""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from benchmarks.simulation import RunFailed, run, run_warm
from strategies.protocol.parcel import load
from tests.fakes import context, metrics_of, models_of, run_config, run_here, write_archive
from warm.workers import Workers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = "".join((ROOT / page).read_text() for page in ("README.md", "docs/settings.md"))
COMMANDS = [
    line.removeprefix("pip install uv && ")
    for block in re.findall(r"```sh\n(.*?)```", PAGES, re.DOTALL)
    for line in block.splitlines()
]
RUNS = [line for line in COMMANDS if re.search("(flwr|fedhandoff) run", line)]
# Two of them are run as they stand: one of each command. The others differ from these in settings
# alone, and are run in warm processes, which takes a tenth of the time.
AS_IT_STANDS = [RUNS[0], next(run for run in RUNS if "fedrewind" in run)]


FLOWER = """
import json, sys
from pathlib import Path
from benchmarks.simulation import superlink
folder = Path(sys.argv[1])
{ray}
with superlink(folder / "superlink", RAY_ADDRESS=address) as environment:
    print(json.dumps(environment), flush=True)
    sys.stdin.read()
"""
# Ray gives its workers a niceness of 15: beside other tests they would hardly get a core.
QUICK_RAY = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
ONE_NODE = """
import ray
address = ray.init("local", num_cpus=2, include_dashboard=False).address_info["address"]
"""
# As `ray start` does it on two machines, each with its own environment.
TWO_NODES = """
from ray.cluster_utils import Cluster
cluster = Cluster()
for node in ("first", "second"):
    variables = {"XDG_DATA_HOME": str(folder / node)}
    cluster.add_node(num_cpus=1, env_vars=variables, include_dashboard=False)
address = cluster.address
"""


@contextmanager
def flower_on(ray, folder):
    """A SuperLink, and a Ray for all its runs: else each run starts a Ray of its own.

    Both end with the input of their process, and so with this process, however that ends.
    """
    # Ray's sockets need a short path. There it also says which cluster is the current one, and its
    # last processes may still be ending, and write there, when the folder is removed.
    with (
        tempfile.TemporaryDirectory("", "ray-", "/tmp", ignore_cleanup_errors=True) as short,
        subprocess.Popen(
            [sys.executable, "-c", FLOWER.format(ray=ray), folder],
            cwd=ROOT,
            env={**os.environ, **QUICK_RAY, "RAY_TMPDIR": short},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout
        yield json.loads(process.stdout.readline())


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """A SuperLink with a Ray of two cores."""
    with flower_on(ONE_NODE, tmp_path_factory.mktemp("flower")) as environment:
        yield environment


@pytest.fixture(scope="module")
def result_of(flower, tmp_path_factory):
    """The result folder of a command of the pages, which is run once.

    It is run with an archive where a page has one, and fewer rounds.
    """
    data = {"XDG_DATA_HOME": str(tmp_path_factory.mktemp("stores"))}

    @cache
    def result(command):
        folder = tmp_path_factory.mktemp("readme")
        write_archive(folder / "mnist.npz", 200)
        as_it_stands, command = command in AS_IT_STANDS, command.replace("/data/", f"{folder}/")
        short = "num-server-rounds=2 gan.iterations=2 feder.buffer-size=40"
        if as_it_stands:
            command += f""" --run-config "{short} output-dir='{folder}/runs'" """
            command = command.replace("uv run fedhandoff", "uv run python -m cli")
            subprocess.run(command, shell=True, env=flower, cwd=ROOT, check=True)
            (result,) = (folder / "runs").iterdir()
            return result
        options = argparse.ArgumentParser()
        options.add_argument("--run-config", required=True)
        options.add_argument("--hospitals", type=int, default=2)
        options.add_argument("--federation-config")
        given, words = options.parse_known_args(shlex.split(command))
        assert " ".join(words) in ("uv run flwr run . --stream", "uv run fedhandoff run")
        federation = given.federation_config or f"num-supernodes={given.hospitals}"
        hospitals = parse_config_args([federation])["num-supernodes"]
        settings = parse_config_args([given.run_config]) | parse_config_args([short])
        return run_warm(workers, folder / "runs", hospitals, settings)

    with (
        (tmp_path_factory.mktemp("log") / "log").open("w") as log,
        Workers(1, data, log) as workers,
    ):
        yield result


def test_the_readme_names_the_two_commands():
    assert COMMANDS[:2] == ["uv run fedhandoff run", "uv run pytest"]


@pytest.mark.parametrize("command", RUNS)
def test_the_commands_of_the_pages_work(command, result_of):
    result = result_of(command)
    assert json.loads((result / "summary.json").read_text())["status"] == "completed"
    assert {path.name for path in result.iterdir() if "-standalone" not in path.name} == {
        *("config.toml", "log.txt", "metrics.jsonl", "under-way.json", "accuracy_matrix.csv"),
        *("parcels", "report.html", "summary.json"),
    }


@pytest.mark.parametrize(("command", "hospitals"), [("fedhandoff run", 2), ("fedrewind", 4)])
def test_a_run_is_repeated_from_its_own_config_by_another_number_of_actors(
    command, hospitals, flower, result_of
):
    """The page's has one actor, at which hospitals work one after the other; then two do."""
    first = result_of(next(run for run in RUNS if command in run))
    second = run(flower, first.parent, hospitals, cpus=1, config=first / "config.toml")
    assert metrics_of(first) == metrics_of(second)
    assert len(json.loads((second / "summary.json").read_text())["hospitals"]) == hospitals


def simulation_of(environment):
    """The process that runs the server and its hospitals."""
    home = f"FLWR_HOME={environment['FLWR_HOME']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command, variables = ((process / name).read_bytes() for name in ("cmdline", "environ"))
            if b"flwr-simulation" in command and home in variables.split(b"\0"):
                return int(process.name)
    raise AssertionError("There is no simulation.")


def test_a_run_whose_server_is_killed_goes_on_and_ends_as_an_unbroken_one(flower, tmp_path):
    """FedBN, whose hospitals keep layers of their own; killed in its third round.

    The unbroken one is in this process.
    """
    settings: dict[str, Any] = {
        "strategy": "fedbn",
        "partition": "iid",
        "num-server-rounds": 5,
        "train.epochs": 6,
    }
    config = run_config(output_dir=str(tmp_path / "unbroken"), **settings)
    store = {"store-dir": str(tmp_path / "store")}
    unbroken, _ = run_here([context(index, 2, config, **store) for index in range(2)])
    one_actor = partial(run, flower, hospitals=2, cpus=2)
    with ThreadPoolExecutor() as pool:
        stopped = pool.submit(one_actor, tmp_path / "stopped", settings=settings)
        deadline = time.monotonic() + 600  # against waiting for ever
        while not any(
            '"round":3,' in path.read_text() for path in tmp_path.glob("stopped/*/metrics.jsonl")
        ):
            assert time.monotonic() < deadline
            assert not stopped.done()
            time.sleep(0.02)
        os.kill(simulation_of(flower), signal.SIGKILL)
        listed = subprocess.run(
            ["flwr", "ls", "local", "--format", "json"], env=flower, capture_output=True, check=True
        )
        run_id = json.loads(listed.stdout)["runs"][0]["run-id"]
        subprocess.run(["flwr", "stop", run_id, "local"], env=flower, check=True)
        with pytest.raises(RunFailed):
            stopped.result()
    (result,) = (tmp_path / "stopped").iterdir()
    assert not (result / "summary.json").exists()
    assert one_actor(tmp_path / "stopped", resume=result) == result
    assert metrics_of(result) == metrics_of(unbroken)
    summaries = [json.loads((each / "summary.json").read_text()) for each in (result, unbroken)]
    assert [summary.pop("resumed") for summary in summaries] == [1, 0]
    for summary in summaries:
        for key in ("wall_seconds", "seconds", "began", "ended"):
            del summary[key]
        del summary["history"]["seconds"]
    assert summaries[0] == summaries[1]
    models = [load(each / "parcels" / "global.npz")["model"] for each in (result, unbroken)]
    assert models[0].object_id == models[1].object_id


def test_a_run_that_cannot_start_says_why_and_is_marked_as_failed(flower, tmp_path):
    with pytest.raises(RunFailed, match=r"finished:failed.*Unknown data set 'didgits'"):
        run(flower, tmp_path / "runs", 2, {"dataset": "didgits"}, cpus=2)
    (result,) = (tmp_path / "runs").iterdir()
    summary = json.loads((result / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "didgits" in summary["error"]


def test_hospitals_on_two_nodes_of_a_ray_cluster_come_to_the_models_of_one_process(tmp_path):
    """Of docs/several-machines.md: nodes of a core each, with hospitals' stores apart.

    So figures beside a hospital's own model may be missing: it is in the store of one node.
    """
    settings: dict[str, Any] = {"strategy": "rwt", "model": "mlp", "num-server-rounds": 2}
    settings["partition-alpha"] = 0.5  # pyproject.toml has another one than `run_config`
    config = run_config(output_dir=str(tmp_path / "one"), **settings)
    store = {"store-dir": str(tmp_path / "store")}
    one, _ = run_here([context(index, 2, config, **store) for index in range(2)])
    with flower_on(TWO_NODES, tmp_path / "flower") as environment:
        two = run(environment, tmp_path / "two", 2, settings, cpus=1)
    for node in ("first", "second"):
        assert any((tmp_path / "flower" / node).glob("fedhandoff/hospital-*")), f"no work on {node}"
    assert models_of(two) == models_of(one)
