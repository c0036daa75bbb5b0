"""What a hospital says when something goes wrong: the only errors that leave it with their text.

An error message can hold what must not leave the building, the name of a patient's file for
instance. These are raised with texts that were written for the server; of any other error it learns
the type alone, and the rest is in the hospital's own log.
"""

from learning.errors import DeadlineError, DivergedError, ModelError
from strategies.protocol.may_leave import Failure, UndeclaredError
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError


class DataError(ValueError):
    """A hospital's data cannot be used.

    Its text may name settings, counts and types, never a patient's data, and of an exception that
    came from a file only the type.
    """


class ReleaseError(ValueError):
    """A hospital's synthetic images may not leave it.

    Its text may name synthetic images, distances and thresholds, never a real image.
    """


LEAVES: dict[type[Exception], Failure] = {
    SettingsError: Failure.SETTINGS,
    ModelError: Failure.SETTINGS,
    DataError: Failure.DATA,
    ParcelError: Failure.PARCEL,
    UndeclaredError: Failure.UNDECLARED,
    DivergedError: Failure.DIVERGED,
    ReleaseError: Failure.RELEASE,
    DeadlineError: Failure.TIMEOUT,
}
