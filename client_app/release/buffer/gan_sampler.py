"""The sampler `stylegan2-ada`: StyleGAN2-ADA with FedER's privacy term (gan/training.py).

FedER (Pennisi et al. 2023, arXiv:2206.10048), sections III.B and IV.B. The sampler renders random
latents, or the code set that `gan.sampler` names (client_app/release/buffer/code_set.py).

Shapes: `N` images, `C` channels, `H, W` pixels of the hospital's images, `R` of the GAN's.
"""

import logging

from torch import Tensor

from client_app.datasets.resize import resize
from client_app.release.buffer.code_set import code_set
from client_app.release.buffer.job import Job, fingerprint, sample
from gan.adversaries import Examples, Privacy
from gan.codes import Deck, render_codes
from gan.networks import from_bytes
from gan.projection import mean_w, measure_privacy
from gan.quality import Frechet, frechet
from gan.schedule import ENOUGH, Standing
from gan.synthesis import render, render_parts
from gan.training import Trained, train_gan
from learning.samples import Samples, one_of_each
from strategies.protocol.console import Pace
from strategies.protocol.settings import SettingsError


class GANSampler:
    """A hospital's GAN, trained or restored.

    Raises:
        SettingsError: `gan.inception-weights` cannot be used.
        ReleaseError: The privacy term had no part in the GAN, and the settings require it.
        FloatingPointError: The training diverged.
        TimeoutError: The deadline has passed; the GAN continues from its checkpoint next time.
    """

    def __init__(self, job: Job) -> None:
        self.size = job.train.shape[1:]
        preset, learnt = job.preset, job.learnt
        self.classes = learnt.labels.unique()
        images = _resize(learnt.images, (preset.resolution, preset.resolution))
        square = Samples(images, learnt.labels)  # [N, C, R, R]
        distance_to_real = _frechet(job, square)
        trained = _train(job, square, distance_to_real)
        if trained.private is None and job.hospital.settings.gan.privacy_weight > 0:
            _refuse_unprotected(job, trained)
        self.generator = trained.private or trained.plain
        codes = code_set(job, square, self.generator)
        self.deck = Deck(codes, job.seed) if codes else None
        shown = sample(learnt, preset.fid_images).labels
        if preset.pretrained:  # the FID depends on the number of images
            shown = shown.repeat(preset.fid_images // len(shown) + 1)[: preset.fid_images]
        distance = distance_to_real(render_parts(self._square, shown, job.seed))
        self.deck = Deck(codes, job.seed) if codes else None  # again with all codes
        last_of_phase = {each.phase: each for each in trained.progress}.values()
        self.figures = {
            "gan-iterations": float(sum(each.iteration for each in last_of_phase)),
            "ada-p": trained.progress[-1].ada_p,
            "gan-private": float(trained.private is not None),
            distance_to_real.name: distance,
            **_projections(job, square, trained),
        }

    def render(self, labels: Tensor, seed: int) -> Tensor:
        """Images uint8 [N, C, H, W] of classes int64 [N].

        Codes of a set are drawn without replacement over all calls, until all were drawn.
        """
        return _resize(self._square(labels, seed), self.size)

    def _square(self, labels: Tensor, seed: int) -> Tensor:
        """Images uint8 [N, C, R, R]."""
        if self.deck is None:
            return render(self.generator, labels, seed)
        return render_codes(self.generator, self.deck.draw(labels), seed)


def _frechet(job: Job, square: Samples) -> Frechet:
    """The Fréchet distance from the real images."""
    try:
        return frechet(
            square.images,
            square.labels,
            len(job.hospital.data.classes),
            inception=job.inception,
            otherwise=job.preset.otherwise,
            seed=job.seed,
        )
    except (FileNotFoundError, ValueError) as error:
        raise SettingsError(
            f"The setting 'gan.inception-weights' cannot be used: {error}"
        ) from error


def _train(job: Job, square: Samples, distance_to_real: Frechet) -> Trained:
    """Train the GAN, or restore it from the job's folder."""
    hospital, preset, learnt = job.hospital, job.preset, job.learnt

    # A phase mostly ends long before its last iteration, when results stop improving.
    paces = {
        k: Pace(f"{hospital.name} trains its GAN, step {k} of 2", bound="at most") for k in (1, 2)
    }

    def report(standing: Standing, limit: int) -> None:
        last = standing.progress[-1] if standing.progress else None
        figure = f"distance to real images {last.frechet:.1f}" if last else ""
        paces[standing.phase](standing.iteration, limit, figure)

    gan = hospital.settings.gan
    weight = gan.privacy_weight * preset.privacy_scale
    return train_gan(
        Examples(square.images, square.labels, len(hospital.data.classes), fingerprint(learnt)),
        preset,
        Privacy(weight, gan.privacy_reduction, job.distance),
        distance_to_real,
        job.folder,
        seed=job.seed,
        deadline=job.deadline,
        report=report,
        judged_by=f"{distance_to_real.name} {gan.inception_weights}",
    )


def _refuse_unprotected(job: Job, trained: Trained) -> None:
    """Refuse a generator from before the privacy term, or log a warning if settings allow it."""
    last = trained.progress[-1]
    why = (
        "The privacy loss had no part in its GAN: at the first check the images were already too "
        "far from the real ones."
    )
    logging.getLogger("flwr").warning(
        f"{job.hospital.name}: {why} After {last.iteration} iterations the distance was "
        f"{last.frechet:.3g}, more than {ENOUGH} times the best earlier one."
    )
    if not job.hospital.settings.release.without_privacy:
        raise job.refusal(
            why,
            "Lower gan.privacy-weight (phase 1 is not trained again), or allow it with "
            "release.without-privacy (and the policy).",
        )


def _projections(job: Job, square: Samples, trained: Trained) -> dict[str, float]:
    """Distances of both generators' nearest images from training images, if settings ask.

    The images are of different patients.
    """
    rows = one_of_each(job.patients)[: job.hospital.settings.gan.projections]
    if not len(rows):
        return {}
    measured = measure_privacy(
        trained.plain,
        trained.private or trained.plain,
        from_bytes(square.images[rows.to(square.images.device)]),
        mean_w(trained.plain, square.labels, seed=job.seed),
        metric=job.distance,
        folder=job.folder,
        seed=job.seed,
        deadline=job.deadline,
    )
    return {f"{key}-perceptual": value for key, value in measured.items()}


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images uint8 [N, C, *, *] in another size, on the same device."""
    # On the CPU, since torch does not resize bytes with antialiasing on CUDA.
    return resize(images.cpu(), size).to(images.device)
