"""Writes NaN as null, since JSON has no NaN (strategies.protocol.shapes reads it)."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, with null for NaN and the infinities."""
    return json.dumps(_null_for_nan(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _null_for_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _null_for_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_null_for_nan(item) for item in value]
    return value
