"""The part for a clinician: are the models better here, for which class, and which one to use."""

import shlex
from collections.abc import Sequence
from typing import Any

from client_app.afterwards.home import place_of
from client_app.afterwards.past_run import PastRun
from learning.export import ModelManifest
from pages import plots
from pages.figures import Assessment
from pages.figures_view import (
    CLASS,
    MORE,
    class_cells,
    compared_cell,
    confusion,
    distinct_classes,
    figure_cell,
    more_cells,
    one_vs_rest_cells,
    reliability,
    size_cell,
    whole_number,
)
from pages.verdicts.home import advise, best_model, is_own_better, own_model, own_name
from pages.verdicts.model import chance
from strategies.protocol.files import expand

AFTER = "the best model here after the run"
COMMAND = "uv run fedhandoff"
ROUTE = 8  # most hospitals of a route, the last ones


def figures(past: PastRun, rows: Sequence[Assessment]) -> dict[str, Any] | None:
    """Return the figures of all models; None if there are none."""
    best = best_model(rows)
    if best is None:
        return None
    alone = own_model(rows)
    shown = [*([alone] if alone else []), *(row for row in rows if row is not alone)]
    return {
        "drawn": plots.spans(
            "Balanced accuracy by model",
            [plots.Lane(_title(r), [r["balanced_accuracy"]], chance(r)) for r in shown],
            marked="a constant answer",
        ),
        "rows": [
            [
                _title(row),
                figure_cell(row["balanced_accuracy"]),
                figure_cell(row["gain"], signed=True),
                compared_cell(row),
                size_cell(row),
            ]
            for row in shown
        ],
        "more": [[_title(row), *more_cells(row)] for row in shown],
        "more_head": ["model", *MORE],
        "own": own_name(alone),
        "own_known": alone is not None,
        "can_alone": past.strategy != "sums" and past.settings.get("tasks", 1) == 1,
        "all_rounds": past.alone_file.exists(),
        "by_class": _recall_picture(best, alone),
        "best": _class_by_class(best),
        "others": [_class_by_class(row) for row in shown if row is not best],
        "confusion": confusion(past.classes, best["confusion"]) if best["confusion"] else None,
        "curves": _curves(past.classes, best),
        "reliability": [
            reliability(title, row["calibration"])
            for title, row in (("its own", alone), ("the best here", best))
            if row and row["calibration"]
        ],
    }


def _curves(classes: Sequence[str], best: Assessment) -> list[plots.Picture]:
    """ROC of the best model, for each class against all others; only exact figures have it."""
    return [
        plots.square(plots.Line(name, curve[0], curve[1], ()), f"ROC of class {name}")
        for name, curve, shown in zip(
            classes, best.get("roc", ()), distinct_classes(classes), strict=False
        )
        if shown and curve[0]
    ]


def _recall_picture(best: Assessment, alone: Assessment | None) -> plots.Picture | None:
    """The share right of each class, for the hospital's own model and for the best one."""
    recalls = [
        {each["name"]: each["recall"] for each in row["classes"]} for row in (alone, best) if row
    ]
    lanes = [
        plots.Lane(each["name"], [recall[each["name"]] for recall in recalls])
        for each in best["classes"]
        if each["recall"]
    ]
    titles = [*([_title(alone)] if alone else []), AFTER]
    return plots.spans("Share right by class", lanes, titles) if lanes else None


def _class_by_class(row: Assessment) -> dict[str, Any]:
    """Tables of a model's figures for each class, alone and against all others."""
    classes, known = row["classes"], row["patients"] is not None
    head, rows = ["class", *CLASS], []
    if known:
        head.insert(2, "patients")
    for each in classes:
        images, *others = class_cells(each)
        patients = [whole_number(each["patients"])] if known else []
        rows.append([each["name"], images, *patients, *others])
    against = [
        [each["name"], *one_vs_rest_cells(each), each["threshold"]]
        for each, shown in zip(classes, distinct_classes(classes), strict=True)
        if shown
    ]
    return {"title": _title(row), "head": head, "rows": rows, "against": against}


def _options(past: PastRun) -> str:
    """The options that name the hospital in a command: its folder, if it has a hospital.toml."""
    store = past.folder.parent.absolute()
    if not (store.parent / "hospital.toml").is_file():
        return f"--site {past.site} --store-dir {shlex.quote(str(store))}"
    by_name = store.parent.parent == expand("~/fedhandoff")
    return f"--hospital {shlex.quote(store.parent.name if by_name else str(store.parent))}"


def advice(past: PastRun, rows: Sequence[Assessment]) -> dict[str, Any]:
    """Return the advised model and the values for its commands; no model if none is at home."""
    found: dict[str, Any] = {"command": COMMAND, "here": _options(past)}
    models = list(past.models)
    absent = {row["model"] for row in rows if row["kind"] == "model"}.difference(models)
    if absent:
        absent.add("")  # the ensemble, which has all models
    best = best_model([row for row in rows if row["model"] not in absent])
    if not models:
        return {**found, "model": None}
    chosen, together = models[0], False
    applied = f"one of the models, for example '{chosen}'," if len(models) > 1 else "the model"
    text = "The performance of the models here is unknown, so none is advised."
    if best is not None:
        together = best["kind"] == "ensemble"
        chosen = models[0] if together else best["model"]
        if is_own_better(best, own_model(rows)):
            own = past.own_file if past.strategy == "sums" else past.alone_file
            chosen, together = place_of(own, past.home), False
        applied = "this mean" if together else "this model"
        text = advise(past.site, best, rows)
        if absent:
            text += " Of the models only those that are kept here were compared."
    parts = (f"{weight:.2f} of '{name}'" for name, weight in past.mixture.items())
    return {
        **found,
        "model": shlex.quote(f"{past.run}/{chosen}"),
        "together": together,
        "advice": text,
        "applied": applied,
        "mixture": ", ".join(parts),
    }


def models_at_home(past: PastRun) -> list[list[str]]:
    """The models at home."""
    return [
        [name, _route(model), f"{model.round}/{model.hop}", model.date[:10]]
        for name, model in past.models.items()
    ]


def _route(model: ModelManifest) -> str:
    if not model.visited:
        return "several hospitals, averaged" if model.round else "nowhere"
    more = "… → " if len(model.visited) > ROUTE else ""
    return more + " → ".join(model.visited[-ROUTE:])


def _title(row: Assessment) -> str:
    """The name of a row's model in a table."""
    titles = {"standalone": f"its own, {own_name(row)}", "ensemble": "mean of the models at home"}
    return titles.get(str(row["kind"]), str(row["model"]))
