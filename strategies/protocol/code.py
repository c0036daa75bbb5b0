"""Which code server and hospitals run."""

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_hash() -> str:
    """SHA-256 of the source of the packages that server and hospitals must have the same of."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in ("client_app", "gan", "learning", "strategies"):
        for path in sorted([*(root / package).rglob("*.py"), *(root / package).rglob("*.toml")]):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
