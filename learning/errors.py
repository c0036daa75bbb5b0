"""Errors of models, whose texts leave the hospital and name no patient; and warnings."""

import logging
from functools import cache


class ModelError(ValueError):
    """A network cannot be built, or does not take the given images."""


class DivergedError(ArithmeticError):
    """Training diverged; its result is of no use."""


class DeadlineError(TimeoutError):
    """The time allowed for a message ran out before the work was done."""


@cache
def warn_once(text: str) -> None:
    """Log a warning, once per process."""
    logging.getLogger("flwr").warning(text)
