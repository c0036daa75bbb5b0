"""The only errors that leave a hospital with their text.

The text of an error can hold what must not leave, such as the name of a patient's file. The texts
of these errors are written for the server. Of any other error it learns the type alone; the
hospital's own log has the rest.
"""

from client_app.authority.policy import PolicyError
from gan.presets import PresetError
from learning.errors import DeadlineError, DivergedError, ModelError
from strategies.protocol.may_leave import Failure, UndeclaredError
from strategies.protocol.records import ParcelError, UselessError
from strategies.protocol.settings import SettingsError


class DataError(ValueError):
    """A hospital's data cannot be used.

    Its text may name settings, counts and types, but no patient's data. Of an exception that came
    from a file it may name only the type.
    """


class ReleaseError(ValueError):
    """A hospital's synthetic images may not leave it.

    Its text may name settings, but no image and no distance.
    """


class LedgerError(RuntimeError):
    """What would leave a hospital cannot be written into its ledger, and stays."""


LEAVES: dict[type[Exception], Failure] = {
    SettingsError: Failure.SETTINGS,
    PolicyError: Failure.POLICY,
    ModelError: Failure.SETTINGS,
    PresetError: Failure.SETTINGS,
    DataError: Failure.DATA,
    UselessError: Failure.USELESS,  # before its parent
    ParcelError: Failure.PARCEL,
    UndeclaredError: Failure.UNDECLARED,
    DivergedError: Failure.DIVERGED,
    ReleaseError: Failure.RELEASE,
    DeadlineError: Failure.TIMEOUT,
    LedgerError: Failure.LEDGER,
}


def failure_of(error: Exception) -> Failure:
    """The kind of failure that an error of `LEAVES` is."""
    return next(failure for kind, failure in LEAVES.items() if isinstance(error, kind))
