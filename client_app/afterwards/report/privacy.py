"""The privacy of the run: the check of synthetic images, attacks, and the policy in force."""

from pathlib import Path
from typing import Any

from client_app.afterwards.past_run import PastRun
from client_app.authority.policy import Policy
from gan.presets import PresetError
from pages.figures_view import figure_cell
from pages.release_view import noun_of, release_checks
from strategies.protocol.files import read_by_hand
from strategies.protocol.settings import Settings, SettingsError
from strategies.protocol.text import amount


def describe(past: PastRun, policy: Path | None) -> dict[str, Any]:
    """Return the values for the page."""
    exact = past.buffer
    figures = exact.figures if exact else past.buffer_figures
    attacks = exact.attacked if exact else None
    settings = past.tables
    return {
        "noun": noun_of(settings),
        "release": past.card.get("release", ""),
        "checked": (
            release_checks(figures, settings, attacks, noised=exact is None) if figures else None
        ),
        "checked_exactly": exact is not None,
        "dossier": past.dossier.absolute().as_uri() if past.dossier else "",
        "refused": any(why.startswith("release: ") for _, why in past.failures),
        "attacked": [
            [
                f"{each['lineage']}, round {each['round']}",
                f"{figure_cell(each['leak'])}{'' if each['able'] else ' (too few images to tell)'}",
                figure_cell(each["by-loss"]["attack"].get("auc")),
                figure_cell(each.get("by-network", {}).get("accuracy")),
            ]
            for each in past.attacks()
        ],
        "sums": [
            [
                (f"task {each['task']}: " if each["task"] else "")
                + f"{amount(each['classes'], 'class')}, {amount(each['features'], 'feature')}",
                f"ε = {each['epsilon']:g}" if each["epsilon"] else "none",
                *(
                    figure_cell(each[name]["attack"].get("auc")) if name in each else None
                    for name in ("difference", "span", "likelihood")
                ),
            ]
            for each in past.sent_sums()
        ],
        "policy": _policy(past, policy) if past.policies else None,
    }


def _policy(past: PastRun, policy: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {"changes": len(past.policies) - 1, "hash": past.policies[-1]}
    if policy is None:
        return {**found, "text": None}
    found |= {"text": read_by_hand(policy), "error": "", "rulings": []}
    try:
        rulings = [*Policy.read(policy).judge(Settings.parse(past.settings))]
    except (SettingsError, PresetError) as error:
        return {**found, "error": str(error)}
    rows = [[r.rule, r.allowed, r.requested, "" if r.holds else "refused"] for r in rulings]
    return {**found, "rulings": rows}
