"""FedAvg's server half. Its hospitals' half is tested in tests/test_federation.py."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from strategies.engine.shelf import Shelf
from strategies.engine.state import Model, State
from strategies.fedavg import average
from strategies.protocol.parcel import Manifest, check_parcel, pack
from tests.fakes import CountingHospital, failing, federation, parcels_of
from tests.strategies.test_engine import run, visits_of


@pytest.fixture
def state(tmp_path):
    return State(Shelf(tmp_path), "run")


def model(state, num_examples, **arrays):
    record = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
    parcel = state.shelf.put(pack({"model": record}, Manifest("global", "net", ["a", "b"])))
    return Model("global", "h0", parcel, round=1, num_examples=num_examples)


@pytest.mark.parametrize(("equal", "expected"), [(False, [6.0, 1.0]), (True, [4.0, 2.0])])
def test_the_average_is_weighted_by_numbers_of_images_or_not(state, equal, expected):
    """(1 × 0 + 3 × 8) / 4 = 6 and (1 × 4 + 3 × 0) / 4 = 1; or half of each."""
    mean = average(
        state,
        [model(state, 1.0, w=np.array([0, 4], "f4")), model(state, 3.0, w=np.array([8, 0], "f4"))],
        equal,
    )
    assert mean["w"].numpy().tolist() == expected


@pytest.mark.parametrize("first", [0, 2])
def test_a_record_without_arrays_that_most_have_does_not_count(state, first):
    """Such is an optimizer's state with some parameters alone."""
    models = [model(state, 1.0, a=np.float32(k), b=np.float32(2)) for k in (1, 3)]
    models.insert(first, model(state, 1.0, a=np.float32(100)))
    mean = average(state, models, equal=False)
    assert {name: array.numpy().item() for name, array in mean.items()} == {"a": 2, "b": 2}


def test_dtypes_and_scalars_survive_the_average(state):
    """Counters are averaged and rounded: (10 + 13) / 2 = 11.5, to the even 12."""
    first = model(state, 1.0, n=np.int64(10), h=np.float16(1))
    mean = average(state, [first, model(state, 1.0, n=np.int64(13), h=np.float16(2))], equal=False)
    assert (mean["n"].dtype, mean["n"].shape, mean["n"].numpy().item()) == ("int64", (), 12)
    assert (mean["h"].dtype, mean["h"].numpy().item()) == ("float16", 1.5)


def test_one_global_model_is_trained_by_all():
    """Each hospital adds one visit to the global count; the mean of equal counts is that count."""
    state, ledger, _ = run(federation(3), "fedavg")
    assert list(parcels_of(state)) == ["global"]
    assert visits_of(parcels_of(state)["global"]) == 4.0
    assert {event.lineage for event in ledger.of("train")} == {"global"}
    assert len(ledger.of("evaluate")) == 4 * 3
    assert check_parcel(parcels_of(state)["global"]).round == 4


def test_the_first_hospital_s_arrays_are_not_the_global_model_if_the_others_have_others():
    class Odd(CountingHospital):
        def prepare(self, message, order):
            label = Manifest(self.name, "counter", order.classes)
            odd = pack({"model": ArrayRecord({"odd": Array(np.zeros(3))})}, label)
            return Message(RecordDict({**odd, "metrics": MetricRecord()}), reply_to=message)

    state, _, _ = run(federation(3, h0=Odd("h0")), "fedavg")
    assert visits_of(parcels_of(state)["global"]) == 4.0


def test_hospitals_that_fail_are_left_out_of_the_average():
    class Failing(CountingHospital):
        def train(self, message, order):
            return failing(message) if order.round == 2 else super().train(message, order)

    state, _, _ = run(federation(3, h0=Failing("h0")), "fedavg")
    assert visits_of(parcels_of(state)["global"]) == 4.0


def test_a_round_in_which_all_fail_changes_nothing():
    class Failing(CountingHospital):
        def train(self, message, order):
            return failing(message) if order.round == 2 else super().train(message, order)

    state, _, _ = run({k: Failing(f"h{k}") for k in range(3)}, "fedavg")
    assert visits_of(parcels_of(state)["global"]) == 3.0
