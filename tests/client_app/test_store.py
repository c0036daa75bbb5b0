import threading
import time

import numpy as np
import pytest
from filelock import FileLock

from client_app import store as stores
from client_app.store import Store, hold_lock


def test_what_is_saved_is_loaded(tmp_path):
    store = Store(tmp_path / "hospital")
    assert store.load("runs/1/home") == {}
    store.save("runs/1/home", {"w": np.array([1, 2], "f4"), "n": np.array(3)})
    store.save("runs/1/home", {"w": np.array([3, 4], "f4"), "n": np.array(5)})
    loaded = Store(tmp_path / "hospital").load("runs/1/home")
    assert loaded["w"].tolist() == [3.0, 4.0]
    assert (loaded["n"].shape, loaded["n"].item()) == ((), 5)


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
