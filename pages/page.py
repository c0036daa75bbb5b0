"""Renders the HTML pages: only this module turns values into markup, with the templates beside it.

A page needs no other file, on a screen or on paper. It loads nothing and runs nothing, since every
value is escaped. A template computes nothing: it lays out figures, verdicts and pictures.

The names of templates end in .md because Flower does not pack HTML files into an app (docs/hub.md).
"""

import re
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from strategies.protocol.text import printable

KEPT = "\n\t\N{NO-BREAK SPACE}"  # the only invisible characters that pages keep
JUDGED = {"good": "✓", "bad": "✗", "open": "?", "note": "·"}


@dataclass(frozen=True)
class Marked:
    """A text with a style: `good`, `warn` or `bad`."""

    text: str
    kind: str


def render(template: str, title: str, **values: Any) -> str:
    """A whole page, from a template (named without its ending) and the template's variables."""
    page = _templates().get_template(f"{template}.html.md")
    return page.render(title=title, contents=[], **values)


def value_text(value: object) -> str:
    """A value as text: fractions with three digits (tiny ones: two), a dash for a missing value."""
    if isinstance(value, float):
        tiny = 0 < abs(value) < 0.0005
        return (f"{value:.2g}" if tiny else f"{value:.3f}") if isfinite(value) else "–"
    return "–" if value is None else str(value)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable_text,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    templates.globals["JUDGED"] = JUDGED
    templates.filters |= {"anchor": _anchor, "capital": capital}
    return templates


def _printable_text(value: object) -> object:
    """A value as templates write it: their own markup, or printable text."""
    return value if isinstance(value, Markup) else printable(value_text(value), KEPT)


def capital(text: str) -> str:
    """A text with a capital first letter."""
    return text[:1].upper() + text[1:]


def _anchor(title: str) -> str:
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
