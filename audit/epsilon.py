"""The lower bound on ε that an attack proves, with its confidence.

Under (ε, δ)-differential privacy every attack that tries to tell data with a record from data
without it obeys (Kairouz, Oh and Viswanath, ICML 2015)

    TPR ≤ exp(ε) FPR + δ        and        1 - FPR ≤ exp(ε) (1 - TPR) + δ.

So measured rates bound ε from below (Jagielski, Ullman and Oprea, NeurIPS 2020, arXiv:2006.07709;
Nasr et al., IEEE S&P 2021, arXiv:2101.04535). A bound above the claimed ε refutes the claim.
"""

from math import inf, log

from audit.membership import clopper_pearson


def prove_epsilon(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """The largest ε that an attack proves to be reached or exceeded.

    The rates are replaced by the ends of their Clopper-Pearson intervals (Biometrika 26, 1934),
    each of which fails with probability (1 - confidence) / 2. Trials must be independent, such as
    releases of a mechanism with and without a record. The attack's threshold must not depend on the
    trials with the record. It may be the k-th highest score of those without it, with k fixed
    before, and k - 1 hits: the rate above it has a beta distribution, whose quantiles are the upper
    ends of Clopper and Pearson.

    Args:
        true_positives: Trials with the record in which the attack says that it is there.
        positives: Trials with the record.
        false_positives: Trials without it in which the attack says that it is there.
        negatives: Trials without it.
        delta: δ, in [0, 1).
        confidence: Probability that ε is at least the returned value, in (0, 1).
    """
    tpr = clopper_pearson(true_positives, positives, confidence)["low"]  # no more than the true one
    fpr = clopper_pearson(false_positives, negatives, confidence)["high"]  # no less
    return max(0.0, _log_ratio(tpr - delta, fpr), _log_ratio(1 - fpr - delta, 1 - tpr))


def _log_ratio(numerator: float, denominator: float) -> float:
    return log(numerator / denominator) if numerator > 0 else -inf
