"""What a researcher asks: every model everywhere, over time, and where each has been."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from pages import plots
from pages.page import (
    figure,
    folded,
    heading,
    paragraph,
    section,
    shown,
    table,
)
from pages.plots import Line, Row, Span
from server_app.measures import LAST_ROUNDS, visit_ends
from server_app.report.worth import noise_note
from server_app.summary import Summary
from strategies.engine.events import Event

PICTURED = (
    100  # hospitals of which every model at every hospital is shown: a million cells is no page
)
TITLE = "How the method did"
PANELS = 12  # hospitals whose lines over all visits are shown, each by itself
FOLDED = 300  # cells of a picture of routes above which it is folded


def part(
    summary: Summary,
    events: Sequence[Event],
    chances: Mapping[str, float],
    *,
    queues: bool = False,
) -> str:
    """The section; without figures if no round was evaluated.

    Args:
        summary: The run's figures.
        events: What happened, in order.
        chances: At each hospital, and under "" their mean, the balanced accuracy of always the same
            answer; NaN if nobody can say.
        queues: Whether models moved one by one, not in rounds.
    """
    parts = []
    if summary.history["round"]:
        parts += [*_everywhere(summary, chances), *_over_rounds(summary, chances)]
        if _is_serial(summary):
            parts += _visits(summary, chances[""])
    else:
        parts.append(paragraph("No model was tested: there is nothing to compare."))
    parts += routes(summary, events, queues=queues)
    return section(TITLE, *parts)


def _everywhere(summary: Summary, chances: Mapping[str, float]) -> Iterator[str]:
    yield heading("Every model at every hospital", 3)
    if len(summary.hospitals) <= PICTURED:
        yield _matrix(summary, chances)
    else:
        yield paragraph(
            "There are too many hospitals to show every model at every hospital: "
            "accuracy_matrix.csv has the accuracies."
        )
    if len(summary.models) > 1:
        rows = [
            Row(h, [_around(summary.node_convergence[h])], chances[h]) for h in summary.hospitals
        ]
        yield figure(
            "How much the models agree at each hospital: the mean of their balanced accuracies "
            "there, and one standard deviation to both sides "
            f"({shown(summary.balanced_disagreement)} on average). "
            "The shorter the line, the less it matters which model the hospital has."
            + noise_note(summary, "Noise makes it longer."),
            plots.spans("Mean and standard deviation of all models by hospital", rows),
        )


def _matrix(summary: Summary, chances: Mapping[str, float]) -> str:
    many = (
        " There are too many hospitals to print the numbers: summary.json has them."
        if len(summary.hospitals) > plots.NUMBERED
        else ""
    )
    return figure(
        "Balanced accuracy after the last evaluated round. Rows are models, by the hospital they "
        "started at; columns are the hospitals whose test images they were tested on. A dash: not "
        f"measured, or not told.{noise_note(summary, 'All have noise.')}{many}",
        plots.heat(
            "Balanced accuracy of every model (row) at every hospital (column)",
            summary.models,
            summary.hospitals,
            summary.balanced_accuracy_matrix,
            [chances[hospital] for hospital in summary.hospitals],
            f"not above chance, which is {shown(chances[''])} on average",
        ),
    )


def _around(agreement: Mapping[str, float]) -> Span:
    mean, std = agreement["balanced_mean"], agreement["balanced_std"]
    return Span(mean, mean - std, mean + std)


def _sampled(summary: Summary) -> str:
    """What is to be said of figures that are estimated from a sample; empty for others."""
    for name in ("balanced_accuracy", "accuracy"):
        low, high = (getattr(summary, f"federation_{name}_{end}") for end in ("low", "high"))
        if isfinite(low):
            return (
                " What all models are worth at all hospitals is estimated from a sample of them: "
                f"after the last round {shown(getattr(summary, f'federation_{name}'))}, 95 % "
                f"interval {shown(low)} to {shown(high)}."
            )
    return ""


def _over_rounds(summary: Summary, chances: Mapping[str, float]) -> Iterator[str]:
    history = summary.history
    rounds = history["round"]
    everywhere = "all models" if len(summary.models) > 1 else "the model"
    names = {
        f"{everywhere}, at all hospitals": "federation_{}",
        "the model a hospital holds": "personalized_{}",
        "the model it has just trained": "{}_after_visit",
    }
    charts: list[str] = []
    columns: dict[str, Sequence[float]] = {}
    for metric, title in (("balanced_accuracy", "Balanced accuracy"), ("accuracy", "Accuracy")):
        lines = [
            Line(name, rounds, history[key])
            for name, pattern in names.items()
            if any(map(isfinite, history.get(key := pattern.format(metric), ())))
        ]
        if lines:
            level = chances[""] if metric == "balanced_accuracy" else float("nan")
            chart = plots.chart(f"{title} over the rounds", lines, level)
            charts.append(f"<div>{heading(title, 4)}{chart}</div>")
            columns |= {f"{title}, {line.name}": line.ys for line in lines}
    yield heading("Over the rounds", 3)
    best = (
        f" The best round was {summary.best_round}, chosen on test images, which flatters it."
        if summary.best_round
        else ""
    )
    yield figure(
        f"Means over hospitals, on axes from 0 to 1.{_sampled(summary)}{best}"
        + noise_note(
            summary,
            "Each point has noise of its own, with a standard deviation of up to "
            f"{max(filter(isfinite, history['noise']), default=0):.3f}, and more at one hospital; "
            "accuracy and balanced accuracy have not the same. Smaller steps say nothing.",
        ),
        f'<div class="panels">{"".join(charts)}</div>\n',
    )
    rows = [[number, *values] for number, *values in zip(rounds, *columns.values(), strict=True)]
    yield folded("These lines as numbers", table(["round", *columns], rows, about="By round"))
    mean = Line("mean", rounds, history["personalized_balanced_accuracy"])
    panels = [
        plots.small(Line(hospital, rounds, ys), mean, chances[hospital])
        for hospital, ys in history["held_balanced"].items()
    ]
    yield heading("What each hospital holds", 3)
    yield figure(
        "Balanced accuracy of the model that a hospital holds after a round, on its own test "
        "images. The grey line is the mean of all hospitals, the dashed one is chance."
        + noise_note(summary, "Each point has noise of its own."),
        f'<div class="panels small">{"".join(panels)}</div>\n',
    )


def _is_serial(summary: Summary) -> bool:
    """Whether one model was tested after several visits of a round."""
    visits = visit_ends(summary.visits)
    return len(summary.models) == 1 and len(visits) > len({row["round"] for row in visits})


def _visits(summary: Summary, chance: float) -> Iterator[str]:
    last, visits = summary.last_rounds, summary.visits
    rounds = min(LAST_ROUNDS, summary.rounds)
    amplitude = f"{shown(last['mean'])} ± {shown(last['std'])}"
    if isfinite(last["balanced_mean"]):
        amplitude += f", balanced {shown(last['balanced_mean'])} ± {shown(last['balanced_std'])}"
    xs = _times(visits)
    lines = [Line("accuracy", xs, [row["global_accuracy"] for row in visits])]
    if any(isfinite(row["global_balanced_accuracy"]) for row in visits):
        balanced = [row["global_balanced_accuracy"] for row in visits]
        lines.insert(0, Line("balanced accuracy", xs, balanced))
    yield heading("After every visit", 3)
    yield figure(
        "The model that goes from hospital to hospital, on the test images of all hospitals "
        "together. Mean and standard deviation over all visits of the last "
        f"{rounds} rounds: {amplitude}. The deviation is the amplitude of the oscillation; "
        "progress in these rounds adds to it." + noise_note(summary, "So does noise."),
        f'<div class="panels">{plots.chart("Over all visits", lines, chance)}</div>\n',
    )
    if len(summary.hospitals) <= PANELS:
        panels = []
        for hospital in summary.hospitals:
            ys = [row["own_accuracies"].get(hospital, float("nan")) for row in visits]
            dots = [k for k, row in enumerate(visits) if row["hospital"] == hospital]
            panels.append(plots.small(Line(hospital, xs, ys, dots), None))
        yield figure(
            "Accuracy of that model on each hospital's own test images. Dots: the hospital has "
            "just trained it. A line that falls between dots shows what is forgotten elsewhere."
            + noise_note(summary, "Each point has noise of its own."),
            f'<div class="panels small">{"".join(panels)}</div>\n',
        )


def _times(visits: Sequence[Mapping[str, Any]]) -> list[float]:
    """When each version was tested, in rounds; versions of one hop are an epoch's share apart."""
    hops = max(row["hop"] for row in visits)
    epochs = max(row["epochs"] for row in visits)
    left = [(epochs - row["epochs"]) / max(epochs, 1) for row in visits]
    return [v["round"] - 1 + (v["hop"] - rest) / hops for v, rest in zip(visits, left, strict=True)]


