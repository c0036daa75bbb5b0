import pytest
import torch

from gan.codes import Source
from gan.k_salsa import averages, blind_averages, grams, group_equally, style
from gan.projection import Projection


def on_a_line(*places):
    at = torch.tensor(places)
    return (at[:, None] - at).abs()


def test_clusters_of_three_by_hand():
    """At 0, 1, 2, 10, 11, 12, 100.

    The sums of distances are largest for 100: it takes 12 and 11. Of 0, 1, 2, 10 that of 10 is
    27: it takes 2 and 1. 0 is left over.
    """
    clusters = group_equally(on_a_line(0.0, 1, 2, 10, 11, 12, 100), 3)
    assert [each.tolist() for each in clusters] == [[6, 5, 4], [3, 2, 1]]


def test_copies_do_not_keep_an_image_out_of_its_own_cluster():
    clusters = group_equally(torch.zeros(4, 4), 2)
    assert sorted(torch.cat(clusters).tolist()) == [0, 1, 2, 3]


def test_every_cluster_has_k_images_and_no_image_is_in_two():
    torch.manual_seed(0)
    points = torch.randn(23, 4)
    chosen = torch.cat(group_equally(torch.cdist(points, points), 5))
    assert len(chosen) == 20
    assert len(set(chosen.tolist())) == 20


def test_a_class_of_fewer_than_k_has_one_average(source):
    found = averages(source(k=5))
    assert {label: len(own) for label, own in found.items()} == {0: 1, 1: 1}


def test_averages_start_at_the_mean_code(source):
    """With a learning rate of 0, as at the first of the steps, they stay there."""
    place = source(k=4)
    place = type(place)(**{**vars(place), "effort": _one_step(place.effort)})
    projected = place.projection().w
    own = place.labels == 1
    torch.testing.assert_close(averages(place)[1][0], projected[own].mean(dim=0))


def test_clusters_that_ignore_classes_have_the_class_of_most_of_their_images(source, monkeypatch):
    """Ten images, six of class 0 and four of class 1; k = 4 leaves two of them over.

    Codes on a line: 0, 1, 2, 3 (classes 0, 0, 0, 1), 10, 11, 12, 13 (1, 1, 0, 1), 4, 4.1 (0, 0).
    The sums of distances are largest for 13, and of the rest for 0: the clusters are the last and
    the first four.
    """
    place = source(k=4)
    order = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1, 0, 0])
    place = type(place)(**{**vars(place), "labels": order, "effort": _one_step(place.effort)})
    w = torch.zeros(10, 5)
    w[:, 0] = torch.tensor([0.0, 1, 2, 3, 10, 11, 12, 13, 4, 4.1])
    monkeypatch.setattr(Source, "projection", lambda _: Projection(w, place.images, w[:, 0]))
    found = blind_averages(place)
    assert {label: own[:, 0].tolist() for label, own in found.items()} == {0: [1.5], 1: [11.5]}


def test_a_class_that_is_nowhere_the_most_frequent_has_the_average_with_most_of_it(source):
    place = source(k=5)
    labels = torch.tensor([0] * 9 + [1])
    place = type(place)(**{**vars(place), "labels": labels, "effort": _one_step(place.effort)})
    found = blind_averages(place)
    assert {label: len(own) for label, own in found.items()} == {0: 2, 1: 1}
    assert any(torch.equal(found[1][0], each) for each in found[0])


def test_a_class_whose_images_are_all_left_over_has_an_average_of_its_own(source, monkeypatch):
    """Four corners of class 0 with edges of 0.8, four more far away, and two images of class 1.

    These are at a distance of 1 from the near corners. A near corner has the sum of distances 3 ·
    0.8 + 2, which is above 4, and its nearest images are the other corners.
    """
    place = source(k=4)
    labels = torch.tensor([0] * 8 + [1] * 2)
    place = type(place)(**{**vars(place), "labels": labels, "effort": _one_step(place.effort)})
    w = torch.zeros(10, 5)
    w[:4, :4] = 0.8 / 2**0.5 * torch.eye(4)
    w[4:8] = w[:4] + 100
    w[8:] = w[:4].mean(dim=0)
    w[8:, 4] = torch.tensor([0.871, 0.873])
    monkeypatch.setattr(Source, "projection", lambda _: Projection(w, place.images, w[:, 0]))
    found = blind_averages(place)
    torch.testing.assert_close(found[1], w[8:].mean(dim=0, keepdim=True))
    assert len(found[0]) == 2


def _one_step(effort):
    return type(effort)(**{**vars(effort), "average_steps": 1})


def test_gram_matrices_of_patches_by_hand():
    """8 x 8 maps have 16 patches of 2 x 2.

    In the first patch of map 0 are 1, 2, 3, 4, in that of map 1 ones: means of products
    (1 + 4 + 9 + 16) / 4 = 7.5, (1 + 2 + 3 + 4) / 4 = 2.5 and 1.
    """
    maps = torch.zeros(1, 2, 8, 8)
    maps[0, 0, :2, :2] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    maps[0, 1, :2, :2] = 1
    maps[0, 1, :2, 6:] = 2  # the fourth patch
    found = grams(maps)
    assert found.shape == (1, 16, 4)
    assert found[0, 0].tolist() == [7.5, 2.5, 2.5, 1.0]
    assert found[0, 3].tolist() == [0, 0, 0, 4.0]
    assert found[0, 4:].sum() == 0


def test_a_patch_is_compared_with_the_most_similar_one():
    """Patches of the average: (1, 0) and (0, 2). Of one member: (3, 0) and (1, 4).

    (3, 0) is most like (1, 0): 2² = 4. (1, 4) is most like (0, 2): 1 + 2² = 5. Their mean is 4.5;
    patch by patch in another order it is the same.
    """
    average = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    member = torch.tensor([[3.0, 0.0], [1.0, 4.0]])
    for order in ([0, 1], [1, 0]):
        assert style(average, member[order][None]).item() == pytest.approx(4.5)
