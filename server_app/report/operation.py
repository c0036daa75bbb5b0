"""The section for an engineer: participants, failures, seconds and bytes."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import Any

from pages import plots
from pages.verbs import VERBS
from server_app.summary import Summary
from strategies.engine.events import Event, visits
from strategies.protocol.console import duration
from strategies.protocol.names import join_names
from strategies.protocol.settings import defaults
from strategies.protocol.text import setting_text

LISTED = 20  # most kinds of failures on the page; summary.json has all
HOPS = 1000  # most rows of the table of hops; metrics.jsonl has all
FOLDED = 300  # most cells of a picture that is not folded


def figures(
    summary: Summary, events: Sequence[Event], flat: Mapping[str, Any], toml: str
) -> dict[str, Any]:
    """Return the section's values; `flat` has the run's settings by name, `toml` as a file."""
    usual, spent = defaults(), summary.epsilon_spent.items()
    changed = [
        [key, setting_text(value), setting_text(usual.get(key, "–"))]
        for key, value in flat.items()
        if usual.get(key) != value and key not in ("output-dir", "resume")
    ]
    return {
        "took_part": _participation(summary),
        "accounts": [[hospital, f"{epsilon:.4g}"] for hospital, epsilon in spent],
        "sums": summary.strategy == "sums",
        "delta": flat.get("sums.delta" if summary.strategy == "sums" else "train.dp.delta"),
        "failures": _failures(summary),
        "failures_listed": LISTED,
        "costs": _costs(summary, events, queues=flat.get("asynchronous", False)),
        "settings": {"changed": changed, "toml": toml},
    }


def _participation(summary: Summary) -> dict[str, Any] | None:
    took_part = summary.participation
    numbers = [n for each in took_part.values() for n in (*each["visited"], *each["missed"])]
    if not numbers:
        return None
    rounds = range(1, max(numbers) + 1)
    rows = {}
    for hospital, each in took_part.items():
        marks = dict.fromkeys(each["visited"], ("●", "at"))
        marks |= dict.fromkeys(each["missed"], ("×", "miss"))
        rows[hospital] = [marks.get(r, ("", "")) for r in rounds]
    missed = [hospital for hospital, each in took_part.items() if each["missed"]]
    return {
        "asked": sum(bool(each["visited"] or each["missed"]) for each in took_part.values()),
        "missed": join_names(missed) if missed else "",
        "drawn": plots.steps("Participation of hospitals by round", rows, [str(r) for r in rounds]),
        "many": len(rows) * len(rounds) > FOLDED,
    }


def _failures(summary: Summary) -> list[list[object]]:
    """A row for each kind of failure."""
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for failure in summary.failures:
        kind = (failure["outcome"], failure["verb"], failure["reason"])
        alike.setdefault(kind, []).append(failure)
    return [
        [
            outcome,
            VERBS.get(verb, verb),
            len(same),
            join_names(list(dict.fromkeys(each["hospital"] for each in same))),
            join_names(list(dict.fromkeys(str(each["round"]) for each in same))),
            reason,
        ]
        for (outcome, verb, reason), same in alike.items()
    ]


def _costs(summary: Summary, events: Sequence[Event], *, queues: bool) -> dict[str, Any]:
    spent = summary.seconds
    total = sum(spent.values()) or 1.0
    bars = [(phase, s, f"{s:,.1f} s, {s / total:.0%}") for phase, s in spent.items()]
    return {
        "wall": duration(summary.wall_seconds),
        "drawn": plots.bars("Time of the hospitals by activity", bars),
        "sent": _size(summary.bytes_sent),
        "received": _size(summary.bytes_received),
        "hop": _size(summary.bytes_per_hop) if isfinite(summary.bytes_per_hop) else "",
        "answers": [*_answers(events)],
        "hops": [] if queues else [*_hops(events)],
        "hops_listed": HOPS,
    }


def _answers(events: Sequence[Event]) -> Iterator[list[object]]:
    """The seconds and bytes of an answer of each kind."""
    for verb, step in VERBS.items():
        answers = [event for event in events if event.verb == verb and event.outcome == "ok"]
        if answers:
            seconds = [event.seconds for event in answers]
            sent = sum(event.bytes_sent for event in answers) / len(answers)
            received = sum(event.bytes_received for event in answers) / len(answers)
            longest = f"{median(seconds):.1f}", f"{max(seconds):.1f}"
            yield [step, len(answers), *longest, _size(sent), _size(received)]


def _hops(events: Sequence[Event]) -> Iterator[list[object]]:
    hops: dict[tuple[int, int], list[Event]] = {}
    for event in visits(events):
        hops.setdefault((event.round, event.hop), []).append(event)
    for (now, hop), own in sorted(hops.items()):
        sent, received = sum(e.bytes_sent for e in own), sum(e.bytes_received for e in own)
        longest = f"{max(event.seconds for event in own):.1f}"
        yield [now, hop, len(own), longest, _size(sent), _size(received)]


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"
