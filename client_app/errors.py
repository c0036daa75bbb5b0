"""The only errors that leave a hospital with their text.

The text of an error may contain private data, such as the name of a patient's file. The texts of
these errors are written for the server. The server learns only the type of any other error; the
hospital's own log has the rest.
"""

from client_app.authority.node_config import OwnError
from client_app.authority.policy import PolicyError
from gan.presets import PresetError
from learning.errors import DeadlineError, DivergedError, ModelError
from strategies.protocol.may_leave import Failure, UndeclaredError
from strategies.protocol.records import ParcelError, UselessError
from strategies.protocol.settings import SettingsError


class DataError(ValueError):
    """A hospital's data cannot be used.

    The server reads the text. It may name settings, counts and types, but nothing of an image or a
    table: no number, size, name or value. It may name only the type of an exception that came from
    a file.

    Args:
        text: The text for the server.
        own: Further sentences for the hospital alone.
    """

    def __init__(self, text: str, own: str = "") -> None:
        super().__init__(text)
        self.own = own

    def explain(self) -> str:
        """The text for the hospital's own staff."""
        return f"{self} {self.own}".rstrip()


class ReleaseError(ValueError):
    """A hospital's synthetic images may not leave it.

    The text may name settings, but no image and no distance.
    """


class LedgerError(RuntimeError):
    """An answer cannot be written into the hospital's ledger, and does not leave."""


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


def line_of(error: Exception) -> str:
    """The text of an error for the hospital's own log, with details that stay here."""
    if isinstance(error, PolicyError | OwnError | DataError):
        return error.explain()
    return str(error)


def failure_of(error: Exception) -> Failure:
    """The kind of failure of an error in `LEAVES`."""
    return next(failure for kind, failure in LEAVES.items() if isinstance(error, kind))
