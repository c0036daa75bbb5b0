"""JSON in the shape that a type declares: what fits is read as it is, all else is named."""

import json
from dataclasses import dataclass, field
from math import isnan
from typing import Any, TypedDict

import pytest

from strategies.protocol import shapes
from strategies.protocol.files import FileError, read_json, read_text
from strategies.protocol.shapes import ShapeError, from_json


class Part(TypedDict, total=False):
    name: str
    share: float | None


@dataclass
class Whole:
    count: int
    figures: dict[str, float]
    pairs: set[tuple[str, int]]
    parts: list[Part]
    free: dict[str, Any]
    kept: dict[str, object]
    names: tuple[str, ...] = ()
    inner: "Whole | None" = field(default=None)


GOOD = {
    "count": 3,
    "figures": {"a": 1, "b": 0.5, "c": None},
    "pairs": [["x", 1]],
    "parts": [{"name": "p", "share": None, "more": None}],
    "free": {"x": [None]},
    "kept": {"x": [None]},
    "names": ["n"],
}


def test_what_fits_is_read():
    found = from_json(json.dumps({**GOOD, "inner": GOOD}), Whole)
    assert (found.count, found.pairs, found.names) == (3, {("x", 1)}, ("n",))
    assert found.parts == GOOD["parts"]
    assert found.kept == {"x": [None]}
    assert isnan(found.free["x"][0])
    assert isnan(found.figures["c"])
    assert found.inner is not None
    assert found.inner.count == 3


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"count": True}, "'count' is True; it must be a whole number"),
        ({"count": 2**64}, "'count'"),
        ({"count": 1.0}, "'count'"),
        ({"figures": {"a": "1"}}, "'figures.a' is '1'; it must be a number"),
        ({"figures": {"a": 10**400}}, "'figures.a'"),
        ({"figures": [1]}, "'figures' is [1]; it must be an object"),
        ({"pairs": [["x"]]}, "'pairs.0'"),
        ({"pairs": {"x": 1}}, "'pairs'"),
        ({"parts": [{"share": "x"}]}, "'parts.0.share'"),
        ({"names": ["\ud800"]}, "'names.0'"),
        ({"kept": 1}, "'kept'"),
        ({"inner": {}}, "'inner' differs in count, figures, free, kept, pairs, parts"),
        ({"other": 1}, "it differs in other"),
        ({"a\nINFO: \x1b[2J": 1}, r"it differs in a\nINFO: \x1b[2J"),
        ({"figures": {"a\nINFO: \x1b[2J": "1"}}, r"'figures.a\nINFO: \x1b[2J' is '1'"),
    ],
)
def test_what_does_not_fit_is_named(change, place):
    with pytest.raises(ShapeError) as caught:
        from_json(json.dumps({**GOOD, **change}), Whole)
    assert str(caught.value).startswith(place)
    assert len(str(caught.value)) < 400


def test_of_another_version_the_rest_is_read():
    found = from_json('{"count": 3, "other": [1]}', Whole, any_version=True)
    assert (found.count, found.figures, found.inner) == (3, {}, None)
    with pytest.raises(ShapeError):
        from_json('{"count": "3"}', Whole, any_version=True)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, "\ud800"])
def test_what_is_no_json_is_named(text):
    with pytest.raises(ShapeError):
        from_json(text, Whole)


def test_values_within_values_without_end_are_named():
    deep = '{"a": ' + "[" * 900 + "]" * 900 + "}"
    with pytest.raises(ShapeError, match="recursion"):
        from_json(deep, dict[str, Any])


def test_values_are_counted_before_they_take_memory(monkeypatch):
    monkeypatch.setattr(shapes, "MOST_VALUES", 1000)
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("It was read."))
    with pytest.raises(ShapeError, match="more than 1000 values"):
        from_json(f"[{'{},' * 1000}{{}}]", Whole)


def test_a_file_is_a_file_of_a_size(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "latin").write_bytes(b"\xe4")
    for name, kind in (("pipe", OSError), ("large", OSError), ("latin", FileError)):
        with pytest.raises(kind, match=name):
            read_text(tmp_path / name)
    (tmp_path / "other").write_text('{"count": 1}')
    with pytest.raises(FileError, match=r"other is damaged, or of another version: it differs in"):
        read_json(tmp_path / "other", Whole)
