"""Errors of models. Their texts leave the hospital, so they name no patient."""


class ModelError(ValueError):
    """A network cannot be built, or cannot take such images."""


class DivergedError(ArithmeticError):
    """A network has weights that are not finite."""


class DeadlineError(TimeoutError):
    """The time allowed for a message ran out before the work was done."""
