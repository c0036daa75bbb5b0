"""The data card as an HTML page with thumbnails, and as text for a terminal.

Every text reaches the page through `escape`.
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO

import numpy as np
import PIL.Image

from client_app.preflight.card import Card, Examined

LISTED = 100  # of each list; card.json has all
NAMED = 20  # unusable images in the terminal
SHOWN = 9  # thumbnails in a row
THUMBNAIL = 96  # pixels

ADVICE = {
    "red": "The hospital cannot take part with these data.",
    "amber": "The hospital can take part; somebody should look at this first.",
    "green": "The hospital can take part.",
}
STYLE = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; color: #222; max-width: 60em;
       margin: 3em auto; padding: 0 1em; overflow-wrap: break-word; }
h1 { font-size: 1.8em; font-weight: 600; margin: 0; }
h2 { font-size: 1.1em; font-weight: 600; margin: 2.5em 0 .5em; padding-top: .6em;
     border-top: 1px solid #ccc; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-bottom: 1em; }
td, th { text-align: left; font-weight: normal; vertical-align: top; padding: .15em 2em .15em 0; }
th { color: #666; font-size: .9em; border-bottom: 1px solid #ccc; }
p { color: #666; }
.red, .amber, .green { border-left: 6px solid; padding: .6em 1em; color: #222; }
.red { border-color: #c8553d; background: #fbf1ee; }
.amber { border-color: #d9a441; background: #fcf7ec; }
.green { border-color: #5b8c5a; background: #f0f6f0; }
img { display: block; margin: .3em 0 1em; }
"""


def page(examined: Examined) -> str:
    """The card as a page that needs nothing else."""
    card = examined.card
    body = (
        f"<h1>{escape(card.hospital)}</h1>\n<p>{escape(card.source)}</p>\n"
        f'<p class="{card.verdict}">{ADVICE[card.verdict]}</p>\n'
        "<p>This page names files and shows images. It is for the hospital's own eyes, and stays "
        "in its store.</p>\n"
    )
    if card.findings:
        rows = [[f.level, f.text, f.advice] for f in card.findings]
        body += "<h2>What to look at</h2>\n" + _table(["", "", "what to do"], rows)
    if examined.survey is not None:
        body += _images(examined)
    for title, names in (
        ("Pairs on both sides of the split", card.near_copies),
        ("Copies with different labels", card.contradictions),
        ("Copies", card.copies),
    ):
        body += _listed(title, [" = ".join(each) for each in names])
    body += _listed("Cannot be used", [f"{each.where}: {each.reason}" for each in card.unusable])
    body += _listed("Of one colour", card.constant) + _listed("Perhaps inverted", card.inverted)
    settings = ", ".join(f"{key.replace('_', '-')} = {v!r}" for key, v in card.settings.items())
    body += f"<h2>Settings</h2>\n<p>{escape(settings)}</p>\n"
    title = escape(card.hospital)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>Data of {title}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}</body>\n</html>\n"
    )


def text(card: Card) -> str:
    """The card as text."""
    lines = []
    if card.images:
        lines.append(f"{card.images} images, {len(card.unusable)} that cannot be used")
    for name, parts in card.classes.items():
        lines.append(f"  {name}: {parts['train']} to train on, {parts['test']} to test on")
    lines.append(f"{card.verdict.upper()}: {ADVICE[card.verdict]}")
    lines += [f"  {f.level}: {f.text} {f.advice}" for f in card.findings]
    if card.unusable:
        lines.append("Cannot be used:")
        lines += [f"  {each.where}: {each.reason}" for each in card.unusable[:NAMED]]
    if (more := len(card.unusable) - NAMED) > 0:
        lines.append(f"  and {more} more: card.json has all")
    return "\n".join(lines)


def _images(examined: Examined) -> str:
    """What the images are like, with some of each class."""
    card, survey = examined.card, examined.survey
    assert survey is not None  # or there would be no images
    counts = [[name, *map(str, parts.values())] for name, parts in card.classes.items()]
    body = "<h2>Images</h2>\n" + _table(["class", "to train on", "to test on"], counts)
    megabytes = card.bytes_on_disk / 1e6
    facts = [
        ["images", f"{card.images}, in {card.groups} groups of one or more"],
        ["formats", _few(card.kinds)],
        ["sizes", _few(card.sizes)],
        ["disk", f"{megabytes:,.0f} MB in the store ({card.bytes_free / 1e9:,.0f} GB are free)"],
        [
            "memory",
            f"about 1 GB to train a small network on a CPU; {megabytes:,.0f} MB more keep the "
            "images at hand",
        ],
    ]
    body += _table(["", ""], facts)
    by_class: dict[str, list[int]] = {}
    for index, entry in enumerate(survey.entries):
        by_class.setdefault(entry.label, []).append(index)
    for name in card.classes:
        chosen = np.random.default_rng(0).permutation(by_class[name])[:SHOWN]
        body += f"<h2>{escape(name)}</h2>\n{_row(examined, chosen.tolist())}"
    place = {entry.where: index for index, entry in enumerate(survey.entries)}
    for title, names in (
        ("Pairs on both sides of the split", [name for pair in card.near_copies for name in pair]),
        ("Of one colour", card.constant),
        ("Perhaps inverted", card.inverted),
    ):
        if names:
            shown = [place[name] for name in names[:SHOWN]]
            body += f"<h2>{title}</h2>\n{_row(examined, shown)}"
    return body


def _row(examined: Examined, indices: Sequence[int]) -> str:
    """Thumbnails side by side."""
    assert examined.survey is not None
    opened = examined.survey.opened
    strip = PIL.Image.new("RGB", (len(indices) * (THUMBNAIL + 4), THUMBNAIL), "white")
    for number, index in enumerate(indices):
        image = np.moveaxis(opened.pixels[opened.rows[examined.survey.usable[index]]], 0, 2)
        picture = PIL.Image.fromarray(image.squeeze() if image.shape[2] == 1 else image)
        picture = picture.resize((THUMBNAIL, THUMBNAIL))
        strip.paste(picture, (number * (THUMBNAIL + 4), 0))
    file = BytesIO()
    strip.save(file, "PNG")
    return (
        f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">\n'
    )


def _few(counts: dict[str, int]) -> str:
    shown = [f"{name} ({count})" for name, count in list(counts.items())[:5]]
    return ", ".join(shown) + (f" and {len(counts) - 5} more" if len(counts) > 5 else "")


def _listed(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    more = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return f"<h2>{title}</h2>\n" + _table([""], [[line] for line in [*lines[:LISTED], *more]])


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[f"<th>{escape(name)}</th>" for name in heading]] if any(heading) else []
    cells += [[f"<td>{escape(cell)}</td>" for cell in row] for row in rows]
    return "<table>\n" + "".join(f"<tr>{''.join(row)}</tr>\n" for row in cells) + "</table>\n"
