"""FedSpace's server half, the sample of hospitals, and the rewind legs of both."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from strategies.fedspace import merge
from strategies.protocol.order import Order
from strategies.protocol.parcel import check_parcel, pack, parcel_in
from strategies.protocol.prototypes import check_prototypes
from strategies.protocol.records import ParcelError, from_record
from strategies.protocol.settings import SettingsError
from strategies.protocol.soundness import LARGEST, flaw_of
from strategies.registry import strategy_of
from tests.fakes import CountingHospital, failing, federation, parcels_of, settings
from tests.strategies.test_engine import run


def prototypes(radius=1.0, **classes):
    """Those of two classes and one feature: `c0=(mean, images)`."""
    means, counts = np.zeros((2, 1), "f4"), np.zeros(2, "f4")
    for name, (mean, images) in classes.items():
        means[int(name[1])], counts[int(name[1])] = mean, images
    return {"means": means, "counts": counts, "radius": np.array(radius, "f4")}


def record(arrays):
    return ArrayRecord({name: Array(each) for name, each in arrays.items()})


def test_prototypes_are_averaged_by_images_and_then_slowly_followed():
    """Class 0: (10 · 2 + 30 · 6) / 40 = 5, then 0.1 · 5 + 0.9 · 1 = 1.4; class 1 is new: 7.

    Radius: hospitals have 10 + 20 = 30 and 30 images: (30 · 1 + 30 · 3) / 60 = 2.
    """
    sent = [prototypes(1.0, c0=(2, 10), c1=(7, 20)), prototypes(3.0, c0=(6, 30))]
    first = merge(None, sent, 0.1)
    assert first["means"][:, 0].tolist() == [5, 7]
    assert first["counts"].tolist() == [40, 20]
    assert first["radius"] == 2
    second = merge(prototypes(9.0, c0=(1, 5)), sent, 0.1)
    assert second["means"][:, 0].tolist() == pytest.approx([1.4, 7])
    assert second["radius"] == 2


def test_the_images_of_all_hospitals_together_are_a_memory_that_a_hospital_takes():
    sent = [prototypes(1.0, c0=(2, LARGEST), c1=(7, 20)), prototypes(3.0, c0=(6, LARGEST))]
    merged = merge(None, sent, 0.1)
    assert flaw_of(merged) == ""
    assert merged["means"][:, 0].tolist() == [4, 7]


def test_a_prototype_stays_while_nobody_sends_one():
    found = merge(prototypes(1.0, c0=(4, 5), c1=(8, 6)), [prototypes(2.0, c0=(14, 10))], 0.1)
    assert found["means"][:, 0].tolist() == pytest.approx([5, 8])
    assert found["counts"].tolist() == [10, 6]


class Prototyping(CountingHospital):
    """Its model is a head of 8 outputs for one feature, all equal to the number of visits.

    It sends, of class `own`, a prototype that is its number; and notes what it is given.
    """

    def __init__(self, number, own=0, num_examples=1.0):
        super().__init__(f"h{number}", num_examples)
        self.number, self.own = number, own
        self.given = []  # round, hop, the lineage's last hospital, means and counts

    def train(self, message, order):
        parcel = parcel_in(message.content)
        label = check_parcel(parcel)
        memory = parcel.array_records.get("memory")
        means = memory["means"].numpy()[:, 0].tolist() if memory else None
        self.given.append((order.round, order.leg, label.visited[-1:], means))
        visits = parcel.array_records["model"]["head.weight"].numpy()[0, 0]
        records = {"model": self.head(visits + 1)}
        if order.leg != 2:
            records["memory"] = record(prototypes(1.0, **{f"c{self.own}": (self.number, 1)}))
        metrics = MetricRecord({"num-examples": self.num_examples, "train-loss": 1.0})
        back = pack(records, label.advance(order))
        return Message(RecordDict({**back, "metrics": metrics}), reply_to=message)

    def parcel(self, visits, label):
        return pack({"model": self.head(visits)}, label)

    def head(self, visits):
        return record({"head.weight": np.full((8, 1), visits, "f4")})


def prototyping(count, **changes):
    return {100 + k: changes.get(f"h{k}", Prototyping(k, own=k % 2)) for k in range(count)}


def of_global(state):
    parcel = parcels_of(state)["global"]
    memory = parcel.array_records["memory"]
    return (
        parcel.array_records["model"]["head.weight"].numpy()[0, 0],
        memory["means"].numpy()[:, 0].tolist(),
    )


def test_models_are_mixed_with_the_one_before_and_prototypes_followed():
    """Each hospital adds 1 to the model: 0 → ½ · 1 + ½ · 0 = 0.5 → ½ · 1.5 + ½ · 0.5 = 1.

    Class 0 is h0's and h2's: (0 + 2) / 2 = 1, class 1 is h1's: 1. h2 has sent 12 in round 2:
    0.1 · 6 + 0.9 · 1 = 1.5.
    """
    handlers = prototyping(3)
    state, _, _ = run(handlers, "fedspace", num_server_rounds=1)
    assert of_global(state) == (0.5, [1, 1])
    handlers = prototyping(3)

    def later(message):
        order = from_record(Order, message.content.config_records["order"])
        hospital.number = 12 if order.round == 2 else 2
        return hospital(message)

    hospital, handlers[102] = handlers[102], later
    state, _, _ = run(handlers, "fedspace", num_server_rounds=2)
    weights, means = of_global(state)
    assert weights == 1.0
    assert means == pytest.approx([1.5, 1])
    assert state.prototypes == {}


def test_with_all_weight_on_what_is_new_it_is_fedavg():
    plain, _, _ = run(prototyping(3), "fedavg")
    mixed, _, _ = run(prototyping(3), "fedspace", fedspace__mix=1.0)
    models = [parcels_of(each)["global"].array_records["model"] for each in (plain, mixed)]
    assert models[0].object_id == models[1].object_id


def test_a_hospital_is_given_the_server_s_prototypes_never_another_one_s():
    """Also on the legs of a rewind: a copy that goes to another hospital has the server's."""
    handlers = prototyping(4)
    chosen = {"rewind__base": "fedspace", "train__epochs": 3, "num_server_rounds": 3}
    state, ledger, _ = run(handlers, "fedrewind", **chosen)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    assert {event.epochs for event in ledger.of("train.rewind")} == {1}
    for k, hospital in enumerate(handlers.values()):
        given = sorted(hospital.given, key=lambda each: each[:2])
        assert [each[:2] for each in given] == [(1, 1)] + [
            (round_, leg) for round_ in (2, 3) for leg in (1, 2, 3)
        ]
        # (0 + 2) / 2 and (1 + 3) / 2 in each round, so that following changes nothing.
        assert [each[3] for each in given] == [None] + [[1, 2]] * 6
        for round_ in (2, 3):
            away, back = given[3 * round_ - 4][2], given[3 * round_ - 3][2]
            assert f"h{k}" not in (*away, *back)
    assert of_global(state)[1] == [1, 2]


