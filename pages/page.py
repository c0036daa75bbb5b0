"""The HTML pages that people read: one look, and the one place where text becomes markup.

The server's report of a run and its comparison of runs, a hospital's data card and its ledger are
such pages. No page travels; this stands here because `strategies.protocol` is the one package that
both sides of the trust boundary share.

A page needs no other file, on a screen or on paper; it may load nothing and run nothing, whatever
is in it. Every function escapes the texts that it gets. Those called `parts` are markup already:
what these functions return, and pictures.
"""

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite

from pages.style import STYLE
from strategies.protocol.text import printable

HEAD = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
)


JUDGED = {"good": "✓", "bad": "✗", "open": "?", "note": "·"}


def document(title: str, *parts: str, contents: Sequence[str] = ()) -> str:
    """A whole page.

    Args:
        title: For the window's bar.
        parts: The page.
        contents: Titles of its `section`s, for a table of contents.
    """
    links = "".join(f'<li><a href="#{_anchor(each)}">{escaped(each)}</a></li>' for each in contents)
    body = '<body class="long">' if contents else "<body>"
    nav = f'<nav aria-label="Contents"><ol>{links}</ol></nav>\n' if contents else ""
    return (
        f"{HEAD}<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"{body}\n{nav}<main>\n{''.join(parts)}</main>\n"
        "</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A part of a page that its contents can name."""
    return f'<section id="{_anchor(title)}">\n{heading(title)}{"".join(parts)}</section>\n'


def heading(text: str, level: int = 2) -> str:
    """The page's own heading (level 1), that of a section (2), or of a part of it (3)."""
    return f"<h{level}>{escaped(text)}</h{level}>\n"


def paragraph(text: str, *, soft: bool = False) -> str:
    """What is said; `soft` if it only explains the rest."""
    look = ' class="soft"' if soft else ""
    return f"<p{look}>{escaped(text)}</p>\n"


def listing(texts: Iterable[str]) -> str:
    """Sentences that stand side by side."""
    return "<ul>\n" + "".join(f"<li>{escaped(text)}</li>\n" for text in texts) + "</ul>\n"


def judged(sentences: Iterable[tuple[str, str]]) -> str:
    """Sentences, each with a judgement: "good", "bad", "open" (nobody can say) or "note"."""
    lines = "".join(
        f'<li class="{escaped(kind)}"><span class="mark">{JUDGED.get(kind, "")}</span> '
        f"{escaped(text)}</li>\n"
        for kind, text in sentences
    )
    return f'<ul class="judged">\n{lines}</ul>\n' if lines else ""


def verbatim(text: str) -> str:
    """Lines as they are, such as settings."""
    return f"<pre>{escaped(text)}</pre>\n"


def notice(colour: str, *parts: str) -> str:
    """A box that is to be seen first: "red", "amber" or "green"."""
    return f'<div class="{colour}">\n{"".join(parts)}</div>\n'


def folded(title: str, *parts: str) -> str:
    """What only some readers open; on paper it is open."""
    return f"<details>\n<summary>{escaped(title)}</summary>\n{''.join(parts)}</details>\n"


def figure(caption: str, *parts: str) -> str:
    """A picture, or several, with the sentence that says what is to be seen."""
    return f"<figure>\n{''.join(parts)}<figcaption>{escaped(caption)}</figcaption>\n</figure>\n"


def image(png: bytes, about: str) -> str:
    """A picture of pixels, and what it shows for people who do not see it."""
    data = base64.b64encode(png).decode()
    return f'<img alt="{escaped(about)}" src="data:image/png;base64,{data}">\n'


def table(
    head: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    about: str = "",
    asks: bool = False,
) -> str:
    """A table of `shown` values, in a box of its own in which it may be wider than the page.

    Args:
        head: Titles; there is no row of them if all are empty.
        rows: A value that is `Marked` is emphasised.
        about: Its name for people who do not see it.
        asks: The first column has sentences, and needs room for them.
    """
    titles = "".join(f'<th scope="col">{escaped(title)}</th>' for title in head)
    top = f"<thead><tr>{titles}</tr></thead>\n" if any(head) else ""
    lines = ("".join(f"<td>{_cell(value)}</td>" for value in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    look = ' class="asks"' if asks else ""
    return boxed(f"<table{look}>\n{top}<tbody>\n{body}</tbody>\n</table>\n", about)


def boxed(markup: str, about: str = "") -> str:
    """What may be wider than the page, in a box that scrolls, also with the keyboard."""
    label = f' role="region" aria-label="{escaped(about)}"' if about else ""
    return f'<div class="wide" tabindex="0"{label}>\n{markup}</div>\n'


@dataclass(frozen=True)
class Marked:
    """A text that says `good`, `warn` or `bad` also by its looks."""

    text: str
    kind: str


def _cell(value: object) -> str:
    if isinstance(value, Marked):
        return f'<span class="mark {value.kind}">{escaped(value.text)}</span>'
    return escaped(shown(value))


def shown(value: object) -> str:
    """A value for people: fractions with three digits, a dash where there is none."""
    if isinstance(value, float):
        return f"{value:.3f}" if isfinite(value) else "–"
    return "–" if value is None else str(value)


def _anchor(title: str) -> str:
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")


def escaped(text: str) -> str:
    """A text as markup, of characters that can be printed."""
    return escape(printable(text, "\n\t"))
