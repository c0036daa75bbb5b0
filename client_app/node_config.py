"""The node-config: what a hospital says of itself, from where no one else can change it."""

import json
import os
from collections.abc import Mapping
from typing import Any

from flwr.app import Context

# The node-config, as JSON, in the environment of the hospital's processes (`deploy supernode`):
# what comes through Flower's own interface, any user of the machine can change.
NODE_CONFIG = "FEDHANDOFF_NODE_CONFIG"


def own_config(context: Context) -> Mapping[str, Any]:
    """The node-config: the hospital's own word if its processes have it, else Flower's."""
    own = os.environ.get(NODE_CONFIG)
    return json.loads(own) if own else context.node_config


def is_simulated(config: Mapping[str, Any]) -> bool:
    """Whether the hospital is one of several that share an owner: it has no policy, no ledger."""
    return "partition-id" in config
