"""A membership attack on synthetic features by the means of their classes.

With features of a frozen network an attacker knows how an image, and its class, look without the
hospital: it has references. If image z of class c was in the training set, it pulled the mean m_c
of the synthetic features away from the mean r_c of the references, towards itself (Homer et al.,
PLoS Genetics 4(8), e1000167, 2008). For normal distributions the best score is linear (Fisher):

    (z − r_c)ᵀ w_c / √(w_cᵀ S w_c),    w_c = S⁻¹ (m_c − r_c)

S is the covariance of references within classes, shrunk towards that of synthetic features, and
then towards its mean variance. Features of a network are correlated. Synthetic features are not,
since the samplers draw each number by itself. Scores of all classes have the same scale. An image
has the score 0 if its class has no reference or no synthetic features.

Synthetic features of gan/noised_features.py are in a subspace that everybody knows. The attacker
looks at all features there, scaled to length 1.

Shapes: `N` images, `n` synthetic ones, `d` features.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from audit.buffer import Trial, trial_of_halves
from audit.membership import Scores
from gan.noised_features import subspace
from learning.samples import Samples

CLASS_MEANS = "class means"
SHRINKAGE = 0.1  # of the covariance of references, each time


def class_means_trial(
    members: Samples, halves: tuple[Samples, Samples], synthetic: Samples, reach: float
) -> Trial:
    """The attack on synthetic features.

    `members` are training features in a random order. Both `halves` hold some of the other
    features. All are of different patients. `reach` as in `reach_of`.
    """
    rows = torch.arange(len(members), device=members.labels.device)
    asked = (members[rows[::2]], members[rows[1::2]])
    return trial_of_halves(CLASS_MEANS, scores, asked, halves, synthetic, reach)


def scores(images: Samples, references: Samples, synthetic: Samples) -> Scores:
    """Scores [N] of images."""
    vectors, drawn, known = _project(
        *(each.images.flatten(1).double() for each in (images, synthetic, references))
    )
    of_drawn = _covariance(drawn, synthetic.labels)
    spread = _covariance(known, references.labels).lerp(of_drawn, SHRINKAGE)
    # Without a floor there would be no inverse if each class has one feature of either kind.
    floor = SHRINKAGE * spread.diagonal().mean().clamp_min(1e-12)
    spread = (1 - SHRINKAGE) * spread
    spread.diagonal().add_(floor)
    found = np.zeros(len(images))
    for label in images.labels.unique():
        mine, others = synthetic.labels == label, references.labels == label
        if not (mine.any() and others.any()):
            continue
        middle = known[others].mean(dim=0)
        shift = drawn[mine].mean(dim=0) - middle
        weights = torch.linalg.solve(spread, shift)
        rows = images.labels == label
        # Without a shift there is nothing to score by: all scores are 0.
        scale = (shift @ weights).clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        score = (vectors[rows] - middle) @ weights / scale
        found[rows.cpu().numpy()] = score.cpu().numpy()
    return found


def _covariance(vectors: Tensor, labels: Tensor) -> Tensor:
    """The covariance [d, d] within classes of vectors [N, d], N > 0."""
    apart = vectors.clone()
    for label in labels.unique():
        apart[labels == label] -= vectors[labels == label].mean(dim=0)
    return apart.T @ apart / len(apart)


def _project(images: Tensor, synthetic: Tensor, references: Tensor) -> tuple[Tensor, ...]:
    """Vectors [., d], in the subspace of gan/noised_features.py if the synthetic ones are in it."""
    directions = torch.from_numpy(subspace(synthetic.shape[1])).to(synthetic.device)  # [D, d]
    if (synthetic @ directions.T).square().sum() < 0.999 * synthetic.square().sum():
        return images, synthetic, references
    return tuple(normalize(each @ directions.T) for each in (images, synthetic, references))
