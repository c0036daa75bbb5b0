"""The HTML pages that people read: one look, and the one place where text becomes markup.

The server's report of a run and a hospital's data card are such pages. No page travels; this stands
here because `strategies.protocol` is the one package that both sides of the trust boundary share.

A page needs no other file, on a screen or on paper. Every function escapes the texts that it gets.
Those called `parts` are markup already: what these functions return, and pictures.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite

STYLE = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; color: #222; max-width: 48em;
       margin: 3em auto; padding: 0 1em; overflow-wrap: break-word; }
h1 { font-size: 1.8em; font-weight: 600; margin: 0; }
h2 { font-size: 1.1em; font-weight: 600; margin: 2.5em 0 0; padding-top: .6em;
     border-top: 1px solid #ccc; break-after: avoid; }
p { color: #666; font-size: .9em; margin: .2em 0 1em; }
pre { font-size: .85em; columns: 2; white-space: pre-wrap; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1em 0; }
td, th { text-align: left; font-weight: normal; vertical-align: top; padding: .15em 2em .15em 0; }
th { color: #666; font-size: .9em; border-bottom: 1px solid #ccc; }
svg, img { display: block; max-width: 100%; height: auto; break-inside: avoid; }
svg text { font-family: Helvetica, Arial, sans-serif !important; }
img { margin: 1em 0; }
.red, .amber, .green { border-left: 4px solid; padding: .6em 1em; margin: 1em 0; }
.red { border-color: #c8553d; background: #fbf1ee; }
.amber { border-color: #d9a441; background: #fcf7ec; }
.green { border-color: #5b8c5a; background: #f0f6f0; }
div p { color: #222; font-size: 1em; margin: .2em 0; }
div table { font-size: .85em; margin: .6em 0 0; }
div td, div th { padding-right: 1em; }
"""


def document(title: str, *parts: str) -> str:
    """A whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{''.join(parts)}</body>\n</html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    """The page's own heading (level 1), or that of a section (2)."""
    return f"<h{level}>{escape(text)}</h{level}>\n"


def paragraph(text: str) -> str:
    """What explains the rest."""
    return f"<p>{escape(text)}</p>\n"


def verbatim(text: str) -> str:
    """Lines as they are, such as settings."""
    return f"<pre>{escape(text)}</pre>\n"


def notice(colour: str, *parts: str) -> str:
    """A box that is to be seen first: "red", "amber" or "green"."""
    return f'<div class="{colour}">\n{"".join(parts)}</div>\n'


def table(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of `shown` values; it has a row of titles unless all of them are empty."""
    lines = ["".join(f"<th>{escape(title)}</th>" for title in head)] if any(head) else []
    lines += ["".join(f"<td>{escape(shown(value))}</td>" for value in row) for row in rows]
    return "<table>\n" + "".join(f"<tr>{line}</tr>\n" for line in lines) + "</table>\n"


def shown(value: object) -> str:
    """A value for people: fractions with three digits, a dash where there is none."""
    if isinstance(value, float):
        return f"{value:.3f}" if isfinite(value) else "–"
    return "–" if value is None else str(value)
