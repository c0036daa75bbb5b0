"""The sums of a hospital's features (strategies/sums.py): nothing is trained.

The hospital's half is client_app/release/sums/ring.py; here are only the settings.
"""

from torch import nn

from learning.learners.plain import Learner
from learning.models.taps import last_layer
from strategies.protocol.settings import Settings, require
from strategies.protocol.sums import SumsSettings


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
