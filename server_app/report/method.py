"""The section for a researcher: every model at every hospital, over time, and its route."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any

from learning.intervals import number
from pages import plots
from pages.figures import deviation
from pages.page import value_text
from pages.plots import Cells, Lane, Line
from server_app.measures import LAST_ROUNDS, sampled_figure, visit_ends
from server_app.report.worth import CHANCE
from server_app.summary import Summary
from strategies.engine.events import Event, visits

PICTURED = 100  # most hospitals of a table with every model at every hospital
PANELS = 12  # most hospitals with a chart of all visits
FOLDED = 300  # most cells of a picture of routes that is not folded


def figures(
    summary: Summary, chances: Mapping[str, float], of_rounds: Mapping[str, float]
) -> dict[str, Any]:
    """Return the section's values; none of them is a figure if no round was evaluated.

    `chances` has the balanced accuracy of a constant answer at each hospital, and their mean
    under ""; NaN if unknown. `of_rounds` has the same of all rounds, NaN if they differ.
    """
    if not summary.history["round"]:
        return {"tested": False}
    several = isfinite(summary.balanced_disagreement)  # models at one hospital
    lanes = [
        Lane(hospital, [deviation(at["balanced_mean"], at["balanced_std"])], chances[hospital])
        for hospital, at in summary.node_convergence.items()
    ]
    title = "Mean and standard deviation of all models by hospital"
    agreement = plots.spans(title, lanes, marked=CHANCE)
    noise = max(filter(isfinite, summary.history["noise"]), default=0)
    return {
        "tested": True,
        "matrix": _matrix(summary, chances) if len(summary.hospitals) <= PICTURED else None,
        "matrix_dense": len(summary.hospitals) > plots.NUMBERED,
        "agreement": agreement if several else None,
        "noise": f"{noise:.3f}",
        "sampled": _estimate(summary),
        **_curves(summary, of_rounds),
        "visits": _visits(summary, of_rounds[""]) if _is_serial(summary) else None,
    }


def _matrix(summary: Summary, chances: Mapping[str, float]) -> Cells:
    return plots.heat(
        "Balanced accuracy of every model (row) at every hospital (column)",
        summary.models,
        summary.hospitals,
        summary.balanced_accuracy_matrix,
        [chances[hospital] for hospital in summary.hospitals],
        f"not above chance, which is {value_text(chances[''])} on average",
    )


def _estimate(summary: Summary) -> str:
    """The estimated figure of all models at all hospitals; empty if it is not from a sample."""
    names = ("federation_balanced_accuracy", "federation_accuracy")
    found = filter(None, (sampled_figure(vars(summary), name) for name in names))
    return next(map(number, found), "")


def _curves(summary: Summary, chances: Mapping[str, float]) -> dict[str, Any]:
    history = summary.history
    rounds = history["round"]
    everywhere = "all models" if len(summary.models) > 1 else "the model"
    names = {
        f"{everywhere}, at all hospitals": "federation_{}",
        "the model a hospital holds": "personalized_{}",
        "the model it has just trained": "{}_after_visit",
    }
    charts = []
    columns: dict[str, Sequence[float]] = {}
    for metric, title in (("balanced_accuracy", "Balanced accuracy"), ("accuracy", "Accuracy")):
        lines = [
            Line(name, rounds, history[key])
            for name, pattern in names.items()
            if any(map(isfinite, history.get(key := pattern.format(metric), ())))
        ]
        if lines:
            level = chances[""] if metric == "balanced_accuracy" else nan
            charts.append((title, plots.chart(f"{title} over the rounds", lines, level)))
            columns |= {f"{title}, {line.name}": line.ys for line in lines}
    mean = Line("mean", rounds, history["personalized_balanced_accuracy"])
    held = [Line(hospital, rounds, ys) for hospital, ys in history["held_balanced"].items()]
    return {
        "charts": charts,
        "rounds_head": ["round", *columns],
        "rounds": [*zip(rounds, *columns.values(), strict=True)],
        "held": plots.charts_by_name(held, chances, mean),
        "held_chance": any(isfinite(chances[line.name]) for line in held),
    }


def _is_serial(summary: Summary) -> bool:
    """Whether one model was tested after several visits of a round."""
    visits = visit_ends(summary.visits)
    return len(summary.models) == 1 and len(visits) > len({row["round"] for row in visits})


def _visits(summary: Summary, chance: float) -> dict[str, Any]:
    last, visits, rounds = summary.last_rounds, summary.visits, min(LAST_ROUNDS, summary.rounds)
    if summary.tasks:
        rounds = min(rounds, summary.rounds + 1 - summary.tasks["begins"][-1])
    amplitude = f"{value_text(last['mean'])} ± {value_text(last['std'])}"
    if isfinite(last["balanced_mean"]):
        mean, std = (value_text(last[f"balanced_{name}"]) for name in ("mean", "std"))
        amplitude += f", balanced {mean} ± {std}"
    xs = _times(visits)
    lines = [Line("accuracy", xs, [row["global_accuracy"] for row in visits])]
    if any(isfinite(row["global_balanced_accuracy"]) for row in visits):
        balanced = [row["global_balanced_accuracy"] for row in visits]
        lines.insert(0, Line("balanced accuracy", xs, balanced))
    hospitals = summary.hospitals if len(summary.hospitals) <= PANELS else []
    of_hospitals = []
    for hospital in hospitals:
        ys = [row["own_accuracies"].get(hospital, float("nan")) for row in visits]
        dots = [k for k, row in enumerate(visits) if row["hospital"] == hospital]
        of_hospitals.append(Line(hospital, xs, ys, dots))
    return {
        "rounds": f"{rounds} rounds" if rounds > 1 else "round",
        "amplitude": amplitude if isfinite(last["mean"]) else "",
        "drawn": plots.chart("Over all visits", lines, chance),
        "panels": plots.charts_by_name(of_hospitals, {}),
    }


def _times(visits: Sequence[Mapping[str, Any]]) -> list[float]:
    """The time of each test, in rounds; tests of one hop are one epoch's share apart."""
    hops = max(row["hop"] for row in visits)
    epochs = max(row["epochs"] for row in visits)
    left = [(epochs - row["epochs"]) / max(epochs, 1) for row in visits]
    return [v["round"] - 1 + (v["hop"] - rest) / hops for v, rest in zip(visits, left, strict=True)]


