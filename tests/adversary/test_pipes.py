"""Pipes and devices in the places of a hospital's own files: nothing waits or reads for ever."""

import os
import re

import pytest

from client_app.authority import ledger
from client_app.authority.identity import Identity, secret_of
from client_app.authority.node_config import OwnError
from client_app.authority.policy import Policy
from client_app.store import Store
from deploy.errors import DeployError
from deploy.running import lock


def locked(path):
    with lock(path.parent, "The server"):
        pass


OPENED = {
    "identity": lambda path: Identity.load("graz", path),
    "figures-secret": lambda path: secret_of(Store(path.parent)),
    "policy.toml": Policy.read,
    "running.json": locked,
    "ledger.jsonl": lambda path: [*ledger.read(path)],
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", OPENED)
def test_no_pipe_and_no_device_is_read(name, kind, tmp_path):
    path = tmp_path / name
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises((OSError, OwnError, DeployError)) as refusal:
        OPENED[name](path)
    text = getattr(refusal.value, "explain", refusal.value.__str__)()
    assert str(tmp_path) in text
    assert re.search("pipe or a device|No such device", text)
