"""Enrolment: what a hospital says of itself, and what it refuses before the first hop."""

from client_app.request import Request
from gan.presets import PRESETS
from learning.augmentation import check_augmentation
from strategies.protocol.settings import require


def check_run(request: Request) -> None:
    """Refuse settings that would fail only when somebody has waited for them.

    Raises:
        SettingsError: Names the settings.
    """
    settings = request.hospital.settings
    request.learner.check(settings)
    check_augmentation(settings.train.augment, request.hospital.data.train.shape)
    if request.order.buffer_size:
        preset = settings.gan.preset
        require(preset in PRESETS, "gan.preset", preset, f"one of {', '.join(PRESETS)}")


def card_of(request: Request) -> dict[str, str | list[str] | list[int]]:
    """Who the hospital is, and which classes and shape its images have."""
    data = request.hospital.data
    card: dict[str, str | list[str] | list[int]] = {
        "hospital": request.hospital.name,
        "classes": list(data.classes),
        "shape": list(data.train.shape),
    }
    if request.seal:
        card["identity"] = str(request.seal.identity.member)
    return card