def test_a_hospital_that_fails_on_its_last_leg_counts_with_what_it_sent_before():
    class Failing(Prototyping):
        def train(self, message, order):
            return failing(message) if order.leg == 3 else super().train(message, order)

    chosen = {"rewind__base": "fedspace", "train__epochs": 3, "num_server_rounds": 2}
    state, _, _ = run(prototyping(3, h2=Failing(2)), "fedrewind", **chosen)
    assert of_global(state)[1] == [1, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"means": np.zeros((2, 2), "f4")}, r"must be float32 .*\(2, 1\).* \(2, 2\)"),
        ({"counts": np.zeros(2, "f8")}, "must be float32"),
        ({"counts": np.array([1, -1], "f4")}, "numbers of images behind prototypes"),
        ({"counts": np.array([0, 0], "f4")}, "one above 0"),
        ({"counts": np.array([np.nan, 1], "f4")}, "numbers of images"),
        ({"counts": np.array([1e10, 1], "f4")}, "from 0 to 1000000000"),
        ({"means": np.array([[np.inf], [0]], "f4")}, "not finite"),
        ({"radius": np.array(np.nan, "f4")}, "radius 0 or more"),
        ({"radius": np.array(-1, "f4")}, "radius 0 or more"),
        ({"more": np.zeros(1, "f4")}, "must be float32"),
    ],
)
def test_what_are_no_prototypes_is_refused(wrong, words):
    good = prototypes(1.0, c0=(1, 1))
    check_prototypes(record(good), 2, 1)
    with pytest.raises(ParcelError, match=words):
        check_prototypes(record({**good, **wrong}), 2, 1)


def test_a_hospital_whose_prototypes_are_refused_does_not_count():
    class Wrong(Prototyping):
        def head(self, visits):
            return record({"head.weight": np.full((8, 1), visits, "f4")})

        def train(self, message, order):
            answer = super().train(message, order)
            self.number = np.inf
            return answer

    state, ledger, _ = run(prototyping(2, h1=Wrong(np.inf, own=1)), "fedspace", num_server_rounds=1)
    (failure,) = [event for event in ledger.of("train") if event.outcome != "ok"]
    assert "Prototypes are not finite" in failure.reason
    assert of_global(state)[1] == [0, 0]


@pytest.mark.parametrize("name", ["w", "head.weight"])
def test_prototypes_beside_another_model_are_refused(name):
    strategy = strategy_of(settings(strategy="fedspace"))
    with pytest.raises(ParcelError, match=r"a model without a matrix 'head\.weight'"):
        strategy.check_memory(record(prototypes(c0=(1, 1))), {name: ("float32", (1,))})


def test_the_server_must_read_the_models():
    for strategy in ("fedspace", "fedrewind"):
        chosen = strategy_of(settings(strategy=strategy, rewind__base="fedspace"))
        chosen.check(sealed=False)
        with pytest.raises(SettingsError, match="'sealed' is true"):
            chosen.check(sealed=True)


