from dataclasses import replace

import pytest
import torch

from gan.judges import Judge, class_judge, identity_judge, turn


@pytest.mark.slow
def test_classes_are_learnt(source):
    """Dark images are of class 0, bright ones of class 1."""
    place = source()
    images = place.labels.float().view(-1, 1, 1, 1).expand(-1, 1, 8, 8) - 0.5
    place = replace(place, images=images, effort=replace(place.effort, network_steps=60))
    assert torch.equal(class_judge(place)(images).argmax(dim=1), place.labels)


def test_identities_are_learnt_from_images_and_from_their_projections(source, monkeypatch):
    shown: dict[str, torch.Tensor] = {}

    def train(judge, images, labels, source):
        shown.update(images=images, labels=labels)
        return judge.state_dict()

    monkeypatch.setattr("gan.judges.train", train)
    place = source()
    assert identity_judge(place)(place.images).shape == (10, 10)
    assert shown["labels"].tolist() == 3 * list(range(10))  # of each its image and two projections
    assert torch.equal(shown["images"][:10], place.images)
    assert torch.equal(shown["images"][20:], place.projection(again=1).images)


def test_torch_s_own_random_numbers_stay_as_they_are(source):
    state = torch.get_rng_state()
    place = source()
    torch.set_rng_state(state)
    class_judge(place)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("network", "width"), [("small", 64), ("resnet18", 512)])
def test_grey_images_fit_both_networks(network, width):
    judge = Judge(network, 1, 3).eval()
    images = torch.rand(2, 1, 32, 32)
    assert judge.features(images).shape == (2, width)
    assert judge(images).shape == (2, 3)
    assert judge.first(images).shape[2:] == (16, 16)


def test_eight_ways_to_turn_an_image():
    image = torch.arange(4.0).view(1, 1, 2, 2)
    torch.manual_seed(0)
    found = {tuple(each.flatten().tolist()) for each in turn(image.repeat(100, 1, 1, 1))}
    assert len(found) == 8
    assert (0, 1, 2, 3) in found
