"""The section about each hospital's check of its synthetic images before they left."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any

from pages.pictures import Strip
from pages.release_view import FAIL, PASS, noun_of, release_checks
from server_app.summary import Summary

OPEN = 4  # most hospitals that are not folded


def figures(
    summary: Summary, config: Mapping[str, Any], pictures: Mapping[str, Sequence[Strip]]
) -> dict[str, Any] | None:
    """Return the section's values; None if no hospital made synthetic images or was refused."""
    refused = {
        row["hospital"]: f"{row['reason']} It takes part without them."
        if row["hospital"] in summary.data
        else row["reason"]
        for row in summary.failures
        if row["verb"] == "query.prepare" and row["outcome"] == "release"
    }
    made = summary.synthetic
    if not made and not refused:
        return None
    noised = isfinite(summary.noise)
    checks = {name: release_checks(own, config, noised=noised) for name, own in made.items()}
    names = sorted({name for own in made.values() for name in own})
    return {
        "noun": noun_of(config),
        "overview": [
            *([hospital, PASS, len(checks[hospital].remarks)] for hospital in made),
            *([hospital, FAIL, reason] for hospital, reason in sorted(refused.items())),
        ],
        "remarks": [f"{h}: {text}" for h in made for text in checks[h].remarks],
        "hospitals": [(h, checks[h].rows, pictures.get(h, ())) for h in made],
        "many": len(checks) > OPEN,
        "pictured": bool(pictures),
        "raw_head": ["figure", *made],
        "raw": [[name, *(own.get(name, nan) for own in made.values())] for name in names],
    }
