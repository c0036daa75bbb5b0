"""The one write-then-rename."""

import os
import signal
import subprocess
import sys

import pytest

from strategies.protocol.files import replacing


def test_the_draft_takes_the_place_of_the_file(tmp_path):
    path = tmp_path / "state.json"
    for text in ("old", "new"):
        with replacing(path) as draft:
            assert draft.parent == tmp_path  # on the same file system
            draft.write_text(text)
            assert not path.exists() or path.read_text() == "old"
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_draft(error, tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")

    def fail_at_half():
        with replacing(path) as draft:
            draft.write_text("ne")
            raise error

    with pytest.raises(error):
        fail_at_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_before_the_draft_is_written_is_the_one_raised(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "state.json"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"


WRITER = """
import sys
from pathlib import Path
from strategies.protocol.files import replacing

with replacing(Path(sys.argv[1])) as draft:
    with draft.open("w") as file:
        file.write(sys.argv[2])
        file.flush()
        print(flush=True)
        sys.stdin.read(1)
        file.write(sys.argv[2])
"""


def writer(path, text):
    """Another process that has written half of the file, and waits."""
    command = [sys.executable, "-c", WRITER, str(path), text]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline()
    return process


def test_a_kill_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    with writer(path, "new") as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    with replacing(path) as draft:  # what the other has left is not in the way
        draft.write_text("new")
    assert path.read_text() == "new"


def test_of_two_processes_each_writes_a_draft_of_its_own(tmp_path):
    path = tmp_path / "state.json"
    with writer(path, "first") as first, writer(path, "second") as second:
        assert not path.exists()
        for process, text in ((second, "second"), (first, "first")):
            process.communicate(b".")
            assert process.returncode == 0
            assert path.read_text() == 2 * text
    assert os.listdir(tmp_path) == ["state.json"]
