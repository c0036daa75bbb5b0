import numpy as np
import pytest

from strategies.protocol.soundness import LARGEST, MOVED, flaw_of, relative_change


def model(**arrays):
    return {"w": np.ones(4, "f4"), "bn.running_var": np.ones(2, "f4"), **arrays}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e7, np.nextafter(LARGEST, 2e6)])
def test_a_number_that_no_usable_model_has(value):
    assert flaw_of(model(w=np.array([0, value]))) == "'w' is not finite, or beyond 1,000,000"


def test_a_variance_below_zero():
    assert "variance" in flaw_of({"bn.running_var": np.array([1, -1e-9])})


@pytest.mark.parametrize(
    "arrays",
    [
        model(),
        model(w=np.full(4, LARGEST)),
        model(w=np.full(4, 60_000, "f2")),
        model(count=np.array(2**40)),
        model(w=np.zeros(0, "f4")),
        model(w=np.zeros(4, "f4")),  # merely bad
        {},
    ],
)
def test_a_model_that_may_be_handed_on(arrays):
    assert flaw_of(arrays) == ""


def test_how_far_a_visit_moves_weights():
    """Four weights of 1 have length 2; four of 7 are 12 away: six lengths."""
    assert relative_change(model(w=np.full(4, 7.0)), model()) == pytest.approx(6)
    assert flaw_of(model(w=np.full(4, 1 + 0.99 * MOVED)), model()) == ""
    assert "moved" in flaw_of(model(w=np.full(4, 1 + 1.01 * MOVED)), model())


def test_statistics_may_move_as_far_as_the_images_are():
    wide = np.full(2, 1e5, "f4")
    assert flaw_of(model(**{"bn.running_var": wide}), model()) == ""


def test_weights_that_were_zero_may_move_anywhere():
    assert relative_change(model(), model(w=np.zeros(4))) == 0
