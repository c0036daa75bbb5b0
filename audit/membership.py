"""What the scores of a membership attack are worth, beside a control in which nothing can be told.

An attack gives an image a score, the higher, the likelier something was learnt from it: buffer.py
and model.py have such attacks. What it is worth is told as Carlini et al. (arXiv:2112.03570) have
it: the true positive rate at a false positive rate of 1 %, beside AUC and accuracy. What it has
above its control, of all that could be told, is its leak. Intervals are at 95 %.

Shapes: `M` members, from which something was learnt, `O` others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, rankdata
from sklearn.metrics import roc_auc_score

from learning.intervals import Estimate, auroc_error, combine, wilson

FALSE_POSITIVES = 0.01  # the rate at which true positives are counted

Scores = NDArray[np.float64]


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


def success(members: Scores, others: Scores, threshold: float) -> Success:
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
        combine((0.5, 0.5), (told, spared), None),
        clopper_pearson(int((members > passing).sum()), len(members)),
        clopper_pearson(int((others > passing).sum()), len(others)),
    )


def strictest(others: Scores, rate: float = FALSE_POSITIVES) -> float:
    """The lowest of the scores [O] of others that at most a share `rate` of them are above."""
    ordered = np.sort(others)
    return float(ordered[len(ordered) - 1 - int(rate * len(ordered))])


def auc(members: Scores, others: Scores) -> Estimate:
    """The area under the ROC curve of scores [M] and [O], with its interval."""
    truth = np.repeat((1, 0), (len(members), len(others)))
    area = float(roc_auc_score(truth, np.concatenate((members, others))))
    m, n = len(members), len(others)
    error = auroc_error(area, m, n)
    # Wilson's interval for as many images as have this error: it does not leave [0, 1].
    return wilson(area, area * (1 - area) / error**2 if error else min(m, n))


def clopper_pearson(hits: int, number: int, level: float = 0.95) -> Estimate:
    """A share of hits with its exact interval."""
    exact = binomtest(hits, number).proportion_ci(level, "exact")
    return Estimate(hits / number, float(exact.low), float(exact.high))


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


def contrast(members: Scores, others: Scores, seed: int = 0, draws: int = 200) -> Contrast:
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
        combine((1.0, -1.0), pair, None)
        for pair in zip((worth.auc, worth.tpr), controls, strict=True)
    ]
    return Contrast(worth, *controls, *excesses)


def control(scores: Scores, few: int, seed: int = 0, draws: int = 200) -> tuple[Estimate, Estimate]:
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
