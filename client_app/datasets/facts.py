"""Hashes of the images that a hospital uses.

Equal hashes mean: two runs used the same images with the same classes, in any folder.
Someone who guesses the images could verify the guess by the hash. In a deployment the hash is
therefore keyed with a secret of the hospital, and begins with "keyed-". Two keyed hashes of one
hospital reveal only whether they are equal.
"""

import hashlib
import hmac

from client_app.datasets.local import LocalData
from client_app.datasets.pool import LocalSamples

DIGITS = 16  # of a hash


def hashes(data: LocalData, secret: bytes) -> dict[str, str]:
    """The hashes of the training and of the test images; the secret is empty in a simulation."""
    parts = {"train": data.train, "test": data.test}
    return {name: _hash(samples, data.classes, secret) for name, samples in parts.items()}


def _hash(samples: LocalSamples, classes: tuple[str, ...], secret: bytes) -> str:
    """The hash of image files, or of pixels if there are no files; the order does not count."""
    contents = samples.contents
    if contents is None:
        images = samples.images.cpu().numpy()
        contents = [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
    names = [classes[label] for label in samples.labels.tolist()]
    lines = sorted(f"{content} {name}" for content, name in zip(contents, names, strict=True))
    digest = hmac.digest(secret, "\n".join(lines).encode(), "sha256").hex()[:DIGITS]
    return f"keyed-{digest}" if secret else digest
