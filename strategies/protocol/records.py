"""Frozen dataclasses as Flower records, and back, with strict checks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.protocol.shapes import ShapeError, from_value

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
RecordT = TypeVar("RecordT")
KindT = TypeVar("KindT", ArrayRecord, ConfigRecord, MetricRecord)


class ParcelError(ValueError):
    """A parcel, or a record beside it, is not valid."""


class UselessError(ParcelError):
    """A parcel is whole, but its content is useless: its maker failed (engine/undoing.py)."""


@contextmanager
def useless_unless_valid() -> Iterator[None]:
    """Turn each ParcelError of the block into a UselessError.

    For content that came from another hospital just as this hospital made it.
    """
    try:
        yield
    except ParcelError as error:
        raise UselessError(str(error)) from error


def find_record(content: RecordDict, name: str, kind: type[KindT]) -> KindT | None:
    """The record of a name and a kind; None if there is none.

    Flower's `array_records` and its like check and copy all records at each use.
    """
    record = content.get(name)
    return record if isinstance(record, kind) else None


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """All records of arrays, by name."""
    return {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}


def size_of(arrays: Mapping[str, Array]) -> int:
    """Bytes of the arrays of a record."""
    return sum(len(array.data) for array in arrays.values())


def count_bytes(content: RecordDict) -> int:
    """Bytes of the arrays of a message, nearly its whole size."""
    return sum(map(size_of, array_records(content).values()))


def layout_of(arrays: Mapping[str, Array]) -> Layout:
    """The dtype and shape of each array of a record; a sealed record is one array of bytes."""
    return {name: (array.dtype, tuple(array.shape)) for name, array in arrays.items()}


def check_layout(kind: str, arrays: Mapping[str, Array], wanted: Layout) -> None:
    """Refuse (ParcelError) a record of a kind whose arrays have other names, dtypes or shapes."""
    if (found := layout_of(arrays)) != wanted:
        there, right = (
            ", ".join(f"{dtype} {shape} {name}" for name, (dtype, shape) in each.items())
            for each in (found, wanted)
        )
        raise ParcelError(f"The {kind} must be {right}; there are {there:.200}.")


def to_record(value: Any) -> ConfigRecord:
    """Write a dataclass of texts, numbers and lists as a Flower record."""
    return ConfigRecord({**vars(value)})


def from_record(kind: type[RecordT], record: ConfigRecord) -> RecordT:
    """Read what `to_record` wrote.

    Raises:
        ParcelError: A field is missing, unknown, or of the wrong type.
    """
    name, wanted = kind.__name__.lower(), {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if {*record} != wanted:
        raise ParcelError(
            f"The {name} has the fields {sorted(record)!s:.400}; it must have {sorted(wanted)}."
        )
    try:
        read: RecordT = from_value({**record}, kind, name)
    except ShapeError as error:
        raise ParcelError(f"{error}.") from error
    return read


def check_values(kind: str, right: Mapping[str, object]) -> None:
    """Refuse a record of a kind; `right` has for each field whether its value is possible."""
    for name, holds in right.items():
        if not holds:
            raise ParcelError(f"'{name}' of the {kind} has an impossible value.")