def trained_in(ledger):
    """The hospitals that train in each round."""
    found: dict[int, set[str]] = {}
    for event in ledger.events:
        if event.verb.startswith("train"):
            found.setdefault(event.round, set()).add(event.hospital)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedbn", "fedspace"])
def test_some_hospitals_are_drawn_for_each_round_and_all_test(strategy):
    """Of five hospitals two in a round: each in 12 of 30, with a standard deviation of 2.7."""
    chosen = {"fedavg__sample": 2, "num_server_rounds": 30, "evaluate__every": 30}
    _, ledger, _ = run(federation(5), strategy, **chosen)
    found = trained_in(ledger)
    assert all(len(names) == 2 for names in found.values())
    times = [sum(f"h{k}" in names for names in found.values()) for k in range(5)]
    assert min(times) >= 4
    assert max(times) <= 20
    for verb in ("evaluate", "hand-off"):
        assert {event.hospital for event in ledger.of(verb)} == {f"h{k}" for k in range(5)}


@pytest.mark.slow
def test_the_draw_follows_from_the_seed():
    chosen = {"fedavg__sample": 2, "num_server_rounds": 10, "evaluate__every": 10}
    found = [
        trained_in(
            run(federation(5), "fedavg", np.random.default_rng(order), seed=seed, **chosen)[1]
        )
        for order, seed in ((0, 0), (7, 0), (0, 1))
    ]
    assert found[0] == found[1] != found[2]


def test_all_take_part_if_there_are_no_more_than_are_wanted():
    for sample in (0, 3, 9):
        _, ledger, _ = run(federation(3), "fedavg", fedavg__sample=sample)
        assert set(map(len, trained_in(ledger).values())) == {3}


@pytest.mark.slow
@pytest.mark.parametrize("base", ["fedavg", "fedspace"])
def test_a_model_is_rewound_at_another_of_the_hospitals_that_are_drawn(base):
    """E = 3: an epoch at each of three legs."""
    chosen = {"rewind__base": base, "train__epochs": 3, "fedavg__sample": 3}
    _, ledger, _ = run(federation(6), "fedrewind", num_server_rounds=6, **chosen)
    _, told, _ = run(federation(6), base, num_server_rounds=6, train__epochs=3, fedavg__sample=3)
    assert trained_in(ledger) == trained_in(told)
    for round_ in range(2, 7):
        legs = [e for e in ledger.events if e.round == round_ and e.verb.startswith("train")]
        by_hop = {hop: {e.hospital for e in legs if e.hop == hop} for hop in (1, 2, 3)}
        assert by_hop[1] == by_hop[2] == by_hop[3]
        assert [(e.verb, e.epochs) for e in legs].count(("train.rewind", 1)) == 3
        assert [(e.verb, e.epochs) for e in legs].count(("train", 1)) == 6
    assert len(ledger.of("evaluate")) == 6 * 6


def test_the_learner_of_a_rewound_method():
    assert strategy_of(settings(strategy="fedrewind")).learner == "fedrewind"
    chosen = {"strategy": "fedrewind", "rewind__base": "fedavg", "learner": "pass"}
    assert strategy_of(settings(**chosen)).learner == "pass"
    chosen = {"strategy": "fedrewind", "rewind__base": "fedspace"}
    assert strategy_of(settings(**chosen)).learner == "fedspace"
    with pytest.raises(SettingsError, match="'learner' is 'pass'; it must be empty"):
        strategy_of(settings(**chosen, learner="pass"))
    with pytest.raises(
        SettingsError, match=r"'rewind.batch-norm' is 'reference'; it must be train"
    ):
        strategy_of(settings(**chosen, rewind__batch_norm="reference"))


def test_a_rewind_leg_minimises_what_the_others_do():
    _, _, grid = run(
        federation(3),
        "fedrewind",
        rewind__base="fedavg",
        learner="pass",
        train__epochs=3,
        num_server_rounds=2,
    )
    orders = [
        from_record(Order, message.content.config_records["order"])
        for message in grid.sent
        if message.metadata.message_type.startswith("train")
    ]
    assert {(order.leg, order.learner) for order in orders} == {(k, "pass") for k in (1, 2, 3)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fedavg__sample": -1}, "'fedavg.sample' is -1; it must be 0 or more"),
        ({"fedspace__ema": 0.0}, "'fedspace.ema' is 0.0; it must be above 0, and at most 1"),
        ({"fedspace__mix": 1.5}, "'fedspace.mix' is 1.5; it must be above 0, and at most 1"),
        ({"strategy": "fil-ver", "fedavg__sample": 2}, "'fedavg.sample' is 2; it must be 0 with"),
    ],
)
def test_settings_that_cannot_be_used(changes, words):
    with pytest.raises(SettingsError) as error:
        strategy_of(settings(**{"strategy": "fedspace", **changes}))
    assert words in str(error.value)
