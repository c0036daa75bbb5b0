from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.engine.events import LONGEST
from strategies.protocol import may_leave, parcel, records, shapes
from strategies.protocol.archive import ArchiveError
from strategies.protocol.may_leave import UndeclaredError
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import ParcelError

LABEL = Manifest("a", "net", ["yes", "no"])


def arrays(**values):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def good():
    return parcel.pack({"model": arrays(w=[1.0, 2.0], n=np.int64(3))}, LABEL)


def test_a_label_survives_the_wire():
    order = Order(2, 1, "b", ["x"], "plain", "run", 3, test=True)
    after = Manifest("a", "net", ["yes"], 1, 1, 1, ["a"], "", ["model=00"]).advance(order)
    assert after == Manifest("a", "net", ["yes"], 2, 1, 3, ["a", "b"], "00", ["model=00"])
    assert records.from_record(Manifest, records.to_record(after)) == after
    again = replace(order, replay=[f"c={'0' * 64}", f"a={'1' * 64}"])
    assert after.advance(again).replayed == ["3=c", "3=a"]
    assert records.from_record(Order, records.to_record(order)) == order


def test_a_label_with_another_field_is_refused():
    record = records.to_record(LABEL)
    record["note"] = "hello"
    with pytest.raises(ParcelError, match="note"):
        records.from_record(Manifest, record)


def test_a_label_with_another_type_is_refused():
    record = records.to_record(LABEL)
    record["round"] = "1"
    with pytest.raises(ParcelError, match=r"'manifest\.round' is '1'; it must be a whole number"):
        records.from_record(Manifest, record)


def test_a_good_parcel_passes():
    assert parcel.check_parcel(good()).lineage == "a"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["model"].update(w=Array(np.array([1.0, 9.0]))), "'model' .* changed"),
        (lambda p: p["model"].update(w=Array(np.array([1.0, 2.0], "f4"))), "'model' .* changed"),
        (lambda p: p["model"].pop("n"), "'model' .* changed"),
        (lambda p: p.update(buffer=arrays(x=[1])), "'buffer' .* changed"),
        (lambda p: p.pop("model"), "no model"),
        (lambda p: p.pop("manifest"), "no manifest"),
        (lambda p: p["manifest"].update(format=99), "format 99, this is format 1"),
    ],
)
def test_a_changed_parcel_is_refused(change, message):
    damaged = good()
    change(damaged)
    with pytest.raises(ParcelError, match=message):
        parcel.check_parcel(damaged)


def test_the_hash_does_not_depend_on_the_order_of_the_arrays():
    assert parcel.hash_arrays(arrays(a=[1], b=[2])) == parcel.hash_arrays(arrays(b=[2], a=[1]))


@pytest.mark.parametrize(
    "other",
    [{"w": [1.0]}, {"w": np.zeros(2, "f4")}, {"v": [1.0, 2.0]}, {"w": [1.0, 2.0], "n": 1, "x": 1}],
)
def test_another_layout_is_refused(other):
    layouts = [records.layout_of(each) for each in (arrays(**other), good()["model"])]
    with pytest.raises(ParcelError, match="other arrays than it left with"):
        parcel.check_same_layout(*layouts)


@pytest.mark.parametrize("verb", list(may_leave.ANSWERS))
@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("gan", arrays(w=[1])),
        ("images", arrays(x=[1])),
        ("metrics", arrays(x=[1])),
        ("metrics", MetricRecord({"logits": 0.5})),
        ("metrics", MetricRecord({"accuracy": [0.5, 0.6]})),
        ("metrics", ConfigRecord({"accuracy": 0.5})),
        ("order", ConfigRecord()),
    ],
)
def test_nothing_undeclared_leaves(verb, name, record):
    with pytest.raises(UndeclaredError):
        may_leave.check_answer(verb, RecordDict({name: record}))


