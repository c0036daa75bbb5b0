"""Files that are whole or not there at all."""

import fcntl
import os
import resource
import signal
import threading

import pytest

from strategies.protocol.files import (
    is_locked,
    lock_once,
    make_private,
    read_text,
    replacing,
    write_new,
    write_whole,
)


def test_an_error_names_the_file_and_not_its_draft(tmp_path):
    with (
        pytest.raises(OSError, match=r"There is no such folder: '.*missing'"),
        replacing(tmp_path / "missing" / "table.csv"),
    ):
        pass
    (tmp_path / "table.csv").write_text("old")
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "table.csv"):
        pass  # nothing is written
    assert caught.value.filename == str(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == "old"


def test_two_processes_of_one_number_may_write_one_file_at_once(tmp_path):
    """In containers most processes have the number 1; on a shared volume drafts must differ."""
    path = tmp_path / "table.csv"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("one")
        second.write_text("two")
    assert path.read_text() == "one"  # the block that ends last
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    with pytest.raises(IsADirectoryError, match=f"Is a directory: '{tmp_path}'"):
        read_text(tmp_path)


@pytest.mark.parametrize("place", ["folder", "pipe", "link"])
def test_only_a_file_is_replaced(place, tmp_path):
    """Root could otherwise replace /dev/stdout."""
    path = tmp_path / "table.csv"
    if place == "folder":
        path.mkdir()
    elif place == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    kind = path.lstat().st_mode
    with pytest.raises(FileExistsError, match=f"not replaced: '{path}'"), replacing(path) as draft:
        draft.write_text("new")
    assert path.lstat().st_mode == kind


@pytest.mark.parametrize("write", [write_whole, write_new])
def test_a_full_disk_is_named_with_the_file_and_leaves_no_part(write, tmp_path):
    """The limit of a file's size stands for a full disk."""
    path, limits = tmp_path / "new", resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="new") as error:
            write(path, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert error.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_on_a_full_disk_no_folder_stays_without_its_gitignore(tmp_path):
    """The next attempt would not write it: keys could get into Git."""
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), tmp_path / "a" / ".gitignore"
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match=r"a/\.gitignore"):
            make_private(tmp_path / "a" / "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    make_private(tmp_path / "a" / "b")
    assert ignored.read_text() == "*\n"


def test_who_only_looks_at_a_lock_stands_in_nobodys_way(tmp_path):
    looker, starter, other = (os.open(tmp_path, os.O_RDONLY) for _ in range(3))
    try:
        assert not is_locked(tmp_path)
        fcntl.flock(looker, fcntl.LOCK_SH)
        threading.Timer(0.2, os.close, [looker]).start()
        assert lock_once(starter)
        assert is_locked(tmp_path)
        assert not lock_once(other)
    finally:
        os.close(starter)
        os.close(other)
