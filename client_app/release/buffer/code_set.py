"""The code set from which a hospital's synthetic images are rendered, if `gan.sampler` names one.

Shapes: `N` images, `C` channels, `R` pixels of the GAN's images.
"""

import torch

from client_app.release.buffer.job import Job
from gan.code_sets import CODE_SETS
from gan.codes import EFFORTS, Codes, Source, render_code_parts, render_codes, sample_rows
from gan.nearest import nearest
from gan.networks import Generator, from_bytes, to_bytes
from gan.projection import PIXELS, SHOWN, histogram
from gan.synthesis import save_grid
from learning.samples import Samples
from strategies.protocol.files import write_whole


def code_set(job: Job, square: Samples, generator: Generator) -> Codes | None:
    """Return the codes of each class; None for random latents.

    `square` are training images of the generator, uint8 [N, C, R, R].

    Raises:
        TimeoutError: The deadline has passed; the search continues next time.
    """
    gan = job.hospital.settings.gan
    if gan.sampler == "random":
        return None
    effort = EFFORTS[gan.preset]
    clusters = gan.hospital_settings(0).clusters  # a real hospital uses the first value
    chosen = square[sample_rows(square.labels, effort.images, job.seed)]
    source = Source(
        generator=generator.requires_grad_(False),
        images=from_bytes(chosen.images),
        labels=chosen.labels,
        distance=job.distance,
        effort=effort,
        mirror=job.preset.mirror,
        clusters=int(clusters or 0),
        k=gan.k,
        kl=gan.kl,
        folder=job.folder / "codes" / effort.fingerprint,
        seed=job.seed,
        deadline=job.deadline,
    )
    codes = CODE_SETS[gan.sampler](source)
    if gan.sampler != "linear":  # "linear" needs no projection
        _draw(job, source, codes)
    if gan.sampler in ("linear", "plan"):
        _follow(job, source, codes)
    return codes


def _draw(job: Job, source: Source, codes: Codes) -> None:
    """Write pictures of real images, their projections, and the nearest images of the set.

    They are figures 3.3 and 3.4 of the thesis, for LCI.
    """
    found, real = source.projection(), to_bytes(source.images)
    examples = torch.linspace(0, len(real) - 1, min(SHOWN, len(real))).long()
    least, shown = torch.full_like(found.distances, torch.inf), real[examples]
    # A class may have 179,300 codes of LCI: memory holds a part of their images.
    for made in render_code_parts(source.generator, torch.cat(list(codes.values())), job.seed):
        far, which = nearest(real, made, job.distance)
        nearer = far < least
        least = far.where(nearer, least)
        shown[nearer[examples]] = made[which[examples]][nearer[examples]]
    distances = {"projection": found.distances.tolist(), "nearest": least.tolist()}
    folder = job.pictures()
    histogram(job.distance.name, distances).savefig(folder / "set-distances.png", dpi=150)
    rows = torch.cat([real[examples], to_bytes(found.images[examples]), shown])
    save_grid(folder / "set-nearest.png", rows, len(examples), PIXELS)


def _follow(job: Job, source: Source, codes: Codes) -> None:
    """Write the distance of each point of a path to the nearest real image.

    It is the first path of the first class. The samplers linear and plan join the same codes, so
    their files are the two curves of the thesis' Fig. 3.6.
    """
    path = next(iter(codes.values()))[: source.effort.points]
    made = render_codes(source.generator, path, job.seed)
    far, _ = nearest(made, to_bytes(source.images), job.distance)
    lines = [f"{number},{each:.6g}\n" for number, each in enumerate(far.tolist(), 1)]
    text = "".join(["point,distance\n", *lines])
    write_whole(job.pictures() / "path-distances.csv", text)
