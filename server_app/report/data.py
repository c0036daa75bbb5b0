"""The section about each hospital's images."""

from typing import Any

from pages.figures_view import size_cell, whole_number
from server_app.report.worth import EACH
from server_app.summary import Summary


def figures(summary: Summary) -> dict[str, Any] | None:
    """Return the section's values; None if no hospital reported its images."""
    if not summary.data:
        return None
    rows, by_class = [], []
    for hospital, own in summary.data.items():
        parts = own["train"], own["test"]
        changed = ", ".join(f"{key} = {value}" for key, value in own["own_settings"].items())
        prints = " / ".join(part["fingerprint"] or "not reported" for part in parts)
        sizes = map(size_cell, parts)
        rows.append(
            [hospital, own["kind"], *sizes, whole_number(own["unusable"]), changed or "–", prints]
        )
        if any(part["classes"] for part in parts):
            by_class += [
                [hospital, name, *(whole_number(part["classes"].get(name)) for part in parts)]
                for name in summary.classes
            ]
    return {"rows": rows, "many": len(rows) > EACH, "by_class": by_class}
