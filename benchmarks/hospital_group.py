"""Many hospitals' SuperNodes in one process, for a machine that has no memory for all of them.

    python -m benchmarks.hospital_group <host:port of the SuperLink> <folder> <hospital> ...

For benchmarks alone: hospitals that share a process have nothing to keep from one another. Each has
its own key, store and node-config, and its own connection, over which it looks for messages as
often as Flower's SuperNode does; one after the other they are answered by the app as it is. Needs
what Flower 1.39 has inside: `flwr` has no public interface for a connection.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_object_contents_from_iterable,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.start_client_internal import _init_connection

from client_app.app import app
from client_app.identity import Identity
from client_app.members import member_line
from client_app.node_config import NODE_CONFIG
from deploy.credentials import make_key
from deploy.hospital import Hospital, node_config
from deploy.server import register
from strategies.protocol.may_leave import Failure

EVERY = 3.0  # seconds between two looks for a message, as in Flower's SuperNode


@contextmanager
def grouped(folder: Path, address: str, names: Sequence[str], processes: int) -> Iterator[None]:
    """Run hospitals in some processes, with their files as `deploy.demo.hospitals` has them."""
    lines = []
    for name in names:
        member = Identity.of(name, folder / name / "store" / name / "identity").member
        lines.append(member_line(name, member))
        make_key(folder / name, name)
        register(folder / "server", folder / name / f"{name}.pub", name)
    (folder / "members").write_text("".join(lines), encoding="utf-8")
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.hospital_group", address, str(folder)]
    with ExitStack() as running:
        for number in range(processes):
            log = running.enter_context((folder / f"group-{number}.log").open("wb"))
            mine = [*command, *names[number::processes]]
            process = subprocess.Popen(mine, env=variables, stdout=log, stderr=log)
            running.callback(process.wait)
            running.callback(process.terminate)
        yield


class Node:
    """A hospital's connection to the SuperLink."""

    def __init__(self, folder: Path, name: str, connection: tuple[Any, ...]) -> None:
        hospital = Hospital(
            folder=folder / name,
            server="",
            name=name,
            data_dir=folder / "images" / name,
            store_dir=folder / name / "store",
            members=str(folder / "members"),
            node_config="resident=false",
        )
        self.config = json.dumps(node_config(hospital))
        self.node, self.receive, self.send, self.get_run, self.get_fab, *rest = connection
        self.pull, self.push, self.confirm = rest

    def answer(self, run_config: Callable[[Any, int], dict[str, Any]]) -> bool:
        """Answer a message if there is one; says whether there was."""
        received = self.receive()
        if received is None:
            return False
        begin, (head, tree) = time.monotonic(), received
        run = head.metadata.run_id
        pull, confirm = partial(self.pull, run), partial(self.confirm, run)
        message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, self.node
        os.environ[NODE_CONFIG] = self.config
        context = Context(run, self.node, {}, RecordDict(), dict(run_config(self, run)))
        try:
            reply = app(message, context)
        except Exception as error:
            reply = Message(Error(Failure.CRASHED, repr(error)), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        wanted, session = self.send(reply, get_object_tree(reply), time.monotonic() - begin)
        contents = ((name, objects[name].deflate()) for name in wanted)
        push_object_contents_from_iterable(contents, partial(self.push, run, session))
        return True


def main(server: str, folder: Path, names: Sequence[str]) -> None:
    """Connect the hospitals, and answer until this process is ended."""
    configs: dict[int, dict[str, Any]] = {}

    def run_config(node: Node, run: int) -> dict[str, Any]:
        if run not in configs:
            facts = node.get_run(run)
            fab = node.get_fab(facts.fab_hash, run)
            configs[run] = get_fused_config_from_fab(fab.content, facts)
        return configs[run]

    with ExitStack() as connected:
        nodes = []
        for name in names:
            connection = _init_connection(
                transport="grpc-rere",
                server_address=server,
                insecure=False,
                root_certificates=(folder / "server" / "ca.crt").read_bytes(),
                authentication_keys=_keys(folder / name / f"{name}.key"),
            )
            nodes.append(Node(folder, name, connected.enter_context(connection)))
        while True:
            begun = time.monotonic()
            answered = [node.answer(run_config) for node in nodes]
            if not any(answered):
                time.sleep(max(0.0, begun + EVERY - time.monotonic()))


def _keys(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    key = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, key.public_key()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
