"""Runs a program that takes the app from approved code alone, whatever code a run brings.

Flower unpacks the bundle that comes with a run, puts its folder first on `sys.path`, and imports
the module that the bundle names. A bundle could so replace the app, or bring a `torch` of its own.
Here `sys.path` stays what it was before the program began, and the app's packages are found in the
approved folder only. So the approved app answers, and itself refuses a run of other code.

    python -I confined.py <approved folder> <program> <argument> ...
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

APP = "client_app"


class Finder(MetaPathFinder):
    """Finds modules as Python's own finder does, but not where a bundle wants them found."""

    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    def __init__(self, approved: Path) -> None:
        """Trusts what is on `sys.path` now.

        Args:
            approved: The folder with the app's packages.
        """
        self._approved = [str(approved)]
        self._packages = {each.name for each in approved.iterdir()}
        self._path = [*sys.path]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module.

        Raises:
            ImportError: It is not the app's, and would be the first one after a bundle was put on
                `sys.path`: the bundle has named it.
        """
        if sys.path != self._path:
            sys.path[:] = self._path
            if APP not in sys.modules and name != APP:
                raise ImportError(f"The run's bundle names a module '{name}': only {APP} is run.")
        return PathFinder.find_spec(
            name, self._approved if name in self._packages else path, target
        )


def main(approved: Path, program: str, *arguments: str) -> None:
    """Run a program of Python, with its arguments."""
    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder(approved)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
