"""The names that the server imports from Flower's internals: any release may move them.

Hospitals import none. deploy/control.py runs inside Flower's SuperLink, and imports its own.
"""

from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["TaskIdentity", "is_simulation"]


def is_simulation(grid: Grid) -> bool:
    """Whether a grid is that of Flower's simulations."""
    from flwr.superlink.grid import InMemoryGrid  # with SQLAlchemy: takes half a second

    return isinstance(grid, InMemoryGrid)
