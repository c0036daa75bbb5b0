"""The ledger for people: as text for a terminal, and as an HTML page.

A server chooses part of its content, such as a run's settings. So the text for the terminal has
only printable characters, and `pages.page` escapes the content of the page.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from client_app.authority.ledger import Line
from pages.page import render, value_text
from strategies.protocol.settings import defaults
from strategies.protocol.text import printable, setting_line

MOST = 12  # figures of a record in a terminal; the page has all
FIELDS = {
    "round": "round",
    "hop": "hop",
    "learner": "learner",
    "epochs": "epochs",
    "snapshots": "with every epoch's model:",
    "buffer_size": "buffer",
    "embeddings": "embeddings",
}


def text(lines: Sequence[Line], verdict: str) -> str:
    """The ledger as text, with the settings that differ from the defaults."""
    parts = []
    for run, of_run in _runs(lines):
        parts.append(f"{run}\n")
        for line in of_run:
            number, digest, time, asked, answer = _row(line, MOST)
            parts.append(f"{number:>6} {digest} {time} {asked}\n       {answer}")
            parts += [f"       {setting}" for setting in _settings(line, changed=True)]
        parts.append("")
    return "\n".join([*parts, verdict])


def page(site: str, lines: Sequence[Line], verdict: str, whole: bool) -> str:
    """The ledger as an HTML page that needs no other file."""
    runs = [
        {
            "title": title,
            "rows": list(map(_row, of_run)),
            "settings": [
                (line.number, "\n".join(settings))
                for line in of_run
                if (settings := _settings(line, changed=False))
            ],
        }
        for title, of_run in _runs(lines)
    ]
    return render("ledger", f"Ledger of {site}", runs=runs, verdict=verdict, whole=whole)


def _runs(lines: Sequence[Line]) -> Iterator[tuple[str, list[Line]]]:
    """The lines of each run, in the order of the runs' first lines."""
    runs: dict[str, list[Line]] = {}
    for line in lines:
        run = line.entry.get("run")
        title = "Outside of a run" if run is None else f"Run {printable(run)}"
        runs.setdefault(title, []).append(line)
    yield from runs.items()


def _row(line: Line, most: int = 10**9) -> tuple[str, ...]:
    """Number, hash, time, request, and answer with the first `most` figures of each record."""
    entry = line.entry
    asked = [f"{title} {entry[key]}" for key, title in FIELDS.items() if entry.get(key)]
    cells = (line.number, line.hash[:12], entry.get("time"), " ".join([entry["verb"], *asked]))
    return (*map(printable, cells), printable(_answer(entry, most)))


def _answer(entry: dict[str, Any], most: int) -> str:
    """The answer, in words."""
    if failure := entry.get("failure"):
        rule = f" {failure['rule']}" if "rule" in failure else ""
        return f"failed ({failure['class']}): {failure['reason']}{rule}"
    return "; ".join(_record(each, most) for each in entry["left"]) or "nothing"


def _record(record: dict[str, Any], most: int) -> str:
    name = record["name"]
    if "sha256" in record:
        return f"{name}: {record['bytes']:,} bytes, SHA-256 {record['sha256'][:12]}"
    values = [f"{key} {value_text(value)}" for key, value in record["values"].items()]
    more = f" and {len(values) - most} more (in the page)" if len(values) > most else ""
    return f"{name}: {', '.join(values[:most])}{more}"


def _settings(line: Line, *, changed: bool) -> list[str]:
    """The code, policy and settings of a run, if the line has them."""
    entry = line.entry
    if "settings" not in entry:
        return []
    usual = defaults() if changed else {}
    settings = [
        setting_line(key, value)
        for key, value in entry["settings"].items()
        if key not in usual or usual[key] != value
    ]
    facts = [f"code {entry['code']}", f"policy {entry['policy']}"]
    if others := entry.get("unknown"):
        facts.append(f"{others} more settings, which are not written here")
    return [printable(each) for each in (*facts, *settings)]
