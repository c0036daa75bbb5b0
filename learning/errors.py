"""What can go wrong with a model. A hospital tells the server these texts: they name no patient."""


class ModelError(ValueError):
    """No network can be built from this, or not for such images."""


class DivergedError(ArithmeticError):
    """A network has weights that are not finite."""


class DeadlineError(TimeoutError):
    """The time allowed for a message ran out before the work was done."""
