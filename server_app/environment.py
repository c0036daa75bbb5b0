"""Which environment packages come from, if Flower has made one for the run."""

import os
import sys
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def prefer_compiled(pyproject: Path = PYPROJECT) -> None:
    """Leave the run's environment off the import path if Python's own has what the app asks for.

    Flower installs the app's dependencies for each run, in a folder that goes with the run. There
    every process would compile all that it imports: half a minute of a core for torch.

    Args:
        pyproject: Its dependencies are looked for.
    """
    environment = Path(os.environ.get("VIRTUAL_ENV", sys.prefix))
    others = [path for path in sys.path if not Path(path).is_relative_to(environment)]
    if environment == Path(sys.prefix) or len(others) == len(sys.path):
        return
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    # Ray comes with flwr[simulation]; what else that asks for, Flower has.
    wanted = map(Requirement, [*project["dependencies"], "ray"])
    if all(_is_met(each, others) for each in wanted):
        sys.path[:] = others


def _is_met(wanted: Requirement, paths: list[str]) -> bool:
    found: list[Distribution] = [*distributions(name=canonicalize_name(wanted.name), path=paths)]
    return bool(found) and wanted.specifier.contains(found[0].version, prereleases=True)
