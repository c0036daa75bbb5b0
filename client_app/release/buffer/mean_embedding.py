"""The sampler `dp-mean-embedding`: a generator from one statistic with noise.

gan/noised_moments.py computes the statistic from images, and gan/moment_generator.py sees only the
statistic. gan/noised_features.py has both for features (train.freeze). In a deployment, the
statistic is released once for the same images and settings. The hospital keeps it in its store, and
counts it in its privacy account. In a simulation the noise follows from the seed.
"""

import numpy as np
from torch import Tensor

from client_app.authority.privacy_account import Spent, noise_for, require_delta, spend
from client_app.release.buffer.job import Job
from client_app.store import Store
from gan.moment_generator import MomentGenerator
from gan.noised_features import NoisedClasses, NoisedSums, release_features
from gan.noised_moments import Moments, Normal, release, secure_normal
from strategies.protocol.settings import rng_for


class MeanEmbeddingSampler:
    """A generator with a guarantee of differential privacy.

    Raises:
        PolicyError: The policy does not allow this ε, alone or together with earlier releases.
        SettingsError: δ is not below one over the number of patients or images.
        ReleaseError: No class has enough images.
    """

    def __init__(self, job: Job) -> None:
        settings, fewest = job.hospital.settings, job.hospital.settings.release.min_class_images
        self.figures = {"gan-epsilon": settings.gan.epsilon, "gan-delta": settings.gan.delta}
        store = Store(job.folder)
        if not (kept := store.load("statistic")):
            kept = {name: np.asarray(value) for name, value in vars(_release(job)).items()}
            store.save("statistic", kept)
        self.generator: MomentGenerator | NoisedClasses
        if job.hospital.data.whole:
            self.generator = NoisedClasses(NoisedSums.from_arrays(kept), fewest)
        else:
            self.generator = MomentGenerator(Moments.from_arrays(kept), fewest)
        self.classes = self.generator.classes.to(job.train.labels.device)
        if not len(self.classes):
            raise job.refusal(
                "No class certainly has more than release.min-class-images images, by its noised "
                "number: use a larger gan.epsilon, or more images."
            )

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Images uint8 [N, C, H, W] of classes int64 [N], or features float32 [N, d, 1, 1]."""
        return self.generator.render(labels, seed)


def _release(job: Job) -> Moments | NoisedSums:
    hospital, gan = job.hospital, job.hospital.settings.gan
    data = hospital.data
    require_delta("gan.delta", gan.delta, data.train.patients, hospital.smallest_group)
    noise = noise_for(gan.epsilon, gan.delta)
    normal: Normal = rng_for(hospital.settings.seed, "dp", hospital=hospital.name).standard_normal
    if policy := hospital.policy:
        spent = Spent(f"statistic {job.folder.name}", noise)
        spend(hospital.store.folder, spent, gan.delta, policy.privacy)
        normal = secure_normal
    measure = release_features if data.whole else release
    train, classes = job.train, len(data.classes)
    return measure(train.images, train.labels, classes, noise, normal, data.train.patients)
