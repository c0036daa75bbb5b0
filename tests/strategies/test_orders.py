"""Tests of strategies/engine/orders.py: what a run may order of a hospital."""

from dataclasses import fields, replace

import pytest

from strategies.engine.orders import check_order
from strategies.protocol.order import Order
from strategies.protocol.records import ParcelError
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import settings

HASH = "0" * 64
# What says whom a message is for, and where a visit stands in its round.
FREE = {"hospital", "classes", "run", "hop"}
# A value of each other field that a run by `rwt`, of 3 rounds of 2 epochs, never orders.
NEVER = {
    "round": 4,
    "learner": "fedspace",
    "epochs": 3,
    "leg": 2,
    "asynchronous": True,
    "task": 1,
    "arrived": [1],
    "images": "public",
    "test": True,
    "snapshots": True,
    "own_start": True,
    "buffer_size": 64,
    "replay": [f"linz={HASH}"],
    "ensemble": True,
    "encoder": HASH,
    "embeddings": "sampled",
    "final": True,
    "sealed": True,
    "members": ["linz key"],
    "members_hash": HASH,
    "code": HASH,
}
VERBS = ("query.prepare", "train", "evaluate")


def method(strategy="rwt", **changes):
    chosen = {"num_server_rounds": 3, "train__epochs": 2, "sealed": False, **changes}
    return strategy_of(settings(strategy=strategy, **chosen))


def order_of(verb, **changes):
    """One that a run by `rwt` gives."""
    epochs, server_round = 2 * (verb == "train"), 0 if verb.startswith("query") else 2
    return replace(
        Order(server_round, 1, "graz", ["a", "b"], "plain", "1", epochs=epochs), **changes
    )


def refused(strategy, verb, order, *, sealed=False):
    """The field for which an order is refused; empty if it is not."""
    try:
        check_order(strategy, verb, order, "graz", sealed=sealed)
    except ParcelError as error:
        return str(error).partition(" has ")[2].partition(" ")[0]
    return ""


def test_every_field_of_an_order_is_judged_or_says_whom_it_is_for():
    assert NEVER.keys() | FREE == {field.name for field in fields(Order)}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("field", NEVER)
def test_an_order_for_another_thing_than_the_run_is_refused(field, verb):
    order = order_of(verb)
    assert not refused(method(), verb, order)
    assert refused(method(), verb, replace(order, **{field: NEVER[field]})) == field


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_no_visit_and_no_test_comes_before_the_first_round(verb):
    assert refused(method(), verb, order_of(verb, round=0)) == "round"


@pytest.mark.parametrize("verb", ["train.default", "train.rewind", "query.prepare", "evaluate"])
def test_nothing_but_a_visit_that_the_method_has_trains(verb):
    assert refused(method(), verb, order_of("train"))


def test_an_order_may_ask_for_less():
    feder = method("feder", feder__buffer_size=64)
    asked = order_of("query.prepare", learner="feder", own_start=True, buffer_size=64)
    for size in (64, 0):
        assert not refused(feder, "query.prepare", replace(asked, buffer_size=size))
    for size in (65, 3):  # three images cannot be attacked
        assert refused(feder, "query.prepare", replace(asked, buffer_size=size)) == "buffer_size"
    assert not refused(method(), "train", order_of("train", epochs=1))
    fedavg = method("fedavg")
    assert not refused(fedavg, "train", order_of("train", test=True))
    assert not refused(fedavg, "train", order_of("train"))


def test_what_is_sealed_is_not_ordered_open():
    order = order_of("train", members_hash=HASH)
    assert refused(method(sealed=True), "train", order, sealed=True) == "sealed"
    assert not refused(method(sealed=True), "train", replace(order, sealed=True), sealed=True)


def test_models_are_tested_in_the_rounds_of_the_run_alone():
    chosen = {"num_server_rounds": 6, "evaluate__every": 2}
    trained = order_of("train", test=True, round=3)
    assert refused(method("fedavg", **chosen), "train", trained) == "test"
    assert not refused(method("fedavg", **chosen), "train", replace(trained, round=4))
    last = {"round": 6, "final": True, "ensemble": True}
    asked = order_of("evaluate", **last)
    assert not refused(method(**chosen, evaluate__ensemble=True), "evaluate", asked)
    assert refused(method(**chosen, evaluate__ensemble=False), "evaluate", asked) == "ensemble"
    asked = replace(asked, ensemble=False)
    assert refused(method(**chosen), "evaluate", replace(asked, round=5)) == "final"


def test_a_task_is_ordered_in_its_own_rounds():
    """Models may be tested later: by what has arrived until then."""
    tasks = method(tasks=3)
    assert not refused(tasks, "train", order_of("train", task=2))
    for wrong in (0, 1, 3):
        assert refused(tasks, "train", order_of("train", task=wrong)) == "task"
    for task in (1, 2):
        assert not refused(tasks, "evaluate", order_of("evaluate", task=task))
    assert refused(tasks, "evaluate", order_of("evaluate", task=3)) == "task"


@pytest.mark.parametrize("base", ["cwt", "fedavg", "fedspace"])
def test_a_rewound_model_has_shorter_legs(base):
    network = {"model": "rotation-mlp"} if base == "fedspace" else {}
    rewound = method("fedrewind", rewind__base=base, train__epochs=10, **network)
    leg = rewound.epochs
    asked = order_of("train", learner=rewound.learner, epochs=leg)
    back = replace(asked, leg=2)
    assert not refused(rewound, "train.rewind", back)
    assert not refused(rewound, "train", replace(asked, leg=3))
    assert not refused(rewound, "train", replace(asked, epochs=10))
    assert refused(rewound, "train.rewind", replace(back, epochs=leg + 1)) == "epochs"
    assert refused(rewound, "train", back) == "leg"
    assert refused(method(), "train.rewind", order_of("train")) == "learner"


@pytest.mark.parametrize(
    ("pretrain", "images"),
    [("pooled", "everyone"), ("first-hospital", "own"), ("public:/x.npz", "public")],
)
def test_the_encoder_is_trained_on_what_the_settings_name(pretrain, images):
    chosen = {"filver__pretrain": pretrain, "filver__pretrain_epochs": 7, "model": "vee"}
    asked = order_of("train", learner="fil-ver-encoder", epochs=7, images=images)
    assert not refused(method("fil-ver", **chosen), "train", asked)
    assert refused(method("fil-ver", **chosen), "train", replace(asked, epochs=8)) == "epochs"
    for other in {"own", "everyone", "public", "none"} - {images}:
        other = replace(asked, images=other)
        assert refused(method("fil-ver", **chosen), "train", other) == "images"
    sends = replace(asked, learner="fil-ver", epochs=2, images="own", embeddings="ebr")
    assert refused(method("fil-ver", **chosen), "train", sends) == "embeddings"
    sends = replace(sends, embeddings="sampled")
    assert not refused(method("fil-ver", **chosen), "train", sends)
    chosen["filver__server_steps"] = 0
    assert refused(method("fil-ver", **chosen), "train", sends) == "embeddings"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_method_declares_the_visits_that_it_makes_of_itself(name):
    """Whatever others order, each method's first kind of visit is one that it may order."""
    chosen = settings(strategy=name)
    for kind in strategy_of(chosen).kinds():
        asked = order_of("train", learner=kind.learner, images=kind.images, leg=kind.leg)
        asked = replace(asked, epochs=kind.epochs, embeddings=kind.embeddings)
        assert not refused(strategy_of(chosen), kind.verb, asked)
