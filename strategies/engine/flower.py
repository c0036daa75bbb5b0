"""What the server takes of Flower beside its public interface: any release may move these names.

A hospital takes none. deploy/control.py, which runs inside of Flower's SuperLink, names its own.
"""

from flwr.supercore.constant import DEFAULT_SIMULATION_CONFIG
from flwr.supercore.run import Run
from flwr.supercore.utils import simulation_config_from_json
from flwr.superlink.grid import InMemoryGrid

__all__ = ["DEFAULT_SIMULATION_CONFIG", "InMemoryGrid", "Run", "simulation_config_from_json"]
