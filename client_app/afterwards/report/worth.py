"""What a clinician asks: are the models better here, for which class, and which one to use."""

import shlex
from collections.abc import Iterator, Sequence

from client_app.afterwards.past_run import PastRun
from learning.export import ModelManifest
from pages import plots
from pages.figures import Assessment, number
from pages.figures_view import (
    OF_CLASS,
    class_row,
    commonest,
    compared_cell,
    confusion,
    interval,
    reliability,
    span,
    tested,
    whole,
)
from pages.page import figure, folded, heading, paragraph, table, verbatim
from pages.verdicts.home import AS_LONG, best_model, model_name, own_model, own_name
from pages.verdicts.model import chance, is_useful

AFTER = "the best model here after the run"
COMMAND = "uv run python -m client_app"
ROUTE = 8  # hospitals of a route that are named


def part(past: PastRun, rows: Sequence[Assessment], inexact: str) -> Iterator[str]:
    """What the models are worth; it says so where nothing is known."""
    best = best_model(rows)
    if best is None:
        yield paragraph(f"No figures of models are known here. {inexact}".strip())
        yield _kept(past)
        return
    alone = own_model(rows)
    shown = [*([alone] if alone else []), *(row for row in rows if row is not alone)]
    drawn = plots.spans(
        "Balanced accuracy by model",
        [plots.Row(_title(row), [span(row["balanced_accuracy"])], chance(row)) for row in shown],
        marked="always the same answer",
    )
    yield figure(
        "Balanced accuracy on the hospital's own test images, with 95 % intervals: the share "
        "of a class's images that are answered right, averaged over the classes, so that a "
        "rare class counts as much as a common one.",
        drawn,
    )
    head = ["model", "balanced accuracy", "gain on its own", "is better?"]
    more = ["accuracy", "always the commonest class", "AUROC", "ECE", "tested on"]
    lines = [
        [
            _title(row),
            interval(row["balanced_accuracy"]),
            interval(row["gain"], signed=True),
            compared_cell(row),
            interval(row["accuracy"]),
            commonest(row["largest_class"]),
            *(interval(row[key]) for key in ("auroc", "ece")),
            tested(row),
        ]
        for row in shown
    ]
    yield table([*head, *more], lines, about="All figures of all models")
    yield paragraph(
        f"Gain: of balanced accuracy on that of the hospital's own model {own_name(alone)}, "
        f"on the same images; an interval with 0 in it shows no difference. {_further(past)}"
        "AUROC: how often an image of a class is given more of this class than an image of "
        "another; 0.5 is guessing. ECE: how far, on average, the probability that a model gives "
        "is from the share that is right; 0 is best.",
        soft=True,
    )
    if alone is None:
        yield paragraph(
            "Nothing is known of the hospital's own model before the first hand-off: the run did "
            "not test it, or its images lie elsewhere now, or arrived in tasks."
        )
    yield from _classes(best, alone)
    others = [row for row in shown if row is not best]
    yield from (folded(f"Class by class: {_title(row)}", _class_table(row)) for row in others)
    yield from _believed(past.classes, best, alone)
    yield _kept(past)


def use(past: PastRun, rows: Sequence[Assessment]) -> Iterator[str]:
    """Which model to use, and the commands for it."""
    best = best_model(rows)
    models = list(past.models)
    if not models:
        yield paragraph(
            "No model of this run is at home: the node-config 'keep' was 'none', the run did "
            "not end, or this hospital was not there when models were tested for the last "
            "time. If there are parcels in the server's results, this opens them:"
        )
        yield verbatim(_open(past))
        return
    if best is None:
        chosen, together = models[0], False
        yield paragraph("Nothing is known of what they are worth here, so none is advised.")
    else:
        together = best["kind"] == "ensemble"
        chosen = models[0] if together else best["model"]
        if _own_is_better(best, rows):
            chosen, together = str(past.alone.relative_to(past.home).with_suffix("")), False
        yield paragraph(_advice(past.site, best, rows))
    model = f"{past.run}/{chosen}"
    here = _here(past)
    mean = " --ensemble" if together else ""
    if mixture := past.mixture:
        parts = ", ".join(f"{weight:.2f} of '{name}'" for name, weight in mixture.items())
        yield paragraph(
            "Or a mixture, which makes as much of each model as suits the hospital's own test "
            f"images: {parts}. If this is the newest run, it is what is used without --model:"
        )
        yield verbatim(f"{COMMAND} predict {here} --data IMAGES --output predictions.csv")
    yield paragraph("To apply the one model to images, and write a table of probabilities:")
    yield verbatim(
        f"{COMMAND} predict --model {shlex.quote(model)}{mean} {here} --data IMAGES "
        "--output predictions.csv"
    )
    yield paragraph(
        "To take it elsewhere, with a card that says what it is"
        + (" (of the mean each model by itself):" if together else ":")
    )
    yield verbatim(f"{COMMAND} export {shlex.quote(model)} {here} --to model.safetensors")
    yield paragraph("To open parcels of this run that are not at home yet:")
    yield verbatim(_open(past))


