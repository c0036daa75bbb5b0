"""The benchmark beside other frameworks, without install_command any."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.__main__ import PeerFailed, round_starts, row_of, run_adapter
from benchmarks.peers.ours import marks_of

JOB = {"hospitals": 3, "rounds": 3, "batch_size": 16, "learning_rate": 0.1}
LOOP = [sys.executable, str(peers.ADAPTERS / "run_loop.py")]


def read(file):
    try:
        return file.read_bytes()
    except OSError:
        return b""


def write_digits(file):
    """Three hospitals of different size whose images have a bright row for their class."""
    labels = np.arange(400) % 10
    rows = np.zeros((400, 28, 28), np.uint8)
    rows[np.arange(400), 2 * labels] = 255
    images, ends = rows.reshape(400, 784), (0, 80, 160, 300)
    arrays: dict[str, Any] = {"test-images": images[300:], "test-labels": labels[300:]}
    for k in range(3):
        arrays[f"train-{k}-images"] = images[ends[k] : ends[k + 1]]
        arrays[f"train-{k}-labels"] = labels[ends[k] : ends[k + 1]]
    np.savez(file, **arrays)


def test_our_events_become_marks_on_the_clock_of_the_others():
    events = [
        {"verb": "query.prepare", "round": 0, "time": 2.0},
        {"verb": "query.prepare", "round": 0, "time": 3.0},
        {"verb": "train", "round": 1, "time": 4.0},
        {"verb": "train", "round": 1, "time": 5.0},
        {"verb": "evaluate", "round": 1, "time": 6.0},
    ]
    assert marks_of(events, 1006.0) == [(0, 1003.0), (1, 1005.0)]


def test_a_round_begins_with_its_first_mark():
    assert round_starts([(1, 12.0), (0, 10.0), (1, 11.5), (0, 10.5), (2, 14.0)]) == [10, 11.5, 14]


@pytest.mark.slow
@pytest.mark.parametrize("method", peers.BOTH)
def test_the_yardstick_learns_and_is_timed(tmp_path, method):
    write_digits(tmp_path / "parts.npz")
    found = run_adapter(LOOP, {**JOB, "method": method}, tmp_path, 600)
    assert found["accuracy"] > 0.8  # chance is 0.1
    assert found["seconds_per_round"] > 0
    assert found["start_up_seconds"] > 0
    assert len((tmp_path / "marks.jsonl").read_text().splitlines()) == JOB["rounds"] + 1


@pytest.mark.slow
def test_a_run_that_fails_or_hangs_is_a_row_with_the_reason(tmp_path):
    job = {**JOB, "method": "fedavg"}
    with pytest.raises(PeerFailed, match="no result: ZeroDivisionError"):
        run_adapter([sys.executable, "-c", "1 / 0"], job, tmp_path, 60)
    with pytest.raises(PeerFailed, match=r"not done in 0 s"):
        run_adapter([sys.executable, "-c", "import time; time.sleep(60)"], job, tmp_path, 0.2)
    sleep = "[sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True"
    inner = f"import subprocess, sys; subprocess.run({sleep})"
    with pytest.raises(PeerFailed, match=r"not done in 2 s"):
        run_adapter([sys.executable, "-c", inner], job, tmp_path, 2)
    environments = (file for file in Path("/proc").glob("[0-9]*/environ"))
    assert not any(str(tmp_path).encode() in read(file) for file in environments)
    row = row_of("pfl", job, {"error": "no result: a | b"})
    assert row == ["fedavg", "3", "pfl", "no result: a / b", "", "", "", ""]
    assert len(row) == len(peers.TITLES)
    figures = {"seconds_per_round": 1, "start_up_seconds": 2, "peak_bytes": 3e9, "accuracy": 0.5}
    done = row_of("workers", job, {**figures, "bytes_per_visit": None})
    assert done[3:] == ["1.00", "2.0", "3.00", "unknown", "0.500"]


def test_a_peer_that_cannot_be_installed_is_kept_as_such(tmp_path, monkeypatch):
    def refuse(command):
        raise PeerFailed("not installed: no such version")

    monkeypatch.setattr(peers, "_install", refuse)
    job = {**JOB, "method": "fedavg"}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "marks.jsonl").touch()  # of a run that was interrupted
    found = peers.figures("pfl", job, tmp_path / "mnist.npz", tmp_path / "run", 1)
    assert not (tmp_path / "run" / "marks.jsonl").exists()
    assert found["error"] == "not installed: no such version"
    assert json.loads((tmp_path / "run" / "figures.json").read_text()) == found


def test_every_peer_has_its_adapter():
    named = {peer.script for peer in peers.PEERS.values()} - {""}
    assert named == {file.name for file in peers.ADAPTERS.glob("run_*.py")}


def test_peers_get_the_images_that_this_app_trains_on(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 28, 28)).astype(np.uint8)
    file, labels = tmp_path / "mnist.npz", np.arange(300) % 10
    np.savez(
        file, x_train=images[:200], y_train=labels[:200], x_test=images[200:], y_test=labels[200:]
    )
    peers.write_parts({**JOB, "method": "fedavg"}, file, tmp_path / "parts.npz")
    with np.load(tmp_path / "parts.npz") as parts:
        seen = [parts[f"{name}-images"] for name in ("train-0", "train-1", "train-2", "test")]
        given = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
        for name in ("train-0", "train-1", "train-2", "test"):
            for image, label in zip(parts[f"{name}-images"], parts[f"{name}-labels"], strict=True):
                assert given.pop(image.tobytes()) == label
    assert sum(map(len, seen)) == 300
    assert not given
