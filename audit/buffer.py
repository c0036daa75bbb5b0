"""Membership attacks on a buffer: which real images was the generator trained on?

The attacker has the synthetic images, images of the same kind outside of the training set (the
references), and an image in question. A high score means that the image is likely a member:

- by the nearest neighbour (Hilprecht et al., PETS 2019; Chen et al., "GAN-Leaks", CCS 2020,
  arXiv:1909.03935, Eq. 10, with references in place of their reference model): the log of the
  distance to the nearest reference, minus the log of the distance to the nearest synthetic image;
- by the density (van Breugel et al., "Membership inference attacks against synthetic data through
  overfitting detection", DOMIAS, AISTATS 2023, arXiv:2302.12580, Eq. 2): the log of the density of
  synthetic images there, minus the log of the density of references;
- by shadows (Carlini et al., "Membership inference attacks from first principles", LiRA,
  arXiv:2112.03570, Eq. 4): the attacker trains generators of its own, half of them with the image,
  and compares the distances to the nearest synthetic image. It knows all other images.

Images are compared as small ones of mean 0 and length 1, up to their sign. So brightness, contrast
and inversion do not matter. Densities are kernel estimates in the space of the first principal
components.

Others, which are images outside of the training set, come in two halves. One attacker has the first
half as references, and scores the second half and half of the members. A second attacker has the
halves exchanged. The leak of an attack is its excess over a negative control (members against
members), as a share of the excess of the best attack. The best attack knows each member that a
buffer of this size can copy, and guesses the rest.

docs/privacy/buffers.md has the decision. The AUC needs some thousand test images for it, so it can
refuse a buffer but lets none pass. The positive control is the same buffer with near-copies of
members in place of some of its images.

Shapes: `N` images, `S` synthetic ones, `R` references, `C` channels, `H, W` pixels, `D` numbers of
a small image, `K` shadows.
"""

from collections.abc import Callable, Sized
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.neighbors import KernelDensity
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

from audit import LEAST
from audit.epsilon import prove_epsilon
from audit.membership import Contrast, Scores, contrast, exceeds
from audit.report import Report
from audit.search import orientations
from learning.intervals import Figure
from learning.samples import one_of_each

SIDE = 16  # most pixels of a small image, each way
COMPONENTS = 8  # most principal components: more make a kernel estimate of few images flat
COPY_NOISE = 20.0  # standard deviation of a near-copy's noise, in grey levels
FEATURE_NOISE = 0.3  # length of the noise of a near-copy of features, which have length 1
NEAREST = 1e-6  # the least distance; a nearer image is a copy
BLOCK = 4096  # images that are compared at once
COPIED = (0.1, 0.25, 0.5)  # shares of near-copies in the positive control
NO_LIMIT = 1.0  # the limit at which nothing is attacked
SHADOWS = "shadow generators"

Images = TypeVar("Images", bound=Sized)  # in any form


@dataclass(frozen=True)
class Trial:
    """One attack on the buffer."""

    attack: str  # its name
    worth: Contrast
    leak_auc: Figure  # by the excess of its AUC
    leak_tpr: Figure  # by the excess of its true positive rate at 1 % false positives


@dataclass(frozen=True)
class Bound:
    """A sampler's claim of ε, and the lower bound that attacks prove."""

    epsilon: float
    delta: float
    # With 95 % confidence (epsilon.py), if the buffer's answers about images are independent
    audited: float

    @property
    def refuted(self) -> bool:
        """Whether the attacks prove more than the claim allows."""
        return self.audited > self.epsilon


