"""Errors of models. Their texts leave the hospital, so they name no patient."""


class ModelError(ValueError):
    """A network cannot be built, or does not take the given images."""


class DivergedError(ArithmeticError):
    """Training diverged; its result is of no use."""


class DeadlineError(TimeoutError):
    """The time allowed for a message ran out before the work was done."""
