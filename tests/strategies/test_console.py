"""What people read: plain lines that say something, and how far a long piece of work is."""

import logging
import sys
from contextlib import redirect_stdout
from io import StringIO
from logging import ERROR, INFO, WARNING, StreamHandler

import pytest

from strategies.protocol import console as module
from strategies.protocol.console import Console, Pace, duration


@pytest.fixture
def console(monkeypatch):
    """The one of this process, with Flower's own handler put away meanwhile."""
    logger = logging.getLogger("flwr")
    before = [*logger.handlers]
    logger.handlers[:] = []
    yield Console.install(clock="", width=40)
    logger.handlers[:] = before


def log(level, text, *values, **more):
    logging.getLogger("flwr").log(level, text, *values, **more)


def test_lines_are_plain_narrow_and_never_empty(console, capsys):
    log(INFO, "")
    log(INFO, "  \n")
    log(INFO, "Manually terminating ClientAppActor")
    log(logging.DEBUG, "nobody asked")
    log(INFO, "round %d", 7)
    log(WARNING, "graz failed to train (timeout): No answer came within 3600 seconds.")
    log(INFO, "a-path-that-is-not-broken-" + "/however/long/it/is" * 3)
    assert capsys.readouterr().out.splitlines() == [
        "round 7",
        "warning: graz failed to train (timeout):",
        "  No answer came within 3600 seconds.",
        "a-path-that-is-not-broken-" + "/however/long/it/is" * 3,
    ]


def test_a_line_goes_on_under_its_text(capsys):
    log_line = Console(clock="12:00  ", width=24).lay_out("one two three four five")
    assert log_line.splitlines() == ["12:00  one two three", "       four five"]


def test_a_file_has_a_line_for_each_text(tmp_path, console):
    with (tmp_path / "log.txt").open("w") as file, redirect_stdout(file):
        log(INFO, "graz trains its GAN: 300 of 2000 images, 57 s left")
    told = (tmp_path / "log.txt").read_text()
    assert told == "graz trains its GAN: 300 of 2000 images, 57 s left\n"


def test_a_text_is_printed_in_one_piece(monkeypatch, console):
    """Otherwise a line of another hospital's process comes before its end."""
    pieces: list[str] = []
    monkeypatch.setattr(sys, "stdout", StringIO())
    monkeypatch.setattr(sys.stdout, "write", pieces.append)
    log(INFO, "graz trains its GAN: 300 of 2000 images, 57 s left")
    assert [*filter(None, pieces)] == ["graz trains its GAN: 300 of 2000 images,\n  57 s left\n"]


def test_an_error_has_its_traceback(console, capsys):
    try:
        raise ValueError("the cause")
    except ValueError:
        log(ERROR, "it failed", exc_info=sys.exc_info())
    out = capsys.readouterr().out
    assert out.startswith("error: it failed\n  Traceback")
    assert out.endswith("\n  ValueError: the cause\n")


FORGED = [
    f"x{end}error: forged"
    for end in ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]
]
FORGED += ["\x1b[2K\x1b[1Gerror: forged", "a word or two more than one line error: forged"]


@pytest.mark.parametrize("clock", ["", "12:00  "])
@pytest.mark.parametrize("text", FORGED)
def test_no_text_of_others_looks_like_a_record_of_its_own(text, clock, console, tmp_path, capsys):
    """Neither on a terminal nor in a file, neither as a text nor as the error behind it."""
    console.clock = clock
    try:
        raise KeyError(text) from ValueError(text)
    except KeyError:
        error = sys.exc_info()
    log(WARNING, "%s", text)
    log(ERROR, "it failed", exc_info=error)
    with (tmp_path / "log.txt").open("w") as file, redirect_stdout(file):
        log(WARNING, "%s", text)
        log(INFO, "the next")
    told = (tmp_path / "log.txt").read_text()
    assert told.count("\n") == 2
    for lines, count in ((capsys.readouterr().out, 2), (told, 2)):
        assert lines.replace("\n", "").isprintable()
        begins = [line for line in lines.splitlines() if not line.startswith(" " * 2)]
        assert len(begins) == count
        assert not any(line.removeprefix(clock).startswith("error: forged") for line in begins)


def test_an_error_that_was_told_is_not_told_again_with_its_traceback(console, capsys):
    console.reported = ValueError("set it to 1")
    log(ERROR, "ServerApp raised an exception", exc_info=console.reported)
    log(ERROR, "another one", exc_info=ValueError("set it to 1"))
    assert capsys.readouterr().out.splitlines() == [
        *("error: another one", "  ValueError: set it to 1")
    ]


def flwr_exit(text):
    """Flower's function of this name ends its processes, and logs as it does."""
    logging.getLogger("flwr").log(INFO, text)


def test_what_is_to_be_read_last_is_last_and_there_once(console, capsys):
    console.last = "/runs/1"
    log(INFO, "%s", "/runs/1")
    flwr_exit("")
    assert capsys.readouterr().out.splitlines() == ["/runs/1"]
    flwr_exit("Exit Code: 700")
    assert capsys.readouterr().out.splitlines() == ["Exit Code: 700", "/runs/1"]


def test_it_stands_in_for_flower_s_handler_once_and_for_no_file(tmp_path, capsys):
    logger = logging.getLogger("flwr")
    before = [*logger.handlers]
    file, early, late = logging.FileHandler(tmp_path / "log"), StreamHandler(), StreamHandler()
    try:
        logger.handlers[:] = [file, early]
        first = Console.install(clock="")
        assert Console.install() is first
        logger.addHandler(late)
        log(INFO, "round 1")
        assert capsys.readouterr() == ("round 1\n", "")
        assert logger.handlers == [file, first]
    finally:
        logger.handlers[:] = before
        file.close()


def test_a_library_that_configures_logging_prints_no_line_again(monkeypatch, capsys):
    """As opacus does, at its import in a run with DP-SGD."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [])
    Console.install(clock="")
    logging.basicConfig()
    log(INFO, "round 1")
    assert capsys.readouterr() == ("round 1\n", "")


def test_whoever_asks_flower_for_all_that_it_says_gets_it(monkeypatch):
    monkeypatch.setenv("FLWR_LOG_LEVEL", "debug")
    before = [*logging.getLogger("flwr").handlers]
    Console.install()
    assert logging.getLogger("flwr").handlers == before


def test_the_pace_of_a_work_is_told_every_ten_seconds(console, capsys, monkeypatch):
    """From a checkpoint at 1,000 on, 5 a second: after 10 s 1,050 of 2,000, and 190 s are left."""
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    pace = Pace("graz trains", "images", bound="at most")
    for step in range(60):
        pace(1000 + step, 2000, "loss 1.5")
        clock[0] += 0.2
    assert capsys.readouterr().out.splitlines() == [
        "graz trains: 1050 of 2000 images, 5.0/s,",
        "  at most 3 min left, loss 1.5",
    ]


def test_a_work_that_begins_again_has_a_pace_of_its_own(console, capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    pace = Pace("w")
    pace(0, 100)
    pace(90, 100)
    clock[0] = 20.0
    pace(0, 100)
    clock[0] = 22.0
    pace(40, 100)
    assert capsys.readouterr().out.splitlines() == ["w: 40 of 100, 20/s, 3 s left"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (5400, "90 min")),
        *((7200, "2.0 h"), (172799, "48.0 h"), (259200, "3.0 days")),
    ],
)
def test_a_length_of_time_is_said_in_two_digits_or_three(seconds, words):
    assert duration(seconds) == words
