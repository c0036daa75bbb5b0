"""A hospital's buffer: synthetic images that stand for its own, made before the first hop.

A GAN is trained on the hospital's training images, once: it is kept in the hospital's store under a
hash of all that it depends on, goes on where it was if it was interrupted, and serves later runs.
Images that it renders are discarded where they are too near to a training image, and what is left
is checked as a whole (gan.audit) before it may leave.

    <store>/gan/<hash>/               checkpoints, progress.jsonl, grids of synthetic images
    <store>/gan/<hash>/<hash>.npz     a buffer that has passed, with the figures of its check
    <store>/gan/<hash>/buffer.png     the same to look at
    <store>/gan/<hash>/nearest-to-synthetic.png    synthetic images, each with the nearest real one
    <store>/gan/<hash>/nearest-to-real.png         real images, each with the nearest synthetic one
"""

import hashlib
import json
import logging
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from client_app.errors import ReleaseError
from client_app.hospital import Hospital
from gan.audit import Auditor, save_nearest
from gan.networks import Generator
from gan.perceptual import PairwiseLPIPS
from gan.presets import PRESETS, Preset
from gan.projection import mean_w, measure_privacy
from gan.quality import frechet, within_class_diversity
from gan.synthesis import balanced_labels, render, save_grid
from gan.training import Progress, Trained, train_gan
from learning.errors import DeadlineError, DivergedError
from learning.models import normalise
from learning.samples import Samples
from strategies.protocol.may_leave import METRICS
from strategies.protocol.settings import SettingsError, rng_for

REAL_IMAGES = 1000  # real images that are enough to compare with, where not all are needed


@dataclass(frozen=True, eq=False)
class Buffer:
    """What may leave: synthetic images, and what was measured of them and of the GAN."""

    samples: Samples
    figures: dict[str, float]


@dataclass(frozen=True)
class _Work:
    """All that it takes to make a buffer.

    Attributes:
        hospital: Whose.
        size: How many images there shall be.
        learnt: The images that the GAN learns from.
        preset: Its size and schedule.
        distance: The perceptual distance of the privacy loss, the check and the figures.
        seed: Of everything random.
        folder: Where the GAN is kept.
        deadline: When to give up, in the time of `time.monotonic`.
    """

    hospital: Hospital
    size: int
    learnt: Samples
    preset: Preset
    distance: PairwiseLPIPS
    seed: int
    folder: Path
    deadline: float

    def refusal(self, *reasons: str) -> ReleaseError:
        """What a hospital says when its synthetic images may not leave."""
        why = " ".join(reasons).replace("perceptual", self.distance.name)
        return ReleaseError(
            f"The synthetic images of '{self.hospital.name}' may not leave it. {why}"
        )


def make_buffer(hospital: Hospital, size: int, deadline: float) -> Buffer:
    """Render a buffer that may leave the hospital, or take it from the store.

    Raises:
        SettingsError: There is no such preset, or it does not fit the images.
        ReleaseError: The images may not leave; says which and why.
        DivergedError: The training of the GAN failed.
        DeadlineError: The deadline has passed; the GAN goes on from its checkpoint next time.
    """
    gan, release, data = hospital.settings.gan, hospital.settings.release, hospital.data
    preset = _preset(hospital)
    distance = _distance(hospital, preset)
    seed = int(rng_for(hospital.settings.seed, "gan", hospital=hospital.name).integers(2**31))
    learnt = _frequent(data.train, release.min_class_images)
    loss = [gan.privacy_weight, gan.privacy_reduction, distance.name, gan.inception_weights]
    folder = f"gan/{_hash(learnt, [data.classes, asdict(preset), *loss, seed])}"
    checks = [asdict(release), size, gan.projections]
    name = f"{folder}/{_hash(data.test, checks)}"
    if not (kept := hospital.store.load(name)):
        place = hospital.store.folder / folder
        try:
            kept = _make(_Work(hospital, size, learnt, preset, distance, seed, place, deadline))
        except FloatingPointError as error:
            raise DivergedError(f"The training of the GAN diverged: {error}") from error
        except TimeoutError as error:
            raise DeadlineError(
                "Preparing synthetic images took longer than allowed (prepare-timeout); it goes on "
                "where it was when the hospital is asked again."
            ) from error
        hospital.store.save(name, kept)
    samples = Samples(torch.from_numpy(kept["images"]), torch.from_numpy(kept["labels"]))
    figures = zip(kept["names"].tolist(), kept["values"].tolist(), strict=True)
    return Buffer(samples.to(hospital.device), dict(figures))


