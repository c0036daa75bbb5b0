"""JSON, which has no NaN: it is written as null, and read as NaN again."""

import json
from collections.abc import Mapping
from dataclasses import fields
from math import isfinite, nan
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

KindT = TypeVar("KindT")

MAY_BE_NONE = {"null": None}  # the metadata of a field in which null is None at any depth


def to_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, with null for NaN and the infinities."""
    return json.dumps(_without_nan(value), indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(text: str, kind: type[KindT]) -> KindT:
    """The dataclass that was written as `to_json(asdict(...))`.

    null is NaN, but in fields that may be None, or are marked as `MAY_BE_NONE`.

    Raises:
        ValueError: The text is no JSON, or has other fields: another version wrote it.
    """
    values, hints = json.loads(text), get_type_hints(kind)
    marked = {field.name: "null" in field.metadata for field in fields(kind)}  # type: ignore[arg-type]
    names = marked.keys()
    if odd := sorted(names ^ values.keys()):
        raise ValueError(f"{kind.__name__} of another version: it differs in {', '.join(odd)}.")
    optional = {name for name in names if marked[name] or NoneType in get_args(hints[name])}
    return kind(**{k: v if k in optional else with_nan(v) for k, v in values.items()})


def with_nan(value: Any) -> Any:
    """The same with NaN for None."""
    if isinstance(value, dict):
        return {key: with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_nan(item) for item in value]
    return nan if value is None else value


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return value
