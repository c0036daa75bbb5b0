"""The HTML pages that people read: values become markup here alone, by the templates beside this.

A page needs no other file, on a screen or on paper; it may load nothing and run nothing, whatever
is in it: every value is escaped as it is written. A template computes nothing. It is given figures,
verdicts and pictures, and says what they are.

Templates end in .md, which they need not: of a Flower app's files, Flower packs no others that a
browser would show (docs/hub.md).
"""

import base64
import re
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from strategies.protocol.text import printable

KEPT = "\n\t\N{NO-BREAK SPACE}"  # of the characters that cannot be seen
JUDGED = {"good": "✓", "bad": "✗", "open": "?", "note": "·"}


@dataclass(frozen=True)
class Marked:
    """A text that says `good`, `warn` or `bad` also by its looks."""

    text: str
    kind: str


def render(template: str, title: str, **values: Any) -> str:
    """A whole page.

    Args:
        template: Its name, without its end.
        title: Of the page, and for the window's bar.
        values: What the template writes.
    """
    page = _templates().get_template(f"{template}.html.md")
    return page.render(title=title, contents=[], **values)


def shown(value: object) -> str:
    """A value for people: fractions with three digits, a dash where there is none."""
    if isinstance(value, float):
        return f"{value:.3f}" if isfinite(value) else "–"
    return "–" if value is None else str(value)


def png_uri(png: bytes) -> str:
    """A picture of pixels as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    templates.globals["JUDGED"] = JUDGED
    templates.filters |= {"anchor": _anchor, "capital": capital, "shown": shown}
    return templates


def _written(value: object) -> object:
    """A value as templates write it: markup of theirs, or text of characters that are printable."""
    return value if isinstance(value, Markup) else printable(shown(value), KEPT)


def capital(text: str) -> str:
    """A text whose first letter is a capital one."""
    return text[:1].upper() + text[1:]


def _anchor(title: str) -> str:
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
