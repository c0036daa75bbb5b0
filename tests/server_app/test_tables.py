"""What a run left, read back."""

import json
from math import isnan, nan

import pytest
from pydantic_core import to_json

from server_app.results import Results
from server_app.summary import Record, Summary, measure_round, summarise
from server_app.tables import events as events_of
from server_app.tables import rounds as rounds_of
from strategies.engine.events import Event
from tests.fakes import settings


def summary_of(events):
    numbers = sorted({event.round for event in events} - {0})
    rounds = [
        measure_round(number, [each for each in events if each.round == number], True)
        for number in numbers
    ]
    return summarise(Record("rwt", events, rounds, 12.5, ""))


def write(folder, summary):
    (folder / "summary.json").write_bytes(to_json(summary, inf_nan_mode="null"))
    return folder


@pytest.mark.parametrize("run", ["events", "serial", "nothing"])
def test_a_summary_is_read_as_it_was_written(run, request, tmp_path):
    summary = summary_of([] if run == "nothing" else request.getfixturevalue(run))
    read = Summary.read(str(write(tmp_path, summary)))
    assert isnan(read.federation_auroc)  # not measured in any of these
    assert repr(read) == repr(summary)  # in which NaN equals NaN
    assert read.best_round == (None if run == "nothing" else 1)


def test_a_summary_of_another_version_is_named(events, tmp_path):
    summary = summary_of(events)
    write(tmp_path, summary)
    known = json.loads((tmp_path / "summary.json").read_text())
    del known["best"]
    (tmp_path / "summary.json").write_text(json.dumps({**known, "worst": 1}))
    with pytest.raises(ValueError, match=r"another version: it differs in best, worst\."):
        Summary.read(tmp_path)


def test_events_are_a_table(events, tmp_path):
    results, _ = Results.open(settings(output_dir=str(tmp_path)))
    for event in [*events, Event("train", 3, 1, "A", "A", metrics={"train-loss": nan})]:
        results.record(event)
    with (results.path / "metrics.jsonl").open("a") as file:
        file.write('{"verb": "tra')  # the run was killed
    table = events_of(results.path)
    assert len(table) == len(events) + 1
    tested = table[(table.verb == "evaluate") & (table["round"] == 2)]
    means = tested.groupby("hospital")["metrics.accuracy"].mean()
    assert means.to_dict() == {"A": pytest.approx(0.75), "B": pytest.approx(0.45)}
    assert table["metrics.train-loss"].dtype == float
    assert isnan(table["metrics.train-loss"].iloc[-1])
    assert table.outcome.value_counts()["timeout"] == 1


def test_the_history_is_a_table(events, tmp_path):
    table = rounds_of(write(tmp_path, summary_of(events)))
    assert table.index.tolist() == [1, 2]
    assert table.federation_accuracy.tolist() == pytest.approx([0.7, 0.6])
    assert table["held.A"].tolist() == pytest.approx([0.6, 0.8])