def _preset(hospital: Hospital) -> Preset:
    """The preset that the settings name, if it fits the hospital's images."""
    gan = hospital.settings.gan
    if gan.preset not in PRESETS:
        raise SettingsError(
            f"The setting 'gan.preset' is '{gan.preset}'; it must be one of {', '.join(PRESETS)}."
        )
    preset = PRESETS[gan.preset]
    size = max(hospital.data.train.shape[1:])
    if size > 2 * preset.resolution:
        raise SettingsError(
            f"The setting 'gan.preset' is '{gan.preset}', for images of {preset.resolution} "
            f"pixels, and the hospital's have {size}: choose a larger one of "
            f"{', '.join(PRESETS)}, or a smaller image-size."
        )
    preset, few = preset.fitted(size), gan.iterations
    return replace(preset, iterations=few, privacy_iterations=few) if few else preset


def _distance(hospital: Hospital, preset: Preset) -> PairwiseLPIPS:
    """The perceptual distance of the preset, with weights where it has use for them."""
    weights = (hospital.settings.gan.lpips_weights or None) if preset.pretrained else "untrained"
    try:
        return PairwiseLPIPS(preset.perceptual_net, weights).to(hospital.device)
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(f"The setting 'gan.lpips-weights' cannot be used: {error}") from error


def _make(work: _Work) -> dict[str, NDArray[Any]]:
    """Train or restore the GAN, render, check, measure."""
    hospital, learnt, distance = work.hospital, work.learnt, work.distance
    if not len(learnt):
        raise work.refusal("No class has release.min-class-images images.")
    trained, figures = _train(work)
    try:
        auditor = Auditor(
            hospital.data.train.images,
            _some(hospital.data.test, REAL_IMAGES).images,
            wanted=learnt.labels,
            classes=hospital.data.classes,
            features=distance.features,
            quantile=hospital.settings.release.quantile,
        )
    except ValueError as error:
        raise work.refusal(str(error)) from error
    samples, discarded = _render(work, trained.private, auditor)
    verdict = auditor.check(samples.images, samples.labels)
    if not verdict.passed:
        raise work.refusal(*verdict.reasons)
    figures |= verdict.figures | {"release-passed": 1.0, "release-discarded": discarded}
    for kind, some in (("real", _some(learnt, len(samples))), ("synthetic", samples)):
        diversity = within_class_diversity(some.images, some.labels, distance)
        figures[f"diversity-{kind}-perceptual"] = diversity
    _draw(work, samples)
    # A perceptual distance carries the name of what measured it. What is not declared stays here.
    named = {key.replace("perceptual", distance.name): value for key, value in figures.items()}
    declared = {key: value for key, value in named.items() if key in METRICS}
    return {
        "images": samples.images.cpu().numpy(),
        "labels": samples.labels.cpu().numpy(),
        "names": np.array(list(declared)),
        "values": np.array(list(declared.values()), dtype=float),
    }


