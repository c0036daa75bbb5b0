"""Membership attacks on a model: was it trained on an image?

The attacks see probabilities and labels alone, like anybody who has the model and the image:

- by loss (Yeom et al., "Privacy risk in machine learning: analyzing the connection to overfitting",
  CSF 2018, arXiv:1709.01604, Adversary 2): the less loss, the more likely a member;
- by a network on the sorted probabilities (Jia et al., "MemGuard", CCS 2019, arXiv:1909.10594),
  and the loss of the label. Its training is the protocol of PLAN (arXiv:2306.12968).

Numbered deviations:
1. PLAN does not say which members are scored. Here they are as many as the others, outside of the
   attacker's training images, so that chance is 50 %. Both kinds count alike in training.
2. PLAN does not say how the attacker is chosen. Here it is the epoch with the least loss on the
   images for the choice.
3. PLAN does not say when the learning rate drops. Here it drops after three quarters of the epochs.

Shapes: `N` images, `K` classes.
"""

from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from audit.membership import Decided, Scores, accuracy, contrast, success
from audit.report import Report

LEAST = torch.finfo(torch.float32).tiny  # a probability that is rounded to 0
FEWEST = 4  # fewest members, and fewest others, for an attack by a network
TRAINED, CHOSEN = 0.3, 0.1  # shares of the images that an attacker is trained and chosen on
WIDTHS = (512, 256, 128)
BATCH, LEARNING_RATE = 64, 0.01


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions for images."""

    probabilities: Tensor  # probabilities of the classes, [N, K]
    labels: Tensor  # true classes, int64 [N]

    def __getitem__(self, chosen: Tensor) -> "Predictions":
        return Predictions(self.probabilities[chosen], self.labels[chosen])

    def losses(self) -> Tensor:
        """The cross-entropies [N]."""
        at_label = self.probabilities.gather(1, self.labels[:, None])[:, 0]
        return -at_label.double().clamp(min=LEAST).log()

    def scores(self) -> Scores:
        """The scores [N] of the attack by loss."""
        return -self.losses().cpu().numpy()


def audit_model(members: Predictions, others: Predictions, limit: float, epochs: int = 0) -> Report:
    """Attack a model by its loss, and by a network of `epochs` epochs if there are enough images.

    The model's predictions are for more than one training image, and for one or more other images.
    At most `limit` may leak.

    Returns:
        The leaks of the attack by loss. The evidence has the leak with the higher lower end, each
        attack, and `able`: whether a model that reveals all members would be noticed.
    """
    found = contrast(members.scores(), others.scores())
    perfect = contrast(np.ones(found.attack.members), np.zeros(found.attack.others))
    evidence = {
        "limit": limit,
        "leak": found.leak(),
        "by-loss": asdict(found),
        "able": perfect.leak()["low"] > min(limit, 0.5),
    }
    if epochs and min(len(members.labels), len(others.labels)) >= FEWEST:
        evidence["by-network"] = asdict(network_attack(members, others, 0, epochs))
    return Report(leaks=found.leaks(), evidence=evidence)


def network_attack(members: Predictions, others: Predictions, seed: int, epochs: int) -> Decided:
    """The attack by a network, trained on 30 % of both, chosen with 10 %, scored on the rest.

    It needs `FEWEST` members and others. The seed decides on the split and on the training.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        parts = [_split(each, len(others.labels)) for each in (members, others)]
        (train, choose, score) = (_examples(*pair) for pair in zip(*parts, strict=True))
        network = _train(train, choose, epochs)
        with torch.no_grad():
            logits = network(score[0])[:, 0].double().cpu().numpy()
    truth = score[1].cpu().numpy() == 1
    scores = logits[truth], logits[~truth]
    return Decided(**vars(success(*scores)), accuracy=accuracy(*scores, threshold=0.0))


def _split(whole: Predictions, others: int) -> tuple[Predictions, Predictions, Predictions]:
    """A random split: the attacker's training images, those for its choice, and the scored ones."""
    order = torch.randperm(len(whole.labels)).to(whole.labels.device)
    trained = ceil(TRAINED * len(order))
    chosen = trained + ceil(CHOSEN * min(others, len(order)))
    # As many members as others.
    last = chosen + others - ceil(TRAINED * others) - ceil(CHOSEN * others)
    return whole[order[:trained]], whole[order[trained:chosen]], whole[order[chosen:last]]


def _examples(members: Predictions, others: Predictions) -> tuple[Tensor, Tensor]:
    """Sorted probabilities and the label's loss [N, K + 1], and 1 for members, 0 for others [N]."""
    inputs = [
        torch.cat((each.probabilities.sort(dim=1, descending=True)[0], each.losses()[:, None]), 1)
        for each in (members, others)
    ]
    truth = torch.cat([torch.full((len(x),), 1.0 - k) for k, x in enumerate(inputs)])
    return torch.cat(inputs).float(), truth.to(inputs[0].device)


def _train(train: tuple[Tensor, Tensor], choose: tuple[Tensor, Tensor], epochs: int) -> nn.Module:
    """The network after the epoch with the least loss on the images for the choice."""
    inputs, truth = train
    layers: list[nn.Module] = []
    for narrow, wide in pairwise((inputs.shape[1], *WIDTHS)):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(WIDTHS[-1], 1)).to(inputs.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [max(1, 3 * epochs // 4)])
    best, kept = float("inf"), deepcopy(network.state_dict())
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs)).to(inputs.device).split(BATCH):
            optimizer.zero_grad()
            _loss(network, inputs[batch], truth[batch], truth).backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            loss = float(_loss(network, *choose, choose[1]))
        if loss < best:
            best, kept = loss, deepcopy(network.state_dict())
    network.load_state_dict(kept)
    return network


def _loss(network: nn.Module, inputs: Tensor, truth: Tensor, all_truth: Tensor) -> Tensor:
    """The cross-entropy, in which members and others have equal total weights."""
    members = all_truth.mean()
    weights = (0.5 / members).where(truth == 1, 0.5 / (1 - members))
    return binary_cross_entropy_with_logits(network(inputs)[:, 0], truth, weights)
