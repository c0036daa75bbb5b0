"""Folders and files of others, changed a few hundred times each: they are read, or named and left.

Every outcome is a good one or an error of a declared type with one sentence. Nothing waits for
ever, takes memory that the file does not have, or reaches a terminal, a page or a table as it is.
"""

import csv
import io
import json
import os
import random
import re
import shutil
import sys
import tracemalloc
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from rich.console import Console

from cli import main
from client_app.afterwards.home import MIXTURE, read_mixture
from client_app.afterwards.past_run import PastRun
from client_app.datasets.npz import load_npz
from client_app.errors import DataError
from client_app.release.dossier.files import check
from client_app.release.model_attack import FILE
from learning.errors import ModelError
from learning.export import ModelManifest
from server_app import comparison, watch
from server_app.compare import records, text
from server_app.compare_page import page
from server_app.comparison import compare
from server_app.results import Results
from server_app.tables import events as events_of
from server_app.tables import rounds as rounds_of
from server_app.watch import Followed, follow, picture
from strategies.engine import checkpoint
from strategies.engine.checkpoint import CheckpointError
from strategies.engine.in_order import read_turns
from strategies.engine.state import Model
from strategies.protocol import archive
from strategies.protocol.files import FileError
from strategies.protocol.settings import Settings, SettingsError
from tests.client_app.test_dossier import written
from tests.fakes import run_config, settings
from tests.learning.test_export import architecture, manifest_of
from tests.server_app.fake_runs import ring
from tests.strategies.test_parcel import good

JUNK: list[object] = [
    *(None, True, False, 0, -1, 10**9, 2**63, 10**400, 1e308, float("nan"), float("-inf")),
    *("", "x" * 5000, "\x1b[2J\u202e\x07", "\ud800", "=1+1", "../../x", "10", "<b>"),
    *([], {}, [None], {"": {}}, [[[[[1]]]]], [1] * 300),
]
MOST = 200  # mutations of a format


def changed(rng, content):
    """The bytes of a file with one value of its JSON replaced, or a few bytes of it."""
    lines = content.splitlines()
    number = rng.randrange(len(lines)) if lines else 0
    with suppress(ValueError, IndexError):
        whole = json.loads(content if rng.random() < 0.5 else lines[number])
        replaced = json.dumps(other(rng, whole)).encode()
        if whole == json.loads(content):
            return replaced
        return b"\n".join([*lines[:number], replaced, *lines[number + 1 :], b""])
    return damaged(rng, content)


def other(rng, value):
    """A value of which a part is another, is missing, or is one more."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(JUNK)
    copy = value.copy()
    key = rng.choice([*(copy if isinstance(copy, dict) else range(len(copy)))])
    match rng.randrange(8):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[rng.choice(["more", "\x1b[2J", "\ud800"])] = copy.pop(key)
        case _:
            copy[key] = other(rng, copy[key])
    return copy


def damaged(rng, content):
    content = bytearray(content)
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(max(1, len(content)))
        match rng.randrange(4):
            case 0:
                content[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del content[place : place + rng.randrange(1, 40)]
            case 2:
                content[place:place] = rng.choice([b"9" * 30, b"[" * 3000, b"\x1b[2J", b"\0", b"{"])
            case 3:
                content[place:place] = content[: rng.randrange(200)]
    return bytes(content)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of a run that has completed, and one of a run that goes on."""
    base = tmp_path_factory.mktemp("runs")
    chosen = settings(strategy="rwt", output_dir=str(base), num_server_rounds=2)
    names = ("graz", "linz")
    for last in (False, True):
        kept, state = Results.open(chosen)
        state.models = {name: Model(name, name, state.shelf.put(good())) for name in names}
        state.nodes, state.delivered = dict.fromkeys(names, 1), {("graz", "abc")}
        for event in ring(names, 2):
            kept.record(event)
        for number in (1, 2):
            kept.round_finished(number)
        kept.keep(state)
        if last:
            kept.finish(state)
    unfinished, finished = sorted(base.iterdir(), key=lambda path: (path / "summary.json").exists())
    return finished, unfinished


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(watch, "LOOK", 0.0)
    monkeypatch.setattr(watch, "START_UP", 0.0)
    monkeypatch.setattr(watch, "is_locked", lambda path: False)


