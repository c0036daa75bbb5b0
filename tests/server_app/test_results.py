import csv
import errno
import json
import os
import shutil
from dataclasses import asdict, replace
from math import isfinite, isnan, nan
from time import monotonic

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.common.config import parse_config_args
from pydantic_core import to_json

from server_app import live
from server_app import results as module
from server_app.results import Results
from server_app.summary import Record, measure_round, summarise
from server_app.watch import Followed
from strategies.engine import shelf
from strategies.engine.courier import Awaited
from strategies.engine.events import LOG, Event, read_events
from strategies.engine.shelf import Shelf
from strategies.engine.state import Model, State
from strategies.protocol.parcel import Manifest, load, pack
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import Settings, SettingsError
from tests.fakes import settings


@pytest.fixture
def results(tmp_path):
    return Results.open(settings(output_dir=str(tmp_path)))[0]


ON_FEATURES = {"strategy": "sums", "train__freeze": "body"}


@pytest.mark.parametrize(
    ("chosen", "everywhere"),
    [
        ({"strategy": "fedbn"}, False),
        ({**ON_FEATURES, "sums__kappa": -1}, False),
        ({**ON_FEATURES, "sums__kappa": 0}, True),
        ({"strategy": "fedavg"}, True),
    ],
)
def test_a_model_with_layers_that_stay_has_no_figure_everywhere(
    chosen, everywhere, tmp_path, events
):
    results = Results.open(settings(output_dir=str(tmp_path), **chosen))[0]
    run(results, events)
    summary = results.finish(at(results, "A", "B"))
    assert isfinite(summary.personalized_accuracy)
    assert isfinite(summary.federation_accuracy) is everywhere
    followed = Followed(results.path)
    followed.look()
    assert ("balanced accuracy" in followed.now.curves) is everywhere


def raise_(error):
    raise error


def at(results, *lineages):
    """The state of a run with these models, each with a copy as FedAvg makes them."""
    state = State(Shelf(results.path / "checkpoint"), "run")
    model = ArrayRecord({"weight": Array(np.ones(2, "f4"))})
    for lineage in lineages:
        parcel = state.shelf.put(pack({"model": model}, Manifest(lineage, "net", ["a", "b"])))
        state.models[lineage] = state.models[f"copy of {lineage}"] = Model(lineage, "A", parcel)
    return state


def lines_of(results):
    return [json.loads(line) for line in (results.path / "metrics.jsonl").read_text().splitlines()]


def summary_of(results):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads((results.path / "summary.json").read_text(), parse_constant=refuse)


def run(results, events):
    for event, following in zip(events, [*events[1:], None], strict=True):
        results.record(event)
        if event.round and (following is None or following.round != event.round):
            results.round_finished(event.round)


def test_a_run_leaves_its_files(results, events):
    run(results, events)
    results.finish(at(results, "A", "B"))
    names = sorted(str(p.relative_to(results.path)) for p in results.path.rglob("*") if p.is_file())
    assert names == [
        "accuracy_matrix.csv",
        "config.toml",
        "log.txt",
        "metrics.jsonl",
        "parcels/A.npz",
        "parcels/B.npz",
        "report.html",
        "summary.json",
        "under-way.json",
    ]
    summary = summary_of(results)
    assert summary["status"] == "completed with failures"
    assert summary["federation_accuracy"] == pytest.approx(0.6)
    assert summary["federation_auroc"] is None
    with (results.path / "accuracy_matrix.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["model", "A", "B"],
            ["A", "0.8", "0.4"],
            ["B", "0.7", "0.5"],
        ]
    assert load(results.path / "parcels" / "A.npz")["manifest"]["lineage"] == "A"


def test_an_event_is_on_disk_at_once_and_without_nan(results):
    results.record(Event("train", 1, 2, "Süd", "A", metrics={"auroc": nan}, bytes_sent=7))
    [line] = lines_of(results)
    assert line.pop("time") == line.pop("began") >= 0
    assert line == {
        "verb": "train",
        "round": 1,
        "hop": 2,
        "hospital": "Süd",
        "lineage": "A",
        "outcome": "ok",
        "reason": "",
        "metrics": {"auroc": None},
        "seconds": 0.0,
        "bytes_sent": 7,
        "bytes_received": 0,
        "epochs": 0,
    }


