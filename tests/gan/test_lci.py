import numpy as np
import pytest
import torch

from gan.lci import affinity, centroids, connect


@pytest.mark.parametrize(("clusters", "size"), [(20, 1730), (10, 415), (1, 1)])
def test_the_printed_sizes_of_sets(clusters, size):
    assert connect(torch.randn(clusters, 3)).shape == (size, 3)


def test_nine_points_divide_a_line_into_ten():
    """From 0 to 10: 1, 2, ..., 9; and to 20 in twos."""
    codes = connect(torch.tensor([[0.0], [10.0], [30.0]])).flatten()
    assert codes[:3].tolist() == [0, 10, 30]
    torch.testing.assert_close(codes[3:12], torch.arange(1.0, 10))
    torch.testing.assert_close(codes[12:21], torch.arange(3.0, 30, 3))
    torch.testing.assert_close(codes[21:], torch.arange(12.0, 30, 2))


def test_affinity_by_hand():
    """Distances 1, 2 and 3, median 2: exp(-1/8), exp(-4/8), exp(-9/8)."""
    far = np.array([[0.0, 1, 2], [1, 0, 3], [2, 3, 0]])
    near = affinity(far)
    assert near[0, 1:] == pytest.approx([np.exp(-1 / 8), np.exp(-1 / 2)])
    assert near[1, 2] == pytest.approx(np.exp(-9 / 8))
    assert affinity(np.zeros((3, 3))).tolist() == np.ones((3, 3)).tolist()


def toy(groups):
    """Codes 0, 1, 2, ..., and distances of 1 within groups of images and 5 between them."""
    group = torch.tensor(groups)
    far = torch.where(group[:, None] == group, 1.0, 5.0).fill_diagonal_(0)
    return torch.arange(float(len(group)))[:, None], far


def test_centroids_are_the_means_of_clusters():
    """Images 0, 2, 4 are alike, and 1, 3, 5, 6: (0 + 2 + 4) / 3 and (1 + 3 + 5 + 6) / 4."""
    w, far = toy([0, 1, 0, 1, 0, 1, 1])
    found = centroids(w, far, 2, seed=0).flatten()
    torch.testing.assert_close(found.sort().values, torch.tensor([2.0, 3.75]))


def test_a_cluster_of_one_image_is_dropped():
    """Image 6 is alone: the means are 1 of 0, 1, 2 and 4 of 3, 4, 5."""
    w, far = toy([0, 0, 0, 1, 1, 1, 2])
    found = centroids(w, far, 3, seed=0).flatten()
    torch.testing.assert_close(found.sort().values, torch.tensor([1.0, 4.0]))


@pytest.mark.parametrize("images", [1, 2, 3])
def test_of_few_images_there_is_one_centroid(images):
    w, far = toy(range(images))
    torch.testing.assert_close(centroids(w, far, 20, seed=0), w.mean(dim=0, keepdim=True))


def test_there_are_two_images_for_each_cluster():
    w, far = toy([0, 0, 1, 1, 2, 2])
    found = centroids(w, far, 20, seed=0).flatten()
    torch.testing.assert_close(found.sort().values, torch.tensor([0.5, 2.5, 4.5]))