def _advice(site: str, best: Assessment, rows: Sequence[Assessment]) -> str:
    """Which model, and why, with what speaks against it."""
    figure = number(best["balanced_accuracy"])
    if _own_is_better(best, rows):
        return (
            f"{site}'s own, {AS_LONG}: the best of the others, {model_name(best)} (balanced "
            f"accuracy {figure}), is worse here. No model is a medical device: nobody has approved "
            "one for diagnosis."
        )
    if not is_useful(best):
        return (
            f"None is advised: the best, {model_name(best)} (balanced accuracy {figure}), is worse "
            f"than {site}'s own {own_name(own_model(rows))}, or not shown to know more than a "
            "constant answer. The commands below are for looking into it."
        )
    text = f"{_upper(model_name(best))}: it has the highest balanced accuracy here, {figure}."
    if sum(row["kind"] != "standalone" for row in rows) > 1:
        text += (
            " It was chosen by the images that it was tested on, so that it is probably a little "
            "worse on new ones; intervals that overlap say that another one may be as good."
        )
    return f"{text} No model is a medical device: nobody has approved one for diagnosis."


def _own_is_better(best: Assessment, rows: Sequence[Assessment]) -> bool:
    """Whether the model that the hospital trained alone as long is shown to be the better one."""
    return best["compared"] == "worse" and own_name(own_model(rows)) == AS_LONG


def _further(past: PastRun) -> str:
    if past.alone.exists():
        return ""
    return (
        "That model was trained for one visit, and could get further alone: the command alone "
        "trains one as long. "
    )


def _classes(best: Assessment, alone: Assessment | None) -> Iterator[str]:
    known = [each for each in best["classes"] if each["recall"]]
    before = [_title(alone)] if alone else []
    yield heading(f"For which class? {_upper(_title(best))}", 3)
    own = {each["name"]: each for each in alone["classes"]} if alone else {}
    lines = [
        plots.Row(
            each["name"],
            [*([span(own[each["name"]]["recall"])] if own else []), span(each["recall"])],
        )
        for each in known
    ]
    if known:
        yield figure(
            "The share of each class's images that is answered right, with 95 % intervals.",
            plots.spans("Share right by class", lines, [*before, AFTER]),
        )
    yield _class_table(best)
    yield paragraph(
        "Right: the most probable answer is this class. Sensitivity and specificity: of this class "
        "against all others, where its probability is compared with a threshold that was chosen "
        "on training images.",
        soft=True,
    )


def _class_table(row: Assessment) -> str:
    head, rows = ["class", *OF_CLASS, "threshold"], []
    known = row["patients"] is not None
    if known:
        head.insert(2, "patients")
    for each in row["classes"]:
        name, images, *figures = class_row(each["name"], each)
        of = [whole(each["patients"])] * known
        rows.append([name, images, *of, *figures, each["threshold"]])
    return table(head, rows, about=f"Class by class: {_title(row)}")


def _believed(classes: Sequence[str], best: Assessment, alone: Assessment | None) -> Iterator[str]:
    if best["confusion"]:
        yield folded("What is taken for what", confusion(classes, best["confusion"]))
    panels = [
        reliability(title, row["calibration"])
        for title, row in (("its own", alone), ("the best here", best))
        if row and row["calibration"]
    ]
    if panels:
        yield figure(
            "Can probabilities be believed? Of the images that are answered with a probability "
            "(from left to right), the share that is right (upwards). On the dashed line a model "
            "is right as often as it says.",
            f'<div class="panels small">{"".join(panels)}</div>\n',
        )


def _kept(past: PastRun) -> str:
    """The models at home."""
    if not past.models:
        return ""
    rows = [
        [name, _route(model), f"{model.round}/{model.hop}", model.date[:10]]
        for name, model in past.models.items()
    ]
    head = ["model", "trained at", "round/hop", "kept on (UTC)"]
    visits = f"After visits of its own: {', '.join(past.visits)}." if past.visits else ""
    return (
        heading("The models at home", 3)
        + table(head, rows, about="The models at home")
        + (paragraph(visits) if visits else "")
    )


def _route(model: ModelManifest) -> str:
    if not model.visited:
        return "all hospitals, averaged" if model.round else "nowhere"
    more = "… → " if len(model.visited) > ROUTE else ""
    return more + " → ".join(model.visited[-ROUTE:])


def _here(past: PastRun) -> str:
    folder = shlex.quote(str(past.folder.parent))
    return f"--site {past.site} --store-dir {folder}"


def _open(past: PastRun) -> str:
    return f"{COMMAND} open RESULT/parcels/*.npz {_here(past)} --run-config RESULT/config.toml"


def _title(row: Assessment) -> str:
    """A row's model in a table."""
    titles = {"standalone": f"its own, {own_name(row)}", "ensemble": "mean of all models"}
    return titles.get(str(row["kind"]), str(row["model"]))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
