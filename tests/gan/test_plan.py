import math

import pytest
import torch

from gan import plan
from gan.plan import divergence, equidistance, line, lines, pairs, paths, random_codes


def test_the_lengths_of_a_path_by_hand():
    """Steps of (3, 4) and (0, 2): 25 + 4."""
    assert equidistance(torch.tensor([[0.0, 0], [3, 4], [3, 6]])).item() == 29


def test_a_straight_line_is_the_shortest_by_that_measure():
    """10 in five equal steps of 2: 5 · 4."""
    straight = line(torch.tensor([0.0]), torch.tensor([10.0]), 6)
    assert straight.flatten().tolist() == [0, 2, 4, 6, 8, 10]
    assert equidistance(straight).item() == 20


def test_divergences_by_hand():
    """p = (1/4, 3/4), two images of it.

    KL(U ‖ p) = 1/2 log(2) + 1/2 log(2/3); KL(p ‖ U) = 1/4 log(1/2) + 3/4 log(3/2).
    """
    logits = torch.tensor([[1.0, 3.0]]).log().repeat(2, 1) + 5
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert divergence(logits, "uniform").item() == pytest.approx(2 * expected, rel=1e-5)
    expected = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert divergence(logits, "printed").item() == pytest.approx(2 * expected, rel=1e-5)
    assert divergence(torch.zeros(3, 7), "uniform").item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("kl", "slope"), [("uniform", 0.5), ("printed", 0.0)])
def test_a_sure_answer_has_a_gradient_only_in_the_code_s_direction(kl, slope):
    """At p = (1, 0) d KL(U ‖ p) / d logit is p - U = (1/2, -1/2); that of KL(p ‖ U) is 0."""
    logits = torch.tensor([[60.0, 0.0]], requires_grad=True)
    divergence(logits, kl).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[slope, -slope]]))


def test_the_ends_of_a_path_stay_and_the_rest_moves(source):
    place = source()
    ends = random_codes(place)
    straight, moved = lines(place, ends), paths(place, ends, "random")
    for label in straight:
        before, after = (each[label].view(2, 5, 5) for each in (straight, moved))
        assert torch.equal(before[:, [0, -1]], after[:, [0, -1]])
        assert (before[:, 1:-1] != after[:, 1:-1]).all()


def test_what_a_path_minimises_is_the_sum_of_three_terms(source, monkeypatch):
    """One step from a line; with a term for identity of weight 0 it is another step."""
    place = source()
    ends = random_codes(place)
    found = []
    for weights in ((0.1, 1.0), (0.0, 1.0), (0.1, 0.0)):
        monkeypatch.setattr(plan, "IDENTITY", weights[0])
        monkeypatch.setattr(plan, "CLASS", weights[1])
        found.append(paths(place, ends, str(weights))[0])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_without_networks_a_path_stays_straight(source, monkeypatch):
    """The first term alone is least on the line: its gradient is 2 (2 w_i - w_(i-1) - w_(i+1))."""
    monkeypatch.setattr(plan, "IDENTITY", 0.0)
    monkeypatch.setattr(plan, "CLASS", 0.0)
    monkeypatch.setattr(plan, "LEARNING_RATE", 1e-4)
    place = source()
    ends = random_codes(place)
    path, straight = paths(place, ends, "random")[0], lines(place, ends)[0]
    torch.testing.assert_close(path, straight, atol=1e-3, rtol=0)


def test_no_code_is_an_end_of_two_paths(source):
    """Seven codes have three pairs, and at most as many as the effort says."""
    place = source()
    codes = torch.arange(7.0)[:, None]
    assert len(pairs(codes, place)) == 2
    ends = [each.item() for pair in pairs(codes[:3], place) for each in pair]
    assert len(ends) == len(set(ends)) == 2


def test_one_code_has_no_path_and_is_kept(source):
    place = source()
    alone = {0: torch.ones(1, 5)}
    for found in (paths(place, alone, "ones"), lines(place, alone)):
        assert torch.equal(found[0], alone[0])
