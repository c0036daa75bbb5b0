import pytest
import torch

from learning.mixture import mixture_weights


def test_the_weights_maximise_the_likelihood_of_the_labels():
    """Against a search over all weights of three models, in steps of a hundredth."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand((3, 40, 2), generator=generator)
    scores = scores / scores.sum(dim=2, keepdim=True)
    labels = torch.arange(40) % 2
    given = scores[:, torch.arange(40), labels].double()

    def likelihood(weights):
        return (torch.tensor(weights, dtype=torch.float64) @ given).log().sum()

    steps = range(101)
    every = [(i / 100, j / 100, 1 - (i + j) / 100) for i in steps for j in steps if i + j <= 100]
    best = max(every, key=likelihood)
    found = mixture_weights(scores, labels).tolist()
    assert sum(found) == pytest.approx(1)
    assert found == pytest.approx(best, abs=0.011)
    assert likelihood(found) >= likelihood(best) - 1e-4


def test_a_model_that_is_always_right_gets_all_of_it():
    labels = torch.tensor([0, 1, 1, 0])
    right = torch.eye(2)[labels]
    weights = mixture_weights(torch.stack([right, 1 - right, torch.full((4, 2), 0.5)]), labels)
    assert weights.tolist() == pytest.approx([1, 0, 0], abs=1e-3)


def test_a_rare_class_counts_as_much_as_a_common_one():
    """One model knows the class of nine images, the other that of one: half and half."""
    labels = torch.tensor([0] * 9 + [1])
    first, second = torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9])
    scores = torch.stack([first.expand(10, 2), second.expand(10, 2)])
    assert mixture_weights(scores, labels).tolist() == pytest.approx([0.5, 0.5], abs=1e-3)


def test_a_model_without_an_answer_to_an_image_counts_as_wrong_there():
    labels = torch.tensor([0, 1, 1, 0])
    scores = torch.rand((3, 4, 2), generator=torch.Generator().manual_seed(0))
    failing = scores.clone()
    failing[0, 1], scores[0, 1] = torch.nan, 0
    assert torch.equal(mixture_weights(failing, labels), mixture_weights(scores, labels))
