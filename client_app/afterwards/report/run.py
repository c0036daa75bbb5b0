"""What the run was, what left the hospital in it, and what came."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from client_app.afterwards.past_run import PastRun
from pages.page import folded, heading, listing, paragraph, table, verbatim
from strategies.protocol.settings import defaults

VERBS = {
    "query.enrol": "enrol",
    "query.prepare": "prepare its first model",
    "train": "train a model",
    "train.rewind": "train a model (rewind)",
    "evaluate": "test models",
}
NAMED = {"manifest": "label", "embeddings": "sample of embeddings"}


def part(past: PastRun) -> Iterator[str]:
    """What it was, and its settings."""
    rounds = [line.entry["round"] for line in past.answered if "round" in line.entry]
    members = {name for model in past.models.values() for name in (model.lineage, *model.visited)}
    settings, card = past.settings, past.card
    asked = settings.get("num-server-rounds")
    sealed = "yes: the server could read no model" if settings.get("sealed") else "no"
    facts: list[tuple[str, object]] = [
        ("method", method(past)),
        ("when", dates(past)),
        ("rounds", f"{max(rounds)} of {asked}" if rounds and asked else ""),
        ("hospitals in the models here", ", ".join(sorted(members))),
        ("classes", ", ".join(past.classes)),
        ("sealed", sealed if settings else ""),
        ("settings of this hospital's own", ", ".join(card.get("own-settings", ()))),
        ("code", ", ".join(dict.fromkeys(each["code"] for each in past.terms))),
    ]
    yield table(["", ""], [fact for fact in facts if fact[1]], about="The run")
    if not past.is_here:
        yield paragraph("The hospital was asked, and did not take part.")
    if not settings:
        yield paragraph("Its settings are not known here: there is no ledger of this run.")
        return
    usual = defaults()
    changed = {k: v for k, v in settings.items() if k not in usual or usual[k] != v}
    yield heading("Settings that are not the usual ones", 3)
    yield verbatim("\n".join(f"{key} = {value!r}" for key, value in changed.items()) or "none")
    every = "\n".join(f"{key} = {value!r}" for key, value in settings.items())
    yield folded("All settings", verbatim(every))


def left(past: PastRun) -> Iterator[str]:
    """What left the hospital, and what came, by its ledger."""
    if not past.lines:
        yield paragraph(
            "Not known: there is no ledger of this run. A deployed hospital writes one; a "
            "simulation has none."
        )
        return
    rows = []
    for verb in dict.fromkeys(line.entry["verb"] for line in past.lines):
        entries = [line.entry for line in past.lines if line.entry["verb"] == verb]
        records = [record for entry in entries for record in entry.get("left", ())]
        failed = sum("failure" in entry for entry in entries)
        size = sum(record.get("bytes", 0) for record in records)
        rows.append([VERBS.get(verb, verb), len(entries), failed, _counted(records), f"{size:,}"])
    head = ["asked to", "times", "refused or failed", "what left", "bytes of arrays"]
    yield table(head, rows, about="What left")
    yield paragraph(
        "Figures are single numbers, such as an accuracy or seconds. No image of a patient is "
        "among what can leave. The command ledger shows each line, with --html as a page.",
        soft=True,
    )
    if past.failures:
        lines = [[VERBS.get(v, v), n, why] for (v, why), n in past.failures.items()]
        yield heading("Refused or failed", 3)
        yield table(["asked to", "times", "why"], lines, about="Refused or failed")
    yield heading("What came", 3)
    trained = sum(line.entry["verb"].startswith("train") for line in past.answered)
    buffers = {each for line in past.answered for each in line.entry.get("replay", ())}
    lent = sorted({each.partition("=")[0] for each in buffers})
    came = [f"models to train: {trained}", f"models that are at home now: {len(past.models)}"]
    if lent:
        came.append(f"synthetic images of: {', '.join(lent)}")
    yield listing(came)
    yield paragraph(
        "The ledger holds what was asked and what left; of what came it holds no bytes.", soft=True
    )


def others(past: PastRun) -> Iterator[str]:
    """The other runs that the hospital knows of."""
    if past.others:
        yield paragraph("To write the report of one, name it with --run.")
        yield listing(past.others)


def method(past: PastRun) -> str:
    """The name of the method."""
    of_models = [str(model.settings["strategy"]) for model in past.models.values()]
    return str(past.settings.get("strategy", of_models[0] if of_models else "A run"))


def dates(past: PastRun) -> str:
    """From its first day to its last one, in UTC."""
    times = [line.entry["time"] for line in past.lines]
    times += [model.date for model in past.models.values()]
    days = sorted({time[:10] for time in times if time})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "at an unknown date"


def _counted(records: Sequence[Mapping[str, object]]) -> str:
    """How many records of each kind, in words."""
    kinds: Counter[str] = Counter()
    for record in records:
        name = str(record["name"]).rpartition("/")[2]
        values = record.get("values")
        if name == "metrics" and isinstance(values, Mapping):
            kinds["figure"] += len(values)
        else:
            kinds[NAMED.get(name, name)] += 1
    words = [f"{n:,} {kind if n == 1 else _plural(kind)}" for kind, n in kinds.items()]
    return ", ".join(words) or "nothing"


def _plural(kind: str) -> str:
    plurals = {"memory": "memories", "sample of embeddings": "samples of embeddings"}
    return plurals.get(kind, f"{kind}s")
