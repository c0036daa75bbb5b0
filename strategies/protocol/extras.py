"""How the packages of an optional feature are installed (pyproject.toml)."""

import sys
from importlib.metadata import version
from pathlib import Path


def install_command(extra: str) -> str:
    """The command that adds an extra to this environment, for a message.

    `uv sync` removes packages of other extras, unless it is inexact. `uv tool` has environments of
    its own, which it marks with a receipt.
    """
    if (Path(sys.prefix) / "uv-receipt.toml").is_file():
        return f"`uv tool install '.[{extra}]' --with flwr=={version('flwr')}` in its clone"
    return f"`uv sync --inexact --extra {extra}`"
