"""A SuperNode that waits for an answer that nobody works on is noticed, and no other one is."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from deploy import demo, supervisor, watch
from deploy.hospital import PROGRAMS
from deploy.voice import SuperNodeVoice, Voice
from deploy.watch import Watch
from tests.deploy.test_deploy import ROOT, wait_until

RECEIVED, SENDING, SENT = b"Received successfully", b"Sending: ", b"Sent successfully"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(watch, "LOOK", 0.1)
    monkeypatch.setitem(watch.PATIENCE, RECEIVED, 0.5)
    monkeypatch.setitem(watch.PATIENCE, SENDING, 2.0)


class SuperNode:
    """Writes what it is told to; `watch` is the watch over it."""

    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, process_group=0)
        self.watch = Watch(self.process, Voice())

    def write(self, *lines):
        assert self.process.stdin
        for line in lines:
            self.process.stdin.write(b"\033[92mINFO \033[0m:      " + line + b"\n")
        self.process.stdin.flush()

    def end(self, last=b""):
        assert self.process.stdin
        with self.process.stdin as standard_input:
            standard_input.write(last)
        self.process.wait()
        self.watch.close()

    def seconds_until_wedged(self, *lines):
        began = time.monotonic()
        self.write(*lines)
        wait_until(self.watch.wedged)
        return time.monotonic() - began

    def is_left_alone(self, seconds=1.5):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.watch.wedged():
                return False
            time.sleep(0.02)
        return True


@pytest.fixture
def supernode(quick):
    supernode = SuperNode()
    yield supernode
    supernode.end()


@pytest.fixture
def clientapp(tmp_path):
    """Start a process of this name in the process group of a SuperNode."""
    path, started = tmp_path / "flwr-clientapp", []
    path.write_text("#!/bin/sh\nread forever\n")
    path.chmod(0o755)

    def start(supernode):
        group = supernode.process.pid
        started.append(subprocess.Popen([path], stdin=subprocess.PIPE, process_group=group))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_supernode_that_owes_nothing_is_left_alone():
    written = [
        [b"Starting Flower SuperNode"],
        [RECEIVED, SENDING, SENT],
        [RECEIVED, SENDING, b"Failed to send message 8: gone"],
        [RECEIVED, SENDING, b"Run ID 7 is not in `RUNNING` status. Ignoring reply message 8."],
    ]
    supernodes = [SuperNode() for _ in written]
    for supernode, lines in zip(supernodes, written, strict=True):
        supernode.write(*lines)
    with ThreadPoolExecutor() as pool:
        left_alone = list(pool.map(lambda supernode: supernode.is_left_alone(2.5), supernodes))
    for supernode in supernodes:
        supernode.end()
    assert left_alone == [True] * len(written)


def test_an_answer_that_nobody_works_on_is_noticed(supernode):
    assert supernode.seconds_until_wedged(RECEIVED) > 0.4


@pytest.mark.slow
def test_an_answer_that_is_worked_on_is_waited_for(supernode, clientapp):
    """Once the process has ended, nobody collects it: it is listed still, as in life."""
    process = clientapp(supernode)
    supernode.write(RECEIVED)
    assert supernode.is_left_alone()
    process.terminate()
    wait_until(supernode.watch.wedged)


def test_an_ignored_message_is_not_left_to_be_answered(supernode):
    supernode.write(b"Run ID 7 is not in `RUNNING` status. Ignoring message 8.")
    wait_until(supernode.watch.wedged)


def test_a_message_that_has_not_come_whole_is_not_waited_for(supernode):
    """As with a SuperLink whose database was locked for five seconds."""
    supernode.write(SENT, b"Failed to receive message 8: <_InactiveRpcError of RPC that")
    wait_until(supernode.watch.wedged)


def test_the_work_of_another_supernode_does_not_count(supernode, clientapp):
    other = SuperNode()
    clientapp(other)
    supernode.write(RECEIVED)
    wait_until(supernode.watch.wedged)
    other.end()


SPOKEN = [
    *("SuperNode ID: 7", "refused [code: 2004]", "Exit Code: 305"),
    *("Receiving: train message", "Sent successfully: 3"),
    *("Ignoring message 8.", "Failed to receive message 8: gone", "Ignoring message " * 12),
]


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
@pytest.mark.parametrize("speaker", ["flower-superexec", "flower-supernode"])
def test_only_a_supernodes_own_words_are_heeded(
    speaker, level, quick, tmp_path, monkeypatch, capsys
):
    """Not those of the app, which may have a text of another hospital, nor those of a SuperExec."""
    monkeypatch.setenv("FLWR_LOG_LEVEL", level)
    (tmp_path / "words").write_text(
        "".join(f"{words}\n\033[92mINFO 7\033[0m:      {words}\n" for words in SPOKEN)
    )
    for name in ("flower-superexec", "flower-supernode"):
        words = f"cat {tmp_path}/words; cat {tmp_path}/words >&2" if name == speaker else ""
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{words}\nexec sleep 60\n")
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{tmp_path}/bin:{os.environ['PATH']}"}
    options = ["--host", "::1", "--port", "9", "--superexec-auth-secret-file", "secret"]
    supernode = supervisor.Program(
        [str(PROGRAMS / "flower-supernode"), *options],
        *(tmp_path, environment, SuperNodeVoice("graz", "fl:9092")),
        watched=True,
    )
    printed = ""

    def look():
        nonlocal printed
        supernode.look_after()
        printed += capsys.readouterr().out

    try:
        wait_until(lambda: printed.count(SPOKEN[-1].strip()) >= 4, look)
        end = time.monotonic() + 0.5
        while time.monotonic() < end and "it is restarted" not in printed:
            look()
    finally:
        supernode.end()
        supernode.wait()
    is_own = speaker == "flower-supernode"
    assert ("it is restarted" in printed) == is_own
    if level == "DEBUG" or not is_own:  # nothing was translated
        assert all(printed.count(words.strip()) >= 4 for words in SPOKEN)


@pytest.mark.slow
def test_an_answer_may_be_long_on_its_way(supernode):
    """The process has ended by then; and the next message has the whole time again."""
    supernode.write(RECEIVED, SENDING)
    assert supernode.is_left_alone()
    supernode.write(SENT, RECEIVED)
    assert supernode.is_left_alone(0.3)
    assert supernode.seconds_until_wedged(SENDING) > 1.5


def test_output_is_passed_on_as_it_is_where_that_is_wanted(capsysbinary, monkeypatch):
    """Bytes that are no text, what has no end of a line, and lines of a megabyte."""
    monkeypatch.setenv("FLWR_LOG_LEVEL", "debug")
    written = b"\xff\xfe gr\xfcn\r\n\n" + b"x" * 2**20 + b"\n\rhalf a line"
    SuperNode().end(written)
    assert capsysbinary.readouterr().out == written


def test_what_is_not_known_is_passed_on_as_plain_text_with_the_time(capsys):
    """Bytes that are no text, what moves a terminal's cursor, an empty line, half a line."""
    lines = b"\xff gr\xfcn\n\n\033[93mWARNING \033[0m:   the disk is \033[2Jfull\n"
    SuperNode().end(lines + b"    raise ValueError\n" + b"x" * 2**20 + b"\nhalf")
    stamp = "[2026-11-22 14:24:51] "
    printed = [line[len(stamp) :] for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        *("\ufffd gr\ufffdn", "warning: the disk is [2Jfull", "    raise ValueError"),
        *("x" * 2**20, "half"),
    ]


