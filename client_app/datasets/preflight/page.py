"""The data card as an HTML page with thumbnails, and as text for a terminal.

Every text reaches the page through `pages.page`, which escapes it.
"""

from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from client_app.datasets.own import Survey
from client_app.datasets.preflight.card import Card, Examined
from pages.page import (
    Marked,
    document,
    heading,
    image,
    notice,
    paragraph,
    section,
    table,
    verbatim,
)
from strategies.protocol.names import join_names
from strategies.protocol.text import counted

LISTED = 100  # of each list on the page; card.json has all
NAMED = 20  # unusable images in the terminal
SHOWN = 8  # thumbnails in a row
THUMBNAIL, GAP = 86, 4  # pixels; a row is as wide as the page

LOOK = "What to look at"
MARKS = {"red": "bad", "amber": "warn", "note": "soft"}
ADVICE = {
    "red": "The hospital cannot take part with these data.",
    "amber": "The hospital can take part; somebody should look at this first.",
    "green": "The hospital can take part.",
}


def page(examined: Examined) -> str:
    """The card as a page that needs no other file."""
    card, survey = examined.card, examined.survey
    parts = [
        heading(f"Images of {card.hospital}", 1),
        paragraph(card.source, soft=True),
        notice(card.verdict, paragraph(f"{card.verdict.capitalize()}: {ADVICE[card.verdict]}")),
        paragraph(
            "This page names files and shows images. It is for the hospital's own eyes, and stays "
            "in its store.",
            soft=True,
        ),
    ]
    if card.findings:
        rows = [[Marked(f.level, MARKS[f.level]), f.text, f.advice] for f in card.findings]
        findings = table(["", "what was found", "what to do"], rows, about=LOOK)
        parts.append(section(LOOK, findings))
    pictures: dict[str, NDArray[np.uint8]] = {}
    if survey is not None:
        places = zip(survey.entries, survey.opened.rows[survey.usable], strict=True)
        pictures = {entry.where: survey.opened.pixels[row] for entry, row in places}
        parts += _images(card, survey, pictures)
    for title, lines, names in (
        ("Pairs on both sides of the split", _equal(card.near_copies), chain(*card.near_copies)),
        ("Copies with different labels", _equal(card.contradictions), ()),
        ("Copies", _equal(card.copies), ()),
        ("Cannot be used", list(map(str, card.unusable)), ()),
        ("Of one colour", card.constant, card.constant),
        ("Perhaps inverted", card.inverted, card.inverted),
    ):
        if lines:
            listed = table([""], [[line] for line in _first(LISTED, lines)], about=title)
            shown = _row([pictures[name] for name in names], title)
            parts.append(section(title, shown, listed))
    settings = [f"{key.replace('_', '-')} = {value!r}" for key, value in card.settings.items()]
    parts.append(section("Settings", verbatim("\n".join(settings))))
    return document(f"Images of {card.hospital}", *parts)


def text(card: Card) -> str:
    """The card as text."""
    lines = []
    if card.images:
        lines.append(f"{card.images} images, {len(card.unusable)} that cannot be used")
    for name, counts in card.classes.items():
        lines.append(f"  {name}: {counts['train']} to train on, {counts['test']} to test on")
    lines.append(f"{card.verdict.upper()}: {ADVICE[card.verdict]}")
    lines += [f"  {f.level}: {f.text} {f.advice}" for f in card.findings]
    if card.unusable:
        named = _first(NAMED, list(map(str, card.unusable)))
        lines += ["Cannot be used:", *(f"  {line}" for line in named)]
    return "\n".join(lines)


def _images(card: Card, survey: Survey, pictures: dict[str, NDArray[np.uint8]]) -> Iterable[str]:
    """What the images are like, with some of each class."""
    megabytes = card.bytes_on_disk / 1e6
    of = f", of {card.groups} patients" if card.patients else "; nothing says which patient's"
    facts = [
        ["images", f"{card.images}{of}"],
        ["formats", _few(card.kinds)],
        ["sizes", _few(card.sizes)],
        ["disk", f"{megabytes:,.0f} MB in the store ({card.bytes_free / 1e9:,.0f} GB are free)"],
        [
            "memory",
            f"about 1 GB to train a small network on a CPU; {megabytes:,.0f} MB more keep all "
            "images in memory",
        ],
    ]
    sides = {"train": "to train on", "test": "to test on"}
    counts = [[name, *(_number(card, name, side) for side in sides)] for name in card.classes]
    yield heading("Images")
    yield table(["class", *sides.values()], counts, about="Images of each class")
    yield table(["", ""], facts, about="What the images are like")
    by_class: dict[str, list[str]] = {}
    for entry in survey.entries:
        by_class.setdefault(entry.label, []).append(entry.where)
    for name in card.classes:
        chosen = np.random.default_rng(0).permutation(len(by_class[name]))[:SHOWN]
        yield heading(name, 3)
        yield _row([pictures[by_class[name][index]] for index in chosen], name)


def _number(card: Card, name: str, side: str) -> str:
    """How many images of a class, and of how many patients if that is known."""
    images = f"{card.classes[name][side]}"
    if not card.patients:
        return images
    patients = card.patients[name][side]
    return f"{images}, of {counted(patients, 'patient')}"


def _row(images: Sequence[NDArray[np.uint8]], about: str) -> str:
    """Thumbnails of the first images, each [C, H, W], side by side; nothing if there are none."""
    if not images:
        return ""
    images = images[:SHOWN]
    strip = PIL.Image.new("RGBA", (len(images) * (THUMBNAIL + GAP), THUMBNAIL))
    for number, pixels in enumerate(images):
        last = np.moveaxis(pixels, 0, 2)
        picture = PIL.Image.fromarray(last.squeeze(2) if last.shape[2] == 1 else last)
        strip.paste(picture.resize((THUMBNAIL, THUMBNAIL)), (number * (THUMBNAIL + GAP), 0))
    file = BytesIO()
    strip.save(file, "PNG")
    return image(file.getvalue(), f"{len(images)} images: {about}")


def _equal(names: Iterable[Sequence[str]]) -> list[str]:
    return [" = ".join(each) for each in names]


def _few(counts: dict[str, int]) -> str:
    return join_names([f"{name} ({count})" for name, count in counts.items()])


def _first(most: int, lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - most} more: card.json has all"] if len(lines) > most else []
    return [*lines[:most], *more]