def routes(
    summary: Summary, events: Sequence[Event], *, queues: bool = False
) -> dict[str, Any] | None:
    """Return the route of each model, visit by visit; None if no model was trained."""
    hospitals = {*summary.hospitals, *(event.hospital for event in events if event.hospital)}
    number = {hospital: k for k, hospital in enumerate(sorted(hospitals), 1)}
    visited: dict[str, dict[tuple[int, int], list[Event]]] = {}
    for event in visits(events):
        stops = visited.setdefault(event.lineage, {})
        round_ = 0 if queues else event.round
        stops.setdefault((round_, event.hop), []).append(event)
    if not visited:
        return None
    all_stops = [stop for stops in visited.values() for stop in stops.values()]
    if any(len({event.hospital for event in stop}) > 1 for stop in all_stops):
        return {"averaged": True}
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
        kind = "hops"
        if queues:
            titles, kind = [str(visit) for _, visit in places], "visits"
    else:
        [(lineage, stops)] = visited.items()
        hops = sorted({hop for _, hop in stops})
        rows = {
            f"round {now}": [_stop(lineage, stops.get((now, hop), []), number) for hop in hops]
            for now in sorted({now for now, _ in stops})
        }
        titles, kind = [str(hop) for hop in hops], "rounds"
    marks = {mark for cells in rows.values() for mark, _ in cells}
    kinds = {kind for cells in rows.values() for _, kind in cells}
    return {
        "averaged": False,
        "kind": kind,
        "named": ", ".join(f"{k} {hospital}" for hospital, k in number.items()),
        "framed": "at home" in kinds,
        "missed": "miss" in kinds,
        "rewound": any("↺" in mark for mark in marks),
        "drawn": plots.steps("Routes of all models", rows, titles),
        "many": len(rows) * len(titles) > FOLDED,
    }


def _stop(lineage: str, stop: Sequence[Event], number: dict[str, int]) -> tuple[str, str]:
    if not stop:
        return "", ""
    event = stop[-1]
    text = f"{number[event.hospital]}"
    if event.outcome != "ok":
        return f"{text}×", "miss"
    back = "↺" if event.verb.endswith(".rewind") else ""
    return text + back, "at home" if event.hospital == lineage else "at"
