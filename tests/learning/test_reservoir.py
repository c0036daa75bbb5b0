"""A bounded sample of a stream, each row of it as likely as any other."""

import torch

from learning.reservoir import Reservoir
from learning.settings import ReservoirSettings


def reservoir_of(size, kept=(), draw=4):
    return Reservoir(ReservoirSettings(size, draw), dict(kept))


def test_each_row_of_a_stream_is_kept_as_often():
    generator = torch.Generator().manual_seed(0)
    kept = torch.zeros(60)
    for _ in range(400):
        reservoir = reservoir_of(12)
        for batch in torch.arange(60).split(7):
            reservoir.add(generator, number=batch, twice=2 * batch)
        assert len(reservoir) == 12
        numbers = reservoir.fields["number"]
        assert len(set(numbers.tolist())) == 12
        assert torch.equal(2 * numbers, reservoir.fields["twice"])  # rows stay whole
        kept[numbers] += 1
    expected = 400 * 12 / 60
    deviation = (expected * (1 - 12 / 60)) ** 0.5
    assert (kept - expected).abs().max() < 4.5 * deviation


def test_a_reservoir_goes_on_from_its_state():
    whole, first = reservoir_of(5), reservoir_of(5)
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    whole.add(one, number=torch.arange(4))
    first.add(other, number=torch.arange(4))
    second = reservoir_of(5, first.state())
    for number in range(4, 30):
        whole.add(one, number=torch.tensor([number]))
        second.add(other, number=torch.tensor([number]))
    assert whole.seen == second.seen == 30
    assert torch.equal(whole.fields["number"], second.fields["number"])
    assert torch.equal(first.fields["number"], torch.arange(4))  # nothing is changed in place


def test_a_draw_has_no_row_twice():
    generator = torch.Generator().manual_seed(0)
    for draw, drawn in ((9, 6), (4, 4)):
        reservoir = reservoir_of(10, draw=draw)
        reservoir.add(generator, number=torch.arange(6))
        numbers = reservoir.draw(generator)["number"].tolist()
        assert len(numbers) == len(set(numbers)) == drawn
