"""Files that are whole or not there at all, wherever the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Where hospitals have their stores unless they say otherwise.
STORES = Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser() / "fedhandoff"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place, whole, once the block has ended without an error.

    After an error the draft is removed. The folder must exist.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def make_private(folder: Path) -> None:
    """Make a folder for keys, and those above it that are missing, for this user alone.

    The topmost one that is made tells git to leave it alone: ~/fedhandoff, where the documentation
    has servers and hospitals, is where somebody may have cloned this repository to.
    """
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(new):
        each.mkdir(mode=0o700, exist_ok=True)
    if new:
        (new[-1] / ".gitignore").write_text("*\n", encoding="utf-8")
