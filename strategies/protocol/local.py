"""Requests between programs of this machine use no proxy."""

import os
from collections.abc import Mapping

HERE = "127.0.0.1,localhost,::1"


def bypass_proxy(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which requests to this machine use no proxy.

    Requests to other machines still use the proxies that the environment names.
    """
    exempt = environment.get("no_proxy") or environment.get("NO_PROXY")
    value = f"{exempt},{HERE}" if exempt else HERE
    return {**environment, "no_proxy": value, "NO_PROXY": value}