def routes(summary: Summary, events: Iterable[Event], *, queues: bool = False) -> Iterator[str]:
    """Where each model was trained, visit by visit."""
    number = {hospital: k for k, hospital in enumerate(_asked(summary, events), 1)}
    visited: dict[str, dict[tuple[int, int], list[Event]]] = {}
    for event in events:
        if event.verb.partition(".")[0] == "train":
            stops = visited.setdefault(event.lineage, {})
            round_ = 0 if queues else event.round
            stops.setdefault((round_, event.hop), []).append(event)
    if not visited:
        return
    yield heading("Where each model has been", 3)
    all_stops = [stop for stops in visited.values() for stop in stops.values()]
    if any(len({event.hospital for event in stop}) > 1 for stop in all_stops):
        yield paragraph(
            "Several hospitals train the same model at the same time, and the server averages what "
            "comes back: there are no routes."
        )
        return
    if len(visited) > 1 or queues:
        places = sorted({place for stops in visited.values() for place in stops})
        rows = {
            f"{number.get(lineage, '')} {lineage}".strip(): [
                _stop(lineage, stops.get(place, []), number) for place in places
            ]
            for lineage, stops in sorted(visited.items())
        }
        firsts = {now: (now, hop) for now, hop in reversed(places)}
        titles = [str(place[0]) if place == firsts[place[0]] else "" for place in places]
        about = "Rows are models, columns are hops with the round above its first one."
        if queues:
            titles = [str(visit) for _, visit in places]
            about = "Rows are models, columns are their first visit, their second, and so on."
    else:
        [(lineage, stops)] = visited.items()
        hops = sorted({hop for _, hop in stops})
        rows = {
            f"round {now}": [_stop(lineage, stops.get((now, hop), []), number) for hop in hops]
            for now in sorted({now for now, _ in stops})
        }
        titles = [str(hop) for hop in hops]
        about = "There is one model. Rows are rounds, columns are the hops of a round."
    named = ", ".join(f"{k} {hospital}" for hospital, k in number.items())
    caption = f"{about} A number is the hospital that trained the model: {named}."
    marks = {mark for cells in rows.values() for mark, _ in cells}
    kinds = {kind for cells in rows.values() for _, kind in cells}
    if "at home" in kinds:
        caption += " Framed: the hospital that the model started at."
    if "miss" in kinds:
        caption += " ×: the hospital missed the visit."
    if any("↺" in mark for mark in marks):
        caption += " ↺: the model was sent back there for a while."
    drawn = figure(caption, plots.steps("Routes of all models", rows, titles))
    yield folded("Show the routes", drawn) if len(rows) * len(titles) > FOLDED else drawn


def _asked(summary: Summary, events: Iterable[Event]) -> list[str]:
    return sorted({*summary.hospitals, *(e.hospital for e in events if e.hospital)})


def _stop(lineage: str, stop: Sequence[Event], number: dict[str, int]) -> tuple[str, str]:
    if not stop:
        return "", ""
    event = stop[-1]
    text = f"{number[event.hospital]}"
    if event.outcome != "ok":
        return f"{text}×", "miss"
    back = "↺" if event.verb.endswith(".rewind") else ""
    return text + back, "at home" if event.hospital == lineage else "at"
