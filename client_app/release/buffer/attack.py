"""The attack on a buffer before it leaves: does it tell which images its sampler learnt from?

Members are the images that the sampler learnt from. Others are the hospital's test images of the
same classes, in two halves, with each patient in one. An attacker has one half as references, and
is asked about the other and about half of the members; a second one has it the other way round.
What decides is the excess of an attack over its negative control, members against members, as a
share of the excess of an attack that tells each member that a buffer of this size can be a copy of,
and guesses at the rest: its leak. 0 is nothing, 1 is a buffer of copies.

A buffer is refused if a leak is sure (its interval is above 0) and may be above the limit. It
passes if no true positive rate may be above the limit. Where images are so few that a rate may be
above it by chance, nobody can tell. The AUC, which asks about all images at once, needs some
thousand test images for such a decision: it refuses, and lets nothing pass.

The positive control is the same buffer with near-copies of members in place of some of its images.
If not even half are noticed, the hospital is too small to tell anything by an attack, too.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.release.buffer.job import Job, some
from client_app.release.buffer.registry import Sampler
from gan.audited_epsilon import audited_epsilon
from gan.membership import (
    ATTACKS,
    LEAST,
    SHADOWS,
    Attacker,
    Scores,
    by_shadows,
    near_copies,
    nearness,
)
from gan.synthesis import balanced_labels
from learning.intervals import Estimate
from learning.membership import Contrast, contrast, control, exceeds
from learning.samples import Samples, joined

COPIED = (0.1, 0.25, 0.5)  # shares of near-copies in the positive control
MOST_REFERENCES = 500  # test images of either half: enough to compare with
NO_LIMIT = 1.0  # of `release.max-membership`: nothing is attacked


@dataclass(frozen=True)
class Trial:
    """One attack on the buffer.

    Attributes:
        attack: Its name.
        worth: What it tells, beside its negative control.
        held_out_auc: Of others against others, where it can tell nothing either.
        held_out_tpr: Likewise.
        leak_auc: By the excess of its AUC.
        leak_tpr: By the excess of its true positive rate at 1 % false positives.
    """

    attack: str
    worth: Contrast
    held_out_auc: Estimate
    held_out_tpr: Estimate
    leak_auc: Estimate
    leak_tpr: Estimate


@dataclass(frozen=True)
class Bound:
    """What a sampler claims, and what attacks prove.

    Attributes:
        epsilon: ε of the claim.
        delta: δ of the claim.
        audited: The ε that the attacks prove, with 95 % confidence (gan.audited_epsilon), as if the
            buffer told of each image on its own.
    """

    epsilon: float
    delta: float
    audited: float

    @property
    def refuted(self) -> bool:
        """Whether the attacks prove more than the claim allows."""
        return self.audited > self.epsilon


# What the log says of a verdict.
SAID = {
    "passed": "attacks on its synthetic images tell less than the limit of who was learnt from",
    "refused": "attacks on its synthetic images tell who was learnt from, perhaps more than the "
    "limit",
    "too small to tell": "it has too few images to tell by attacks who was learnt from",
    "not attacked": "its synthetic images were not attacked",
}


@dataclass(frozen=True)
class Attacked:
    """What attacks on a buffer found.

    Attributes:
        limit: The most that may leak (`release.max-membership`).
        members: Images that the sampler learnt from.
        others: Images that it did not learn from, as many as were asked about.
        references: Images of the smaller half, which an attacker knows.
        synthetic: Images of the buffer.
        trials: One for each attack; none if there are too few images, or there is no limit.
        leak: The one that decides (`_most`); None without trials.
        noticed: The least share of near-copies that is noticed; None if none is.
        bound: What the attacks say of a guarantee; None if none is claimed, or there are no trials.
    """

    limit: float
    members: int
    others: int
    references: int
    synthetic: int
    trials: tuple[Trial, ...] = ()
    leak: Estimate | None = None
    noticed: float | None = None
    bound: Bound | None = None

    @property
    def leaks(self) -> bool:
        """Whether there is a leak for sure, and it may be above the limit."""
        return self.leak is not None and exceeds(self.leak, self.limit)

    @property
    def verdict(self) -> str:
        """What it comes to, in a word: "refused", "passed", "too small to tell", "not attacked"."""
        if self.limit >= NO_LIMIT:
            return "not attacked"
        if self.leaks or (self.bound and self.bound.refuted):
            return "refused"
        if self.leak is None or self.noticed is None or self.leak.high > self.limit:
            return "too small to tell"
        return "passed"

    def as_json(self) -> dict[str, Any]:
        """All of it, for the dossier."""
        return {**asdict(self), "verdict": self.verdict}


def attack(
    job: Job, samples: Samples, figures: Mapping[str, float], train: Callable[[Job], Sampler]
) -> Attacked:
    """Attack a buffer before it leaves.

    Args:
        job: Whose buffer it is.
        samples: The buffer.
        figures: Of its sampler: with `gan-epsilon` and `gan-delta` if it claims a guarantee.
        train: Makes such a sampler.

    Raises:
        ReleaseError: An attack tells the training images by it, or tells more than its guarantee
            allows; or no attack can tell here, and the settings do not allow that.
    """
    release = job.hospital.settings.release
    members = some(job.learnt, len(job.learnt)).images  # in any order but that of their classes
    limit = release.max_membership
    first, second = held_out(job)
    found = attacked(members, (first.images, second.images), samples.images, limit, job.seed)
    # A shadow of a sampler with a guarantee would spend of it.
    if found.trials and release.shadow_generators and "gan-epsilon" not in figures:
        trials = (*found.trials, shadowed(job, samples, joined((first, second)), train))
        found = replace(found, trials=trials, leak=_most(trials, limit))
    found = replace(found, bound=_bound(found, figures))
    said = f"{job.hospital.name}: {SAID[found.verdict]}"
    logging.getLogger("flwr").info("%s%s", said, _figures(found))
    if found.leaks:
        raise job.refusal(
            "An attack tells from them which images the generative model has learnt from "
            "(release.max-membership)."
        )
    if found.bound and found.bound.refuted:
        raise job.refusal("An attack tells more from them than their guarantee (ε) allows.")
    if found.verdict == "too small to tell" and not release.untested:
        raise job.refusal(
            "The hospital has too few images for an attack to tell whether they leak, and "
            "release.untested (or the policy) does not allow such a release."
        )
    return found


def attacked(
    members: Tensor, halves: tuple[Tensor, Tensor], synthetic: Tensor, limit: float, seed: int
) -> Attacked:
    """What the attacks find in synthetic images.

    Args:
        members: uint8 [N, C, H, W], in a random order.
        halves: Of the others.
        synthetic: uint8 [S, C, H, W].
        limit: The most that may leak.
        seed: Of the positive control.
    """
    others = sum(map(len, halves))
    sizes = (len(members), others, min(map(len, halves)), len(synthetic))
    if limit >= NO_LIMIT or min(sizes) < LEAST:
        return Attacked(limit, *sizes)

    def tried(images: Tensor, noticed: float | None = None) -> Attacked:
        trials = _trials(images, members, halves)
        return Attacked(limit, *sizes, trials, _most(trials, limit), noticed)

    controls = (s for s in COPIED if tried(leaky(synthetic, members, s, seed)).leaks)
    return tried(synthetic, noticed=next(controls, None))


def _bound(found: Attacked, figures: Mapping[str, float]) -> Bound | None:
    if "gan-epsilon" not in figures or not found.trials:
        return None
    delta = figures["gan-delta"]
    proven = [
        audited_epsilon(
            round(worth.tpr.value * worth.members),
            worth.members,
            round(worth.fpr.value * worth.others),
            worth.others,
            delta,
            confidence=1 - 0.05 / len(found.trials),
        )
        for worth in (trial.worth.attack for trial in found.trials)
    ]
    return Bound(figures["gan-epsilon"], delta, max(proven))


def leaky(synthetic: Tensor, members: Tensor, share: float, seed: int) -> Tensor:
    """Synthetic images, of which a share is replaced by near-copies of members."""
    count = round(share * len(synthetic))
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(members), generator=rng)
    rows = order.repeat(-(-count // len(order)))[:count].to(members.device)
    return torch.cat((near_copies(members[rows], seed), synthetic[count:]))


def shadowed(job: Job, samples: Samples, others: Samples, train: Callable[[Job], Sampler]) -> Trial:
    """The attack with generators of its own; they are kept beside the hospital's.

    Each learns from half of members and others, and the next one from the other half.

    Args:
        job: Whose buffer it is.
        samples: The buffer.
        others: Images that its sampler did not learn from.
        train: Makes such a sampler.

    Raises:
        TimeoutError: The deadline has passed; shadows that are trained are kept.
    """
    everyone, count = joined((job.learnt, others)), len(job.learnt)
    near, learnt = [], []
    for k in range(job.hospital.settings.release.shadow_generators):
        rng = np.random.default_rng(k // 2)
        half = (rng.permutation(len(everyone)) + k) % 2 == 0
        own = everyone[torch.from_numpy(half)]
        mark = f"{job.fingerprint}-shadow-{k}"
        shadow = replace(job, learnt=own, fingerprint=mark, folder=job.folder / f"shadow-{k}")
        labels = balanced_labels(len(samples), own.labels)
        drawn = train(shadow).render(labels, job.seed)
        near.append(nearness(everyone.images, drawn))
        learnt.append(half)
    target = nearness(everyone.images, samples.images)
    scores = by_shadows(target, np.stack(near), np.stack(learnt))
    return _trial(SHADOWS, scores[:count], scores[count:], len(samples))


def held_out(job: Job) -> tuple[Samples, Samples]:
    """Test images of classes that were learnt in two halves, with each patient in one.

    Copies of training images are left out: they are members, whatever they are called.
    """
    data = job.hospital.data
    test = Samples(data.test.images, data.test.labels)
    known = {image.cpu().numpy().tobytes() for image in job.train.images}
    fresh = torch.tensor([image.cpu().numpy().tobytes() not in known for image in test.images])
    rows = (torch.isin(test.labels.cpu(), job.learnt.labels.unique().cpu()) & fresh).nonzero()
    rng = np.random.default_rng(0)
    owners, patients = np.unique(data.test_patients[rows[:, 0].numpy()], return_inverse=True)
    halves = rng.permutation(len(owners))[patients] % 2
    of_half = [rows[:, 0][torch.from_numpy(halves == k)] for k in (0, 1)]
    chosen = [each[rng.permutation(len(each))[:MOST_REFERENCES]] for each in of_half]
    first, second = (test[each.to(test.labels.device)] for each in chosen)
    return first, second


def _trials(synthetic: Tensor, members: Tensor, halves: tuple[Tensor, Tensor]) -> tuple[Trial, ...]:
    """Each attack, by an attacker who has one half as references and is asked about the other."""
    attackers = [Attacker(synthetic, references) for references in halves]
    trials = []
    for name, score in ATTACKS.items():
        of_members, of_others = (
            np.concatenate([score(*each) for each in zip(attackers, asked, strict=True)])
            for asked in ((members[::2], members[1::2]), halves[::-1])
        )
        trials.append(_trial(name, of_members, of_others, len(synthetic)))
    return tuple(trials)


def _trial(name: str, members: Scores, others: Scores, synthetic: int) -> Trial:
    """What scores are worth, of so many synthetic images."""
    reach = min(1.0, synthetic / len(members))  # the share of members that they can copy
    worth = contrast(members, others)
    return Trial(name, worth, *control(others, len(others) // 2), *worth.leaks(reach))


def _most(trials: Sequence[Trial], limit: float) -> Estimate:
    """The leak that decides: one that is refused, else that of a true positive rate.

    Of several the one that may be largest.
    """
    leaks = [each.leak_tpr for each in trials]
    leaks += [each.leak_auc for each in trials if exceeds(each.leak_auc, limit)]
    return max(leaks, key=lambda each: (exceeds(each, limit), each.high))


def _figures(found: Attacked) -> str:
    """For the hospital's own log."""
    if found.leak is None:
        return "."
    low, high = (max(end, 0.0) for end in (found.leak.low, found.leak.high))
    control = f"They notice near-copies from {found.noticed or 0:.0%} of the images on."
    if found.noticed is None:
        control = "They do not notice if half of the images are near-copies."
    return (
        f": {low:.0%} to {high:.0%} of what copies would tell, and the limit is "
        f"{found.limit:.0%}. {control}"
    )
