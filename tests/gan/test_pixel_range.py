import torch

from gan.pixel_range import from_bytes, to_bytes


def test_bytes_are_spread_over_minus_one_to_one():
    images = torch.tensor([0, 255], dtype=torch.uint8)
    assert from_bytes(images).tolist() == [-1, 1]
    assert images.tolist() == [0, 255]  # in memory of their own


def test_what_is_outside_is_clipped():
    images = torch.tensor([-1.5, -1.0, 0.0, 1.0, 1.5])
    assert to_bytes(images).tolist() == [0, 0, 128, 255, 255]


def test_every_byte_comes_back():
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_bytes(from_bytes(every)), every)
