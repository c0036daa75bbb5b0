"""Errors of models, whose texts leave the hospital and name no patient; deadlines; warnings."""

import logging
import time
from functools import lru_cache


class ModelError(ValueError):
    """A network cannot be built, or does not take the given images."""


class DivergedError(ArithmeticError):
    """Training diverged; its result is of no use."""


class DeadlineError(TimeoutError):
    """The time allowed for a message ran out before the work was done."""


def check_deadline(deadline: float, work: str) -> None:
    """Refuse (DeadlineError) to go on after a deadline, on the clock of `time.monotonic`."""
    if time.monotonic() > deadline:
        raise DeadlineError(f"{work} took longer than allowed (hop-timeout).")


@lru_cache(maxsize=1024)  # a server chooses some of the texts
def warn_once(text: str) -> None:
    """Log a warning, once per process unless many others follow."""
    logging.getLogger("flwr").warning(text)
