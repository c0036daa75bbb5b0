"""The sampler `class-gaussians`: features drawn from a normal distribution of each class.

Anybody who knows the random numbers could take them off the features. The mean of many draws, or
the same numbers with other variances, would reveal the mean of a class. So in a deployment:

- The variances are those of all training images of the hospital in classes with enough patients,
  whichever classes a run learns from.
- The random numbers of a class follow from a secret of the hospital, the images of the class, and
  the images behind the variances. A class draws its numbers one after the other.

So more runs with the same images reveal no more. With other images all numbers change.
"""

import hashlib
import hmac

import torch
from torch import Tensor

from client_app.datasets.pool import large_class_rows
from client_app.release.buffer.job import Job
from gan.class_gaussians import ClassGaussians
from learning.randomness import secret_rng
from learning.samples import Samples


def class_gaussians(job: Job) -> ClassGaussians:
    """The distributions of the classes that a job learns from."""
    images, labels = job.learnt.images, job.learnt.labels
    policy = job.hospital.policy
    if policy is None:
        return ClassGaussians(images, labels)
    train = (job.hospital.whole or job.hospital.data).train
    large = large_class_rows(train.patients, train.strata, policy.figures.smallest_group)
    every = train[torch.from_numpy(large)]
    beside = "".join(sorted(_hash_classes(every).values()))
    streams = {
        label: secret_rng(hmac.digest(job.hospital.secret, (own + beside).encode(), "sha256"))
        for label, own in _hash_classes(job.learnt).items()
    }
    return ClassGaussians(images, labels, (every.images, every.labels), streams)


def _hash_classes(samples: Samples) -> dict[int, str]:
    """A hash of the images of each class; neither their order nor the label counts."""
    images, labels = samples.images.cpu(), samples.labels.cpu()
    return {label: _hash(images[labels == label]) for label in labels.unique().tolist()}


def _hash(images: Tensor) -> str:
    each = sorted(hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images)
    return hashlib.sha256("".join(each).encode()).hexdigest()
