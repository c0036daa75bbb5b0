"""Declared tables: frozen dataclasses with annotations of the allowed values.

The settings of a run, the rules of a policy and the keys of a node-config are such tables. pydantic
checks them. It converts no types, except a whole number to a fraction. One error names all wrong
keys of a table, each with its value and the allowed values.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from strategies.protocol.redaction import redact
from strategies.protocol.text import setting_text

TableT = TypeVar("TableT")

SHOWN = 300  # characters of a value in an error
MOST = 10**9  # a larger number is a mistake
LARGEST = 2**63 - 1  # the largest whole number in Flower's messages
# A table is built at its first use, since a run reads few tables.
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, hide_input_in_errors=True, defer_build=True)
_WORDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number, and finite",
    "finite_number": "a number, and finite",
    "string_type": "a text",
    "list_type": "a list of texts",
}


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def declare(table: type[TableT]) -> type[TableT]:
    """Make a class a frozen dataclass; a field's key is its name with dashes."""
    return dataclass(table, frozen=True, config=_CONFIG)  # type: ignore[return-value]


def condition(fits: Callable[[Any], object], allowed: str) -> AfterValidator:
    """An annotation of values that pass a function; `allowed` describes them in errors."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise ValueError(allowed)
        return value

    return AfterValidator(check)


def pattern(expression: str, allowed: str) -> AfterValidator:
    """An annotation of texts that match a regular expression; `allowed` describes them."""
    return condition(re.compile(expression, re.DOTALL).fullmatch, allowed)


def choice(names: Iterable[str]) -> AfterValidator:
    """An annotation of names out of a list."""
    known = list(names)

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"known names{near_miss(name, known).rstrip('.')}")
        return name

    return AfterValidator(check)


def bounds(least: float, most: float) -> Any:
    """An annotation of numbers from `least` to `most`."""
    return Field(ge=least, le=most)


def zero_or(least: float, most: float) -> AfterValidator:
    """An annotation of numbers that are 0, or from `least` to `most`."""
    return condition(lambda n: n == 0 or least <= n <= most, f"0, or {least} to {most}")


_LINE = "a text that is not blank, without line breaks and control characters; or leave it out"
Text = Annotated[str, condition(lambda text: text.strip() and min(text) >= " ", _LINE)]
Count = Annotated[int, bounds(0, MOST)]
OneOrMore = Annotated[int, bounds(1, MOST)]
TwoOrMore = Annotated[int, bounds(2, MOST)]
Passes = Annotated[int, bounds(1, 100_000)]  # rounds, or epochs; more take years
Amount = Annotated[float, bounds(0, MOST)]
AboveZero = Annotated[float, Field(gt=0, le=MOST)]
Share = Annotated[float, bounds(0, 1)]
LEAST_EPSILON = 1e-3  # with a smaller ε, noise may be larger than the numbers that it is added to
MOST_EPSILON = 100.0  # one patient may change a probability by e^100, so there is no protection
Epsilon = Annotated[float, bounds(LEAST_EPSILON, MOST_EPSILON)]
# With δ below 1e-15 dp-accounting's ε of sampled releases is infinite. With δ = 0.01 all data of
# one patient in a hundred may leave.
LEAST_DELTA, MOST_DELTA = 1e-12, 0.01
Delta = Annotated[float, bounds(LEAST_DELTA, MOST_DELTA)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
ShareAboveZero = Annotated[float, Field(gt=0, le=1)]


def read(
    values: Mapping[str, Any], table: type[TableT], prefix: str = ""
) -> tuple[TableT | None, dict[str, str]]:
    """Build a declared table, and the tables in it, from the values whose keys start with `prefix`.

    Returns:
        The table, or None if a value is wrong; and a sentence for each key with a missing or wrong
        value, which names the key, the value and the allowed values. A sentence about several keys
        has the key "".
    """
    kind: Any = table
    keys = {field.name: prefix + field.name.replace("_", "-") for field in fields(kind)}
    tables: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for field in fields(kind):
        if isinstance(field.type, type) and is_dataclass(field.type):
            tables[field.name], wrong = read(values, field.type, f"{keys[field.name]}.")
            problems |= wrong | problems  # the first sentence about several keys stays
    given = {name: values[key] for name, key in keys.items() if key in values} | tables
    try:
        return table(**given), problems
    except ValidationError as error:
        for each in error.errors(include_url=False):
            if not each["loc"]:  # from __post_init__
                problems.setdefault("", str(each["ctx"]["error"]))
                continue
            name = str(each["loc"][0])
            key = keys[name]
            if each["type"] == "missing":
                text = f"The setting '{key}' is missing: give it a value in pyproject.toml."
                problems.setdefault(key, text)
            elif name not in tables:  # these report problems of their own
                allowed = _allowed_values(each, kind.__pydantic_fields__[name])
                problems.setdefault(key, refusal(key, given[name], allowed))
    return None, problems


def keys_of(table: type[Any], prefix: str = "") -> Iterator[str]:
    """The keys of a declared table, and of the tables in it."""
    for field in fields(table):
        key = prefix + field.name.replace("_", "-")
        if isinstance(field.type, type) and is_dataclass(field.type):
            yield from keys_of(field.type, f"{key}.")
        else:
            yield key


def near_miss(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a sentence about an unknown name: the nearest known name, or all known names."""
    names = list(known)
    in_tables = [each for each in names if each.endswith(f".{name}")]
    if near := in_tables or get_close_matches(name, names, n=1):
        return f"; did you mean '{near[0]}'?"
    return f"; {otherwise or 'it may be ' + ', '.join(names)}."


def refusal(key: str, value: Any, allowed: str) -> str:
    """The sentence about a value that is not allowed."""
    return f"The setting '{key}' is {excerpt(value)}; it must be {allowed}."


def excerpt(value: Any) -> str:
    """A setting's value as in TOML, without a password or token; a long one is cut."""
    try:
        text = redact(repr(value) if isinstance(value, str) else setting_text(value))
    except ValueError:  # Python refuses to write more than some thousand digits
        return "a number without end"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _allowed_values(error: Mapping[str, Any], field: FieldInfo) -> str:
    """The allowed values of a field, in words, from pydantic's error about its present value."""
    match error["type"]:
        case "value_error":
            return str(error["ctx"]["error"])
        case "literal_error":
            return "one of " + ", ".join(str(each) or "''" for each in get_args(field.annotation))
        case kind if kind in _WORDS:
            return _WORDS["list_type" if isinstance(error["loc"][-1], int) else kind]
    limits = {
        name: getattr(mark, name)
        for mark in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(mark, name)
    }
    least = f"above {limits['gt']}" if "gt" in limits else f"{limits['ge']} or more"
    if "lt" in limits:
        return f"{least}, and below {limits['lt']}"
    if limits["le"] in (MOST, LARGEST) and error["type"].startswith("greater"):
        return least  # every number has such a limit
    if "ge" in limits:
        return f"{limits['ge']} to {limits['le']}"
    return f"{least}, and at most {limits['le']}"
