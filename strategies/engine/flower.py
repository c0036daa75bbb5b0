"""The names that the server imports from Flower's internals: any release may move them.

Hospitals import none. deploy/control.py runs inside Flower's SuperLink, and imports its own.
"""

from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import InMemoryGrid

__all__ = ["InMemoryGrid", "Run", "TaskIdentity"]
