"""The names that the server imports from Flower's internals: any release may move them.

Hospitals import none. deploy/control.py runs inside Flower's SuperLink, and imports its own.
"""

from flwr.supercore.constant import DEFAULT_SIMULATION_CONFIG
from flwr.supercore.run import Run
from flwr.supercore.utils import simulation_config_from_json
from flwr.superlink.grid import InMemoryGrid

__all__ = ["DEFAULT_SIMULATION_CONFIG", "InMemoryGrid", "Run", "simulation_config_from_json"]
