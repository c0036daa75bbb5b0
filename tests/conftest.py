import gc
import os
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import hypothesis
import pytest
import typer.main
from flwr.supercore.task_identity import TaskIdentity
from xdist.scheduler import LoadScopeScheduling

from cli import main
from client_app.authority.node_config import simulate
from strategies.protocol.code import PACKAGES

# Before torch is imported: two test processes share the cores.
os.environ["OMP_NUM_THREADS"] = "1"


ROOT = Path(__file__).parents[1]


# How fast a busy machine draws examples says nothing of what is tested.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# These files wait most, for processes of their own: they begin first, and are marked `waits`.
WAITING = (
    "tests/deploy/test_containers.py",
    "tests/deploy/test_kills.py",
    "tests/deploy/test_failures.py",
    "tests/deploy/test_relay.py",
    "tests/deploy/test_watch.py",
    "tests/test_docs.py",
    "tests/test_simulation.py",
)
# Tests that share nothing with others of their file: one at a time, by whoever is free.
APART = (
    "tests/deploy/test_failures.py",
    "tests/deploy/test_relay.py::test_sealed_feder_on_features",
    "tests/deploy/test_relay.py::test_the_same_search_finds_all_models",
    "tests/test_federation.py",
    "tests/test_resume.py",
    "tests/test_sealed_federation.py",
    "tests/test_simulation.py::test_hospitals_on_two_nodes",
    "tests/test_suited.py",
)
LEFT_OUT = pytest.StashKey[int]()


def scope_of(nodeid):
    """The tests that one process does together, so that what they share is made once: a file's."""
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


class Scheduling(LoadScopeScheduling):
    """Gives each scope to the next free process."""

    def _split_scope(self, nodeid):
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # it would put off the files that wait
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nearly all that is imported and collected stays: Python does not search it for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after they have been shuffled
def pytest_collection_modifyitems(items):
    """Sort tests: the files that wait, then large scopes, then small ones, which end together."""
    sizes = Counter(scope_of(item.nodeid) for item in items)
    items.sort(
        key=lambda item: (not item.nodeid.startswith(WAITING), -sizes[scope_of(item.nodeid)])
    )


def pytest_itemcollected(item):
    if "importorskip" in _source(item.path):
        item.add_marker("extra")
    if item.nodeid.startswith(WAITING):
        item.add_marker("waits")


@cache
def _source(path):
    return path.read_text("utf-8")


def pytest_deselected(items):
    if not items:  # with --lf
        return
    config = items[0].config
    config.stash[LEFT_OUT] = config.stash.get(LEFT_OUT, 0) + len(items)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left out"] = config.stash[LEFT_OUT]


def pytest_testnodedown(node):
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(terminalreporter, config):
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"Left out: {left_out} tests that take longer than a second, or need a GPU. "
            "All of them: uv run pytest -m ''"
        )


@pytest.fixture(autouse=True, scope="session")
def _imported(request):
    """All modules of ours, before a test replaces a name in one of them.

    A module that is first imported meanwhile binds what stands there by `from ... import`, and
    keeps it in all later tests. One file of tests alone does without, and begins sooner.
    """
    if len({item.path for item in request.session.items}) > 1:
        for package in (*PACKAGES, "deploy", "server_app"):
            for path in sorted((ROOT / package).rglob("*.py")):
                import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.fixture(autouse=True, scope="session")
def _inside_a_run(_imported):
    """Flower makes messages only inside a run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def _may_simulate(_imported):
    """Hospitals whose node-config names a part of the data are simulated here."""
    simulate()


@pytest.fixture(autouse=True, scope="session")
def _commands(_imported):
    """Typer builds all commands anew for each call of one; here they are built once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def _own_umask():
    """A hospital's processes keep what they write from others, from then on."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def _quick_audits():
    """Decoders of embeddings that learn for ten steps alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.decoders.STEPS", 10)
        yield


@pytest.fixture
def _quick_buffers(monkeypatch, _quick_audits):
    """Blends of two images of a class in the place of a GAN's: tests/gan has those."""
    import torch  # here, because it takes seconds, and most tests do without

    from client_app.release import buffer
    from client_app.release.buffer.job import Release
    from learning.samples import Samples

    def blend(hospital, size, *_):
        train = hospital.data.train
        labels = train.labels[torch.arange(size) % len(train)]
        rng = torch.Generator().manual_seed(0)
        pick = [
            [int(torch.multinomial((train.labels == k) * 1.0, 1, generator=rng)) for k in labels]
            for _ in range(2)
        ]
        images = (train.images[pick[0]].float() + train.images[pick[1]].float()) / 2
        return Release(Samples(images.byte(), labels), {"release-passed": 1.0})

    monkeypatch.setattr(buffer, "make_buffer", blend)


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Calls `fedhandoff` at home; its status, output and errors."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
        return ended.value.code, *capsys.readouterr()

    return call
