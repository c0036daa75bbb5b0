"""The report of a run, under way or ended: its summary as one HTML page for four readers.

The readers are a clinician (worth.py, data.py), a researcher (method.py), an engineer
(operation.py) and a data protection officer (privacy.py, embeddings.py), in this order. Each file
gathers the values for a template of pages/templates/report. `pages.page` escapes all texts from
outside, such as a hospital's name, its reason for a failure or a setting.
"""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite, nan

from flwr.common.config import flatten_dict

from pages import page
from pages.figures import is_noised
from pages.pictures import Strip
from pages.release_view import noun_of, reword
from pages.verdicts.model import mean_chance, missing_classes
from pages.verdicts.run import texts
from server_app.report import data, embeddings, method, operation, privacy, tasks, timing, worth
from server_app.summary import Summary
from strategies.engine.events import Event
from strategies.protocol.console import duration
from strategies.protocol.data_sets import KINDS
from strategies.protocol.text import amount
from strategies.registry import STRATEGIES

QUEUES = (
    "Asynchronous: hospitals do not wait for one another. A round is as many visits as there are "
    "models."
)
NAMED = 4  # most classes that a title names


def render(
    name: str,
    summary: Summary,
    events: Sequence[Event],
    toml: str,
    pictures: Mapping[str, Sequence[Strip]] | None = None,
    live: int = 0,
) -> str:
    """Make the page.

    Args:
        name: The run's name: its start and its strategy.
        summary: The run's figures.
        events: The run's events, in order.
        toml: The run's settings, as a file.
        pictures: Synthetic images by hospital; none if the run is sealed or under way.
        live: Of a run under way, the seconds until a browser loads its page again
            (server_app/live.py); its events may lack tests. 0 if the run has ended.
    """
    config = tomllib.loads(toml)
    queues = bool(config.get("asynchronous"))
    tests = [row for row in summary.assessments if row["kind"] == "model"]
    chances = {
        h: mean_chance(row for row in tests if row["hospital"] == h) for h in summary.hospitals
    }
    chances[""] = mean_chance(tests)
    # With tasks the classes, and so chance, change from round to round: curves have no such line.
    of_rounds = dict.fromkeys(chances, nan) if summary.tasks else chances
    return page.render(
        "report",
        title_of(summary),
        live=live,
        summary=summary,
        sentence=QUEUES if queues else reword(_method(summary.strategy)[1], noun_of(config)),
        facts=_facts(name, summary),
        noise=texts(summary.worth, "noise"),
        noised=isfinite(summary.noise),
        worth=worth.figures(summary, chances),
        data=data.figures(summary),
        method=method.figures(summary, chances, of_rounds),
        routes=method.routes(summary, events, queues=queues),
        tasks=tasks.figures(summary),
        plan=tasks.enrolment_plan(summary),
        time=timing.figures(summary, of_rounds),
        synthetic=privacy.figures(summary, config, pictures or {}),
        embeddings=embeddings.figures(summary),
        **operation.figures(summary, events, flatten_dict(config), toml),
    )


def title_of(summary: Summary) -> str:
    """The page's title: method, data and date."""
    known = {own["kind"] for own in summary.data.values()} - {None}
    kinds = " and ".join(sorted({KINDS[kind].title if kind in KINDS else kind for kind in known}))
    parts = [_method(summary.strategy)[0], *([f"on {kinds}"] if kinds else [])]
    if summary.classes:
        many = len(summary.classes) > NAMED
        named = f"{len(summary.classes)} classes" if many else ", ".join(summary.classes)
        if is_noised(summary.assessments) and (some := missing_classes(summary.assessments)):
            named += f"; figures of {some}"
        parts.append(f"({named})")
    if summary.began:
        date = datetime.fromisoformat(summary.began)
        parts[-1] += ","
        parts.append(f"{date.day} {date:%B %Y}")
    return " ".join(parts)


def _method(strategy: str) -> tuple[str, str]:
    """A strategy's name and description, from the first line of its file."""
    module = STRATEGIES[strategy].__module__ if strategy in STRATEGIES else ""
    about = (getattr(sys.modules.get(module), "__doc__", None) or strategy).splitlines()[0]
    title, _, sentence = about.partition(": ")
    return title, sentence


def _facts(name: str, summary: Summary) -> list[str]:
    resumed = [f"interrupted and resumed: {summary.resumed}"] if summary.resumed else []
    numbers = {
        "hospital": len(summary.hospitals),
        "model": len(summary.models),
        "round": summary.rounds,
    }
    known = [amount(number, noun) for noun, number in numbers.items() if number]
    lasted = [duration(summary.wall_seconds)] if round(summary.wall_seconds) else []
    return [*known, *lasted, *resumed, f"run {name}"]
