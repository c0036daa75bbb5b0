"""What a hospital's images must come up to. Preflight foretells what enrolment enforces."""

from client_app.datasets.pool import Indices


def too_many(unusable: int, images: int, allowed: float) -> bool:
    """Whether more than an `allowed` share (`max-quarantined`) of the images cannot be used."""
    return images > 0 and unusable / images > allowed  # not multiplied: 0.29 * 100 < 29


def too_few(train: Indices, test: Indices) -> bool:
    """Whether there are fewer than 2 images to train on, or none to test on."""
    return len(train) < 2 or len(test) < 1
