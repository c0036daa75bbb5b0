"""A hospital's buffer: synthetic images in place of its own, made before the first hop.

A sampler (`stages.SAMPLERS`) learns from the hospital's training images and renders synthetic ones.
Their release check is in stages.py. A GAN is trained once: the hospital's store keeps it under a
hash of all its inputs. After an interruption its training continues, and later runs use it again.

    <store>/<site>/gan/<hash>/        checkpoints, progress.jsonl, grids of synthetic images
        statistic.npz                 the noised statistic of `dp-mean-embedding`
        <hash>.npz                    a buffer that has passed, with the figures of its check
        buffer.png                    the buffer as a picture
        codes/                        codes of training images, and code sets of samplers
        <sampler>/                    the same picture if gan.sampler is not random, and
            set-distances.png         distances of real images from their projections, and from the
                                      nearest image of the set
            set-nearest.png           some images: real, projected, nearest of the set
            path-distances.csv        with linear and plan: distances of a path's points from real
                                      images
"""

import hashlib
import json
import logging
import time
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from audit.buffer import ATTACKS
from client_app.authority.policy import PolicyError
from client_app.datasets.pool import Indices, LocalSamples, least_patients
from client_app.errors import ReleaseError
from client_app.hospital import Hospital
from client_app.release.buffer.job import Job, Release, averaged_rows, fingerprint, frequent_rows
from client_app.release.buffer.stages import CHECKED, make
from client_app.run import count_model
from client_app.store import Store, hold_lock, own_folder
from gan.checkpoint import VERSION
from gan.codes import EFFORTS
from gan.noised_moments import VERSION as MOMENTS
from gan.perceptual import PairwiseLPIPS
from gan.presets import PRESETS, Preset, choose_preset
from gan.quality import inception_file
from learning.errors import DeadlineError, DivergedError
from learning.samples import Samples
from strategies.protocol.settings import SettingsError, rng_for


def make_buffer(
    hospital: Hospital,
    size: int,
    deadline: float,
    large: Indices | None = None,
    run: Store | None = None,
) -> Release:
    """Make a buffer of `size` images that may leave the hospital, or take it from the store.

    `large` are the training images in classes with enough patients; None = all images. The deadline
    is in the time of `time.monotonic`. In the folder of `run` a deployed hospital counts the buffer
    before it is made; None = no count.

    Raises:
        PresetError: There is no such preset, or it does not fit the images.
        SettingsError: `gan.lpips-weights` or `gan.inception-weights` cannot be used, or `gan.k` is
            too large.
        ReleaseError: The images may not leave.
        DivergedError: The training of the GAN diverged.
        DeadlineError: The deadline has passed; the GAN continues from its checkpoint next time.
    """
    settings, gan, data = hospital.settings, hospital.settings.gan, hospital.data
    trains_gan = gan.method == "stylegan2-ada"
    if trains_gan:
        preset = choose_preset(gan.preset, gan.iterations, max(data.train.shape[1:]))
        most = EFFORTS[gan.preset].images
        if gan.sampler.startswith("k-salsa") and gan.k > most:
            raise SettingsError(
                f"The setting 'gan.k' is {gan.k}; it must be at most {most}, the images of a class "
                f"that are projected with gan.preset = '{gan.preset}'."
            )
    else:
        preset = PRESETS["tiny"]  # for its perceptual distance, which needs no file of weights
    distance = _distance(hospital, preset)
    inception = inception_file(gan.inception_weights) if preset.pretrained else None
    train = Samples(data.train.images, data.train.labels)  # in memory, once for all stages
    rows = learnt_rows(hospital, large)
    learnt, patients = train[rows], data.train.patients[rows.numpy()]
    images = [fingerprint(train), fingerprint(learnt)]
    seed = int(rng_for(settings.seed, "gan", hospital=hospital.name).integers(2**31))
    classes = [data.classes, learnt.labels.unique().tolist()]
    rendering: list[object] = []
    if trains_gan:
        loss = [gan.privacy_weight, gan.privacy_reduction]
        networks: list[object] = [asdict(preset), distance.name]
        if preset.pretrained:  # the names of the distances have no file
            networks += [gan.lpips_weights, gan.inception_weights, inception is not None]
        codes = [gan.sampler, gan.clusters, gan.k, gan.kl, EFFORTS[gan.preset].fingerprint]
        rendering = [gan.projections, codes]
        parts = [VERSION, images, classes, loss, networks, seed]
    elif gan.method == "class-gaussians":
        parts = [images, classes, bool(hospital.policy)]  # in a simulation the seed is public
    else:  # the statistic is released once for the same images, whatever the seed
        bounds = [gan.epsilon, gan.delta]
        noise = None if hospital.policy else settings.seed
        parts = [MOMENTS, images[0], _owners(data.train), data.classes, bounds, noise]
    folder = f"gan/{_hash(gan.method, *parts)}"
    checks = [CHECKED, [*ATTACKS], fingerprint(data.test), asdict(settings.release)]
    checks += [_owners(data.train), _owners(data.test)]
    name = f"{folder}/{_hash(checks, size, *rendering, seed)}"
    if kept := hospital.store.load(name):
        return Release.from_arrays(kept, hospital.device)
    if run:
        _count(hospital, run, name)
    job = Job(
        hospital=hospital,
        size=size,
        train=train,
        learnt=learnt,
        patients=patients,
        preset=preset,
        distance=distance,
        inception=inception,
        seed=seed,
        folder=own_folder(hospital.store.folder / folder),
        deadline=deadline,
    )
    allowed = max(0.0, deadline - time.monotonic())
    try:
        # Of two runs on one store the second waits. Otherwise both would train the GAN, and draw
        # the noise of a statistic twice.
        with hold_lock(job.folder / "lock", "makes a buffer of these images", allowed):
            if not (kept := hospital.store.load(name)):
                kept = make(job).arrays()
                hospital.store.save(name, kept)
    except FloatingPointError as error:
        logging.getLogger("flwr").error("%s", error)  # its figures stay here
        raise DivergedError(
            "The training of the GAN diverged. Choose another gan.preset, or lower "
            "gan.privacy-weight."
        ) from error
    except TimeoutError as error:
        raise DeadlineError(
            "Preparing synthetic images took longer than allowed (prepare-timeout). It continues "
            "at the next request."
        ) from error
    return Release.from_arrays(kept, hospital.device)


