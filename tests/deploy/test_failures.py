"""Failures between machines: split network, hospital twice, dead SuperLink, wrong clock."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from deploy.demo import FEDHANDOFF, background, hospitals, server, write_images
from tests.deploy.test_kills import processes

# A busy machine takes a minute for a hop.
SETTINGS = (
    "strategy='cwt' model='mlp' num-server-rounds=4 train.epochs=1 min-hospitals=1 seed=1 "
    "hop-timeout=90 evaluate.every=4"
)


class Network:
    """A way to an address that can be cut.

    Attributes:
        address: Connections to this address reach the other one.
    """

    def __init__(self, address):
        host, port = address.split(":")
        self._far = host, int(port)
        self._whole, self._ends = True, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self._whole = False
        self._end()

    def mend(self):
        self._whole = True

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end()

    def _end(self):
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if not self._whole:
                    near.close()
                    continue
                far = socket.create_connection(self._far)
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source, target):
        with suppress(OSError), source, target:
            while content := source.recv(65536):
                target.sendall(content)
            target.shutdown(socket.SHUT_RDWR)


@contextmanager
def running(folder):
    """A run on the server in `folder`; yields what returns its events so far."""
    command = [*FEDHANDOFF, "server", "run", "--server", folder / "server", "--run-config"]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"{SETTINGS} output-dir='{folder}/runs'"], stdout=log, stderr=log
        )

    def visits():
        assert process.poll() in (None, 0), (folder / "run.log").read_text()
        events = [
            json.loads(line)
            for path in folder.glob("runs/*/metrics.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [each for each in events if each["verb"] == "train"]

    yield visits
    assert process.wait() == 0, (folder / "run.log").read_text()


def wait_for(what, seconds=300):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.slow
def test_a_split_network_and_a_second_hospital_with_the_same_key(tmp_path):
    """Wien is cut off during a run and comes back; a copy of Linz starts beside Linz."""
    write_images(tmp_path / "images")
    with server(tmp_path) as address:
        network = Network(address)
        own = {"wien": ("--server", network.address)}
        names = ("linz", "wien")
        here = hospitals(tmp_path, address, own=own, names=names)
        with here, running(tmp_path) as visits:
            wait_for(visits)
            network.cut()
            linz, twin = tmp_path / "linz", tmp_path / "twin"
            for part in ("approved", "store/linz"):
                shutil.copytree(linz / part, twin / part)
            for part in ("linz.key", "ca.crt", "hospital.toml", "policy.toml"):
                shutil.copy2(linz / part, twin)
            start = ("hospital", "start", "--hospital", twin, "--server", address)
            with background(tmp_path, *start, log="twin"):
                wait_for(lambda: "refuses linz" in (tmp_path / "twin.log").read_text())
            refused = len(visits())
            wait_for(lambda: [each for each in visits() if each["outcome"] != "ok"])
            network.mend()
            # The run may end before: a connection is tried again after up to two minutes.
            wait_for(lambda: "can be reached again" in (tmp_path / "wien.log").read_text())
        network.close()
    (summary,) = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json")]
    assert summary["status"] == "completed with failures"
    assert "waits for a run" not in (tmp_path / "twin.log").read_text()
    assert ("linz", "ok") in [(e["hospital"], e["outcome"]) for e in visits()[refused:]]
    # On a busy machine linz may miss a turn, too.
    failed = [each for each in visits() if each["outcome"] != "ok"]
    assert "wien" in {each["hospital"] for each in failed}, failed
    assert {each["outcome"] for each in failed} <= {"timeout", "gone"}, failed
    assert "can be reached again" in (tmp_path / "wien.log").read_text()
    assert len(list(tmp_path.glob("runs/*/parcels/*"))) == 2


@pytest.mark.slow
def test_a_run_goes_on_after_its_superlink_was_killed(tmp_path):
    write_images(tmp_path / "images")
    names = ("linz", "wien")
    with server(tmp_path) as address:
        with hospitals(tmp_path, address, names=names), running(tmp_path) as visits:
            wait_for(visits)
            (superlink,) = processes(tmp_path, "flower-superlink")
            os.kill(superlink, signal.SIGKILL)
            killed = len(visits())
        log = (tmp_path / "superlink.log").read_text()
    assert "it is restarted in 5 s" in log
    assert len(visits()) > killed
    (summary,) = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json")]
    assert summary["rounds"] == 4
    assert summary["status"].startswith("completed")
    assert len(list(tmp_path.glob("runs/*/parcels/*"))) == 2


@pytest.mark.slow
def test_a_run_ends_with_the_printed_command_and_is_resumed(tmp_path):
    """The server's folder has a space, which the command has to quote."""
    folder = tmp_path / "two words"
    folder.mkdir()
    write_images(folder / "images")
    run = [*FEDHANDOFF, "server", "run", "--server", folder / "server", "--run-config"]
    with server(folder) as address, hospitals(folder, address, names=("linz", "wien")):
        with (folder / "run.log").open("w+") as log:
            first = [*run, f"{SETTINGS} output-dir='{folder}/runs'"]
            process = subprocess.Popen(first, stdout=log, stderr=log)
            wait_for(lambda: '"verb":"train"' in "".join(texts(folder, "runs/*/metrics.jsonl")))
            (printed,) = re.findall("^FLWR_HOME=.*", texts(folder, "run.log")[0], re.MULTILINE)
            variable, *command = shlex.split(printed)
            assert command[:2] == ["uv", "run"]
            key, _, value = variable.partition("=")
            subprocess.run(command[2:], check=True, env={**os.environ, key: value})
            assert process.wait() == 1
        assert "is finished:stopped" in texts(folder, "run.log")[0]
        wait_for(lambda: not processes(folder, "flwr-serverapp"))  # it holds the result folder
        (resume,) = folder.glob("runs/*/checkpoint/resume.toml")
        subprocess.run([*run, resume], check=True)
    (summary,) = map(json.loads, texts(folder, "runs/*/summary.json"))
    assert summary["rounds"] == 4
    assert summary["resumed"] == 1


def texts(folder, pattern):
    return [path.read_text() for path in folder.glob(pattern)]


# For the Python of a hospital: an hour fast. TLS reads the right clock.
FAST = """
import datetime


class Fast(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(hours=1)


datetime.datetime = Fast
"""


@pytest.mark.slow
def test_a_hospital_with_a_wrong_clock_is_refused_and_its_log_has_the_reason(tmp_path, monkeypatch):
    write_images(tmp_path / "images")
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(FAST)
    with server(tmp_path) as address:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clock"))
        with hospitals(tmp_path, address, names=("linz",)):
            wait_for(lambda: "clock is wrong" in (tmp_path / "linz.log").read_text())
        monkeypatch.delenv("PYTHONPATH")
        start = ("hospital", "start", "--hospital", tmp_path / "linz", "--server", address)
        with background(tmp_path, *start, log="mended"):
            wait_for(lambda: "waits for a run" in (tmp_path / "mended.log").read_text())
    log = (tmp_path / "linz.log").read_text()
    assert "(status 0); it is restarted in 5 s." in log
    assert "waits for a run" not in log