def copy_of(folder, tmp_path):
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    return shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("parcels"))


def named(error):
    """What an error of a declared type is: one sentence or two, in a line."""
    return "named" if "\n" not in str(error) else str(error)


def is_plain(shown):
    return all(line.isprintable() for line in re.split(r"[\n\t]", shown))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json"])
def test_a_changed_run_is_compared_or_left_out(name, results, tmp_path):
    whole = results[0]
    rng, outcomes = random.Random(name), set()
    for number in range(MOST // 5):
        folder = copy_of(whole, tmp_path)
        if number:  # the first one is as it was: of the others few may be readable
            (folder / name).write_bytes(changed(rng, (whole / name).read_bytes()))
        found = compare([folder, whole])
        assert found.methods, "The other run is compared in any case."
        said = [text(found), page(found)]
        with io.StringIO(newline="") as table:
            csv.writer(table).writerows(records(found))
        assert is_plain(said[1])
        outcomes |= {
            reason.startswith("has the settings and seed") for reason in found.left_out.values()
        }
        for read in (events_of, rounds_of, read_turns):
            with suppress(OSError, FileError, SettingsError):
                read(folder)
    # metrics.jsonl is not read for it.
    assert outcomes == ({True} if name == "metrics.jsonl" else {True, False})


@pytest.mark.parametrize("name", ["log.txt", "summary.json", "under-way.json"])
def test_a_changed_run_is_followed_or_named(name, results, tmp_path):
    whole = results[name == "under-way.json"]
    rng, outcomes = random.Random(name), set()
    for number in range(MOST // 5):
        folder = copy_of(whole, tmp_path)
        if number:  # the first one is as it was: of the others few may be readable
            (folder / name).write_bytes(changed(rng, (whole / name).read_bytes()))
        screen = io.StringIO()
        console = Console(file=screen, highlight=False, width=80)
        outcome = "followed"
        try:
            follow(folder, console)
            assert is_plain(screen.getvalue())
            run = Followed(folder)
            run.look()
            console.print(picture(run, console))
            assert is_plain(screen.getvalue())
        except (OSError, FileError, SettingsError) as error:
            outcome = named(error)
        outcomes.add(outcome)
    assert "followed" in outcomes <= {"followed", "named"}


def test_a_changed_checkpoint_is_gone_on_from_or_named(results, tmp_path):
    whole, rng, outcomes = results[1] / "checkpoint", random.Random(0), set()
    for _ in range(MOST):
        folder = copy_of(whole, tmp_path)
        name = rng.choice(["state.json", *(path.name for path in whole.glob("*.npz"))])
        change = changed if name == "state.json" else damaged
        (folder / name).write_bytes(change(rng, (whole / name).read_bytes()))
        try:
            state, _ = checkpoint.load(folder, dict[str, object])
            json.dumps(state.to_json())
            outcomes.add("read")
        except CheckpointError as error:
            outcomes.add(named(error))
    assert outcomes == {"read", "named"}


def test_a_changed_run_is_resumed_or_named(results, tmp_path):
    rng = random.Random(0)
    for _ in range(MOST // 5):
        folder = copy_of(results[1], tmp_path)
        name = rng.choice(["checkpoint/state.json", "metrics.jsonl", "config.toml"])
        (folder / name).write_bytes(changed(rng, (folder / name).read_bytes()))
        config = run_config(strategy="rwt", num_server_rounds=2, resume=str(folder))
        with suppress(SettingsError):
            Results.open(Settings.parse(config | {"output-dir": str(results[1].parent)}))


def test_a_changed_archive_is_read_or_named(tmp_path):
    rng, outcomes = random.Random(0), set()
    file, packed = io.BytesIO(), io.BytesIO()
    arrays = {"x": np.arange(40, dtype=np.uint8).reshape(10, 4), "names": np.array(["a", "bc"])}
    np.savez(file, allow_pickle=False, **arrays)
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    for content in (file, packed):
        for _ in range(MOST):
            (tmp_path / "x.npz").write_bytes(damaged(rng, content.getvalue()))
            try:
                outcomes.add(len(archive.load(tmp_path / "x.npz")) >= 0)
            except archive.ArchiveError:
                outcomes.add(False)
    assert outcomes == {True, False}


def test_a_changed_manifest_is_read_or_named():
    rng, outcomes = random.Random(0), set()
    manifest = manifest_of(architecture()).to_json()
    for _ in range(MOST):
        try:
            text_ = changed(rng, manifest.encode()).decode(errors="replace")
            ModelManifest.from_json(text_).network.to_json().encode()
            outcomes.add("read")
        except ModelError as error:
            outcomes.add(named(error))
    assert outcomes == {"read", "named"}


@pytest.mark.parametrize("name", ["ensemble.json", MIXTURE, FILE])
def test_what_a_hospital_noted_is_read_or_named(name, tmp_path):
    figure = {"value": 0.1, "low": 0.0, "high": 0.2}
    attacked = {"lineage": "a", "round": 1, "leak": figure, "able": True}
    attacked["by-loss"] = {"attack": {"auc": figure}}
    content = {"ensemble.json": {"graz": {"auroc": 0.5}}, MIXTURE: {"a": 0.5}, FILE: attacked}
    rng = random.Random(name)
    past = PastRun("graz", tmp_path, "r", [], "", [])
    folder = tmp_path / ("runs" if name == FILE else "models") / "r"
    folder.mkdir(parents=True)
    for _ in range(MOST):
        (folder / name).write_bytes(changed(rng, json.dumps(content[name]).encode()))
        with suppress(SettingsError):
            assert all(isinstance(each, float | int) for each in past.ensemble.values())
        with suppress(SettingsError):
            read_mixture(folder)
        for each in past.attacks():
            assert each["leak"]["low"] is not None


def test_a_number_of_rounds_keeps_nobody_waiting(results, tmp_path):
    folder = copy_of(results[0], tmp_path)
    told = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**told, "rounds": 10**9}))
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("rounds = 2", f"rounds = {10**9}"))
    screen = Console(file=io.StringIO(), highlight=False, force_terminal=True)
    assert follow(folder, screen) == 0


