"""Checks of JSON against declared types, for files and texts of others.

A type is a dataclass, a `TypedDict`, or a `list`, `dict` and the like of them. No type is converted
to another, except lists to tuples and sets. JSON has no NaN: null becomes NaN where the type is
`float` or `Any`, and stays None where it is `object`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import nan
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from strategies.protocol.text import printable

ShapeT = TypeVar("ShapeT")

MOST_VALUES = 4_000_000  # in a text; each takes some hundred bytes of memory
SHAPE = "shape"  # in the metadata of a field: its type in JSON, if Python has a wider one
_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_WITH_EMPTY = (str, bool, int, list, dict)


class ShapeError(ValueError):
    """JSON has another shape than it must have; names the place and the value."""


def from_json(
    text: str, shape: type[ShapeT], *, any_version: bool = False, times: int = 1
) -> ShapeT:
    """The value of a JSON text, of a given type.

    With `any_version` a dataclass may have other fields: unknown ones are skipped, and missing ones
    are empty. The text may have `times` as many values as others.

    Raises:
        ShapeError: The text is no JSON, has another type, or has too many values.
    """
    if sum(map(text.count, ",[{")) > (most := times * MOST_VALUES):
        raise ShapeError(f"it has more than {most} values")
    try:
        found: ShapeT = from_value(json.loads(text), shape, any_version=any_version)
    except ShapeError:
        raise
    except (ValueError, RecursionError) as error:
        raise ShapeError(f"it is not JSON that can be read ({error})") from error
    return found


def from_value(value: Any, shape: Any, place: str = "", *, any_version: bool = False) -> Any:
    """A value from JSON, or a like value of Python, brought to a type; or a ShapeError."""
    kind, inner = get_origin(shape) or shape, get_args(shape)
    if kind is Any or kind is object:
        return restore_nan(value) if kind is Any else value
    if kind is UnionType:
        if value is None and NoneType in inner:
            return None
        errors = []
        for each in (one for one in inner if one is not NoneType):
            try:
                return from_value(value, each, place, any_version=any_version)
            except ShapeError as error:
                errors.append(error)
        raise errors[0]

    def convert(item: Any, key: object, of: Any) -> Any:
        if _fits(item, of):  # most of a large file, or of a long list
            return item
        return from_value(item, of, f"{place}.{key}".lstrip("."), any_version=any_version)

    if is_dataclass(kind) or is_typeddict(kind):
        _require(isinstance(value, dict), value, place, "an object")
        known, needed = _fields_of(kind)
        odd = needed - value.keys() | (value.keys() - known.keys() if is_dataclass(kind) else set())
        if odd and not any_version:
            raise ShapeError(f"{_prefix(place)}differs in {printable(', '.join(sorted(odd))):.200}")
        given = {key: convert(value[key], key, known[key]) for key in value.keys() & known.keys()}
        if is_typeddict(kind):
            return {**value, **given}
        return kind(**{**{key: _empty(known[key]) for key in needed}, **given})
    if kind in (list, Sequence, set, tuple):
        _require(isinstance(value, list | tuple), value, place, "a list")
        of = inner if kind is tuple and inner[-1] is not ... else inner[:1] * len(value)
        _require(len(value) == len(of), value, place, f"a list of {len(of)}")
        items = [convert(*each) for each in zip(value, range(len(of)), of, strict=True)]
        return items if kind is Sequence else kind(items)
    if kind in (dict, Mapping):
        _require(isinstance(value, dict), value, place, "an object")
        _require(all(map(_is_whole, value)), value, place, "an object with keys in Unicode")
        return {key: convert(item, key, inner[1]) for key, item in value.items()}
    if kind is float and value is None:
        return nan
    _require(_fits(value, kind), value, place, _WORDS.get(kind, "something else"))
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a text, a number, or true or false is of a type."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        return False
    if type(value) is int:
        return -(2**63) <= value < 2**64  # the id of a Flower node has 64 bits
    return type(value) is not str or _is_whole(value)


def restore_nan(value: Any) -> Any:
    """The same value with NaN for None."""
    if isinstance(value, dict):
        return {key: restore_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restore_nan(item) for item in value]
    return nan if value is None else value


def _is_whole(text: str) -> bool:
    """Whether a text can be written: JSON may have halves of characters, which fail later."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _require(fits: bool, value: Any, place: str, allowed: str) -> None:
    if not fits:
        raise ShapeError(f"{_prefix(place)}is {value!r:.80}; it must be {allowed}")


def _prefix(place: str) -> str:
    return f"'{printable(place):.200}' " if place else "it "


def _empty(shape: Any) -> Any:
    kind = get_origin(shape) or shape
    return nan if kind is float else kind() if kind in _WITH_EMPTY else None


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of all fields, and the names of those that must be there."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return hints, kind.__required_keys__
    own = [each for each in fields(kind) if each.init]
    shapes = {each.name: each.metadata.get(SHAPE, hints[each.name]) for each in own}
    needed = {e.name for e in own if e.default is MISSING and e.default_factory is MISSING}
    return shapes, frozenset(needed)
