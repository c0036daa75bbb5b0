from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import Message

from client_app.app import app
from client_app.authority.policy import PolicyError
from client_app.run import Kept, check_newest, count_model
from client_app.store import DamagedError, Store
from learning.models import Architecture
from learning.packing import pack_network
from learning.training import train
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest
from strategies.protocol.records import to_record
from strategies.protocol.settings import rng_for
from tests.fakes import context, run_config


@pytest.fixture
def kept(tmp_path):
    return Kept(Store(tmp_path), "local")


def left(number):
    return {"layer.weight": np.array([number])}


def test_before_the_first_visit_there_is_nothing(kept):
    assert kept.load((1, 1)) == kept.load((1, 1), after=True) == {}


def test_a_visit_starts_from_the_one_before_it_and_is_tested_as_it_left(kept):
    for hop in (1, 2, 10):
        kept.save((1, hop), left(hop))
    assert kept.load((1, 10)) == left(2)
    assert kept.load((1, 10), after=True) == left(10)
    assert kept.load((2, 1), after=True) == kept.load((2, 1)) == left(10)


def test_the_last_two_visits_are_kept(kept, tmp_path):
    for hop in (1, 2, 3):
        kept.save((1, hop), left(hop))
    assert {path.stem for path in tmp_path.glob("local/*")} == {"1-2", "1-3"}


def test_a_visit_that_is_made_again_starts_where_it_did_and_takes_its_own_place(kept):
    """After a resume; the hospital has prepared again before it."""
    for hop in (1, 2):
        kept.save((1, hop), left(hop))
    kept.save((0, 0), left(0))
    assert kept.load((1, 2)) == left(1)
    kept.save((1, 2), left(20))
    assert kept.load((1, 3)) == left(20)


@pytest.mark.parametrize("load", [Store.load, Store.load_small])
@pytest.mark.parametrize("rest", [b"", b"x", b"PK\3\4", b"\0" * 300])
def test_a_damaged_file_is_named_to_the_hospital_alone_and_stays(tmp_path, load, rest):
    store, path = Store(tmp_path), tmp_path / "terms.npz"
    store.save("terms", left(1))
    path.write_bytes(rest)
    with pytest.raises(DamagedError) as raised:
        load(store, "terms")
    assert str(tmp_path) not in str(raised.value)
    assert f"{path} is damaged (" in raised.value.explain()
    assert path.read_bytes() == rest


def test_a_damaged_line_of_a_tested_model_counts(tmp_path):
    """A line for each of two models, the second with another byte as its first."""
    run, count = Store(tmp_path / "runs" / "1"), ("tested", "figures.max-models")
    for model in ("a", "b"):
        count_model(run, *count, model, 2)
    path = run.folder / "tested"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:-1], b"\xff" + lines[-1][1:]]))
    count_model(run, *count, "b", 2)  # known
    with pytest.raises(PolicyError):
        count_model(run, *count, "c", 2)


@pytest.mark.parametrize("damaged", [b"\xff", b"1 x", b"\0"])
def test_a_damaged_note_of_the_newest_model_is_named(tmp_path, damaged):
    run, label = Store(tmp_path), Manifest("linz", "{}", ["a", "b"], round=1, hop=1)
    check_newest(run, label)
    (path,) = (tmp_path / "seen").iterdir()
    path.write_bytes(damaged)
    with pytest.raises(DamagedError) as raised:
        check_newest(run, label)
    assert f"{path} is damaged (" in raised.value.explain()


def test_what_learners_keep_is_apart_from_what_stays_of_models(kept, tmp_path):
    kept.save((1, 1), left(1))
    rehearsal = Kept(Store(tmp_path), "rehearsal")
    assert rehearsal.load((1, 1), after=True) == {}
    rehearsal.save((2, 1), {"seen": np.array(7)})
    assert kept.load((2, 1)) == left(1)


def visit(tmp_path, lineage, round_, number, **changes):
    """A visit of an asynchronous run, of a model that is ever the same; what it leaves."""
    settings = {"strategy": "rwt", "asynchronous": True, "model": "mlp", **changes}
    place = context(0, 2, run_config(**settings), **{"store-dir": str(tmp_path)})
    classes = [*"0123456789"]
    architecture = Architecture("mlp", 1, 8, 8, 10, (4,))
    label = Manifest(lineage, architecture.to_json(), classes)
    content = pack_network(architecture.build(), label)
    learner = changes.get("learner", "plain")
    place_of_order = (round_, number, "hospital-0", classes, learner, "1")
    order = Order(*place_of_order, epochs=1, asynchronous=True)
    content["order"] = to_record(order)
    answer = app(Message(content, 100, "train", ttl=600.0), place)
    assert not answer.has_error(), answer.error
    return answer.content


@pytest.mark.slow
def test_without_rounds_each_visit_goes_on_from_the_one_before_it(tmp_path):
    """`seen` counts the images that a hospital's stream had, whoever brought the models."""
    changes = {"learner": "er", "mlp__hidden": "4"}
    visits = [("a", 4, 6), ("b", 4, 2), ("c", 4, 2), ("a", 5, 7)]
    seen = []
    for place in visits:
        content = visit(tmp_path, *place, **changes)
        images = content["metrics"]["num-examples"]
        newest = max((tmp_path / "hospital-0" / "runs" / "1" / "rehearsal").iterdir(), key=written)
        with np.load(newest) as arrays:
            seen.append(int(arrays["seen"]) / images)
    assert seen == [1, 2, 3, 4]


@pytest.mark.slow
def test_without_rounds_the_learning_rate_follows_the_visits_of_a_model(tmp_path):
    """Another hospital's speed decides in which round a visit is ordered."""
    rates = []

    def spy(learner, settings, *rest, **more):
        rates.append(settings.learning_rate)
        return train(learner, settings, *rest, **more)

    changes = {"train__halve_every": 2, "mlp__hidden": "4"}
    with patch("client_app.visit.train", spy):
        for round_, number in ((2, 3), (5, 3), (5, 1)):
            visit(tmp_path / f"{round_}-{number}", "a", round_, number, **changes)
    usual = rates[-1]
    assert rates == [usual / 2, usual / 2, usual]


def test_without_rounds_a_visit_that_is_ordered_again_starts_where_it_did(kept):
    """The server lost the answer of the last visit, and orders it again."""
    order = [("a", 6), ("b", 2), ("c", 2)]
    for number, each in enumerate(order, 1):
        kept.save(kept.by_arrival(*each), left(number))
    again = kept.by_arrival(*order[-1])
    assert kept.load(again) == left(2)
    kept.save(again, left(30))
    assert kept.load(kept.by_arrival("a", 7)) == left(30)


@pytest.mark.slow
def test_without_rounds_no_two_lineages_draw_the_same_noise(tmp_path, monkeypatch):
    """In simulated visits with DP-SGD; the difference of two such models would have none."""
    drawn = []

    def note(seed, purpose, *place):
        drawn.append((purpose, place))
        return rng_for(seed, purpose, *place)

    monkeypatch.setattr("client_app.visit.rng_for", note)
    changes = {"train__dp__noise_multiplier": 1.0, "train__dp__delta": 1e-4, "mlp__hidden": "4"}
    for lineage in "ab":
        visit(tmp_path, lineage, 4, 2, **changes)
    noises = [place for purpose, place in drawn if purpose == "dp"]
    assert len(noises) == len({*noises}) == 2


def written(path):
    return path.stat().st_mtime_ns