def learnt_rows(hospital: Hospital, large: Indices | None) -> Tensor:
    """The training images, int64 [n], of the classes that a buffer may show.

    `large` are the images in classes with enough patients; None = all images.

    Raises:
        ReleaseError: They are of too few patients.
    """
    train = hospital.data.train
    countable = torch.arange(len(train)) if large is None else torch.from_numpy(large)
    rows = countable[_is_shown(hospital, countable)]
    # The statistic of dp-mean-embedding has all images.
    if len(rows) and hospital.settings.gan.method != "dp-mean-embedding":
        _check_patients(hospital, rows, len(countable))
    return rows


def _is_shown(hospital: Hospital, rows: Tensor) -> Tensor:
    """Whether a buffer may show the class of an image, bool [n], of training images int64 [n].

    A run chooses `release.min-class-images`: compared with exact numbers of images, it would count
    them. So in a deployment it is compared with numbers in whole groups.
    """
    train, gan = hospital.data.train, hospital.settings.gan
    labels, fewest = train.labels.cpu()[rows], hospital.settings.release.min_class_images
    if not (policy := hospital.policy):
        return frequent_rows(labels, fewest)
    rules = policy.release
    averages = gan.least_averaged is not None
    least = max(rules.min_class_training_images, rules.min_averaged if averages else 0)
    chosen = frequent_rows(labels, fewest, policy.figures.smallest_group)
    chosen &= frequent_rows(labels, least)
    if gan.method == "class-gaussians":
        chosen &= averaged_rows(labels, train.patients[rows.numpy()], rules.min_averaged)
    return chosen


def _check_patients(hospital: Hospital, rows: Tensor, large: int) -> None:
    """Refuse (ReleaseError) a buffer from training images `rows` of too few patients.

    If a run leaves out classes of the `large` images, patients count in whole groups.
    """
    if not (policy := hospital.policy):
        return
    train = hospital.data.train
    owners, strata = train.patients[rows.numpy()], train.strata[rows.numpy()]
    if train.tasks is None and len(rows) == large:
        patients = len(np.unique(owners))
    else:
        patients = least_patients(owners, strata, policy.figures.smallest_group)
    try:
        policy.images.uphold("min-train-patients", patients)
    except PolicyError as error:
        logging.getLogger("flwr").error("No buffer is made. %s", error.explain())
        raise ReleaseError(
            f"The synthetic images of '{hospital.name}' may not leave it. Their generator would "
            "learn from fewer patients than the policy ([images]) allows."
        ) from error


def _count(hospital: Hospital, run: Store, buffer: str) -> None:
    """Count a buffer before it is made; one too many is refused (ReleaseError)."""
    if not (policy := hospital.policy):
        return
    try:
        count_model(run, "made", "release.max-buffers", buffer, policy.release.max_buffers)
    except PolicyError as error:
        logging.getLogger("flwr").error("No buffer is made. %s", error.explain())
        raise ReleaseError(
            f"The synthetic images of '{hospital.name}' may not leave it. In a day the policy "
            "([release]) allows no more different ones. Use the seed and the settings of an "
            "earlier run, or wait a day."
        ) from error


def _distance(hospital: Hospital, preset: Preset) -> PairwiseLPIPS:
    """The perceptual distance of the preset, with weights if the preset uses them."""
    weights = (hospital.settings.gan.lpips_weights or None) if preset.pretrained else "untrained"
    try:
        return PairwiseLPIPS(preset.perceptual_net, weights).to(hospital.device)
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(f"The setting 'gan.lpips-weights' cannot be used: {error}") from error


def _owners(samples: LocalSamples) -> str:
    """A hash of the patients of images."""
    _, patients = np.unique(samples.patients, return_inverse=True)
    return hashlib.sha256(patients.astype(np.int64).tobytes()).hexdigest()[:16]


def _hash(*parts: object) -> str:
    """A hash of some parts, as a name of their result."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
