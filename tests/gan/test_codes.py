import time

import pytest
import torch

from gan import codes
from gan.checkpoint import write_whole
from gan.code_sets import CODE_SETS
from gan.codes import Deck, pairwise, render_codes, sample_rows
from gan.nearest import nearest
from gan.networks import to_bytes

# Of class 0 (six images) and 1 (four). Two paths of five points each from four random codes or
# more; of two clusters C(2, 2) · 9 + 2 = 11, unless all images are in one of them; of averages of
# two 3 and 2, which are one pair.
SIZES = {
    "linear": (10, 10),
    "plan": (10, 10),
    "k-salsa": (3, 2),
    "k-salsa-plan": (5, 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CODE_SETS)
def test_a_set_has_codes_of_every_class_and_the_same_again(name, source, tmp_path):
    made = CODE_SETS[name](source(folder=tmp_path / "first"))
    again = CODE_SETS[name](source(folder=tmp_path / "second"))
    assert list(made) == [0, 1]
    for label, own in made.items():
        assert own.shape[1] == 5
        assert own.isfinite().all()
        assert torch.equal(own, again[label])
    if name in SIZES:
        assert tuple(map(len, made.values())) == SIZES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lci", "lci-plan", "k-salsa-plan"])
def test_an_interrupted_set_goes_on_where_it_was(name, source, monkeypatch, tmp_path):
    """Every second piece is not finished before the deadline, until all are there."""
    whole = CODE_SETS[name](source(folder=tmp_path / "whole"))
    place = source(folder=tmp_path / "parts")
    finished: list[str] = []

    def killed(path, made):
        if len(finished) % 2:
            finished.append("killed")
            raise TimeoutError
        finished.append(path.name)
        write_whole(path, made)

    monkeypatch.setattr(codes, "write_whole", killed)
    for _ in range(50):
        try:
            made = CODE_SETS[name](place)
            break
        except TimeoutError:
            continue
    kept = [each for each in finished if each != "killed"]
    assert len(kept) == len(set(kept)) == len(list(place.folder.glob("*.pt")))
    assert all(torch.equal(made[label], whole[label]) for label in whole)


@pytest.mark.parametrize("name", [name for name in CODE_SETS if name != "linear"])
def test_after_the_deadline_nothing_is_looked_for(name, source):
    with pytest.raises(TimeoutError):
        CODE_SETS[name](source(deadline=time.monotonic() - 1))


def test_projections_are_of_their_own_images(source):
    """They come back in the order of the images, whatever their classes."""
    place = source()
    found = place.projection()
    real, made = (place.distance.features(each) for each in (place.images, found.images))
    torch.testing.assert_close((real - made).square().sum(dim=1), found.distances)
    assert not torch.equal(found.w, place.projection(again=1).w)


def test_codes_are_drawn_without_replacement_and_then_all_over_again():
    deck = Deck({0: torch.arange(3.0)[:, None], 4: torch.tensor([[7.0]])}, seed=0)
    first, second = (deck.draw(torch.tensor([0, 4, 0, 0])) for _ in range(2))
    assert first[[0, 2, 3]].flatten().sort().values.tolist() == [0, 1, 2]
    assert first[1].item() == 7
    assert torch.equal(first, second)


def test_the_seed_decides_on_the_noise_of_an_image(source):
    place = source()
    w = torch.randn(2, 5)
    for conv in place.generator.convs:
        conv.noise_strength.fill_(1.0)
    first, same, other = (render_codes(place.generator, w, seed) for seed in (0, 0, 1))
    assert first.dtype == torch.uint8
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("seed", [0, 7])
def test_images_of_codes_have_the_noise_of_torch_s_own_generator(seed, source, monkeypatch):
    """Whatever the size of a part: pictures and buffers stay the same."""
    place = source()
    for conv in place.generator.convs:
        conv.noise_strength.fill_(1.0)
    w = torch.randn(21, 5)
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(seed)
        wanted = torch.cat([to_bytes(place.generator.synthesise(part)) for part in w.split(4)])
    monkeypatch.setattr(codes, "BLOCK", 4)
    for part in (8, 512):
        monkeypatch.setattr(codes, "PART", part)
        assert torch.equal(render_codes(place.generator, w, seed), wanted)


def test_distances_of_all_pairs_are_those_of_single_ones(source, monkeypatch):
    monkeypatch.setattr(codes, "BLOCK", 4)
    place = source()
    wanted = place.distance(place.images, place.images)
    torch.testing.assert_close(pairwise(place.images, place.distance), wanted, atol=1e-5, rtol=1e-3)


def test_at_most_so_many_images_of_a_class():
    labels = torch.tensor([0, 1, 0, 0, 2, 1, 0])
    chosen = sample_rows(labels, 2, seed=0)
    assert torch.bincount(labels[chosen]).tolist() == [2, 2, 1]
    assert chosen.tolist() == sorted(chosen.tolist())


def test_mml_by_hand(source):
    """Synthetic: a copy of the first real image, and an image at distances d1, d2 of both.

    The minima are 0 and min(d1, d2); their mean is half of that.
    """
    distance = source().distance
    torch.manual_seed(1)
    real = torch.randint(256, (2, 1, 24, 24), dtype=torch.uint8)
    other = torch.randint(256, (1, 1, 24, 24), dtype=torch.uint8)
    bytes_ = torch.cat([other, real])
    far = distance(bytes_ / 127.5 - 1, bytes_ / 127.5 - 1)[0, 1:]
    found = nearest(torch.cat([real[:1], other]), real, distance)[0].mean().item()
    assert found == pytest.approx(far.min().item() / 2, rel=1e-4)


@pytest.mark.parametrize("held", [1, 2**29])
def test_the_nearest_of_any_block(held, source, monkeypatch):
    """As in the matrix of all distances; 7 others in blocks of 2, for one image or all at once."""
    distance = source().distance
    torch.manual_seed(2)
    images, others = (torch.randint(256, (n, 1, 8, 8), dtype=torch.uint8) for n in (5, 7))
    monkeypatch.setattr("gan.nearest.BLOCK", 2)
    monkeypatch.setattr("gan.nearest.HELD", held)
    far, which = nearest(images, others, distance)
    wanted = distance(images / 127.5 - 1, others / 127.5 - 1).min(dim=1)
    torch.testing.assert_close(far, wanted.values, atol=1e-5, rtol=1e-4)
    assert torch.equal(which, wanted.indices)
