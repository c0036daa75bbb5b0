"""Errors that a person can put right."""


class DeployError(Exception):
    """A command failed; the text says why, and what to do."""
