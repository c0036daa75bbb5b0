"""Pictures for the hospital's own eyes: its buffer, and which real image is nearest to which."""

from client_app.buffer.job import REAL_IMAGES, Job, some
from gan.audit import save_nearest
from gan.synthesis import save_grid
from learning.samples import Samples


def draw(job: Job, samples: Samples) -> None:
    """Write buffer.png, nearest-to-synthetic.png and nearest-to-real.png to the job's folder."""
    features = job.distance.features
    by_class = samples.labels.argsort(stable=True)
    save_grid(job.folder / "buffer.png", samples.images[by_class], columns=32)
    near_synthetic, near_real = (
        job.folder / f"nearest-to-{kind}.png" for kind in ("synthetic", "real")
    )
    save_nearest(near_synthetic, samples.images, job.train.images, features)
    save_nearest(near_real, some(job.train, REAL_IMAGES).images, samples.images, features)