def test_names_of_others_control_no_terminal_and_no_spreadsheet(tmp_path, monkeypatch, capsys):
    """A strategy, a hospital, a folder and a setting that obey somebody else."""
    hostile = '=HYPERLINK("http://x")\x1b[2J\u202e'
    for number in (1, 2):
        chosen = settings(strategy="rwt", output_dir=str(tmp_path), seed=number)
        kept, state = Results.open(chosen)
        for event in ring(("graz", "linz"), 2):
            kept.record(event)
        for round_ in (1, 2):
            kept.round_finished(round_)
        kept.finish(state)
        for name in ("metrics.jsonl", "summary.json"):
            told = (kept.path / name).read_text()
            (kept.path / name).write_text(told.replace('"graz"', json.dumps(hostile)))
        told = (kept.path / "config.toml").read_text()
        told = told.replace('strategy = "rwt"', f"strategy = {json.dumps(hostile)}")
        (kept.path / "config.toml").write_text(told)
    (tmp_path / "b\x1b[31m").mkdir()
    (tmp_path / "b\x1b[31m" / "summary.json").write_text("{")
    table, html = tmp_path / "table.csv", tmp_path / "table.html"
    monkeypatch.setattr("sys.stdout", sys.stdout)  # which the command replaces
    monkeypatch.setattr("sys.stderr", sys.stderr)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), "--csv", str(table), "--html", str(html)])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "=HYPERLINK" in shown
    assert is_plain(shown)
    assert is_plain(html.read_text())
    cells = [cell for row in csv.reader(table.read_text().splitlines()) for cell in row]
    assert any(cell.startswith("'=HYPERLINK") for cell in cells)
    assert not [c for c in cells if c[:1] in "=@+" and c] + [c for c in cells if "\x1b" in c]
    assert {float(c) < 0 for c in cells if c[:1] == "-"} <= {True}


