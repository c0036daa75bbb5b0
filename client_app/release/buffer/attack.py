"""Membership attacks on a buffer before it leaves.

Members are the images that the sampler learnt from. Others are the hospital's test images of the
same classes, in two halves. Of each patient one image is attacked.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.buffer import Attacked, Trial, attack_buffer, reach_of, shadow_trial
from audit.class_means import class_means_trial
from audit.report import Report
from client_app.release.buffer.job import Job, Sampler, fingerprint
from gan.synthesis import balanced_labels
from learning.samples import Samples, concatenate, one_of_each

MOST_REFERENCES = 500  # test images of either half

# Verdict -> text of the log, with a place for `Job.noun`.
SAID = {
    "passed": "attacks on its synthetic {} reveal less about training members than the limit",
    "refused": "attacks on its synthetic {} reveal training members, perhaps more than the limit",
    "too small to tell": "attacks on its synthetic {} are too weak to exclude a leak",
    "not attacked": "its synthetic {} were not attacked",
}


def attack(
    job: Job, samples: Samples, figures: Mapping[str, float], train: Callable[[Job], Sampler]
) -> Report:
    """Attack a buffer, of a sampler with such figures; `train` trains such a sampler.

    Raises:
        TimeoutError: The deadline has passed; trained shadows are kept.
    """
    release = job.hospital.settings.release
    asked = one_of_each(job.patients)
    first, second = held_out_halves(job)
    own, one, other = (job.comparable(each.images) for each in (job.learnt, first, second))
    limit = release.max_membership
    found = attack_buffer(own, asked, (one, other), samples.images, limit, job.seed)
    if found.trials and job.hospital.data.whole:
        members = job.learnt[asked.to(job.learnt.labels.device)]
        reach = reach_of(len(samples), len(job.learnt))
        trial = class_means_trial(members, (first, second), samples, reach)
        found = replace(found, trials=(*found.trials, trial))
    # A shadow of a sampler with a guarantee would spend privacy budget.
    if found.trials and release.shadow_generators and "gan-epsilon" not in figures:
        trial = shadow_attack(job, samples, concatenate((first, second)), train)
        found = replace(found, trials=(*found.trials, trial))
    if "gan-epsilon" in figures:
        found = found.bound_claim(figures["gan-epsilon"], figures["gan-delta"])
    result = f"{job.hospital.name}: {SAID[found.verdict].format(job.noun)}"
    logging.getLogger("flwr").info("%s%s", result, _figures(found, job.noun))
    return found.report(release.untested)


def shadow_attack(
    job: Job, samples: Samples, others: Samples, train: Callable[[Job], Sampler]
) -> Trial:
    """Attack a buffer with shadow generators, which are kept in the folder of the sampler.

    The sampler did not learn from `others`, each of another patient. `train` trains a shadow.
    """
    everyone, settings = concatenate((job.learnt, others)), job.hospital.settings
    # A shadow leaves nothing: a privacy term without a part in it refuses no buffer, and nothing of
    # it is measured.
    allowed = replace(
        settings,
        gan=replace(settings.gan, projections=0),
        release=replace(settings.release, without_privacy=True),
    )
    hospital = replace(job.hospital, settings=allowed)

    def draw(k: int, half: NDArray[np.bool_]) -> Tensor:
        own = everyone[torch.from_numpy(half)]
        # Another patient to test on is another half: the shadow of the old one says nothing of it.
        folder = job.folder / f"shadow-{k}-{fingerprint(own)}"
        shadow = replace(job, hospital=hospital, learnt=own, folder=folder)
        return train(shadow).render(balanced_labels(len(samples), own.labels), job.seed)

    count = settings.release.shadow_generators
    return shadow_trial(everyone.images, job.patients, samples.images, count, draw)


def held_out_halves(job: Job) -> tuple[Samples, Samples]:
    """Two halves of the test images of learnt classes, one image of each patient.

    Copies of training images are left out, since they are members.
    """
    test = job.hospital.data.held_out
    known = {image.cpu().numpy().tobytes() for image in job.train.images}
    fresh = torch.tensor([image.cpu().numpy().tobytes() not in known for image in test.images])
    rows = (torch.isin(test.labels.cpu(), job.learnt.labels.unique().cpu()) & fresh).nonzero()[:, 0]
    rows = rows[one_of_each(test.patients[rows.numpy()]).sort().values]
    rng = np.random.default_rng(0)
    halves = rng.permutation(len(rows)) % 2
    of_half = [rows[torch.from_numpy(halves == k)] for k in (0, 1)]
    chosen = [each[rng.permutation(len(each))[:MOST_REFERENCES]] for each in of_half]
    first, second = (test[each.to(test.labels.device)] for each in chosen)
    return first, second


def _figures(found: Attacked, noun: str) -> str:
    """The end of the log line, with the leak and the control."""
    if found.leak is None:
        return "."
    low, high = (max(end, 0.0) for end in (found.leak["low"], found.leak["high"]))
    leak = f"{low:.0%} to {high:.0%} of the leak of copies, and the limit is {found.limit:.0%}"
    if found.noticed is None:
        return f": {leak}. They do not notice if half of the {noun} are near-copies."
    return f": {leak}. They notice near-copies from {found.noticed:.0%} of the {noun} on."
