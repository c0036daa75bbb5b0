"""Programs of this machine talk to one another past any proxy."""

import os
from collections.abc import Mapping

HERE = "127.0.0.1,localhost,::1"


def past_proxy(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which requests to this machine go through no proxy.

    Requests to other machines take the proxies that the environment names, as before.
    """
    exempt = environment.get("no_proxy") or environment.get("NO_PROXY")
    value = f"{exempt},{HERE}" if exempt else HERE
    return {**environment, "no_proxy": value, "NO_PROXY": value}