@pytest.mark.parametrize("place", ["assessments", "history", "figure"])
def test_a_run_with_absurd_figures_is_left_out(place, results, tmp_path):
    """Their sum is too large for a float, and no run was compared."""
    folder = copy_of(results[0], tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    if place == "assessments":
        for row in summary["assessments"]:
            row["balanced_accuracy"] = {"value": 1e308, "low": None, "high": None}
    elif place == "history":
        summary["history"]["federation_accuracy"] = [1e308] * len(summary["history"]["round"])
    else:
        summary["wall_seconds"] = 1e308
    (folder / "summary.json").write_text(json.dumps(summary))
    found = compare([folder, results[0]])
    assert [*found.left_out.values()] == [
        "cannot be read (its summary.json has the figure 1e+308.)"
    ]
    assert found.methods


def test_more_methods_and_hospitals_than_can_be_compared_are_said(results, monkeypatch):
    monkeypatch.setattr(comparison, "MOST_CELLS", 1)
    with pytest.raises(SettingsError, match="name fewer folders"):
        compare([results[0]])


def peak_of(do):
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_archive_takes_no_more_memory_than_its_file_is_worth(tmp_path):
    path = tmp_path / "x.npz"
    arrays = {f"{part}_{split}": np.zeros(2**27, np.uint8) for part in "xy" for split in ("train",)}
    np.savez_compressed(path, allow_pickle=False, **arrays)
    assert path.stat().st_size < 2**20

    def refused():
        with pytest.raises(DataError) as error:
            load_npz(str(path))
        assert re.search("unpacks to .*: write it without compression", error.value.own)

    assert peak_of(refused) < 2**24


def test_an_array_that_announces_more_than_it_has_takes_no_memory(tmp_path):
    path, header = tmp_path / "x.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (2**34,)}
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header.getvalue() + b"\0" * 100)

    def refused():
        with pytest.raises(archive.ArchiveError):
            archive.load(path)

    assert peak_of(refused) < 2**22


@pytest.mark.parametrize(
    ("sides", "size"), [((16, 16), 20_000), ((20_000, 20_000), 20_000), ((16, 8), 16)]
)
def test_a_model_is_for_images_that_a_hospital_can_prepare(sides, size):
    network = {**vars(architecture()), "height": sides[0], "width": sides[1]}
    manifest = json.loads(manifest_of(architecture()).to_json())
    manifest |= {"architecture": json.dumps(network)}
    manifest["settings"] |= {"image-size": size}
    with pytest.raises(ModelError):
        assert ModelManifest.from_json(json.dumps(manifest)).network


def test_a_pipe_in_a_folder_keeps_nobody_waiting(results, tmp_path):
    for name in ("config.toml", "summary.json"):
        folder = copy_of(results[0], tmp_path)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert [*compare([folder]).left_out] == [folder]


def test_a_changed_dossier_is_checked_or_named(tmp_path):
    path, content = tmp_path / "dossier.json", json.dumps(written()).encode()
    for number in range(MOST):
        path.write_bytes(changed(random.Random(number), content))
        with suppress(SettingsError):
            check(path, {})
    path.write_bytes(content)
    os.mkfifo(tmp_path / "dossier.html")
    assert not check(path, {}).page
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SettingsError, match="There is no dossier"):
        check(path, {})