def test_an_evaluation_answers_with_metrics_only():
    may_leave.check_answer("evaluate", RecordDict({"metrics": MetricRecord({"a/accuracy": 0.5})}))
    with pytest.raises(
        UndeclaredError, match="'model' may not leave a hospital in answer to evaluate"
    ):
        may_leave.check_answer("evaluate", good())


@pytest.mark.parametrize(
    ("metric", "value", "leaves"),
    [
        ("train-loss", 1e308, False),
        ("train-loss", -1e101, False),
        ("train-loss", 1e38, True),
        ("train-loss", float("nan"), True),
        ("gan-epsilon", float("inf"), True),
        ("num-examples", 1e-300, False),
        ("num-examples", 0.0, True),
        ("num-examples", float("nan"), False),
        ("num-examples", 1.0, True),
        ("right-of-class-1", 0.3, True),
        ("accuracy", 0.3, True),
    ],
)
def test_no_figure_is_beyond_what_the_server_can_count_with(metric, value, leaves):
    assert (value in may_leave.METRICS[may_leave.metric_of(metric)]) == leaves


def test_the_longest_answer_is_a_line_that_the_server_can_read(monkeypatch):
    most, longest = may_leave.MOST_METRICS, "specificity-of-class-999999-high"
    assert most * len(f'"{longest}":{-1.7976931348623157e308},') < LONGEST * 0.95
    numbered = [name.replace("#", "9" * 6) for name in may_leave.METRICS if "#" in name]
    assert max(map(len, numbered)) <= len(longest)  # few names have no number
    monkeypatch.setattr(may_leave, "MOST_METRICS", 2)
    three: dict[str, Any] = {f"train-images-of-class-{k}": 1.0 for k in range(3)}
    with pytest.raises(UndeclaredError, match="3 metrics in one answer"):
        may_leave.check_answer("query.prepare", RecordDict({"metrics": MetricRecord(three)}))


def test_a_card_holds_the_declared_fields_only():
    with pytest.raises(UndeclaredError, match="'patients'"):
        may_leave.check_answer("query.prepare", RecordDict({"card": ConfigRecord({"patients": 3})}))


def test_parcels_travel_together_and_come_apart_again():
    both = {"a": good(), "b": good()}
    apart = parcel.unbundle(parcel.bundle(both))
    assert apart == both


def test_a_parcel_on_disk_is_a_numpy_archive(tmp_path):
    parcel.save(good(), tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert archive["model/w"].tolist() == [1.0, 2.0]
    back = parcel.load(tmp_path / "a.npz")
    assert back == good()
    parcel.check_parcel(back)


def test_a_parcel_with_a_long_history_is_read_again(tmp_path):
    visited = [f"university-hospital-{k}" for k in range(100_000)]
    long = parcel.pack({"model": arrays(w=[1.0])}, replace(LABEL, visited=visited))
    parcel.save(long, path := tmp_path / "a.npz")
    assert path.stat().st_size > 2**21
    assert parcel.load(path) == long


def test_the_values_of_a_manifest_are_counted_before_they_take_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(shapes, "MOST_VALUES", 3)
    parcel.save(good(), tmp_path / "a.npz")
    with pytest.raises(ArchiveError, match="more than 3 values"):
        parcel.load(tmp_path / "a.npz")


def test_a_sealed_model_does_not_come_back_larger():
    """But for its head, whose keys follow from who is a member."""
    layouts = [{"sealed": ("uint8", (size,))} for size in (100, 100 + 2**20, 101 + 2**20)]
    parcel.check_same_layout(layouts[1], layouts[0])
    parcel.check_same_layout(layouts[0], layouts[2])
    with pytest.raises(ParcelError, match="has 1048677 bytes; it left with 100"):
        parcel.check_same_layout(layouts[2], layouts[0])
    opened = {"weight": ("float32", (100,))}
    for other in (layouts[0], {}):
        with pytest.raises(ParcelError, match="other arrays"):
            parcel.check_same_layout(opened, other)
