"""How private the run was: the check of synthetic images, and the policy in force."""

from collections.abc import Iterator
from pathlib import Path

from flwr.common.config import unflatten_dict

from client_app.afterwards.past_run import PastRun
from client_app.authority.policy import Policy
from learning.intervals import Estimate
from pages.page import folded, heading, listing, paragraph, table, verbatim
from pages.release_view import CHECKS, PASSING, checks_of, remarks_of
from strategies.protocol.settings import Settings, SettingsError, defaults


def part(past: PastRun, policy: Path | None) -> Iterator[str]:
    """The check of synthetic images, and the policy in force."""
    yield heading("Synthetic images", 3)
    exact, told = past.exact_of_buffer(), past.buffer_figures
    if figures := exact or told:
        kind = "exact" if exact else "as they were told: the exact ones are not in the store"
        yield paragraph(
            f"{past.card.get('release', '')} The figures of the check are {kind}.".strip()
        )
        rules = unflatten_dict({**defaults(), **past.settings})
        yield table(CHECKS, checks_of(figures, rules), about="Release check", asks=True)
        yield listing(f"{text[:1].upper()}{text[1:]}" for text in remarks_of(figures))
        yield paragraph(PASSING, soft=True)
    elif any(why.startswith("release: ") for _, why in past.failures):
        yield paragraph("None left: the release check did not pass. Its reason is above.")
    elif past.lines:
        yield paragraph("No synthetic images left the hospital in this run.")
    else:
        yield paragraph("Not known: there is no ledger of this run.")
    yield heading("Attacks on the models", 3)
    yield from _models(past)
    yield heading("The policy in force", 3)
    yield from _policy(past, policy)


def _models(past: PastRun) -> Iterator[str]:
    if not (attacked := past.attacked()):
        yield paragraph("None was tried: a deployed hospital attacks the models of the last round.")
        return
    yield paragraph(
        "Before a model of the last round left, attacks asked of the hospital's own images, from "
        "what the model says of them, whether it was trained on them. A leak of 0 tells nothing, "
        "one of 1 everything. These figures have not left the hospital."
    )
    rows = [
        [
            f"{each['lineage']}, round {each['round']}",
            f"{_interval(each['leak'])}{'' if each['able'] else ' (too few images to tell)'}",
            _interval(each["by-loss"]["attack"].get("auc")),
            _interval(each.get("by-network", {}).get("accuracy")),
        ]
        for each in attacked
    ]
    head = ["model", "leak (95 % interval)", "AUC by loss", "accuracy of MemGuard's network"]
    yield table(head, rows, about="Attacks on the models")


def _interval(told: Estimate | None) -> str | None:
    return f"{told.value:.3f} ({told.low:.3f} to {told.high:.3f})" if told else None


def _policy(past: PastRun, policy: Path | None) -> Iterator[str]:
    if not past.policies:
        yield paragraph("None is on record: there is no ledger of this run, as in a simulation.")
        return
    if len(past.policies) > 1:
        yield paragraph(
            f"The policy changed {len(past.policies) - 1} times during the run; this is about "
            "the last one."
        )
    if policy is None:
        yield paragraph(
            f"SHA-256 {past.policies[-1]}. Its file is not at hand: give it with --policy."
        )
        return
    yield paragraph(f"SHA-256 {past.policies[-1]}. What it allows, and what the run asked for:")
    try:
        rulings = list(Policy.read(policy).judge(Settings.parse(past.settings)))
    except SettingsError as error:
        yield paragraph(f"The run's settings are of another version: {error}")
    else:
        rows = [[r.rule, r.allowed, r.asked, "" if r.holds else "refused"] for r in rulings]
        head = ["rule", "allows", "the run asked for", ""]
        yield table(head, rows, about="The policy and the run")
    yield folded("The whole policy", verbatim(policy.read_text(encoding="utf-8")))