def test_config_toml_starts_the_same_run_again(tmp_path):
    chosen = settings(output_dir=str(tmp_path), train__learning_rate=0.5, evaluate__cross=False)
    path = Results.open(chosen)[0].path / "config.toml"
    assert Settings.parse(parse_config_args([str(path)])) == chosen


def test_two_runs_in_one_second_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "strftime", lambda _: "2026-11-21_14-03-59")
    chosen = settings(output_dir=str(tmp_path), strategy="rwt")
    names = [Results.open(chosen)[0].path.name for _ in range(3)]
    assert names == [f"2026-11-21_14-03-59-rwt{end}" for end in ("", "-2", "-3")]


def test_a_directory_may_have_any_name(tmp_path, events):
    (path := tmp_path / "2026-02-30-copy").mkdir()
    results = Results(path, settings(output_dir=str(tmp_path)))
    results._begin()
    run(results, events)
    results.finish(at(results, "A"))
    assert summary_of(results)["began"] == ""


def test_a_resumed_run_knows_its_classes_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Results, "_claim", lambda results: None)  # the lock goes with the process
    first, state = Results.open(settings(output_dir=str(tmp_path)))
    state.outputs = ["a", "b"]
    first.keep(state)
    again, _ = Results.open(settings(output_dir=str(tmp_path), resume=str(first.path)))
    assert again._classes == ["a", "b"]


def test_the_notes_on_images_come_once_if_the_end_is_repeated(results, monkeypatch):
    facts = {"data": "manifest"}
    results.record(Event("query.prepare", 0, 0, "A", "A", facts=facts))
    full = OSError(errno.ENOSPC, "full")
    with monkeypatch.context() as at_end:
        at_end.setattr(module, "render", lambda *_, **__: raise_(full))
        with pytest.raises(OSError, match="full"):
            results.finish(at(results))
    results.fail(full, at(results))
    text = (results.path / "config.toml").read_text()
    assert text.count("# Hospitals used images of their own") == 1


def test_an_output_dir_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    for bad in (f"{tmp_path}/file/runs", "~nobody-of-this-name/runs"):
        with pytest.raises(SettingsError) as refusal:
            Results.open(settings(output_dir=bad))
        assert f"'output-dir' is '{bad}'; it must be a folder" in str(refusal.value)
        assert "Errno" not in str(refusal.value)


def test_a_failed_run_keeps_what_it_measured(results, events):
    run(results, events[:10])
    results.record(events[10])
    results.fail(RuntimeError("the power went"), at(results, "A"))
    summary = summary_of(results)
    assert (summary["status"], summary["error"]) == ("failed", "RuntimeError: the power went")
    assert (summary["rounds"], summary["federation_accuracy"]) == (1, pytest.approx(0.7))
    assert summary["participation"]["A"]["visits"] == 2
    assert "the power went" in (results.path / "report.html").read_text()
    assert (results.path / "parcels" / "A.npz").exists()


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "free space on that disk"),
        (errno.EDQUOT, "free space on that disk"),
        (errno.EROFS, "make that folder writable"),
        (errno.EACCES, "make that folder writable"),
    ],
)
def test_a_folder_that_takes_no_file_is_named_with_its_cure(results, monkeypatch, number, cure):
    error = results.explain(OSError(number, os.strerror(number)))
    assert str(results.path) in str(error)
    assert f"{cure}, then resume the run." in str(error)
    monkeypatch.setattr(module, "to_json", lambda *_, **__: raise_(OSError(number, "full")))
    results.fail(error, at(results, "A"))  # it has no room for its summary
    assert (results.path / "checkpoint" / "resume.toml").exists()
    other = ValueError("no matter of a disk")
    assert results.explain(other) is other


def test_a_run_fails_for_its_own_reason_if_its_log_cannot_be_read(results, caplog):
    caplog.set_level("INFO", "flwr")
    (results.path / "metrics.jsonl").write_text("no event\n")
    results.fail(RuntimeError("the power went"), at(results, "A"))
    assert "The run failed: the power went" in caplog.text
    assert "resume.toml" in caplog.text


def test_a_run_fails_for_its_own_reason_if_a_parcel_is_damaged(results, monkeypatch, caplog):
    monkeypatch.setattr(shelf, "IN_MEMORY", 1)
    state = at(results, "A", "B")
    (path,) = (results.path / "checkpoint").glob("*.npz")
    path.write_bytes(path.read_bytes()[:-30])
    caplog.set_level("INFO", "flwr")
    results.fail(RuntimeError("the power went"), state)
    assert "The run failed: the power went" in caplog.text
    assert "resume.toml" in caplog.text


