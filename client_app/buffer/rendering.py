"""Rendering a buffer: what the audit refuses is discarded and drawn anew."""

import time

import torch

from client_app.buffer.job import Job
from client_app.buffer.registry import Audit, Sampler
from gan.synthesis import balanced_labels
from learning.samples import Samples


def render(job: Job, sampler: Sampler, audit: Audit) -> tuple[Samples, float]:
    """Render until the audit refuses no image.

    Returns:
        The buffer, and the share of all rendered images that was discarded.

    Raises:
        ReleaseError: That share is above `release.max-discarded`.
        TimeoutError: The deadline has passed.
    """
    labels = balanced_labels(job.size, job.learnt.labels)
    images = torch.empty(0)
    wanted = torch.arange(len(labels), device=labels.device)  # of which there is no image yet
    rendered = discarded = 0
    while len(wanted):
        if time.monotonic() > job.deadline:
            raise TimeoutError("Rendering took longer than allowed.")
        drawn = sampler.render(labels[wanted], job.seed + rendered)
        images = images.index_copy(0, wanted, drawn) if rendered else drawn
        refused = audit.refuses(drawn)
        rendered += len(drawn)
        discarded += int(refused.sum())
        if discarded > job.hospital.settings.release.max_discarded * rendered:
            raise job.refusal(*audit.check(images, labels).reasons)
        wanted = wanted[refused]
    return Samples(images, labels), discarded / rendered
