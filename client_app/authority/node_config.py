"""The node-config: what a hospital says of itself, from where no one else can change it."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from flwr.app import Context

from strategies.protocol.declared import (
    Count,
    condition,
    declare,
    keys_of,
    near_miss,
    read,
    refusal,
)
from strategies.protocol.may_leave import OWN_FILES, OWN_SETTINGS
from strategies.protocol.settings import Settings, SettingsError

# The node-config, as JSON, in the environment of the hospital's processes (`deploy supernode`):
# what comes through Flower's own interface, any user of the machine can change.
NODE_CONFIG = "FEDHANDOFF_NODE_CONFIG"

SIMULATED = ("partition-id", "num-partitions")  # Flower's engine sets them
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


_Text = Annotated[str, condition(bool, "a text that is not empty; or leave it out")]
_Kept = Annotated[
    str, condition(lambda kept: kept in ("final", "visits", "none"), "one of final, visits, none")
]


@declare
class NodeConfig:
    """The keys of a node-config, beside the settings of a run that a hospital may set itself.

    Attributes:
        keep: Which models the hospital takes home (client_app.afterwards.home).
        resident: Whether a process lives between its messages (warm/resident.py).
    """

    site: _Text = ""
    dataset: _Text = ""
    data_dir: _Text = ""
    store_dir: _Text = ""
    members: _Text = ""
    identity: _Text = ""
    policy: _Text = ""
    keep: _Kept = ""
    model: _Text = ""
    resident: bool = False
    partition_id: Count = 0
    num_partitions: Count = 0

    @property
    def policy_file(self) -> Path | None:
        """The hospital's policy; None if the defaults hold."""
        return Path(self.policy).expanduser() if self.policy else None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "NodeConfig":
        """Read a node-config, or refuse keys that nobody reads and values of the wrong kind.

        Raises:
            OwnError: Names each such key, its value and what is allowed.
        """
        real = not is_simulated(config)
        known = [
            key
            for key in dict.fromkeys((*keys_of(cls), *OWN_SETTINGS))
            if not real or key not in SIMULATED
        ]
        own, problems = read(config, cls)
        for key, value in config.items():
            if real and key in SIMULATED:
                problems[key] = f"'{key}' is for simulations: leave it out."
            elif key not in known:
                problems[key] = f"There is no key '{key}'{near_miss(key, known)}"
            elif key in OWN_FILES and not isinstance(value, str):
                problems[key] = refusal(key, value, "a text")
        if own is None or problems:
            raise OwnError("node-config", " ".join(problems.values()))
        return own


def combined_settings(run_config: Mapping[str, Any], config: Mapping[str, Any]) -> Settings:
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
