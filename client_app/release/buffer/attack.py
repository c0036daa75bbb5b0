"""The attack on a buffer before it leaves: does it tell which images its sampler learnt from?

audit/buffer.py has the attacks. Members are the images that the sampler learnt from. Others are the
hospital's test images of the same classes, in two halves, with each patient in one.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.buffer import Attacked, Trial, attack_buffer, shadow_trial
from audit.report import Report
from client_app.release.buffer.job import Job, sample
from client_app.release.buffer.registry import Sampler
from gan.synthesis import balanced_labels
from learning.samples import Samples, concatenate

MOST_REFERENCES = 500  # test images of either half: enough to compare with

# What the log says of a verdict.
SAID = {
    "passed": "attacks on its synthetic images tell less than the limit of who was learnt from",
    "refused": "attacks on its synthetic images tell who was learnt from, perhaps more than the "
    "limit",
    "too small to tell": "it has too few images to tell by attacks who was learnt from",
    "not attacked": "its synthetic images were not attacked",
}


def attack(
    job: Job, samples: Samples, figures: Mapping[str, float], train: Callable[[Job], Sampler]
) -> Report:
    """Attack a buffer before it leaves.

    Args:
        job: Whose buffer it is.
        samples: The buffer.
        figures: Of its sampler: with `gan-epsilon` and `gan-delta` if it claims a guarantee.
        train: Makes such a sampler.

    Raises:
        TimeoutError: The deadline has passed; shadows that are trained are kept.
    """
    release = job.hospital.settings.release
    members = sample(job.learnt, len(job.learnt)).images  # in any order but that of their classes
    first, second = held_out(job)
    limit, halves = release.max_membership, (first.images, second.images)
    found = attack_buffer(members, halves, samples.images, limit, job.seed)
    # A shadow of a sampler with a guarantee would spend of it.
    if found.trials and release.shadow_generators and "gan-epsilon" not in figures:
        trial = shadow_attack(job, samples, concatenate((first, second)), train)
        found = replace(found, trials=(*found.trials, trial))
    if "gan-epsilon" in figures:
        found = found.checked_claim(figures["gan-epsilon"], figures["gan-delta"])
    said = f"{job.hospital.name}: {SAID[found.verdict]}"
    logging.getLogger("flwr").info("%s%s", said, _figures(found))
    return found.report(release.untested)


def shadow_attack(
    job: Job, samples: Samples, others: Samples, train: Callable[[Job], Sampler]
) -> Trial:
    """The attack with generators of its own; they are kept beside the hospital's.

    Args:
        job: Whose buffer it is.
        samples: The buffer.
        others: Images that its sampler did not learn from.
        train: Makes such a sampler.

    Raises:
        TimeoutError: The deadline has passed; shadows that are trained are kept.
    """
    everyone = concatenate((job.learnt, others))

    def draw(k: int, half: NDArray[np.bool_]) -> Tensor:
        own = everyone[torch.from_numpy(half)]
        mark = f"{job.fingerprint}-shadow-{k}"
        shadow = replace(job, learnt=own, fingerprint=mark, folder=job.folder / f"shadow-{k}")
        return train(shadow).render(balanced_labels(len(samples), own.labels), job.seed)

    count = job.hospital.settings.release.shadow_generators
    return shadow_trial(everyone.images, len(job.learnt), samples.images, count, draw)


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
