"""What can go wrong in a way that a person can put right."""


class DeployError(Exception):
    """A command cannot do what it is asked to; the text says why, and what to do."""
