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

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from client_app.datasets import Samples
from client_app.errors import DeadlineError, DivergedError, ReleaseError
from client_app.hospital import Hospital
from client_app.training import normalise
from gan.audit import Auditor, save_nearest
from gan.networks import Generator
from gan.perceptual import PairwiseLPIPS
from gan.presets import PRESETS, Preset
from gan.projection import mean_w, measure_privacy
from gan.quality import frechet, within_class_diversity
from gan.synthesis import balanced_labels, render, save_grid
from gan.training import Progress, Trained, train_gan
from strategies.parcel import METRICS
from strategies.settings import SettingsError, rng_for

REAL_IMAGES = 1000  # real images that are enough to compare with, where not all are needed


@dataclass(frozen=True, eq=False)
class Buffer:
    """What may leave: synthetic images, and what was measured of them and of the GAN."""

    samples: Samples
    figures: dict[str, float]


def make_buffer(hospital: Hospital, deadline: float) -> Buffer:
    """Render a buffer that may leave the hospital, or take it from the store.

    Raises:
        SettingsError: There is no such preset, or it does not fit the images.
        ReleaseError: The images may not leave; says which and why.
        DeadlineError: The deadline has passed; the GAN goes on from its checkpoint next time.
    """
    settings, data = hospital.settings, hospital.data
    preset = _preset(hospital)
    weights = (settings.gan.lpips_weights or None) if preset.pretrained else "untrained"
    try:
        distance = PairwiseLPIPS(preset.perceptual_net, weights).to(hospital.device)
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(f"The setting 'gan.lpips-weights' cannot be used: {error}") from error
    seed = int(rng_for(settings.seed, "gan", hospital=hospital.name).integers(2**31))
    trained_on = [data.classes, asdict(preset), asdict(settings.gan), distance.name, seed]
    checked_with = [asdict(settings.release), settings.feder.buffer_size]
    learnt = _frequent(data.train, settings.release.min_class_images)
    if not len(learnt):
        raise ReleaseError(_refusal(hospital, ("No class has release.min-class-images images.",)))
    folder = f"gan/{_hash(learnt, trained_on)}"
    name = f"{folder}/{_hash(data.test, checked_with)}"
    if not (kept := hospital.store.load(name)):
        try:
            place = hospital.store.folder / folder
            kept = _make(hospital, learnt, preset, distance, seed, place, deadline)
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
    size = max(hospital.data.train.images.shape[2:])
    if size > 2 * preset.resolution:
        raise SettingsError(
            f"The setting 'gan.preset' is '{gan.preset}', for images of {preset.resolution} "
            f"pixels, and the hospital's have {size}: choose a larger one of "
            f"{', '.join(PRESETS)}, or a smaller image-size."
        )
    if gan.iterations:
        few = gan.iterations
        preset = replace(preset, iterations=few, privacy_iterations=few)
    return preset


def _make(
    hospital: Hospital,
    learnt: Samples,
    preset: Preset,
    distance: PairwiseLPIPS,
    seed: int,
    folder: Path,
    deadline: float,
) -> dict[str, np.ndarray]:
    """Train or restore the GAN, render, check, measure."""
    train = hospital.data.train
    trained, figures = _train(hospital, learnt, preset, distance, seed, folder, deadline)
    try:
        auditor = Auditor(
            train.images,
            _some(hospital.data.test, REAL_IMAGES).images,
            wanted=learnt.labels,
            classes=hospital.data.classes,
            features=distance.features,
            quantile=hospital.settings.release.quantile,
        )
    except ValueError as error:
        raise ReleaseError(_refusal(hospital, (str(error),))) from error
    labels = balanced_labels(hospital.settings.feder.buffer_size, learnt.labels)
    samples, discarded = _render(hospital, trained.private, labels, auditor, seed, deadline)
    verdict = auditor.check(samples.images, samples.labels)
    if not verdict.passed:
        raise ReleaseError(_refusal(hospital, verdict.reasons))
    figures |= verdict.figures | {"release-passed": 1.0, "release-discarded": discarded}
    some = _some(learnt, len(samples))
    figures["diversity-real-perceptual"] = within_class_diversity(
        some.images, some.labels, distance
    )
    figures["diversity-synthetic-perceptual"] = within_class_diversity(
        samples.images, samples.labels, distance
    )
    by_class = samples.labels.argsort(stable=True)
    save_grid(folder / "buffer.png", samples.images[by_class], columns=32)
    shown = _some(train, REAL_IMAGES)
    for name, one, other in (("synthetic", samples, train), ("real", shown, samples)):
        path = folder / f"nearest-to-{name}.png"
        save_nearest(path, one.images, other.images, distance.features)
    # A perceptual distance carries the name of what measured it. What is not declared stays here.
    named = {key.replace("perceptual", distance.name): value for key, value in figures.items()}
    declared = {key: value for key, value in named.items() if key in METRICS}
    return {
        "images": samples.images.cpu().numpy(),
        "labels": samples.labels.cpu().numpy(),
        "names": np.array(list(declared)),
        "values": np.array(list(declared.values()), dtype=float),
    }