def test_a_folder_that_is_removed_under_way_is_named_once(results, caplog):
    state = at(results, "A")
    results._page = live.LivePage(results.path)  # which is due
    shutil.rmtree(results.path)
    with pytest.raises(OSError, match="There is no such folder") as raised:
        results.waits_for([Awaited("A", "train", 0.0)])
    error = results.explain(raised.value)
    caplog.set_level("INFO", "flwr")
    results.fail(error, state)
    failed = [each.getMessage() for each in caplog.records if "fail" in each.getMessage()]
    assert failed == [f"The run failed: {results.path} was removed under way: start the run again."]
    assert "Resume" not in caplog.text


@pytest.mark.parametrize(
    ("error", "hop", "kept"),
    [
        (SettingsError("Set it to 1."), 0, False),
        (SettingsError("Set it to 1."), 1, True),
        (RuntimeError("the power went"), 0, True),
    ],
)
def test_nobody_is_told_to_go_on_with_settings_that_were_refused_before_the_first_hop(
    error, hop, kept, results, monkeypatch
):
    lines = []
    monkeypatch.setattr(module, "log", lambda _, text, *values: lines.append(text % values))
    state = at(results)
    state.hop = hop
    results.fail(error, state)
    assert (results.path / "checkpoint").exists() == kept
    assert any("Resume it" in line for line in lines) == kept
    assert summary_of(results)["status"] == "failed"


def test_a_run_that_fails_at_once_has_results_too(results):
    results.fail(RuntimeError("nobody is there"), at(results))
    assert summary_of(results)["hospitals"] == []


def test_a_name_cannot_lead_out_of_the_folder(results):
    with pytest.raises(ParcelError, match="'lineage' of the manifest"):
        at(results, "../../A")


def test_no_name_is_a_formula_for_a_spreadsheet(results, events):
    """Names cannot begin so (strategies.protocol.names); the file does not rely on it."""
    run(results, [replace(event, hospital=f"={event.hospital}") for event in events])
    results.finish(at(results))
    with (results.path / "accuracy_matrix.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["model", "'=A", "'=B"]


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(module, "log", lambda _, text, *values: lines.append(text % values))
    return lines


def test_a_round_is_one_line_in_the_log(results, events, said):
    run(results, events[:10])
    results.record(Event("train", 2, 1, "A", "B", metrics={"train-loss": 0.25}))
    results.round_finished(2)
    assert said[:2] == ["A is ready (5 s)", "B is ready (5 s)"]
    assert [line.rpartition("  ")[0] for line in said[2:]] == [
        "round  1/10  held 0.550 (lowest 0.500 at B)"
        "  balanced accuracy 0.700 (lowest 0.500, 'A' at B)",
        "round  2/10  loss 0.250  1 of 2 hospitals",
    ]


def test_the_line_of_a_serial_round_tells_how_far_the_visits_differ(results, serial, said):
    run(results, serial[:11])
    assert said[0].startswith(
        "round  1/10  held 0.500  balanced accuracy 0.700 (lowest 0.500, 'global' at A)"
        "  visits 0.600 to 0.800"
    )


def test_visits_are_in_the_summary_without_nan(results, serial):
    run(results, serial)
    results.finish(at(results))
    summary = summary_of(results)
    assert summary["visits"][0] == {
        "round": 1,
        "hop": 1,
        "epochs": 1,
        "lineage": "global",
        "hospital": "A",
        "global_accuracy": pytest.approx(0.2),
        "global_balanced_accuracy": None,
        "own_accuracies": {"A": 0.5, "B": 0.1},
    }
    assert summary["last_rounds"]["balanced_mean"] is None


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [
        ({"num-train": 1.0, "num-test": 20.0}, ": 1 image to train on, 20 images to test on"),
        ({"num-train": 100.0}, ": 100 images to train on"),
        ({"num-test": 20.0}, ": 20 images to test on"),
        ({}, ""),
    ],
)
def test_only_known_numbers_of_images_are_logged(numbers, counts, results, said):
    results.record(Event("query.prepare", 0, 0, "A", metrics=numbers, seconds=5))
    assert said == [f"A is ready{counts} (5 s)"]


