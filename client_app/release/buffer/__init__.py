"""A hospital's buffer: synthetic images that stand for its own, made before the first hop.

    train -> render -> audit -> attack -> measure -> draw

A sampler (registry.py) learns from the hospital's training images and renders. An audit discards
what is too near to one of them, and checks what is left as a whole before it may leave. What it
lets through is attacked (attack.py); stages.py goes through the stages. A GAN is trained once: it
is kept in the hospital's store under a hash of all that it depends on, goes on where it was if it
was interrupted, and serves later runs.

    <store>/gan/<hash>/               checkpoints, progress.jsonl, grids of synthetic images
    <store>/gan/<hash>/statistic.npz                the noised statistic of `dp-mean-embedding`
    <store>/gan/<hash>/<hash>.npz     a buffer that has passed, with the figures of its check
    <store>/gan/<hash>/buffer.png     the same to look at
    <store>/gan/<hash>/nearest-to-synthetic.png    synthetic images, each with the nearest real one
    <store>/gan/<hash>/nearest-to-real.png         real images, each with the nearest synthetic one
    <store>/gan/<hash>/codes/         codes of training images, and sets that samplers made of them
    <store>/gan/<hash>/<sampler>/     pictures like these, if gan.sampler is not random, and
        set-distances.png             how far real images are from their projections, and from the
                                      nearest image of the set
        set-nearest.png               a few of each, one below the other
"""

import hashlib
import json
from dataclasses import asdict

import numpy as np
import torch

from audit.buffer import ATTACKS
from client_app.datasets import LocalData
from client_app.datasets.pool import Indices
from client_app.hospital import Hospital
from client_app.release.buffer.job import Job, Release, frequent
from client_app.release.buffer.stages import CHECKED, make
from gan.checkpoint import VERSION
from gan.codes import EFFORTS
from gan.noised_moments import VERSION as MOMENTS
from gan.perceptual import PairwiseLPIPS
from gan.presets import Preset, chosen_preset
from learning.errors import DeadlineError, DivergedError
from learning.samples import Samples
from strategies.protocol.settings import SettingsError, rng_for


def make_buffer(
    hospital: Hospital, size: int, deadline: float, large: Indices | None = None
) -> Release:
    """Make a buffer of `size` images that may leave the hospital, or take it from the store.

    Args:
        hospital: Whose.
        size: How many images.
        deadline: When to give up, in the time of `time.monotonic`.
        large: Which training images are of classes that enough patients have; None = all are.

    Raises:
        PresetError: There is no such preset, or it does not fit the images.
        SettingsError: `gan.lpips-weights` or `gan.inception-weights` cannot be used.
        ReleaseError: The images may not leave; says which and why.
        DivergedError: The training of the GAN failed.
        DeadlineError: The deadline has passed; the GAN goes on from its checkpoint next time.
    """
    settings, data = hospital.settings, hospital.data
    preset = chosen_preset(settings.gan.preset, settings.gan.iterations, max(data.train.shape[1:]))
    distance = _distance(hospital, preset)
    seed = int(rng_for(settings.seed, "gan", hospital=hospital.name).integers(2**31))
    train = Samples(data.train.images, data.train.labels)  # in memory, once for all stages
    shown = train if large is None else train[torch.from_numpy(large)]
    learnt = frequent(shown, settings.release.min_class_images)
    fingerprint = _fingerprint(train)
    classes = [data.classes, learnt.labels.unique().tolist()]
    loss = [settings.gan.privacy_weight, settings.gan.privacy_reduction]
    networks = [asdict(preset), distance.name, settings.gan.inception_weights]
    gan = settings.gan
    if gan.method == "stylegan2-ada":
        parts = [VERSION, fingerprint, classes, loss, networks, seed]
    else:  # released once for the same images: another seed gives other images, no other statistic
        bounds = [gan.epsilon, gan.delta]
        noise = None if hospital.policy else settings.seed
        parts = [MOMENTS, fingerprint, _owners(data), data.classes, bounds, noise]
    folder = f"gan/{_hash(gan.method, *parts)}"
    checks = ["copies", CHECKED, [*ATTACKS], _fingerprint(data.test), asdict(settings.release)]
    codes = [gan.sampler, gan.clusters, gan.k, gan.kl, EFFORTS[gan.preset].fingerprint]
    name = f"{folder}/{_hash(checks, size, gan.projections, codes, seed)}"
    if kept := hospital.store.load(name):
        return Release.from_arrays(kept, hospital.device)
    place = hospital.store.folder / folder
    job = Job(hospital, size, train, learnt, fingerprint, preset, distance, seed, place, deadline)
    try:
        release = make(job)
    except FloatingPointError as error:
        raise DivergedError(f"The training of the GAN diverged: {error}") from error
    except TimeoutError as error:
        raise DeadlineError(
            "Preparing synthetic images took longer than allowed (prepare-timeout); it goes on "
            "where it was when the hospital is asked again."
        ) from error
    hospital.store.save(name, release.arrays())
    return release


def _distance(hospital: Hospital, preset: Preset) -> PairwiseLPIPS:
    """The perceptual distance of the preset, with weights where it has use for them."""
    weights = (hospital.settings.gan.lpips_weights or None) if preset.pretrained else "untrained"
    try:
        return PairwiseLPIPS(preset.perceptual_net, weights).to(hospital.device)
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(f"The setting 'gan.lpips-weights' cannot be used: {error}") from error


def _fingerprint(samples: Samples) -> str:
    """Changes with the images and labels."""
    digest = hashlib.sha256()
    for tensor in (samples.images, samples.labels):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def _owners(data: LocalData) -> str:
    """Changes with whose the training images are."""
    _, whose = np.unique(data.train_patients, return_inverse=True)
    return hashlib.sha256(whose.astype(np.int64).tobytes()).hexdigest()[:16]


def _hash(*parts: object) -> str:
    """A name for what follows from these parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
