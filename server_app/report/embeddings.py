"""What left hospitals as embeddings of their images, and what each measured of them before.

docs/privacy/sums.md says what the figures mean, and what passing proves and does not prove.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any

from pages.page import (
    Marked,
    folded,
    heading,
    listing,
    notice,
    paragraph,
    section,
    table,
)
from server_app.summary import Summary

TITLE = "What left as embeddings"
NONE = "–"
OPEN = 30  # more rows than this are folded
# Of the policy that comes with the application; every hospital has one of its own.
LIMITS = {"embedding-linked": 0.25, "embedding-inverted": 0.05, "embedding-bits-most": 64.0}
REVEALING = {
    "ebr": "They are of the kind ebr: one vector for each image, without noise.",
    "stats": (
        "They are of the kind stats: mean and variance of each image, of which the server draws as "
        "often as it likes. No kind reveals more."
    ),
}
MEANINGS = (
    "linked: the share of embeddings whose image is found by somebody who has the hospital's "
    "images and the encoder. Good is 0%: none is found. Bad is 100%: each is. "
    f"Usual limit: {LIMITS['embedding-linked']:.0%}.",
    "restored: how much of an image a decoder brings back beyond what images of its class share. "
    "Good is 0%: nothing but the class. Bad is 100%: the image. "
    f"Usual limit: {LIMITS['embedding-inverted']:.0%}.",
    "bits: what an embedding tells of its image, whoever attacks it and however the encoder was "
    "made. Half of them tell no more than the first number. Only noise bounds that. Good are few; "
    "bad are many, and a name needs fewer than 64. "
    f"Usual limit: {LIMITS['embedding-bits-most']:.0f}, of any image.",
)
PASSING = (
    "Above and within are said of the limits of the usual policy. In a deployment each hospital's "
    "own decides what leaves; in a simulation none does. To be within them means that attackers of "
    "this strength fail, and is no guarantee. A dash: the figure is about too few patients to be "
    "told, could not be measured, or has no bound."
)


def part(summary: Summary) -> str:
    """The section, if a hospital was asked for embeddings."""
    asked = summary.embeddings
    if not asked:
        return ""
    sent = [row for row in asked if row["count"]]
    kinds = [REVEALING[kind] for kind in sorted({row["kind"] for row in sent} & REVEALING.keys())]
    reveals = (
        "These embeddings reveal more than sampled ones. Nothing bounds what one tells of its "
        "image, and who has the images can tell which it is of."
    )
    head = ["hospital", "task", "what left", "linked", "restored", "bits"]
    told = table(head, map(_row, asked), about="Embeddings by hospital and task")
    return section(
        TITLE,
        paragraph(
            "The server of this method trains, too: on embeddings, which are what a frozen encoder "
            "makes of some of a hospital's images. Before they leave, the hospital attacks them "
            "itself, as somebody would who knows the encoder."
        ),
        *([notice("amber", paragraph(" ".join([reveals, *kinds])))] if kinds else []),
        paragraph(_overview(asked)),
        folded("Every hospital and task", told) if len(asked) > OPEN else told,
        heading("What is good, and what is bad", 3),
        listing(MEANINGS),
        paragraph(PASSING, soft=True),
        folded("All figures of embeddings, under the names they travel by", _raw(sent)),
    )


def _overview(asked: Sequence[Mapping[str, Any]]) -> str:
    """How many left, and who sent none, in words."""
    count = sum(row["count"] for row in asked)
    senders = {row["hospital"] for row in asked if row["count"]}
    said = f"Embeddings that came: {count:,}, from {len(senders)} of the hospitals."
    if kept := sorted({row["hospital"] for row in asked} - senders):
        said += f" Asked, and sent none: {', '.join(kept)}. A hospital's own log names the rule."
    return said


def _row(row: Mapping[str, Any]) -> list[object]:
    place, kind, figures = [row["hospital"], row["task"]], row["kind"], row["figures"]
    if not row["count"]:
        return [*place, "none: kept", NONE, NONE, NONE]
    left = f"{row['count']:,} {kind}"
    median, most = (figures.get(f"embedding-bits-{name}", nan) for name in ("median", "most"))
    bits = f"{median:.0f}, most {most:.0f}" if isfinite(most) else f"{median:.0f}"
    return [
        *place,
        Marked(f"{left}: reveals more", "warn") if kind in REVEALING else left,
        *(
            _judged(f"{figures.get(name, nan):.1%}", figures.get(name, nan), LIMITS[name])
            for name in ("embedding-linked", "embedding-inverted")
        ),
        # Where the most stays at the hospital, its policy alone can judge it.
        _judged(bits, most if isfinite(most) else median, LIMITS["embedding-bits-most"]),
    ]


def _judged(text: str, value: float, limit: float) -> object:
    if not isfinite(value):
        return NONE
    return Marked(f"{text}: above", "warn") if value > limit else Marked(f"{text}: within", "good")


def _raw(sent: Sequence[Mapping[str, Any]]) -> str:
    """Every figure that was told, as it was told."""
    names = sorted({name for row in sent for name in row["figures"]})
    rows = [[r["hospital"], r["task"], *(r["figures"].get(n, nan) for n in names)] for r in sent]
    return table(["hospital", "task", *names], rows, about="Figures of embeddings as they came")
