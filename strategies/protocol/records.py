"""Frozen dataclasses as Flower records, and back, with strict checks."""

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

RecordT = TypeVar("RecordT")
KindT = TypeVar("KindT", ArrayRecord, ConfigRecord, MetricRecord)


class ParcelError(ValueError):
    """A parcel, or a record beside it, is not valid."""


class UselessError(ParcelError):
    """A parcel is valid, but its model is useless (soundness.py)."""


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


def to_record(value: Any) -> ConfigRecord:
    """Write a dataclass of texts, numbers and lists as a Flower record."""
    return ConfigRecord({**vars(value)})


def from_record(kind: type[RecordT], record: ConfigRecord) -> RecordT:
    """Read what `to_record` wrote.

    Raises:
        ParcelError: A field is missing, unknown, or of the wrong type.
    """
    wanted = _types_of(kind)  # type: ignore[arg-type]
    if record.keys() != wanted.keys():
        raise ParcelError(
            f"The {kind.__name__.lower()} has the fields {sorted(record)!s:.400}; "
            f"it must have {sorted(wanted)}."
        )
    given: dict[str, Any] = {**record}
    for name, value in given.items():
        whole, inner = wanted[name]
        each = value if isinstance(value, list) else ()
        if type(value) is not whole or any(type(e) not in inner for e in each):
            raise ParcelError(
                f"'{name}' of the {kind.__name__.lower()} is {value!r:.80}: wrong type."
            )
    return kind(**given)


def check_values(kind: str, right: Mapping[str, object]) -> None:
    """Refuse a record of a kind; `right` has for each field whether its value is possible."""
    for name, holds in right.items():
        if not holds:
            raise ParcelError(f"'{name}' of the {kind} has an impossible value.")


@lru_cache(maxsize=16)
def _types_of(kind: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The type of each field of a dataclass, and the types of the items of a list."""
    types = {each.name: each.type for each in fields(kind)}
    return {name: (get_origin(each) or each, get_args(each)) for name, each in types.items()}