@dataclass(frozen=True)
class Attacked:
    """The results of the attacks on a buffer."""

    limit: float  # the most that may leak (`release.max-membership`)
    members: int  # scored training images of the sampler, each of another patient
    others: int  # scored images outside of the training set, each of another patient
    references: int  # images of the smaller half, which an attacker knows
    synthetic: int  # images of the buffer
    trials: tuple[Trial, ...] = ()  # empty if there are too few images, or there is no limit
    noticed: float | None = None  # the least share of near-copies that is noticed; None if none is
    bound: Bound | None = None  # None without a claim or without trials

    @property
    def leak(self) -> Figure | None:
        """The leak that decides; None without trials. One of an AUC can only refuse a buffer."""
        leaks = [each.leak_tpr for each in self.trials]
        leaks += [each.leak_auc for each in self.trials if exceeds(each.leak_auc, self.limit)]
        return max(leaks, key=lambda x: (exceeds(x, self.limit), x["high"]), default=None)

    @property
    def leaks(self) -> bool:
        """Whether a leak is certain, and may be above the limit."""
        return self.leak is not None and exceeds(self.leak, self.limit)

    @property
    def verdict(self) -> str:
        """One of "refused", "passed", "too small to tell" and "not attacked"."""
        if self.limit >= NO_LIMIT:
            return "not attacked"
        if self.leaks or (self.bound and self.bound.refuted):
            return "refused"
        if self.leak is None or self.noticed is None or self.leak["high"] > self.limit:
            return "too small to tell"
        return "passed"

    def bound_claim(self, epsilon: float, delta: float) -> "Attacked":
        """These results, with a bound on the ε that the attacks prove, for a claim of ε and δ."""
        if not self.trials:
            return self
        proven = [
            prove_epsilon(  # the threshold is an order statistic of the others, as it may be
                round(worth.tpr["value"] * worth.members),
                worth.members,
                round(worth.fpr["value"] * worth.others),
                worth.others,
                delta,
                confidence=1 - 0.05 / len(self.trials),
            )
            for worth in (trial.worth.attack for trial in self.trials)
        ]
        return replace(self, bound=Bound(epsilon, delta, max(proven)))

    def report(self, untested: bool) -> Report:
        """The report; `untested`: a buffer may leave for which the attacks give no decision."""
        refusal = ""
        if self.leaks:
            refusal = (
                "An attack on them reveals training images of the generative model "
                "(release.max-membership)."
            )
        elif self.bound and self.bound.refuted:
            refusal = "An attack on them reveals more than their guarantee (ε) allows."
        elif self.verdict == "too small to tell" and not untested:
            refusal = (
                "The attacks are too weak here to exclude a leak (usually because of few images), "
                "and release.untested (or the policy) does not allow such a release."
            )
        leak = self.leak
        evidence = {**asdict(self), "leak": leak, "verdict": self.verdict}
        return Report(refusal=refusal, leaks=(leak,) if leak else (), evidence=evidence)


def neighbour_scores(images: Tensor, references: Tensor, synthetic: Tensor) -> Scores:
    """Scores [N] of images uint8 [N, C, H, W] by the nearest neighbour."""
    return nearness(images, synthetic) - nearness(images, references)


def density_scores(images: Tensor, references: Tensor, synthetic: Tensor) -> Scores:
    """Scores [N] of images uint8 [N, C, H, W] by the ratio of densities."""
    asked, *known = (small(each).cpu().numpy() for each in (images, synthetic, references))
    few = min(COMPONENTS, len(synthetic) - 1, len(references) - 1, asked.shape[1])
    space = PCA(few, whiten=True, random_state=0).fit(np.concatenate(known))
    places, *others = (np.asarray(space.transform(each), dtype=float) for each in (asked, *known))
    of_synthetic, of_references = (
        # Scott's rule: the bandwidth follows from the numbers of images and dimensions.
        KernelDensity(bandwidth="scott").fit(each).score_samples(places)
        for each in others
    )
    return np.asarray(of_synthetic - of_references)


ATTACKS = {"nearest neighbour": neighbour_scores, "density": density_scores}


def attack_buffer(
    members: Tensor,
    asked: Tensor,
    halves: tuple[Tensor, Tensor],
    synthetic: Tensor,
    limit: float,
    seed: int,
) -> Attacked:
    """Attack synthetic images uint8 [S, C, H, W], of which at most `limit` may leak.

    Args:
        members: The training images of the sampler, uint8 [N, C, H, W].
        asked: The members that are scored, one of each patient, in a random order, int64 [M].
        halves: The others, one of each patient, in two halves.
        synthetic: The synthetic images.
        limit: The most that may leak.
        seed: That of the positive control.
    """
    others, reach = sum(map(len, halves)), reach_of(len(synthetic), len(members))
    sizes = (len(asked), others, min(map(len, halves)), len(synthetic))
    if limit >= NO_LIMIT or min(sizes) < LEAST:
        return Attacked(limit, *sizes)

    rows = asked.to(members.device)
    scored = (members[rows[::2]], members[rows[1::2]])

    def attack_both(images: Tensor) -> tuple[Trial, ...]:
        return tuple(
            trial_of_halves(*each, scored, halves, images, reach) for each in ATTACKS.items()
        )

    # The leak of a control is 0.5 or less, so a looser limit could not notice it.
    tight = min(limit, COPIED[-1] / 2)
    mixed = ((s, attack_both(mix_copies(synthetic, members, s, seed))) for s in COPIED)
    noticed = next((s for s, found in mixed if Attacked(tight, *sizes, found).leaks), None)
    return Attacked(limit, *sizes, attack_both(synthetic), noticed)


