"""The success of a membership attack, beside a control in which there is nothing to find.

An attack gives an image a score: a high score means that the image was likely a training image.
Success is measured as by Carlini et al. (arXiv:2112.03570): the true positive rate at a false
positive rate of 1 %, beside AUC and accuracy. The leak is the excess over the control, as a share
of the largest possible excess. Intervals are at 95 %.

Shapes: `M` members, which are training images, `O` others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, rankdata
from sklearn.metrics import roc_auc_score

from learning.intervals import Figure, auroc_error, combine, wilson

FALSE_POSITIVES = 0.01  # the rate at which true positives are counted

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Success:
    """The success of an attack."""

    members: int  # number of scored members
    others: int  # number of scored others
    auc: Figure  # of members against others; error by Hanley and McNeil (Radiology 143, 1982)
    tpr: Figure  # share of members above a threshold that at most 1 % of others exceed
    fpr: Figure  # share of others above this threshold


@dataclass(frozen=True)
class Decided(Success):
    """The success of an attack that decides on each image by itself."""

    accuracy: Figure  # the mean of the shares of members and of others with the right answer


def accuracy(members: Scores, others: Scores, threshold: float) -> Figure:
    """The mean of the shares of members [M] and of others [O] with the right answer.

    A score at or above `threshold`, which comes from other data, means a member.
    """
    found = clopper_pearson(int((members >= threshold).sum()), len(members))
    spared = clopper_pearson(int((others < threshold).sum()), len(others))
    return combine((0.5, 0.5), (found, spared))


def success(members: Scores, others: Scores) -> Success:
    """The success of an attack, from scores [M] of members and [O] of others, M, O > 0."""
    passing = strictest(others)
    return Success(
        len(members),
        len(others),
        auc(members, others),
        clopper_pearson(int((members > passing).sum()), len(members)),
        clopper_pearson(int((others > passing).sum()), len(others)),
    )


def strictest(others: Scores) -> float:
    """The lowest score [O] of others that at most a share `FALSE_POSITIVES` of them exceed."""
    ordered = np.sort(others)
    return float(ordered[len(ordered) - 1 - int(FALSE_POSITIVES * len(ordered))])


def auc(members: Scores, others: Scores) -> Figure:
    """The area under the ROC curve of scores [M] and [O], with its interval."""
    truth = np.repeat((1, 0), (len(members), len(others)))
    area = float(roc_auc_score(truth, np.concatenate((members, others))))
    m, n = len(members), len(others)
    error = auroc_error(area, m, n)
    # Wilson's interval for the number of images with this error: it stays in [0, 1].
    return wilson(area, area * (1 - area) / error**2 if error else min(m, n))


def clopper_pearson(hits: int, number: int, level: float = 0.95) -> Figure:
    """A share of hits, with its exact interval (Clopper and Pearson, Biometrika 26, 1934)."""
    exact = binomtest(hits, number).proportion_ci(level, "exact")
    return Figure(value=hits / number, low=float(exact.low), high=float(exact.high))


@dataclass(frozen=True)
class Contrast:
    """The success of an attack beside its negative control, where there is nothing to find."""

    attack: Success
    # Of members against members, over many random splits with as many others as in the attack: the
    # mean, and the range of 95 % of the splits
    control_auc: Figure
    control_tpr: Figure  # its mean is above 1 % if others are few
    excess_auc: Figure  # AUC of the attack minus that of its control
    excess_tpr: Figure

    def leaks(self, reach: float = 1.0) -> tuple[Figure, Figure]:
        """The excesses of AUC and of true positive rate, as shares of the largest possible ones.

        `reach` is the share of members that an attack could find at all.
        """
        most = (0.5 * reach, (1 - FALSE_POSITIVES) * reach)
        by_auc, by_tpr = (
            Figure(
                value=min(1.0, each["value"] / whole),
                low=min(1.0, each["low"] / whole),
                high=min(1.0, each["high"] / whole),
            )
            for each, whole in zip((self.excess_auc, self.excess_tpr), most, strict=True)
        )
        return by_auc, by_tpr

    def leak(self) -> Figure:
        """The leak with the higher lower end: 0 is nothing, 1 is the largest possible excess."""
        return max(self.leaks(), key=lambda each: each["low"])


def exceeds(leak: Figure, limit: float) -> bool:
    """Whether a leak is certain, and may be above the limit: doubt counts against release."""
    return leak["low"] > 0 and leak["high"] > limit


def contrast(members: Scores, others: Scores, draws: int = 200) -> Contrast:
    """Compare the success of an attack with its negative control, over `draws` random splits.

    Scores are of members [M], M > 1, and of others [O], O > 0.
    """
    worth = success(members, others)
    controls = _control(members, min(len(others), len(members) // 2), draws)
    excesses = [
        combine((1.0, -1.0), pair) for pair in zip((worth.auc, worth.tpr), controls, strict=True)
    ]
    return Contrast(worth, *controls, *excesses)


def _control(scores: Scores, few: int, draws: int) -> tuple[Figure, Figure]:
    """AUC and true positive rate of an attack on images of one kind, as `Contrast` has them.

    In each of `draws` random splits of the scores [N], `few` images count as others, 0 < few < N.
    """
    rng = np.random.default_rng(0)
    # Ties are broken at random: an equal score of all images says less about the next image.
    ranks = rankdata(rng.permutation(scores), method="ordinal")
    areas, rates = np.empty(draws), np.empty(draws)
    for k in range(draws):
        drawn = rng.permutation(ranks)
        alike, rest = drawn[:few], drawn[few:]
        # Mann and Whitney's count of pairs in the right order.
        areas[k] = (rest.sum() - len(rest) * (len(rest) + 1) / 2) / (len(rest) * few)
        rates[k] = (rest > strictest(alike)).mean()
    return _middle(areas), _middle(rates)


def _middle(drawn: Scores) -> Figure:
    low, high = map(float, np.quantile(drawn, (0.025, 0.975)))
    return Figure(value=float(drawn.mean()), low=low, high=high)
