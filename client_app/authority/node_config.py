"""The node-config: the hospital's own settings, which no one else can change."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from flwr.app import Context

from strategies.protocol.declared import (
    Count,
    Text,
    declare,
    keys_of,
    near_miss,
    pattern,
    read,
    refusal,
)
from strategies.protocol.files import expand
from strategies.protocol.may_leave import OWN_FILES, OWN_SETTINGS
from strategies.protocol.settings import Settings, SettingsError

# The node-config, as JSON, in the environment of the hospital's processes (deploy/hospital.py). Any
# user of the machine can change a node-config that comes through Flower's own interface.
NODE_CONFIG = "FEDHANDOFF_NODE_CONFIG"

SIMULATED = ("partition-id", "num-partitions")  # Flower's engine sets them
_simulates = False


class OwnError(SettingsError):
    """A file or the node-config of a hospital cannot be used.

    The error's text goes to the server, and names no path, line or value.

    Args:
        what: The kind of file, such as "policy".
        why: The text for the hospital: the file, the line, the value, and the cure.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"The hospital's {what} cannot be used; its own log says why.")
        self.what, self.why = what, why

    def explain(self) -> str:
        """The text for the hospital's own staff."""
        return f"The hospital's {self.what} cannot be used: {self.why}"


_Kept = Annotated[str, pattern("final|visits|none", "one of final, visits, none")]


@declare
class NodeConfig:
    """The keys of a node-config, beside the settings of a run that a hospital may set itself."""

    site: Text = ""
    dataset: Text = ""
    data_dir: Text = ""
    store_dir: Text = ""
    members: Text = ""
    identity: Text = ""
    policy: Text = ""
    keep: _Kept = ""  # the models that the hospital keeps (client_app.afterwards.home)
    model: Text = ""
    resident: bool = False  # whether a process stays between messages (warm/resident.py)
    partition_id: Count = 0
    num_partitions: Count = 0

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "NodeConfig":
        """Read a node-config.

        Raises:
            OwnError: Keys are unknown or values not valid; it names all, and the allowed values.
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
    """The settings of a run, with the hospital's own values in place (except `model`).

    Raises:
        SettingsError: A setting of the run cannot be used.
        OwnError: A setting of the hospital cannot be used.
    """
    own = {key: config[key] for key in OWN_SETTINGS if key in config and key != "model"}
    settings = Settings.parse(run_config)
    try:
        return Settings.parse({**run_config, **own}) if own else settings
    except SettingsError as error:
        raise OwnError("node-config", str(error)) from error


def own_config(context: Context) -> Mapping[str, Any]:
    """The node-config: from the environment if it is there, else from Flower."""
    own = os.environ.get(NODE_CONFIG)
    return json.loads(own) if own else context.node_config


def simulate() -> None:
    """Let this process answer for simulated hospitals, as no setting, file or variable can."""
    global _simulates
    _simulates = True


def policy_file(config: Mapping[str, Any]) -> Path | None:
    """The file of the hospital's policy, by its node-config; None if the defaults hold."""
    return expand(str(config["policy"])) if config.get("policy") else None


def is_simulated(config: Mapping[str, Any]) -> bool:
    """Whether the hospital is simulated. A simulated hospital has no policy and no ledger.

    The start of the process decides: it called `simulate`, or it is an actor of Ray in Flower's
    engine. A hospital's own SuperNode refuses the keys of a simulation.
    """
    ray = sys.modules.get("ray")  # an actor's process has imported ray
    actor = ray and ray.is_initialized() and ray.get_runtime_context().get_actor_id()
    return bool(_simulates or actor) and "partition-id" in config
