"""The stages of making a buffer: train, render, audit, attack, measure, draw."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from audit.copies import Auditor
from audit.report import Report
from client_app.release.buffer.attack import attack
from client_app.release.buffer.class_gaussians import class_gaussians
from client_app.release.buffer.gan_sampler import GANSampler
from client_app.release.buffer.job import Job, Release, Sampler
from client_app.release.buffer.mean_embedding import MeanEmbeddingSampler
from gan.nearest import nearest
from gan.quality import class_diversity
from gan.synthesis import balanced_labels, save_grid
from learning.samples import Samples, one_of_each

CHECKED = 9  # version of the check: increase it with each change, so that buffers are made again

# All samplers by name; each is one short file.
SAMPLERS: dict[str, Callable[[Job], Sampler]] = {
    "stylegan2-ada": GANSampler,
    "dp-mean-embedding": MeanEmbeddingSampler,
    "class-gaussians": class_gaussians,
}


def make(job: Job) -> Release:
    """Train a sampler, render, audit, attack, measure, draw.

    Raises:
        ReleaseError: The images may not leave.
    """
    method = job.hospital.settings.gan.method
    # `dp-mean-embedding` learns from all images, and refuses by its noised numbers.
    if not len(job.learnt) and method != "dp-mean-embedding":
        raise job.refusal("No class has release.min-class-images images.")
    train = SAMPLERS[method]
    sampler = train(job)
    if job.size < len(sampler.classes):
        size = f"feder.buffer-size is {job.size}"
        raise job.refusal(f"Each class needs one, and {size}: set it higher.")
    examples = torch.isin(job.train.labels, sampler.classes)
    patients = job.hospital.data.train.patients[examples.cpu().numpy()]
    job = replace(job, learnt=job.train[examples], patients=patients)
    audit = copy_audit(job)
    samples, discarded = render(job, sampler, audit)
    copied = audit.check(samples.images, samples.labels)
    uphold(job, copied)
    attacked = attack(job, samples, sampler.figures, train)
    uphold(job, attacked)
    checked = {"release-passed": 1.0, "release-discarded": discarded, **copied.figures}
    measured: dict[str, float] = {}
    if not job.hospital.data.whole:  # features have no perceptual distance and no picture
        real = job.learnt if job.hospital.policy else job.train  # figures leave out small classes
        mml = nearest(samples.images, real.images, job.distance)[0].mean().item()  # as in PLAN
        measured = {"mml-perceptual": mml, **diversity(job, samples)}
        by_class = samples.labels.argsort(stable=True)
        save_grid(job.pictures() / "buffer.png", samples.images[by_class], columns=32)
    figures = {**sampler.figures, **checked, **measured}
    named = {key.replace("perceptual", job.distance.name): each for key, each in figures.items()}
    return Release(samples, named, attacked.evidence)


def copy_audit(job: Job) -> Auditor:
    """The audit of a hospital's buffer; without two test images, none may leave (ReleaseError)."""
    data, held_out = job.hospital.data, job.hospital.data.held_out
    try:
        return Auditor(
            job.comparable(job.train.images),
            job.comparable(held_out.images),
            held_out.labels,
            classes=len(data.classes),
            quantile=job.hospital.settings.release.quantile,
            patients=(data.train.patients, held_out.patients),
        )
    except ValueError as error:
        raise job.refusal(str(error)) from error


def render(job: Job, sampler: Sampler, audit: Auditor) -> tuple[Samples, float]:
    """Render until the audit refuses no image; refused images are discarded and drawn again.

    Returns:
        The buffer, and the discarded share of all rendered images.

    Raises:
        ReleaseError: The discarded share is above `release.max-discarded`.
        TimeoutError: The deadline has passed.
    """
    labels = balanced_labels(job.size, sampler.classes)
    images = torch.empty(0)
    wanted = torch.arange(len(labels), device=labels.device)  # rows without an image
    rendered = discarded = 0
    while len(wanted):
        if time.monotonic() > job.deadline:
            raise TimeoutError("Rendering took longer than allowed.")
        drawn = sampler.render(labels[wanted], job.seed + rendered)
        images = images.index_copy(0, wanted, drawn) if rendered else drawn
        refused = audit.refuses(drawn, labels[wanted])
        rendered += len(drawn)
        discarded += int(refused.sum())
        if discarded > job.hospital.settings.release.max_discarded * rendered:
            uphold(job, audit.check(images, labels))
        wanted = wanted[refused]
    return Samples(images, labels), discarded / rendered


def uphold(job: Job, report: Report) -> None:
    """Refuse (ReleaseError) a buffer that an audit refuses; the hospital's own log has details."""
    if not report.passed:
        if report.reasons:
            logging.getLogger("flwr").error(str(job.refusal(*report.reasons)))
        raise job.refusal(report.refusal)


def diversity(job: Job, samples: Samples) -> dict[str, float]:
    """Mean distance of two images of a class, in the buffer and in as many patients' images."""
    rows = one_of_each(job.patients)[: len(samples)]
    kinds = {"real": job.learnt[rows.to(job.learnt.labels.device)], "synthetic": samples}
    return {
        f"diversity-{kind}-perceptual": class_diversity(each.images, each.labels, job.distance)
        for kind, each in kinds.items()
    }
