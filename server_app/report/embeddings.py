"""The section about embeddings that left hospitals, and each hospital's attacks on its own.

docs/privacy/sums.md explains the figures and the meaning of a pass.
"""

from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

from pages.page import Marked
from server_app.summary import Summary

NONE = "–"
OPEN = 30  # most rows that are not folded
# Limits of the default policy; every hospital has its own policy.
LIMITS = {"embedding-linked": 0.25, "embedding-inverted": 0.05, "embedding-bits-most": 64.0}
REVEALING = ("ebr", "stats")  # kinds


def figures(summary: Summary) -> dict[str, Any] | None:
    """Return the section's values; None if no hospital was asked for embeddings."""
    asked = summary.embeddings
    if not asked:
        return None
    sent = [row for row in asked if row["count"]]
    senders = {row["hospital"] for row in sent}
    names = sorted({name for row in sent for name in row["figures"]})
    return {
        "kinds": {row["kind"] for row in sent} & {*REVEALING},
        "count": f"{sum(row['count'] for row in asked):,}",
        "senders": len(senders),
        "kept": sorted({row["hospital"] for row in asked} - senders),
        "rows": list(map(_row, asked)),
        "many": len(asked) > OPEN,
        "limits": {
            "linked": f"{LIMITS['embedding-linked']:.0%}",
            "restored": f"{LIMITS['embedding-inverted']:.0%}",
            "bits": f"{LIMITS['embedding-bits-most']:.0f}",
        },
        "raw_head": ["hospital", "task", *names],
        "raw": [
            [row["hospital"], row["task"], *(row["figures"].get(n, nan) for n in names)]
            for row in sent
        ],
    }


def _row(row: Mapping[str, Any]) -> list[object]:
    place, kind, figures = [row["hospital"], row["task"]], row["kind"], row["figures"]
    if not row["count"]:
        return [*place, "none: kept", NONE, NONE, NONE]
    left = f"{row['count']:,} {kind}"
    median, most = (figures.get(f"embedding-bits-{name}", nan) for name in ("median", "most"))
    named = {"": median, "most ": most}
    bits = ", ".join(f"{name}{bits:.0f}" for name, bits in named.items() if isfinite(bits))
    return [
        *place,
        Marked(f"{left}: reveals more", "warn") if kind in REVEALING else left,
        *(
            _judgement(f"{figures.get(name, nan):.1%}", figures.get(name, nan), LIMITS[name])
            for name in ("embedding-linked", "embedding-inverted")
        ),
        # If the maximum stays at the hospital, only its policy can judge it.
        _judgement(bits, most if isfinite(most) else median, LIMITS["embedding-bits-most"]),
    ]


def _judgement(text: str, value: float, limit: float) -> object:
    if not isfinite(value):
        return NONE
    return Marked(f"{text}: above", "warn") if value > limit else Marked(f"{text}: within", "good")
