"""Runs a program that takes the app only from approved code, not from a run's bundle.

Flower unpacks the bundle of a run, puts its folder first on `sys.path`, and imports the module that
the bundle names. So a bundle could replace the app, or bring its own `torch`. Here `sys.path` stays
as it was at the start, and the app's packages come only from the approved folder. So the approved
app answers, and it refuses a run of other code.

    python -I confined.py <approved folder> <program> <argument> ...
"""

import atexit
import gc
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

APP = "client_app"
# Flower's package of `flwr-clientapp` also imports this program, with its database and web server.
# That takes 0.4 s of CPU time for each message, and no message needs it.
NOT_NEEDED = "flower_supernode"


class Finder(MetaPathFinder):
    """Finds modules like Python's own finder, but never in a run's bundle."""

    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    def __init__(self, approved: Path) -> None:
        """Trust the folders that are on `sys.path` now."""
        self._approved = [str(approved)]
        self._packages = {each.name for each in approved.iterdir()}
        self._path = [*sys.path]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module.

        Raises:
            ImportError: The module is the first one after a bundle was put on `sys.path`, and is
                not the app's: the bundle has named it.
        """
        if sys.path != self._path:
            sys.path[:] = self._path
            if APP not in sys.modules and name != APP:
                raise ImportError(f"The run's bundle names a module '{name}': only {APP} is run.")
        return PathFinder.find_spec(
            name, self._approved if name in self._packages else path, target
        )


def main(approved: Path, program: str, *arguments: str) -> None:
    """Run a Python program with its arguments."""
    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder(approved)
    empty = ModuleType(f"flwr.supernode.cli.{NOT_NEEDED}")
    setattr(empty, NOT_NEEDED, None)
    sys.modules[empty.__name__] = empty
    # Otherwise the process of each message frees all objects, one by one, before it ends.
    atexit.register(gc.freeze)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
