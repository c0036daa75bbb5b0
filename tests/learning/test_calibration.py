import pytest
import torch
from torch.nn import functional

from learning.calibration import HIGHEST, LOWEST, fit_temperature, temper


def test_a_temperature_by_hand():
    """Two classes, z = ±log 9 for every image, right in 3 of 4.

    Best is 9^(1/T) / (1 + 9^(1/T)) = 3/4, so 9^(1/T) = 3 and T = 2.
    """
    scores = torch.tensor([[0.9, 0.1]]).repeat(4, 1)
    labels = torch.tensor([0, 0, 0, 1])
    temperature = fit_temperature(scores, labels)
    assert temperature == pytest.approx(2.0)
    torch.testing.assert_close(temper(scores, temperature)[0].float(), torch.tensor([0.75, 0.25]))


def test_no_other_temperature_makes_the_labels_more_probable():
    rng = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(200, 4, generator=rng)
    labels = (logits + 6 * torch.randn(200, 4, generator=rng)).argmax(dim=1)
    scores = logits.softmax(dim=1)

    def loss(temperature):
        return functional.nll_loss(temper(scores, temperature).log(), labels)

    best = fit_temperature(scores, labels)
    assert LOWEST < best < HIGHEST
    assert all(loss(best) <= loss(best * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))
    assert torch.equal(temper(scores, best).argmax(dim=1), scores.argmax(dim=1))


@pytest.mark.parametrize(("right", "temperature"), [(True, LOWEST), (False, HIGHEST)])
def test_where_all_are_right_or_wrong_the_temperature_is_bounded(right, temperature):
    scores = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    labels = torch.tensor([0, 1] if right else [1, 0])
    assert fit_temperature(scores, labels) == pytest.approx(temperature)
    assert fit_temperature(scores, labels, lowest=1.0) >= 1.0 - 1e-9


def test_probabilities_of_0_are_no_obstacle():
    scores = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert fit_temperature(scores, torch.tensor([0, 1])) == pytest.approx(HIGHEST)
    assert torch.isfinite(temper(scores, 2.0)).all()


def test_an_image_without_an_answer_does_not_count():
    """The temperature of the four images of `test_a_temperature_by_hand`."""
    scores = torch.tensor([[0.9, 0.1]] * 4 + [[torch.nan] * 2])
    assert fit_temperature(scores, torch.tensor([0, 0, 0, 1, 1])) == pytest.approx(2.0)
