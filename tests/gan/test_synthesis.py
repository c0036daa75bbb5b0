import matplotlib.pyplot as plt
import torch

from gan.networks import Generator
from gan.synthesis import PART, balanced_labels, render, render_parts, save_grid


def test_same_images_at_every_call(micro):
    generator, labels = Generator(micro, 3, 1), torch.tensor([0, 1, 2, 0, 1])
    torch.nn.init.ones_(generator.get_parameter("convs.0.noise_strength"))
    before = torch.get_rng_state()
    images = render(generator, labels, seed=4, batch=2)
    assert images.shape == (5, 1, 8, 8)
    assert images.dtype == torch.uint8
    assert torch.equal(images, render(generator, labels, seed=4, batch=2))
    assert not torch.equal(images, render(generator, labels, seed=5, batch=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_parts_have_seeds_of_their_own_and_one_part_is_what_render_makes():
    def render_some(labels, seed):
        return torch.full((len(labels), 1, 1, 1), seed)

    parts = [*render_parts(render_some, torch.zeros(2 * PART + 3), 7)]
    assert [(len(part), part[0].item()) for part in parts] == [(PART, 7), (PART, 8), (3, 9)]


def test_balanced_labels_take_present_classes_in_turn():
    assert balanced_labels(5, torch.tensor([7, 2, 2, 2, 7])).tolist() == [2, 7, 2, 7, 2]
    assert balanced_labels(2, torch.arange(4)).tolist() == [0, 1]


def test_a_picture_of_many_images(tmp_path):
    """Three columns of 8 pixels, enlarged four times, with 2 pixels around each."""
    save_grid(tmp_path / "grid.png", torch.full((4, 1, 8, 8), 200, dtype=torch.uint8), columns=3)
    picture = plt.imread(tmp_path / "grid.png")
    assert picture.shape == (2 * 34 + 2, 3 * 34 + 2, 3)
    assert round(picture[10, 10, 0] * 255) == 200