def clientapps(hospital):
    """Its processes that would end in Flower's way on SIGTERM: without an answer."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            caught = int((process / "status").read_text().partition("SigCgt:")[2].split()[0], 16)
            if (
                (process / "cwd").readlink() == hospital / "work"
                and b"/flwr-clientapp" in (process / "cmdline").read_bytes()
                and caught >> (signal.SIGTERM - 1) & 1
            ):
                yield int(process.name)


@pytest.mark.slow
def test_a_hospital_whose_supernode_was_wedged_takes_part_again(tmp_path, monkeypatch):
    """What is to train at graz is ended before the app is loaded, which might answer for it."""
    code = (
        "from deploy import watch; from cli import main; "
        f"watch.LOOK = 0.5; watch.PATIENCE[{RECEIVED!r}] = 30.0; main()"
    )
    settings = demo.SETTINGS.replace("min-hospitals=3", "min-hospitals=1")
    settings += f" evaluate.every=2 output-dir='{tmp_path}/runs'"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(demo, "FEDHANDOFF", [sys.executable, "-c", code])
    log = tmp_path / "graz.log"

    def end_clientapps():
        for process in clientapps(tmp_path / "graz"):
            os.kill(process, signal.SIGTERM)

    demo.write_images(tmp_path / "images")
    run = ["server", "run", "--server", str(tmp_path / "server"), "--run-config", settings]
    with (
        demo.server(tmp_path) as address,
        demo.hospitals(tmp_path, address, names=["graz"]),
        demo.background(tmp_path, *run, log="run") as process,
    ):
        wait_until(lambda: b"train: at work" in log.read_bytes())
        wait_until(lambda: b"waits for an answer" in log.read_bytes(), end_clientapps)
        assert process.wait(timeout=600) == 0
    (result,) = (tmp_path / "runs").iterdir()
    events = [json.loads(line) for line in (result / "metrics.jsonl").read_text().splitlines()]
    trained = [
        (event["round"], event["outcome"])
        for event in events
        if (event["verb"], event["hospital"]) == ("train", "graz")
    ]
    assert trained == [(1, "gone"), (2, "ok")]
