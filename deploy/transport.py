"""Addresses of a SuperLink, for hospitals and commands. Flower's releases differ here.

Up to Flower 1.39 hospitals have their own port, with gRPC. Since 1.40 the SuperLink has one port
with HTTP, for hospitals, commands and the server's own runs.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version

from deploy.errors import DeployError
from strategies.protocol.files import reason_of

ONE_PORT = tuple(map(int, version("flwr").split(".")[:2])) >= (1, 40)
ALPN = "http/1.1" if ONE_PORT else "h2"  # the protocol that a SuperNode offers in TLS
# The line of a SuperLink's log with its address for hospitals.
LISTENS = re.compile(
    r".*Starting (?:Fleet API \(gRPC-rere\)|the SuperLink Fleet HTTP API) on (\S+?)\.?$"
)
_EVERYWHERE = ("0.0.0.0", "[::]")


def split_address(text: str, option: str) -> tuple[str, int]:
    """The host and the port of an address. Brackets of a host, as in [::1]:9092, are removed.

    Raises:
        DeployError: The address is not host:port.
    """
    host, _, port = text.rpartition(":")
    try:
        if host.startswith("[") and host.endswith("]"):
            host = str(ipaddress.IPv6Address(host[1:-1]))
        elif not re.fullmatch(r"(?!-)[\w-]{1,63}(\.[\w-]{1,63})*\.?", host, re.ASCII):
            raise ValueError
        if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
            raise ValueError
    except ValueError:
        raise DeployError(
            f"{option} is '{text}': give host:port alone, such as fl.example.org:9092 or "
            "[2001:db8::7]:9092, without https:// and path; a port is 1 to 65535."
        ) from None
    return host, int(port)


def listen_options(fleet_address: str, control_port: int) -> list[str]:
    """The options of a SuperLink that listens for hospitals at `fleet_address`, a host:port.

    `control_port` is a port of 127.0.0.1 for commands, if they have their own port.
    """
    if not ONE_PORT:
        own = ["--host", "127.0.0.1", "--port", str(control_port)]
        return [*own, "--fleet-api-address", fleet_address]
    host, _, port = fleet_address.rpartition(":")
    return ["--host", host.strip("[]"), "--port", port]


def command_address(fleet_address: str, control_port: int) -> str:
    """The host:port of that SuperLink for commands from the same machine."""
    if not ONE_PORT:
        return f"127.0.0.1:{control_port}"
    host, _, port = fleet_address.rpartition(":")
    return f"{'127.0.0.1' if host in _EVERYWHERE else host}:{port}"


def listen_addresses(fleet_address: str, control_port: int) -> dict[str, str]:
    """Option -> host:port on which that SuperLink listens."""
    own = {} if ONE_PORT else {"--control-port": command_address(fleet_address, control_port)}
    return {"--fleet-address": fleet_address, **own}


def check_free(addresses: Mapping[str, str]) -> None:
    """Raise a `DeployError` if programs cannot listen on the addresses, host:port by option."""
    with ExitStack() as held:
        for option, address in addresses.items():
            host, port = split_address(address, option)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                held.enter_context(socket.create_server((host, port), family=family))
            except OSError as error:
                reason = reason_of(error).partition(" (while")[0]  # Python adds the address
                raise DeployError(
                    f"{address} ({option}) cannot be used: {reason}. If another program listens "
                    "there, end it, or choose another address."
                ) from error


def free_port() -> int:
    """A port of 127.0.0.1 on which no program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
