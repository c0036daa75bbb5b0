from math import inf, log

import pytest
import torch
from torch import nn

from learning.judgement import (
    HOPELESS,
    SAMPLE,
    WORSE,
    arrival_flaw,
    random_samples,
    relative_loss,
    sample,
    visit_flaw,
)
from learning.models import Architecture
from learning.samples import Samples


class Says(nn.Module):
    """Says class 0 of all images, so surely."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images):
        return self.logits.expand(len(images), -1)


def images(labels):
    return Samples(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), torch.tensor(labels))


def test_guessing_has_a_loss_of_one():
    assert relative_loss(Says(0.0, 0.0, 0.0), images([0, 1, 2])) == pytest.approx(1)


def test_a_model_that_always_gives_one_answer_shows_where_a_fifth_is_of_another_class():
    model = Says(1e4, 0.0)
    assert relative_loss(model, images([0] * 8 + [1] * 2)) == pytest.approx(1e4 / log(2))
    assert relative_loss(model, images([0] * 10)) == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_outputs_that_are_no_numbers(value):
    assert relative_loss(Says(value, 0.0), images([0, 1] * 5)) == inf


def test_the_same_outputs_for_images_that_differ():
    pixels = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1)
    assert relative_loss(Says(0.0, 1.0), Samples(pixels, torch.zeros(4, dtype=torch.int64))) == inf


def test_one_image_does_not_decide():
    class One(Says):
        def forward(self, images):
            said = super().forward(images).clone()
            said[0] = torch.nan
            return said

    assert relative_loss(One(0.0, 0.0), images([0, 1] * 10)) == pytest.approx(1)


def test_judging_changes_neither_the_network_nor_random_numbers():
    """The modes of all layers, BatchNorm's statistics, weights and generators stay."""
    network = Architecture("cnn", 1, 8, 8, 3).build()
    network.train()
    next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d)).eval()
    modes = [module.training for module in network.modules()]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    pixels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    relative_loss(network, random_samples(sample(Samples(pixels, torch.arange(4) % 3)), 3))
    assert torch.equal(torch.rand(1), expected)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(before[name], now) for name, now in network.state_dict().items())


def test_the_same_images_are_judged_on_every_time():
    many = Samples(torch.zeros(500, 1, 1, 1, dtype=torch.uint8), torch.arange(500))
    assert torch.equal(sample(many).labels, sample(many).labels)
    assert len(sample(many)) == SAMPLE
    assert sorted(sample(images([0, 1, 2])).labels.tolist()) == [0, 1, 2]
    assert torch.equal(random_samples(many, 7).images, random_samples(many, 7).images)


def test_where_the_limits_are():
    assert arrival_flaw(HOPELESS) == ""
    assert arrival_flaw(1.01 * HOPELESS)
    assert arrival_flaw(inf)
    for limit in (WORSE, HOPELESS):
        assert visit_flaw(before=0.1, after=limit, limit=limit) == ""  # guessing counts as 1
        assert visit_flaw(before=0.1, after=1.01 * limit, limit=limit)
        assert visit_flaw(before=5.0, after=5 * limit, limit=limit) == ""
        assert visit_flaw(before=5.0, after=inf, limit=limit)
