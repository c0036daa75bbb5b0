"""What each hospital measured of its synthetic images before they left."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from pages.page import folded, heading, listing, paragraph, section, table
from pages.release_view import (
    CHECKS,
    FAIL,
    LOOK,
    PASS,
    PASSING,
    checks_of,
    remarks_of,
)
from server_app.summary import Summary

TITLE = "What left as synthetic images"
OPEN = 4  # more hospitals than this are folded


def part(summary: Summary, config: Mapping[str, Any]) -> str:
    """The section, if a hospital made synthetic images or could not release them."""
    refused = {
        row["hospital"]: f"{row['reason']} It takes part without them."
        if row["hospital"] in summary.data
        else row["reason"]
        for row in summary.failures
        if _refused(row)
    }
    made = summary.synthetic
    if not made and not refused:
        return ""
    checks = {hospital: list(checks_of(figures, config)) for hospital, figures in made.items()}
    overview = [
        [hospital, PASS, sum(c.result is LOOK for c in checks[hospital])] for hospital in made
    ] + [[hospital, FAIL, reason] for hospital, reason in sorted(refused.items())]
    parts = [
        paragraph(
            "Each hospital trained a generative model on its own images and drew synthetic ones, "
            "which left it together with its first model. Before they left, it compared each with "
            "all its training images. Its own test images, which the generative model has not "
            "seen, say how near two different patients of the hospital are to each other: a "
            "synthetic image that is nearer to a training image than nearly all of those is too "
            "near."
        ),
        table(
            ["hospital", "release check", "remarks"], overview, about="Release check by hospital"
        ),
    ]
    if remarks := [f"{h}: {text}" for h in made for text in remarks_of(made[h])]:
        parts += [heading("Remarks", 3), listing(remarks)]
    for hospital, own in checks.items():
        rows = table(CHECKS, own, about=hospital, asks=True)
        parts.append(folded(hospital, rows) if len(checks) > OPEN else _open(hospital, rows))
    parts.append(paragraph(PASSING, soft=True))
    parts.append(folded("All figures, under the names they travel by", _raw(made)))
    return section(TITLE, *parts)


def _open(hospital: str, rows: str) -> str:
    return heading(hospital, 3) + rows


def _raw(made: Mapping[str, Mapping[str, float]]) -> str:
    names = sorted({name for figures in made.values() for name in figures})
    rows: Sequence[Sequence[object]] = [
        [name, *(made[hospital].get(name, nan) for hospital in made)] for name in names
    ]
    return table(["", *made], rows, about="Figures of synthetic images by hospital")


def _refused(failure: Mapping[str, Any]) -> bool:
    return bool(failure["verb"] == "query.prepare" and failure["outcome"] == "release")
