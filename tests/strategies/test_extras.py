"""The command that adds optional packages suits the environment, and removes no others."""

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from strategies.protocol.extras import install_command

ROOT = Path(__file__).parents[2]


def test_an_environment_of_uv_sync_keeps_its_other_extras(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command("dicom") == "`uv sync --inexact --extra dicom`"


def test_an_environment_of_uv_tool_is_installed_again(monkeypatch, tmp_path):
    (tmp_path / "uv-receipt.toml").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    command = f"`uv tool install '.[dicom]' --with flwr=={version('flwr')}`"
    assert install_command("dicom") == f"{command} in its clone"


def test_each_extra_that_a_text_names_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    texts = [
        path.read_text()
        for pattern in ("*.md", "docs/**/*.md", "[!.]*/**/*.py")
        for path in ROOT.glob(pattern)
    ]
    named = re.findall(r"install_command\([\"'](\w+)|--extra (\w+)", "".join(texts))
    assert {first or second for first, second in named} <= extras.keys()
    assert named