def _train(work: _Work) -> tuple[Trained, dict[str, float]]:
    """The hospital's GAN, and what was measured of it."""
    hospital, learnt, preset = work.hospital, work.learnt, work.preset
    gan, classes = hospital.settings.gan, len(hospital.data.classes)
    square = _resized(learnt, preset.resolution, preset.resolution)
    try:
        distance_to_real = frechet(
            square.images,
            square.labels,
            classes,
            pretrained=preset.pretrained,
            inception_weights=gan.inception_weights,
            seed=work.seed,
        )
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(
            f"The setting 'gan.inception-weights' cannot be used: {error}"
        ) from error

    def report(progress: Progress) -> None:
        apart = progress.privacy_distance
        logging.getLogger("flwr").info(
            "%s: GAN phase %d, iteration %d, %.1f/s, %s %.1f, ADA p %.2f%s",
            *(hospital.name, progress.phase, progress.iteration, progress.iterations_per_second),
            *(distance_to_real.name, progress.frechet, progress.ada_p),
            "" if apart is None else f", {work.distance.name} {apart:.3f}",
        )

    trained = train_gan(
        square.images,
        square.labels,
        classes,
        preset,
        privacy_weight=gan.privacy_weight * preset.privacy_scale,
        privacy_reduction=gan.privacy_reduction,
        distance=work.distance,
        frechet=distance_to_real,
        folder=work.folder,
        seed=work.seed,
        device=hospital.device,
        deadline=work.deadline,
        report=report,
    )
    judged = render(trained.private, _some(learnt, preset.fid_images).labels, work.seed)
    last_of_phase = {each.phase: each for each in trained.progress}.values()
    figures = {
        "gan-iterations": float(sum(each.iteration for each in last_of_phase)),
        "ada-p": trained.progress[-1].ada_p,
        distance_to_real.name: distance_to_real(judged),
    }
    if gan.projections:
        measured = measure_privacy(
            trained.plain,
            trained.private,
            normalise(_some(square, gan.projections).images),
            mean_w(trained.plain, learnt.labels, seed=work.seed),
            metric=work.distance,
            folder=work.folder,
            seed=work.seed,
            deadline=work.deadline,
        )
        figures |= {f"{key}-perceptual": value for key, value in measured.items()}
    return trained, figures


def _render(work: _Work, generator: Generator, auditor: Auditor) -> tuple[Samples, float]:
    """Render a buffer, anew where an image is too near to a training image.

    Returns:
        The buffer, and the share of all rendered images that was discarded.

    Raises:
        ReleaseError: That share is too large.
    """
    settings = work.hospital.settings
    _, height, width = work.hospital.data.train.shape
    labels = balanced_labels(work.size, work.learnt.labels)
    images = torch.empty(0)
    wanted = torch.arange(len(labels), device=labels.device)  # of which there is no image yet
    rendered = discarded = 0
    while len(wanted):
        if time.monotonic() > work.deadline:
            raise TimeoutError
        drawn = render(generator, labels[wanted], work.seed + rendered)
        drawn = _resized(Samples(drawn, labels[wanted]), height, width).images
        images = images.index_copy(0, wanted, drawn) if rendered else drawn
        too_near = auditor.too_near(drawn)
        rendered += len(drawn)
        discarded += int(too_near.sum())
        if discarded > settings.release.max_discarded * rendered:
            raise work.refusal(*auditor.check(images, labels).reasons)
        wanted = wanted[too_near]
    return Samples(images, labels), discarded / rendered


def _draw(work: _Work, samples: Samples) -> None:
    """Pictures for the hospital's own eyes: its buffer, and what is nearest to what."""
    train, features = work.hospital.data.train.images, work.distance.features
    by_class = samples.labels.argsort(stable=True)
    save_grid(work.folder / "buffer.png", samples.images[by_class], columns=32)
    save_nearest(work.folder / "nearest-to-synthetic.png", samples.images, train, features)
    some = _some(work.hospital.data.train, REAL_IMAGES).images
    save_nearest(work.folder / "nearest-to-real.png", some, samples.images, features)


def _frequent(samples: Samples, fewest: int) -> Samples:
    """Those of classes with at least so many images: fewer would be learnt one by one."""
    chosen = torch.bincount(samples.labels)[samples.labels] >= fewest
    return samples[chosen]


def _some(samples: Samples, count: int) -> Samples:
    """At most so many of the samples, at random."""
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:count]
    chosen = chosen.to(samples.labels.device)
    return samples[chosen]


def _resized(samples: Samples, height: int, width: int) -> Samples:
    """The same samples in another size."""
    size = (height, width)
    images = interpolate(samples.images, size=size, mode="bilinear", antialias=True)
    return Samples(images, samples.labels)


def _hash(samples: Samples, settings: object) -> str:
    """A name for what follows from these images and settings."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for tensor in (samples.images, samples.labels):
        digest.update(str(tuple(tensor.shape)).encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
