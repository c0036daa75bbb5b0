"""The hash of the code that server and hospitals run."""

import hashlib
import tomllib
from functools import cache
from pathlib import Path

# Packages that are the same at server and hospitals.
PACKAGES = ("audit", "client_app", "gan", "learning", "pages", "strategies", "warm")
ENDS = (".py", ".toml", ".md")


@cache
def code_hash() -> str:
    """The hash of the code that runs here."""
    return hash_of(Path(__file__).parents[2])


@cache
def app_version() -> str:
    """The version of the app that runs here, as pyproject.toml has it."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def hash_of(root: Path) -> str:
    """SHA-256 of the names and contents of all files of code below a folder."""
    digest = hashlib.sha256()
    for path in files_of(root):
        content = path.read_bytes()
        # The length is hashed too: else code could move between files under the same hash.
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def files_of(root: Path) -> list[Path]:
    """All files of code below a folder, such as a checkout; with templates of pages."""
    below = (sorted((root / package).rglob("*")) for package in PACKAGES)
    return [path for paths in below for path in paths if path.suffix in ENDS]
