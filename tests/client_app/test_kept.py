import numpy as np
import pytest

from client_app.run import Kept
from client_app.store import DamagedError, Store


@pytest.fixture
def kept(tmp_path):
    return Kept(Store(tmp_path), "local")


def left(number):
    return {"layer.weight": np.array([number])}


def test_before_the_first_visit_there_is_nothing(kept):
    assert kept.load_before((1, 1)) == kept.load_after((1, 1)) == {}


def test_a_visit_starts_from_the_one_before_it_and_is_tested_as_it_left(kept):
    for hop in (1, 2, 10):
        kept.save((1, hop), left(hop))
    assert kept.load_before((1, 10)) == left(2)
    assert kept.load_after((1, 10)) == left(10)
    assert kept.load_after((2, 1)) == kept.load_before((2, 1)) == left(10)


def test_the_last_two_visits_are_kept(kept, tmp_path):
    for hop in (1, 2, 3):
        kept.save((1, hop), left(hop))
    assert {path.stem for path in tmp_path.glob("local/*")} == {"1-2", "1-3"}


def test_a_visit_that_is_made_again_starts_where_it_did_and_takes_its_own_place(kept):
    """After a resume; the hospital has prepared again before it."""
    for hop in (1, 2):
        kept.save((1, hop), left(hop))
    kept.save((0, 0), left(0))
    assert kept.load_before((1, 2)) == left(1)
    kept.save((1, 2), left(20))
    assert kept.load_before((1, 3)) == left(20)


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


def test_what_learners_keep_is_apart_from_what_stays_of_models(kept, tmp_path):
    kept.save((1, 1), left(1))
    rehearsal = Kept(Store(tmp_path), "rehearsal")
    assert rehearsal.load_after((1, 1)) == {}
    rehearsal.save((2, 1), {"seen": np.array(7)})
    assert kept.load_before((2, 1)) == left(1)
