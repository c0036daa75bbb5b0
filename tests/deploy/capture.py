"""What goes between hospitals and a server: as a listener on the wire has it, and opened.

The test has the server's key, so it can end TLS in the middle and read what Flower sends.
"""

import asyncio
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from flwr.app import Message
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from deploy.transport import ALPN, ONE_PORT

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, PADDED = 0, 8  # a type and a flag of HTTP/2's frames


@contextmanager
def tap(address, streams):
    """A way to an address that notes all that goes by, one stream for each direction."""
    host, port = address.split(":")

    def carry(source, target, stream):
        with suppress(OSError), source, target:
            while content := source.recv(65536):
                stream += content
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def accept():
        with suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection((host, int(port)))
                for ends in ((near, far), (far, near)):
                    streams.append(stream := bytearray())
                    threading.Thread(target=carry, args=(*ends, stream), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def opened(address: str, folder: Path, sent: list[bytearray]) -> Iterator[str]:
    """A way to a server that notes what each connection to it sends, without its TLS.

    Args:
        address: The server's.
        folder: Has its key and certificates.
        sent: Is filled.
    """
    host, port = address.split(":")
    near = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    near.load_cert_chain(folder / "server.crt", folder / "server.key")
    far = ssl.create_default_context(cafile=folder / "ca.crt")
    for context in (near, far):
        context.set_alpn_protocols([ALPN])

    async def carry(source, target, stream):
        with suppress(OSError):
            while content := await source.read(65536):
                stream += content
                target.write(content)
                await target.drain()
        target.close()

    async def accept(reader, writer):
        source, target = await asyncio.open_connection(host, int(port), ssl=far)
        sent.append(stream := bytearray())
        open_ones.extend((writer, target))
        await asyncio.gather(carry(reader, target, stream), carry(source, writer, bytearray()))

    async def serve():
        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=near)
        begun.put((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        async with server:
            await over.wait()
        for each in open_ones:
            each.transport.abort()
        await asyncio.sleep(0.1)  # until those who read from them have ended

    begun: SimpleQueue[tuple[asyncio.AbstractEventLoop, int]] = SimpleQueue()
    over = asyncio.Event()
    open_ones: list[asyncio.StreamWriter] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    loop, near_port = begun.get(timeout=30)
    try:
        yield f"127.0.0.1:{near_port}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


@dataclass(frozen=True)
class Sent:
    """What hospitals have sent.

    Attributes:
        answers: Each answer.
        size: Bytes of these, as Flower writes them.
        others: Each other request of Flower's.
    """

    answers: list[Message]
    size: int
    others: list[bytes]


def read(streams: list[bytearray]) -> Sent:
    """The answers in what connections have sent, put together from their parts."""
    contents: dict[str, bytes] = {}
    pushed, others, size = [], [], 0
    requests = _http_requests if ONE_PORT else _grpc_requests
    for request in (request for stream in streams for request in requests(stream)):
        part, answer = (_parsed(kind, request) for kind in (PushObjectRequest, PushMessagesRequest))
        if part and hashlib.sha256(part.object_content).hexdigest() == part.object_id:
            contents[part.object_id] = part.object_content
        elif answer and answer.messages_list:
            pushed += [each.metadata.message_id for each in answer.messages_list]
        else:
            others.append(request)
            continue
        size += len(request)
    answers = []
    for each in pushed:
        answer = inflate_object_from_contents(each, contents, keep_object_contents=True)
        assert isinstance(answer, Message)
        answers.append(answer)
    return Sent(answers, size, others)


def _parsed(kind, request):
    with suppress(DecodeError):
        return kind.FromString(request)
    return None


def _grpc_requests(stream: bytearray) -> Iterator[bytes]:
    """The gRPC requests in what an HTTP/2 connection has sent, each in a stream of its own."""
    assert stream[: len(PREFACE)] in (
        PREFACE,
        b"",
    )  # nothing, if the certificate alone was looked at
    bodies: dict[int, bytearray] = {}
    place = len(PREFACE)
    while len(stream) - place >= 9:
        length = int.from_bytes(stream[place : place + 3], "big")
        kind, flags = stream[place + 3], stream[place + 4]
        number = int.from_bytes(stream[place + 5 : place + 9], "big")
        place += 9 + length
        if kind == DATA:
            assert not flags & PADDED
            bodies.setdefault(number, bytearray()).extend(stream[place - length : place])
    for body in bodies.values():
        assert body[0] == 0  # not compressed
        assert int.from_bytes(body[1:5], "big") == len(body) - 5
        yield bytes(body[5:])


def _http_requests(stream: bytearray) -> Iterator[bytes]:
    """The bodies of the requests in what an HTTP/1.1 connection has sent, one after the other."""
    place = 0
    while (end := stream.find(b"\r\n\r\n", place)) >= 0:
        first, *lines = bytes(stream[place:end]).split(b"\r\n")
        assert first.startswith(b"POST /v1/fleet/")
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        assert b"content-encoding" not in headers
        place = end + 4 + int(headers[b"content-length"])
        yield bytes(stream[end + 4 : place])
    assert place == len(stream)
