"""The sums of a hospital's features (strategies/sums.py): nothing is trained.

The hospital's half is client_app/release/sums/ring.py; here are only the settings.
"""

from learning.learners.plain import Learner
from strategies.protocol.sums import SumsSettings


class Sums(Learner):
    """A classifier from sums; no step has a loss."""

    tables: tuple[tuple[str, type], ...] = (("sums", SumsSettings),)
    own: SumsSettings