def test_failures_and_long_answers_are_logged_at_once(results, said):
    results.record(Event("train", 2, 1, "A", "B", seconds=1.0))
    results.record(Event("train", 2, 1, "B", "A", seconds=75.2))
    results.record(Event("train", 2, 1, "C", "C", "gone", "The hospital is not connected."))
    for model in "ABC":  # in one answer
        results.record(Event("evaluate", 2, 1, "A", model, seconds=79.0))
    assert said == [
        "round 2: B took 75 s to train",
        "round 2: C failed to train (gone): The hospital is not connected.",
        "round 2: A took 79 s to test",
    ]


def test_a_round_that_does_not_wait_takes_until_its_last_test(results):
    """Round 1 is from 1 s to 20 s; its tests come when a visit of round 2 is over.

    Round 2 is from 8 s to 30 s: one round takes 10 s, and of ten rounds eight are left.
    """
    results._settings = settings(num_server_rounds=10)
    for round_, verb, began, ended in [
        (1, "train", 1, 9),
        (2, "train", 8, 15),
        (1, "evaluate", 10, 20),
    ]:
        results.record(Event(verb, round_, 1, "A", "A", began=began, time=ended))
    results.round_finished(1)
    results.record(Event("undo", 1, 1, "A", "A", "useless", began=25, time=25))
    results.record(Event("evaluate", 2, 1, "A", "A", began=16, time=30))
    results.round_finished(2)
    assert [each.seconds for each in results._rounds] == [19, 22]
    assert results._seconds_left == 80
    results._settings = settings(num_server_rounds=10, async__seconds="1")
    assert isnan(results._seconds_left)


def test_a_late_undoing_is_no_further_round(results):
    for round_ in (1, 2):
        verb, outcome = ("train", "ok") if round_ == 1 else ("undo", "useless")
        results.record(Event(verb, 1, 1, "A", "A", outcome))
        results.record(Event("evaluate", round_, 1, "A", "A", metrics={"accuracy": 0.5}))
        results.round_finished(round_)
    assert {len(curve) for curve in results._state().curves.values()} == {2}


def test_a_wait_is_logged_after_a_silence_and_then_ever_more_seldom(results, said, monkeypatch):
    """After 30 s, then after 60 more and 120 more; what else is said begins the silence anew."""
    began = monotonic()
    clock = [began]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    awaited = [Awaited("A", "query.prepare", began), Awaited("", "train", began)]

    def told_until(seconds):
        said.clear()
        while clock[0] < began + seconds:
            clock[0] += 1
            results.waits_for(awaited)
        return said.copy()

    assert told_until(29) == []
    assert told_until(80) == ["waits for A to prepare (30 s); 1 hospital to train (30 s)"]
    assert len(told_until(89)) == 0
    assert len(told_until(200)) == 1
    results.record(Event("train", 2, 1, "C", "C", "gone", "It is away."))
    assert len(told_until(229)) == 0
    assert len(told_until(232)) == 1


def test_whom_the_server_waits_for_is_on_disk(results, events, monkeypatch):
    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(live, "STATE_SHARE", 1e9)
    results._page = live.LivePage(results.path)

    def told():
        return json.loads((results.path / "under-way.json").read_text())

    awaited = [Awaited("A", "train", monotonic() - 60)]
    results.waits_for(awaited)
    assert not any(told()["curves"].values())
    assert told()["waits"] == "waits for A to train (60 s)"
    run(results, events[:10])
    assert any(len(curve) == 1 for curve in told()["curves"].values())
    assert told()["waits"]
    results.fail(RuntimeError("the power went"), at(results))
    assert told()["waits"] == ""


def test_tests_of_rounds_that_are_over_leave_memory_and_count_all_the_same(results, events):
    later = [replace(event, round=event.round + 2) for event in events if event.round]
    run(results, [*events, *later])
    assert "evaluate" not in {event.verb for event in results._events}
    assert [len(each.tests) for each in results._rounds] == [2, 2, 2, 4]
    results.finish(at(results, "A", "B"))
    recorded = [*read_events(results.path / LOG)]
    rounds = [
        measure_round(n, [event for event in recorded if event.round == n], cross=True)
        for n in range(1, 5)
    ]
    expected = asdict(summarise(Record("rwt", recorded, rounds, 0.0, "")))
    told = summary_of(results)
    for key in expected.keys() - {"strategy", "wall_seconds", "began", "ended", "version", "code"}:
        assert told[key] == json.loads(to_json(expected[key], inf_nan_mode="null")), key
