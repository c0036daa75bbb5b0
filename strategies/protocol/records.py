"""Frozen dataclasses as Flower records, and back, strictly."""

from dataclasses import asdict, fields
from typing import Any, TypeVar

from flwr.app import ConfigRecord

RecordT = TypeVar("RecordT")


class ParcelError(ValueError):
    """A parcel, or what travels beside it, is not what it must be."""


def to_record(value: Any) -> ConfigRecord:
    """Write a dataclass of texts, numbers and lists as a Flower record."""
    return ConfigRecord(asdict(value))


def from_record(kind: type[RecordT], record: ConfigRecord) -> RecordT:
    """Read what `to_record` wrote.

    Raises:
        ParcelError: A field is missing, unknown, or of the wrong type.
    """
    wanted = {each.name: each.type for each in fields(kind)}  # type: ignore[arg-type]
    if set(record) != set(wanted):
        raise ParcelError(
            f"The {kind.__name__.lower()} has the fields {sorted(record)}; "
            f"it must have {sorted(wanted)}."
        )
    for name, value in record.items():
        origin = list if "list" in str(wanted[name]) else wanted[name]
        if type(value) is not origin:
            raise ParcelError(f"'{name}' of the {kind.__name__.lower()} is {value!r}: wrong type.")
    return kind(**record)
