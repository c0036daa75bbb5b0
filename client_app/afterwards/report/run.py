"""The run's facts and settings, and the data that left the hospital and came to it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from client_app.afterwards.past_run import PastRun
from pages.release_view import noun_of
from pages.verbs import VERBS
from strategies.protocol.settings import defaults
from strategies.protocol.text import setting_line

NOUNS = {"manifest": "label", "embeddings": "sample of embeddings"}
PLURALS = {"memory": "memories", "sample of embeddings": "samples of embeddings"}


def describe(past: PastRun) -> dict[str, Any]:
    """Return the run's facts and settings, and from the ledger the data that left and came."""
    settings, usual = past.settings, defaults()
    changed = {k: v for k, v in settings.items() if k not in usual or usual[k] != v}
    return {
        "facts": [fact for fact in _facts(past) if fact[1]],
        "is_here": past.is_here,
        "sealed": settings.get("sealed", True),
        "settings": {"changed": _lines(changed), "all": _lines(settings)},
        "left": [*_sent_rows(past)],
        "failures": [[VERBS.get(v, v), n, why] for (v, why), n in past.failures.items()],
        "came": [*_received_lines(past)],
    }


def _facts(past: PastRun) -> list[tuple[str, object]]:
    rounds = [line.entry["round"] for line in past.answers if "round" in line.entry]
    members = {name for model in past.models.values() for name in model.visited}
    settings = past.settings
    asked = settings.get("num-server-rounds")
    sealed = "yes: the server could read no model" if settings.get("sealed") else "no"
    return [
        ("method", past.strategy),
        ("when", dates(past)),
        ("rounds", f"{max(rounds)} of {asked}" if rounds and asked else ""),
        ("hospitals in the models here", ", ".join(sorted(members))),
        ("classes", ", ".join(past.classes)),
        ("sealed", sealed if settings else ""),
        ("settings of this hospital's own", ", ".join(past.card.get("own-settings", ()))),
        ("code", ", ".join(dict.fromkeys(each["code"] for each in past.terms))),
    ]


def _lines(settings: Mapping[str, object]) -> str:
    return "\n".join(setting_line(key, value) for key, value in settings.items())


def _sent_rows(past: PastRun) -> Iterator[list[object]]:
    for verb in dict.fromkeys(line.entry["verb"] for line in past.lines):
        entries = [line.entry for line in past.lines if line.entry["verb"] == verb]
        records = [record for entry in entries for record in entry.get("left", ())]
        failed = sum("failure" in entry for entry in entries)
        size = sum(record.get("bytes", 0) for record in records)
        yield [VERBS.get(verb, verb), len(entries), failed, _count_records(records), f"{size:,}"]


def _received_lines(past: PastRun) -> Iterator[str]:
    trained = sum(line.entry["verb"].startswith("train") for line in past.answers)
    yield f"models to train: {trained}"
    yield f"models that are at home now: {len(past.models)}"
    buffers = {each for line in past.answers for each in line.entry.get("replay", ())}
    if lent := sorted({each.partition("=")[0] for each in buffers}):
        noun = noun_of(past.tables)
        yield f"synthetic {noun}s of: {', '.join(lent)}"


def dates(past: PastRun) -> str:
    """The first and the last day of the run, in UTC."""
    times = [line.entry["time"] for line in past.lines]
    times += [model.date for model in past.models.values()]
    days = sorted({time[:10] for time in times if time})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "at an unknown date"


def _count_records(records: Sequence[Mapping[str, object]]) -> str:
    """The number of records of each kind, in words."""
    kinds: Counter[str] = Counter()
    for record in records:
        name = str(record["name"]).rpartition("/")[2]
        values = record.get("values")
        if name == "metrics" and isinstance(values, Mapping):
            kinds["figure"] += len(values)
        else:
            kinds[NOUNS.get(name, name)] += 1
    words = [
        f"{n:,} {kind if n == 1 else PLURALS.get(kind, f'{kind}s')}" for kind, n in kinds.items()
    ]
    return ", ".join(words) or "nothing"
