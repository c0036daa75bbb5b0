import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from filelock import FileLock

from client_app import store as stores
from client_app.authority.policy import Policy
from client_app.authority.privacy_account import Spent, spend
from client_app.release.embeddings import _check
from client_app.run import count_model, count_visit, run_folder
from client_app.store import Store, hold_lock

RULES = replace(Policy.read().embeddings, kinds=["sampled"])
LEAKS = dict.fromkeys(("embedding-linked", "embedding-inverted", "embedding-bits-most"), 0.0)


def test_what_is_saved_is_loaded(tmp_path):
    store = Store(tmp_path / "hospital")
    assert store.load("runs/1/home") == {}
    store.save("runs/1/home", {"w": np.array([1, 2], "f4"), "n": np.array(3)})
    store.save("runs/1/home", {"w": np.array([3, 4], "f4"), "n": np.array(5)})
    loaded = Store(tmp_path / "hospital").load("runs/1/home")
    assert loaded["w"].tolist() == [3.0, 4.0]
    assert (loaded["n"].shape, loaded["n"].item()) == ((), 5)


@pytest.mark.parametrize(("size", "once"), [(1000, True), (2 * stores.SMALL, False)])
def test_only_small_files_stay_in_memory(size, once, tmp_path):
    store = Store(tmp_path)
    store.save("terms", {"settings": np.zeros(size, "u1")})
    assert (store.load_small("terms") is store.load_small("terms")) == once


def test_a_kill_while_saving_leaves_the_old_file(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save("home", {"w": np.zeros(2)})

    def killed(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save("home", {"w": np.ones(2)})
    assert store.load("home")["w"].tolist() == [0.0, 0.0]


def test_a_long_wait_for_another_process_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stores, "PATIENCE", 0.05)
    caplog.set_level("INFO", "flwr")
    with hold_lock(tmp_path / "lock", "decodes these images"):
        pass
    assert caplog.messages == []
    held, enough = threading.Event(), threading.Event()

    def hold():
        with FileLock(tmp_path / "lock"):
            held.set()
            enough.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    start = time.monotonic()
    with pytest.raises(TimeoutError), hold_lock(tmp_path / "lock", "decodes", 0.2):
        raise AssertionError
    assert 0.15 < time.monotonic() - start < 5
    threading.Timer(0.3, enough.set).start()
    with hold_lock(tmp_path / "lock", "decodes these images"):
        assert enough.is_set()
    other.join()
    words = "Another process decodes these images. This one waits for it"
    assert caplog.messages[-1] == f"{words} ({tmp_path}/lock)"


@pytest.mark.parametrize(
    "count",
    [
        lambda store: count_visit(run_folder(store, "1"), 1),
        lambda store: count_model(run_folder(store, "1"), "tested", "a rule", "model", 1),
        lambda store: _check(RULES, "sampled", LEAKS, store, "sample"),
        lambda store: spend(store.folder, Spent("x", 9.0), 1e-6, None),
    ],
    ids=["visits", "models", "embeddings", "account"],
)
def test_what_counts_is_on_the_disk_before_it_leaves(count, tmp_path, monkeypatch):
    """A machine that loses power must not forget it."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    count(Store(tmp_path))
    assert len(synced) == 1
