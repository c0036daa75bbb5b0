"""Errors that a person can correct."""


class DeployError(Exception):
    """A command failed; the text has the reason and the cure."""