def mix_copies(synthetic: Tensor, members: Tensor, share: float, seed: int) -> Tensor:
    """Synthetic images with near-copies of members in place of a share of them."""
    count = round(share * len(synthetic))
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(members), generator=rng)
    rows = order.repeat(-(-count // len(order)))[:count].to(members.device)
    return torch.cat((draw_copies(members[rows], seed), synthetic[count:]))


def shadow_trial(
    everyone: Tensor,
    patients: NDArray[np.int64],
    synthetic: Tensor,
    count: int,
    draw: Callable[[int, NDArray[np.bool_]], Tensor],
) -> Trial:
    """The attack with shadow generators.

    A shadow is trained on the images of half of all patients, and the next one on the others.

    Args:
        everyone: uint8 [N, C, H, W], the members first, then the others, one of each patient.
        patients: The patient of each member.
        synthetic: uint8 [S, C, H, W].
        count: The number of shadows, even.
        draw: Trains shadow k, from 0, on the images chosen by bool [N], and draws its images.
    """
    members, others = len(patients), len(everyone) - len(patients)
    names, of_members = np.unique(patients, return_inverse=True)
    owners = np.concatenate((of_members, len(names) + np.arange(others)))
    number = len(names) + others
    near, learnt = [], []
    for k in range(count):
        half = (np.random.default_rng(k // 2).permutation(number)[owners] + k) % 2 == 0
        near.append(nearness(everyone, draw(k, half)))
        learnt.append(half)
    target = nearness(everyone, synthetic)
    scores = shadow_scores(target, np.stack(near), np.stack(learnt))
    asked = one_of_each(patients).sort().values.numpy()
    reach = reach_of(len(synthetic), members)
    return trial_of(SHADOWS, scores[asked], scores[members:], reach)


def trial_of_halves(
    name: str,
    score: Callable[[Images, Images, Images], Scores],
    members: tuple[Images, Images],
    others: tuple[Images, Images],
    synthetic: Images,
    reach: float,
) -> Trial:
    """The trial of an attack; each half of the others is once the references, once scored."""
    of_members, of_others = (
        np.concatenate([score(*each, synthetic) for each in zip(asked, others, strict=True)])
        for asked in (members, others[::-1])
    )
    return trial_of(name, of_members, of_others, reach)


def reach_of(synthetic: int, members: int) -> float:
    """The share of so many members that a buffer of so many synthetic images can copy."""
    return min(1.0, synthetic / members)


def trial_of(name: str, members: Scores, others: Scores, reach: float) -> Trial:
    """The trial of an attack, from its scores."""
    worth = contrast(members, others)
    return Trial(name, worth, *worth.leaks(reach))


def nearness(images: Tensor, synthetic: Tensor) -> Scores:
    """Minus the log distance [N] of each image uint8 [N, C, H, W] to the nearest synthetic one."""
    known = small(synthetic)
    distances = torch.stack([_nearest(small(each), known) for each in orientations(images)]).amin(0)
    return np.asarray(-distances.log().cpu().numpy(), dtype=float)


def shadow_scores(target: Scores, shadows: Scores, learnt: NDArray[np.bool_]) -> Scores:
    """Scores [N]: the log of the likelihood ratio of two normal distributions.

    Shadows are few, so all images have one variance (section VI.C of the paper).

    Args:
        target: `nearness` [N] to the synthetic images in question.
        shadows: `nearness` to the images of each shadow [K, N].
        learnt: Whether the shadow was trained on the image [K, N]; some shadows were, some not.
    """
    within = np.average(shadows, axis=0, weights=learnt)
    without = np.average(shadows, axis=0, weights=~learnt)
    spread = float((shadows - np.where(learnt, within, without)).var()) or 1.0
    return np.asarray(((target - without) ** 2 - (target - within) ** 2) / (2 * spread))


def small(images: Tensor) -> Tensor:
    """Vectors [N, D] of length 1 and mean 0 of images uint8 [N, C, H, W]; float32."""
    sides = (min(SIDE, images.shape[2]), min(SIDE, images.shape[3]))
    vectors = torch.cat(
        [adaptive_avg_pool2d(each.float(), sides).flatten(1) for each in images.split(BLOCK)]
    )
    return normalize(vectors - vectors.mean(dim=1, keepdim=True))


def draw_copies(images: Tensor, seed: int) -> Tensor:
    """Near-copies of images uint8 [N, C, H, W], as a leaking generator: mirrored, with noise.

    Features float32 [N, d, 1, 1] get noise alone.
    """
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(images.shape, generator=rng)
    if images.is_floating_point():
        return normalize(images + FEATURE_NOISE * normalize(noise).to(images.device))
    noise = COPY_NOISE * noise
    mirrored = images.flip(3).float() + noise.to(images.device)
    return mirrored.round().clamp(0, 255).to(torch.uint8)


def _nearest(vectors: Tensor, known: Tensor) -> Tensor:
    """The distance [N] of each vector of length 1 to the nearest known one, up to the sign."""
    alike = torch.cat([(each @ known.T).abs().amax(1) for each in vectors.split(BLOCK)])
    return (2 - 2 * alike).clamp(min=NEAREST**2).sqrt()  # ‖x − y‖² = 2 − 2xy
