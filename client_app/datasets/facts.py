"""What a hospital says of the images that it uses, beside their numbers: what they are, and a hash.

The hash tells whether two runs used the same images with the same classes, wherever the files lie.
Whoever can guess the images could try hashes. In a deployment it is therefore keyed with a secret
of the hospital, and says so: two such hashes tell nothing but whether they are equal, at one
hospital.
"""

import hashlib
import hmac

from client_app.datasets.pool import LocalData
from learning.samples import Samples

DIGITS = 16  # of a hash


def hashes(data: LocalData, secret: bytes) -> dict[str, str]:
    """The hashes of the training and of the test images.

    Args:
        data: The images.
        secret: The hospital's own; empty in a simulation.
    """
    parts = {
        "train": (data.train, data.train_contents),
        "test": (data.test, data.test_contents),
    }
    return {
        name: _hash(samples, contents, data.classes, secret)
        for name, (samples, contents) in parts.items()
    }


def _hash(
    samples: Samples, contents: list[str] | None, classes: tuple[str, ...], secret: bytes
) -> str:
    """Of the files of images, or of their pixels if they have none; in any order."""
    if contents is None:
        images = samples.images.cpu().numpy()
        contents = [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
    shown = [classes[label] for label in samples.labels.tolist()]
    lines = sorted(f"{content} {name}" for content, name in zip(contents, shown, strict=True))
    digest = hmac.digest(secret, "\n".join(lines).encode(), "sha256").hex()[:DIGITS]
    return f"keyed-{digest}" if secret else digest
