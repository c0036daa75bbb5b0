"""The node-config: what a hospital says of itself, from where no one else can change it."""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from flwr.app import Context

from strategies.protocol.declared import near_miss
from strategies.protocol.may_leave import OWN_SETTINGS
from strategies.protocol.settings import Settings, SettingsError

# The node-config, as JSON, in the environment of the hospital's processes (`deploy supernode`):
# what comes through Flower's own interface, any user of the machine can change.
NODE_CONFIG = "FEDHANDOFF_NODE_CONFIG"

KEPT = ("final", "visits", "none")  # which models a hospital takes home: the key `keep`
SIMULATED = ("partition-id", "num-partitions")  # Flower's engine sets them
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("site", "dataset", "data-dir", "store-dir", "members"), (str,)),
    **dict.fromkeys(("identity", "policy", "keep", *OWN_SETTINGS), (str,)),
    **dict.fromkeys(SIMULATED, (int,)),
    "resident": (bool,),
    "train.batch-size": (int,),
    "train.learning-rate": (float, int),
}
_simulates = False


class OwnError(SettingsError):
    """What a hospital has written for itself cannot be used.

    Its text goes to the server, and names no path, line or value.

    Args:
        what: Such as "policy".
        why: For the hospital: the file, the line, the value, and what to do.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"The hospital's {what} cannot be used; its own log says why.")
        self.what, self.why = what, why

    def explain(self) -> str:
        """What the hospital's own people are told."""
        return f"The hospital's {self.what} cannot be used: {self.why}"


def check_node_config(config: Mapping[str, Any]) -> None:
    """Refuse keys that nobody reads, and values that are of the wrong kind.

    Raises:
        OwnError: Names the key, the value and what is allowed.
    """
    real = not is_simulated(config)
    known = {key: kinds for key, kinds in KINDS.items() if not (real and key in SIMULATED)}
    for key, value in config.items():
        if key not in KINDS:
            raise OwnError("node-config", f"it has no key '{key}'{near_miss(key, known)}")
        if key not in known:
            raise OwnError("node-config", f"'{key}' is for simulations: leave it out.")
        fits = isinstance(value, KINDS[key]) and (bool in KINDS[key] or type(value) is not bool)
        if value == "" and key not in OWN_SETTINGS:
            raise OwnError("node-config", f"'{key}' is empty: give it a value, or leave it out.")
        if not fits or (key == "keep" and value not in KEPT):
            kind = {str: "a text in quotes", int: "a whole number", bool: "true or false"}
            allowed = ", ".join(KEPT) if key == "keep" else kind.get(KINDS[key][0], "a number")
            raise OwnError("node-config", f"'{key}' is {value!r}; it must be: {allowed}.")


def with_own(run_config: Mapping[str, Any], config: Mapping[str, Any]) -> Settings:
    """The settings of a run, with those that the hospital sets itself; `model` is its own alone.

    Raises:
        SettingsError: One of the run's cannot be used.
        OwnError: One of the hospital's cannot be used.
    """
    own = {key: config[key] for key in OWN_SETTINGS if key in config and key != "model"}
    settings = Settings.parse(run_config)
    try:
        return Settings.parse({**run_config, **own}) if own else settings
    except SettingsError as error:
        raise OwnError("node-config", str(error)) from error


def own_config(context: Context) -> Mapping[str, Any]:
    """The node-config: the hospital's own word if its processes have it, else Flower's."""
    own = os.environ.get(NODE_CONFIG)
    return json.loads(own) if own else context.node_config


def simulate() -> None:
    """Let this process answer for simulated hospitals.

    Whoever starts such a process calls this. No setting, file or variable has the same effect.
    """
    global _simulates
    _simulates = True


def is_simulated(config: Mapping[str, Any]) -> bool:
    """Whether the hospital is one of several that share an owner: it has no policy, no ledger.

    That is decided by who started the process: `simulate`, or Flower's engine, whose hospitals are
    actors of Ray. In a hospital's own SuperNode the keys of a simulation are refused.
    """
    ray = sys.modules.get("ray")  # an actor's process has imported it
    actor = ray and ray.is_initialized() and ray.get_runtime_context().get_actor_id()
    return bool(_simulates or actor) and "partition-id" in config
