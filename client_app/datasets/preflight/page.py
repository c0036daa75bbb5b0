"""The data card as an HTML page with thumbnails, and as text for a terminal.

Every text reaches the page through `pages.page`, which escapes it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_app.datasets.own import Survey
from client_app.datasets.preflight.card import Card
from client_app.store import own_folder
from pages.page import Marked, render
from pages.pictures import SHOWN, Strip, strip
from strategies.protocol.files import write_whole
from strategies.protocol.names import join_names
from strategies.protocol.text import amount, setting_line

MAX_LINES = 100  # of each list on the page; card.json has all
MAX_UNUSABLE = 20  # unusable images in the terminal
SIDES = ("train", "test")
MARKS = {"red": "bad", "amber": "warn", "note": "soft"}
ADVICE = {
    "red": "The hospital cannot take part with these data and settings.",
    "amber": "The hospital can take part; somebody should look at this first.",
    "green": "The hospital can take part.",
}


def write_pages(folder: Path, card: Card, survey: Survey | None) -> Path:
    """Write card.json, and card.html with images from the survey; returns the path of card.html."""
    content = json.dumps({"verdict": card.verdict, **asdict(card)}, indent=1)
    own_folder(folder)
    for file, text_ in {"card.json": content, "card.html": page(card, survey)}.items():
        write_whole(folder / file, text_, private=True)
    return folder / "card.html"


def page(card: Card, survey: Survey | None) -> str:
    """The card as an HTML page that needs no other file, with images from the survey."""
    pictures: dict[str, NDArray[np.uint8]] = {}
    if survey is not None:
        pictures = {file.entry.where: survey.images.pixels[file.row] for file in survey.files}
    near = [*chain(*card.near_copies)]
    lists = (
        ("Pairs on both sides of the split", _equations(card.near_copies), near),
        ("Copies with different labels", _equations(card.contradictions), ()),
        ("Copies", _equations(card.copies), ()),
        ("Cannot be used", list(map(str, card.unusable)), ()),
        ("Of one colour", card.constant, card.constant),
        ("Perhaps inverted", card.inverted, card.inverted),
    )
    settings = [setting_line(key.replace("_", "-"), value) for key, value in card.settings.items()]
    return render(
        "card",
        f"Images of {card.hospital}",
        card=card,
        advice=ADVICE[card.verdict],
        findings=[[Marked(f.level, MARKS[f.level]), f.text, f.advice] for f in card.findings],
        facts=_facts(card) if survey else [],
        counts=[[name, *(_number(card, name, side) for side in SIDES)] for name in card.classes],
        classes=_examples(card, survey, pictures) if survey else [],
        lists=[
            {
                "title": title,
                "rows": [[line] for line in _head(MAX_LINES, lines)],
                "strips": [strip(title, [pictures[each] for each in names])] if names else [],
            }
            for title, lines, names in lists
            if lines
        ],
        settings="\n".join(settings),
    )


def text(card: Card) -> str:
    """The card as text."""
    lines = []
    if card.images:
        lines.append(f"{amount(card.images, 'image')}, {len(card.unusable)} that cannot be used")
    for name, counts in card.classes.items():
        lines.append(f"  {name}: {counts['train']} to train on, {counts['test']} to test on")
    lines.append(f"{card.verdict.upper()}: {ADVICE[card.verdict]}")
    lines += [f"  {f.level}: {f.text} {f.advice}" for f in card.findings]
    if card.unusable:
        named = _head(MAX_UNUSABLE, list(map(str, card.unusable)))
        lines += ["Cannot be used:", *(f"  {line}" for line in named)]
    return "\n".join(lines)


def _facts(card: Card) -> list[list[str]]:
    """Rows of the images' properties."""
    megabytes = card.bytes_on_disk / 1e6
    patients = (
        f", of {amount(card.groups, 'patient')}"
        if card.patients
        else "; their patients are unknown"
    )
    return [
        ["images", f"{card.images}{patients}"],
        ["formats", _summary(card.kinds)],
        ["sizes", _summary(card.sizes)],
        ["disk", f"{megabytes:,.0f} MB in the store ({card.bytes_free / 1e9:,.0f} GB are free)"],
        [
            "memory",
            f"about 1 GB to train a small network on a CPU; {megabytes:,.0f} MB more keep all "
            "images in memory",
        ],
    ]


def _examples(card: Card, survey: Survey, pictures: Mapping[str, NDArray[np.uint8]]) -> list[Strip]:
    """Some images of each class."""
    by_class: dict[str, list[str]] = {}
    for entry in survey.entries:
        by_class.setdefault(entry.label, []).append(entry.where)
    strips = []
    for name in card.classes:
        chosen = np.random.default_rng(0).permutation(len(by_class[name]))[:SHOWN]
        strips.append(strip(name, [pictures[by_class[name][index]] for index in chosen]))
    return strips


def _number(card: Card, name: str, side: str) -> str:
    """The number of images of a class, and of their patients if known."""
    images = f"{card.classes[name][side]}"
    if not card.patients:
        return images
    patients = card.patients[name][side]
    return f"{images}, of {amount(patients, 'patient')}"


def _equations(names: Iterable[Sequence[str]]) -> list[str]:
    return [" = ".join(each) for each in names]


def _summary(counts: dict[str, int]) -> str:
    return join_names([f"{name} ({count})" for name, count in counts.items()])


def _head(most: int, lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - most} more: card.json has all"] if len(lines) > most else []
    return [*lines[:most], *more]
