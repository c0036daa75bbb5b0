"""The sums of a hospital's features (strategies/sums.py): nothing is trained.

The hospital's half is client_app/release/sums/ring.py; here are only the settings.
"""

from math import prod

from torch import nn

from learning.learners.plain import Learner
from learning.models import Architecture
from learning.models.taps import last_layer
from learning.samples import round_up
from learning.sums import ROWS
from strategies.protocol.settings import Settings, require
from strategies.protocol.sums import SumsSettings

# Numbers of a visit that are in memory at once: sums of a class, beside two of each task; matrices
# of d' features; vectors of d features of an image
ARRAYS, MATRICES, VECTORS = 10, 8, 3


class Sums(Learner):
    """A classifier from sums; no step has a loss."""

    tables: tuple[tuple[str, type], ...] = (("sums", SumsSettings),)
    own: SumsSettings

    @classmethod
    def check_suited(cls, model: nn.Module, settings: Settings) -> None:
        """See the base; more projections than features would only make the sums larger."""
        super().check_suited(model, settings)
        asked = settings.section("sums", SumsSettings).dimensions
        width = last_layer(model).in_features
        allowed = f"{width} or less, the number of features"
        require(asked <= width, "sums.dimensions", asked, allowed)

    @classmethod
    def memory_of_a_visit(cls, settings: Settings, images: int) -> tuple[int, int, int]:
        """No batch: all images (`round_up`) become vectors."""
        return 0, round_up(images), 0

    @classmethod
    def bytes_beside(cls, architecture: Architecture, settings: Settings, kept: int) -> int:
        """The sums of all classes, and vectors of the images."""
        own: SumsSettings = cls.read_settings(settings)
        asked, width = own.dimensions, prod(architecture.image_shape)
        size = asked or width
        triangles = architecture.classes * (ARRAYS + 2 * settings.tasks) + 2 * MATRICES
        vectors = VECTORS * (kept + ROWS + asked)  # also of the projection
        return 8 * (triangles * size * (size + 1) // 2 + vectors * width)