def _train(
    hospital: Hospital,
    learnt: Samples,
    preset: Preset,
    distance: PairwiseLPIPS,
    seed: int,
    folder: Path,
    deadline: float,
) -> tuple[Trained, dict[str, float]]:
    """The hospital's GAN, and what was measured of it."""
    gan, classes = hospital.settings.gan, len(hospital.data.classes)
    square = _resized(learnt.images, preset.resolution, preset.resolution)
    try:
        distance_to_real = frechet(
            square,
            learnt.labels,
            classes,
            pretrained=preset.pretrained,
            inception_weights=gan.inception_weights,
            seed=seed,
        )
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(
            f"The setting 'gan.inception-weights' cannot be used: {error}"
        ) from error

    def report(progress: Progress) -> None:
        logging.getLogger("flwr").info(
            "%s: GAN phase %d, iteration %d, %.1f/s, %s %.1f, ADA p %.2f%s",
            *(hospital.name, progress.phase, progress.iteration, progress.iterations_per_second),
            *(distance_to_real.name, progress.frechet, progress.ada_p),
            ""
            if progress.privacy_distance is None
            else f", {distance.name} {progress.privacy_distance:.3f}",
        )

    trained = train_gan(
        square,
        learnt.labels,
        classes,
        preset,
        privacy_weight=gan.privacy_weight,
        privacy_reduction=gan.privacy_reduction,
        distance=distance,
        frechet=distance_to_real,
        folder=folder,
        seed=seed,
        device=hospital.device,
        deadline=deadline,
        report=report,
    )
    judged = render(trained.private, _some(learnt, preset.fid_images).labels, seed)
    last_of_phase = {each.phase: each for each in trained.progress}.values()
    figures = {
        "gan-iterations": float(sum(each.iteration for each in last_of_phase)),
        "ada-p": trained.progress[-1].ada_p,
        distance_to_real.name: distance_to_real(judged),
    }
    if gan.projections:
        count = min(gan.projections, len(square))
        start = mean_w(trained.plain, learnt.labels, seed=seed)
        measured = measure_privacy(
            trained.plain,
            trained.private,
            normalise(square[:count]),
            start,
            metric=distance,
            folder=folder,
            seed=seed,
            deadline=deadline,
        )
        figures |= {f"{key}-perceptual": value for key, value in measured.items()}
    return trained, figures


def _render(
    hospital: Hospital,
    generator: Generator,
    labels: Tensor,
    auditor: Auditor,
    seed: int,
    deadline: float,
) -> tuple[Samples, float]:
    """Render an image for each label [n], anew where it is too near to a training image.

    Returns:
        The buffer, and the share of all rendered images that was discarded.

    Raises:
        ReleaseError: That share is too large.
    """
    height, width = hospital.data.train.images.shape[2:]
    images = torch.empty(0)
    wanted = torch.arange(len(labels), device=labels.device)  # of which there is no image yet
    rendered = discarded = 0
    while len(wanted):
        if time.monotonic() > deadline:
            raise TimeoutError
        drawn = render(generator, labels[wanted], seed + rendered)
        drawn = _resized(drawn, height, width)
        images = drawn if not rendered else images.index_copy(0, wanted, drawn)
        too_near = auditor.too_near(drawn)
        rendered += len(drawn)
        discarded += int(too_near.sum())
        if discarded > hospital.settings.release.max_discarded * rendered:
            reasons = auditor.check(images, labels).reasons
            raise ReleaseError(_refusal(hospital, reasons))
        wanted = wanted[too_near]
    return Samples(images, labels), discarded / rendered


def _frequent(samples: Samples, fewest: int) -> Samples:
    """Those of classes with at least so many images: fewer would be learnt one by one."""
    chosen = torch.bincount(samples.labels)[samples.labels] >= fewest
    return Samples(samples.images[chosen], samples.labels[chosen])


def _some(samples: Samples, count: int) -> Samples:
    """At most so many of the samples, at random."""
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:count]
    chosen = chosen.to(samples.labels.device)
    return Samples(samples.images[chosen], samples.labels[chosen])


def _refusal(hospital: Hospital, reasons: tuple[str, ...]) -> str:
    """What a hospital says when its synthetic images may not leave; names no real image."""
    return f"The synthetic images of '{hospital.name}' may not leave it. {' '.join(reasons)}"


def _resized(images: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 [N, C, ., .] to [N, C, height, width]."""
    return interpolate(images, size=(height, width), mode="bilinear", antialias=True)


def _hash(samples: Samples, settings: object) -> str:
    """A name for what follows from these images and settings."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for tensor in (samples.images, samples.labels):
        digest.update(str(tuple(tensor.shape)).encode() + tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
