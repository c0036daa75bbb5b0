"""Attacks that tell, from what a model says of an image, whether it was trained on it.

The attacks see probabilities and labels alone, as anybody does who has the model and the image:

- by loss (Yeom et al., "Privacy risk in machine learning: analyzing the connection to overfitting",
  CSF 2018, arXiv:1709.01604, Adversary 2): a member is what has less loss than the mean member;
- by a network on the sorted probabilities (Jia et al., "MemGuard", CCS 2019, arXiv:1909.10594),
  with the loss of the label beside them. Its training is the protocol of PLAN (arXiv:2306.12968).

What an attack is worth is told as Carlini et al. (arXiv:2112.03570) have it: the true positive rate
at a false positive rate of 1 %, beside AUC and accuracy. Intervals are at 95 %.

Numbered deviations:
1. PLAN does not say which members are scored: here as many that nothing was trained on as there are
   others, so that chance is 50 %. Both kinds count alike while the network is trained.
2. Nor how the attacker is chosen: here it is the epoch with the least loss on the images for it.
3. Nor when the learning rate drops: here after three quarters of the epochs.

Shapes: `N` images, `K` classes, `M` members, `O` others.
"""

from copy import deepcopy
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, rankdata
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from learning.intervals import Estimate, combined, wilson

FALSE_POSITIVES = 0.01  # the rate at which true positives are counted
LEAST = torch.finfo(torch.float32).tiny  # a probability that is rounded to 0
TRAINED, CHOSEN = 0.3, 0.1  # shares of the images that an attacker is trained and chosen on
WIDTHS = (512, 256, 128)
EPOCHS, BATCH, LEARNING_RATE = 400, 64, 0.01


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of images.

    Attributes:
        probabilities: Of the classes, [N, K].
        labels: What the images show, int64 [N].
    """

    probabilities: Tensor
    labels: Tensor

    def __getitem__(self, chosen: Tensor) -> "Predictions":
        return Predictions(self.probabilities[chosen], self.labels[chosen])

    def losses(self) -> Tensor:
        """The cross-entropies [N]."""
        at_label = self.probabilities.gather(1, self.labels[:, None])[:, 0]
        return -at_label.double().clamp(min=LEAST).log()


@dataclass(frozen=True)
class Success:
    """What an attack is worth.

    Attributes:
        members: How many were scored.
        others: How many were scored.
        auc: Of members against others; the interval by Hanley and McNeil (Radiology 143, 1982).
        accuracy: Half the sum of the shares of members and of others that are told rightly.
        tpr: Share of members above a threshold that at most 1 % of others pass, with the interval
            of Clopper and Pearson (Biometrika 26, 1934).
        fpr: Share of others that pass it, likewise.
    """

    members: int
    others: int
    auc: Estimate
    accuracy: Estimate
    tpr: Estimate
    fpr: Estimate


def success(members: NDArray[np.float64], others: NDArray[np.float64], threshold: float) -> Success:
    """What scores are worth.

    Args:
        members: Scores [M], M > 0; the higher, the likelier a member.
        others: Scores [O], O > 0.
        threshold: For the accuracy, from elsewhere: what is at or above it is called a member.
    """
    told = clopper_pearson(int((members >= threshold).sum()), len(members))
    spared = clopper_pearson(int((others < threshold).sum()), len(others))
    passing = strictest(others)
    return Success(
        len(members),
        len(others),
        auc(members, others),
        combined((0.5, 0.5), (told, spared), None),
        clopper_pearson(int((members > passing).sum()), len(members)),
        clopper_pearson(int((others > passing).sum()), len(others)),
    )


def strictest(others: NDArray[np.float64], rate: float = FALSE_POSITIVES) -> float:
    """The lowest of the scores [O] of others that at most a share `rate` of them are above."""
    ordered = np.sort(others)
    return float(ordered[len(ordered) - 1 - int(rate * len(ordered))])


def auc(members: NDArray[np.float64], others: NDArray[np.float64]) -> Estimate:
    """The area under the ROC curve of scores [M] and [O], with its interval."""
    truth = np.repeat((1, 0), (len(members), len(others)))
    area = float(roc_auc_score(truth, np.concatenate((members, others))))
    m, n = len(members), len(others)
    of_members, of_others = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    spread = area * (1 - area)
    variance = (spread + (m - 1) * of_members + (n - 1) * of_others) / (m * n)
    # Wilson's interval for as many images as have this variance: it does not leave [0, 1].
    return wilson(area, spread / variance if variance > 0 else min(m, n))


def clopper_pearson(hits: int, number: int, level: float = 0.95) -> Estimate:
    """A share of hits with its exact interval."""
    tail = (1 - level) / 2
    low = beta.ppf(tail, hits, number - hits + 1) if hits else 0.0
    high = beta.isf(tail, hits + 1, number - hits) if hits < number else 1.0
    return Estimate(hits / number, float(low), float(high))


def loss_attack(members: Predictions, others: Predictions) -> Success:
    """The attack by loss."""
    own, foreign = (-each.losses().cpu().numpy() for each in (members, others))
    return success(own, foreign, threshold=float(own.mean()))


@dataclass(frozen=True)
class Contrast:
    """What an attack is worth beside its negative control, where there is nothing to tell.

    Attributes:
        attack: On members and others.
        control_auc: The same of members against members, over many random splits in as many others
            as the attack had: their mean, and what 95 % of them are between.
        control_tpr: Likewise. Its mean is above 1 % where others are few.
        excess_auc: What the attack has above its control.
        excess_tpr: Likewise.
    """

    attack: Success
    control_auc: Estimate
    control_tpr: Estimate
    excess_auc: Estimate
    excess_tpr: Estimate

    def leaks(self, reach: float = 1.0) -> tuple[Estimate, Estimate]:
        """The excesses of AUC and of true positive rate, as shares of the most they could be.

        Args:
            reach: The share of members that an attack could tell at all.
        """
        most = (0.5 * reach, (1 - FALSE_POSITIVES) * reach)
        by_auc, by_tpr = (
            Estimate(*(min(1.0, end / whole) for end in (each.value, each.low, each.high)))
            for each, whole in zip((self.excess_auc, self.excess_tpr), most, strict=True)
        )
        return by_auc, by_tpr

    def leak(self, reach: float = 1.0) -> Estimate:
        """The one of `leaks` of which more is sure: 0 is nothing, 1 is all that can be told."""
        return max(self.leaks(reach), key=lambda each: each.low)


def exceeds(leak: Estimate, limit: float) -> bool:
    """Whether there is a leak for sure, and it may be above the limit: doubt is against release."""
    return leak.low > 0 and leak.high > limit


def contrast(
    members: NDArray[np.float64], others: NDArray[np.float64], seed: int = 0, draws: int = 200
) -> Contrast:
    """Compare what scores are worth with the negative control.

    Args:
        members: Scores [M], M > 1; the higher, the likelier a member.
        others: Scores [O], O > 0.
        seed: Of the random splits.
        draws: How many.
    """
    worth = success(members, others, threshold=float(np.median(members)))
    controls = control(members, min(len(others), len(members) // 2), seed, draws)
    excesses = [
        combined((1.0, -1.0), pair, None)
        for pair in zip((worth.auc, worth.tpr), controls, strict=True)
    ]
    return Contrast(worth, *controls, *excesses)


def control(
    scores: NDArray[np.float64], few: int, seed: int = 0, draws: int = 200
) -> tuple[Estimate, Estimate]:
    """AUC and true positive rate of an attack on images that are all alike, as `Contrast` has it.

    Args:
        scores: Of the images [N].
        few: How many are taken for others, 0 < few < N.
        seed: Of the random splits.
        draws: How many.
    """
    rng = np.random.default_rng(seed)
    # Ties are broken at random: what is the same for all tells less of the next image than it says.
    ranks = rankdata(rng.permutation(scores), method="ordinal")
    areas, rates = np.empty(draws), np.empty(draws)
    for k in range(draws):
        drawn = rng.permutation(ranks)
        alike, rest = drawn[:few], drawn[few:]
        # Mann and Whitney's count of pairs that are told rightly.
        areas[k] = (rest.sum() - len(rest) * (len(rest) + 1) / 2) / (len(rest) * few)
        rates[k] = (rest > strictest(alike)).mean()
    of_area, of_rate = (
        Estimate(float(each.mean()), *map(float, np.quantile(each, (0.025, 0.975))))
        for each in (areas, rates)
    )
    return of_area, of_rate


@dataclass(frozen=True)
class NetworkAttack:
    """What networks of several seeds are worth.

    Attributes:
        seeds: Of each what it is worth on the images that it is scored on.
    """

    seeds: tuple[Success, ...]

    @property
    def overall(self) -> Success:
        """The means over the seeds of figures and of the ends of their intervals.

        No narrower than one seed's: all are about the same images.
        """

        def over(figure: str) -> Estimate:
            parts = [getattr(each, figure) for each in self.seeds]
            ends = ("value", "low", "high")
            return Estimate(*(mean(getattr(each, end) for each in parts) for end in ends))

        first = self.seeds[0]
        figures = map(over, ("auc", "accuracy", "tpr", "fpr"))
        return Success(first.members, first.others, *figures)

    @property
    def deviation(self) -> float:
        """The standard deviation of the accuracy over the seeds, 0 for one."""
        shares = [each.accuracy.value for each in self.seeds]
        return sqrt(sum((x - mean(shares)) ** 2 for x in shares) / max(1, len(shares) - 1))


def network_attack(
    members: Predictions, others: Predictions, seeds: int = 5, epochs: int = EPOCHS
) -> NetworkAttack:
    """The attack by a network, trained on 30 % of both, chosen with 10 %, scored on the rest.

    Args:
        members: 4 or more; at most as many are scored as others.
        others: 4 or more.
        seeds: How many networks; each with a split of its own.
        epochs: Passes over the attacker's training images.

    Raises:
        ValueError: There are too few images to split.
    """
    if min(len(members.labels), len(others.labels)) < 4:
        raise ValueError("An attack by a network needs 4 members and 4 others.")
    return NetworkAttack(tuple(_by_network(members, others, seed, epochs) for seed in range(seeds)))


def _by_network(members: Predictions, others: Predictions, seed: int, epochs: int) -> Success:
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        parts = [_split(each, len(others.labels)) for each in (members, others)]
        (train, choose, score) = (_examples(*pair) for pair in zip(*parts, strict=True))
        network = _train(train, choose, epochs)
        with torch.no_grad():
            logits = network(score[0])[:, 0].double().cpu().numpy()
    truth = score[1].cpu().numpy() == 1
    return success(logits[truth], logits[~truth], threshold=0.0)


def _split(whole: Predictions, others: int) -> tuple[Predictions, Predictions, Predictions]:
    """At random what the attacker is trained on, chosen with, and scored on."""
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
    """The network, as it was after the epoch with the least loss on the images to choose by."""
    inputs, truth = train
    layers: list[nn.Module] = []
    width = inputs.shape[1]
    for wider in WIDTHS:
        layers += [nn.Linear(width, wider), nn.ReLU()]
        width = wider
    network = nn.Sequential(*layers, nn.Linear(width, 1)).to(inputs.device)
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
    """The cross-entropy, in which members and others have the same weight over all."""
    members = all_truth.mean()
    weights = (0.5 / members).where(truth == 1, 0.5 / (1 - members))
    return binary_cross_entropy_with_logits(network(inputs)[:, 0], truth, weights)
