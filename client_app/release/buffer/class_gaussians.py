"""The sampler `class-gaussians`: features drawn from a normal distribution of each class."""

from client_app.release.buffer.job import Job
from gan.class_gaussians import ClassGaussians


class ClassGaussianSampler:
    """The distributions of a hospital's features (train.freeze).

    Attributes:
        figures: None: nothing is trained.
        classes: Classes with enough images.

    Raises:
        ReleaseError: No class has enough images.
    """

    def __init__(self, job: Job) -> None:
        if not len(job.learnt):
            raise job.refusal("No class has release.min-class-images images.")
        self.figures: dict[str, float] = {}
        self.classes = job.learnt.labels.unique()
        self.render = ClassGaussians(job.learnt.images, job.learnt.labels).render
