"""The format of Flower's records between two processes of one owner, without pickle.

    length of the head, 8 bytes | head, JSON | the bytes of all arrays, in the order of the head

The head has facts beside the records, and for each array its type and shape. The reader gets
exactly the written records, even invalid ones from a server: the handlers judge them, as in
Flower's own processes. The only objects in the JSON are bytes, as {"bytes": hex}. A mapping is a
list of pairs.
"""

import json
from collections.abc import Callable
from mmap import mmap
from typing import IO, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.protocol.records import ParcelError, array_records, count_bytes

HEAD = 2**26  # most bytes of a head
ARRAYS = 2**34  # most bytes of all arrays of a message
Readable = IO[bytes] | mmap
KINDS = {"arrays": ArrayRecord, "metrics": MetricRecord, "config": ConfigRecord}


def write(put: Callable[[bytes], object], facts: list[Any], content: RecordDict) -> None:
    """Write facts (JSON values and bytes) and records with a function that takes bytes.

    Raises:
        ParcelError: They are larger than `receive` allows.
    """
    records = [_describe(name, record) for name, record in content.items()]
    head = json.dumps([facts, records], default=lambda value: {"bytes": value.hex()}).encode()
    arrays = [array for record in array_records(content).values() for array in record.values()]
    if len(head) > HEAD or count_bytes(content) > ARRAYS:
        raise ParcelError(f"A message is too large: the limit is {ARRAYS} bytes of arrays.")
    put(len(head).to_bytes(8, "big") + head)
    for array in arrays:
        put(array.data)


def receive(file: Readable) -> tuple[list[Any], RecordDict]:
    """Read the facts and records that `write` has written.

    Raises:
        EOFError: The other process has ended.
        ValueError: The bytes have another format, or announce too large sizes.
    """
    size = int.from_bytes(_read(file, 8), "big")
    if size > HEAD:
        raise ValueError(f"A head of {size} bytes is announced.")
    head = _read(file, size)
    facts, records = json.loads(head, object_hook=lambda found: bytes.fromhex(found["bytes"]))
    sizes = [array[-1] for _, kind, values in records if kind == "arrays" for _, array in values]
    if min(sizes, default=0) < 0 or sum(sizes) > ARRAYS:
        raise ValueError(f"Arrays of {sum(sizes)} bytes are announced.")
    return facts, RecordDict({name: _record(kind, values, file) for name, kind, values in records})


def _describe(name: str, record: Any) -> tuple[str, str, list[Any]]:
    kind = next(kind for kind, each in KINDS.items() if isinstance(record, each))
    values = list(record.items())
    if kind == "arrays":
        values = [(key, (a.dtype, a.shape, a.stype, len(a.data))) for key, a in values]
    return name, kind, values


def _record(kind: str, values: list[Any], file: Readable) -> Any:
    if kind == "arrays":
        values = [
            (key, Array(dtype, tuple(shape), stype, _read(file, size)))
            for key, (dtype, shape, stype, size) in values
        ]
    return KINDS[kind](dict(values))


def _read(file: Readable, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data
