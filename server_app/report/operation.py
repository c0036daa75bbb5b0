"""What an engineer asks: who took part, what failed, how long it took and what was sent."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import median
from typing import Any

from pages import plots
from pages.page import figure, folded, heading, paragraph, section, table, verbatim
from server_app.report.over_tasks import TITLE as OVER_TASKS
from server_app.summary import Summary
from strategies.engine.events import Event
from strategies.protocol.console import duration
from strategies.protocol.names import join_names
from strategies.protocol.settings import defaults

TITLE = "How the run went"
LISTED = 20  # kinds of failures on the page; summary.json has all of them
HOPS = 1000  # in the table of hops; metrics.jsonl has all
FOLDED = 300  # cells of a picture above which it is folded
SAID = {
    "query.enrol": "says who it is",
    "query.prepare": "prepares its first model",
    "train": "trains a model",
    "train.rewind": "trains a model that was sent back",
    "evaluate": "tests models",
}


def part(summary: Summary, events: Sequence[Event], flat: Mapping[str, Any], toml: str) -> str:
    """The section.

    Args:
        summary: The run's figures.
        events: What happened, in order.
        flat: The run's settings, by their full names.
        toml: The same as a file.
    """
    return section(
        TITLE,
        *_participation(summary),
        *_accounts(summary, flat),
        *_failures(summary),
        *_costs(summary, events, queues=flat.get("asynchronous", False)),
        *_settings(flat, toml),
    )


def _participation(summary: Summary) -> Iterator[str]:
    took_part = summary.participation
    numbers = [n for each in took_part.values() for n in (*each["visited"], *each["missed"])]
    if not numbers:
        return
    rounds = range(1, max(numbers) + 1)
    rows = {
        hospital: [
            ("×", "miss")
            if r in each["missed"]
            else ("●", "at")
            if r in each["visited"]
            else ("", "")
            for r in rounds
        ]
        for hospital, each in took_part.items()
    }
    yield heading("Who took part", 3)
    planned = f"; who is, was planned (“{OVER_TASKS}”)" if summary.enrolment else ""
    drawn = figure(
        "Rows are hospitals, columns are rounds. ●: trained a model. ×: missed a visit that was "
        f"asked of it. Empty: was not asked{planned}.",
        plots.steps("Who took part in which round", rows, [str(r) for r in rounds]),
    )
    asked = [each for each in took_part.values() if each["visited"] or each["missed"]]
    missed = [hospital for hospital, each in took_part.items() if each["missed"]]
    yield paragraph(
        f"Hospitals that were asked to train: {len(asked)}; "
        + (f"{join_names(missed)} missed at least one visit." if missed else "none missed a visit.")
    )
    yield folded("Show round by round", drawn) if len(rows) * len(rounds) > FOLDED else drawn


def _accounts(summary: Summary, flat: Mapping[str, Any]) -> Iterator[str]:
    """What training has spent of each hospital's privacy account."""
    if not (spent := summary.epsilon_spent):
        return
    yield heading("Privacy accounts", 3)
    yield paragraph(
        "Models were trained with differential privacy (DP-SGD). ε bounds what all releases of a "
        "hospital's account tell of one patient: the smaller, the less. "
        f"δ is {flat['train.dp.delta']:g}."
    )
    rows = [[hospital, f"{epsilon:.2f}"] for hospital, epsilon in sorted(spent.items())]
    yield table(["hospital", "ε spent"], rows, about="Privacy accounts by hospital")


def _failures(summary: Summary) -> Iterator[str]:
    if not summary.failures:
        return
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for failure in summary.failures:
        kind = (failure["outcome"], failure["verb"], failure["reason"])
        alike.setdefault(kind, []).append(failure)
    rows = [
        [
            outcome,
            SAID.get(verb, verb),
            len(same),
            join_names(list(dict.fromkeys(each["hospital"] for each in same))),
            join_names(list(dict.fromkeys(str(each["round"]) for each in same))),
            reason,
        ]
        for (outcome, verb, reason), same in alike.items()
    ]
    yield heading("Failures", 3)
    more = (
        f" The first {LISTED} kinds are here; summary.json has all." if len(rows) > LISTED else ""
    )
    yield paragraph(f"Failures of hospitals: {len(summary.failures)}.{more}")
    titles = ["failure", "a hospital …", "times", "hospitals", "rounds", "reason"]
    yield table(titles, rows[:LISTED], about="Failures")


def _costs(summary: Summary, events: Sequence[Event], *, queues: bool) -> Iterator[str]:
    spent = summary.seconds
    total = sum(spent.values()) or 1.0
    bars = [(phase, s, f"{s:,.1f} s, {s / total:.0%}") for phase, s in spent.items()]
    yield heading("Time and traffic", 3)
    yield figure(
        f"The run took {duration(summary.wall_seconds)}. The bars are the hospitals' time, summed "
        "over all of them; wait is the time between a message and its answer in which the "
        "hospital was not working on it.",
        plots.bars("What the hospitals' time was spent on", bars),
    )
    yield paragraph(
        f"The server sent {_size(summary.bytes_sent)} to hospitals and received "
        f"{_size(summary.bytes_received)} from them. One visit moves "
        f"{_size(summary.bytes_per_hop)}, to and from the hospital together."
    )
    answered = [event for event in events if event.verb in SAID and event.outcome == "ok"]
    rows = []
    for verb, said in SAID.items():
        if of_verb := [event for event in answered if event.verb == verb]:
            seconds = [event.seconds for event in of_verb]
            sent, received = (
                sum(getattr(event, way) for event in of_verb) / len(of_verb)
                for way in ("bytes_sent", "bytes_received")
            )
            rows.append(
                [
                    said,
                    len(of_verb),
                    f"{median(seconds):.1f}",
                    f"{max(seconds):.1f}",
                    _size(sent),
                    _size(received),
                ]
            )
    if rows:
        head = ["a hospital …", "answers", "seconds, median", "longest", "sent to it", "received"]
        yield table(head, rows, about="Seconds and bytes of an answer")
    if not queues and (hops := list(_hops(events))):
        head = ["round", "hop", "visits", "seconds until the last answer", "sent", "received"]
        more = f" The first {HOPS}; metrics.jsonl has all." if len(hops) > HOPS else ""
        yield folded(
            "Seconds and bytes of every hop",
            paragraph(more),
            table(head, hops[:HOPS], about="Hops"),
        )


def _hops(events: Sequence[Event]) -> Iterator[list[object]]:
    hops: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event.verb.partition(".")[0] == "train":
            hops.setdefault((event.round, event.hop), []).append(event)
    for (now, hop), own in sorted(hops.items()):
        sent, received = (
            sum(getattr(e, f"bytes_{way}") for e in own) for way in ("sent", "received")
        )
        longest = f"{max(event.seconds for event in own):.1f}"
        yield [now, hop, len(own), longest, _size(sent), _size(received)]


def _settings(flat: Mapping[str, Any], toml: str) -> Iterator[str]:
    usual = defaults()
    changed = [
        [key, _setting(value), _setting(usual.get(key, "–"))]
        for key, value in flat.items()
        if usual.get(key) != value and key not in ("output-dir", "resume")
    ]
    yield heading("Settings", 3)
    if changed:
        yield paragraph("Set for this run; everything else has its default.")
        yield table(["setting", "in this run", "default"], changed, about="Changed settings")
    else:
        yield paragraph("All settings have their defaults.")
    yield folded("All settings, as config.toml", verbatim(toml))


def _setting(value: object) -> str:
    """As in TOML, without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size(num_bytes: float) -> str:
    if not isfinite(num_bytes):
        return "–"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"
