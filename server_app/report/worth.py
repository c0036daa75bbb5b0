"""What a clinician asks: what was learnt, better than alone or not, where, how sure, which class.

What is judged, `Summary.worth` has judged, in its own words; here are figures and what they mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from pages import plots
from pages.figures import Figure, Z, size
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
from pages.page import (
    figure,
    folded,
    heading,
    judged,
    paragraph,
    section,
    shown,
    table,
)
from pages.plots import Row
from pages.verdicts.model import chance, mean_chance, worst
from server_app.assessments import figure_everywhere
from server_app.summary import Summary

TITLE = "What the models are worth"
DATA = "On which images"
CHANCE = "chance: always the same answer"
EACH = 12  # more hospitals than this: long tables are folded, and only models that are held listed
SAID = 8  # sentences on the page; more are folded
FOLDED = 6  # more hospitals than this are folded, class by class
MODELS = {"ensemble": "mean of all models", "standalone": "its own, before the first hand-off"}

Told = dict[str, Any]  # a row of the summary


def part(summary: Summary, chances: Mapping[str, float]) -> str:
    """The section; it says so where nothing was measured."""
    own = {row["hospital"]: row for row in _of_kind(summary, "model") if row["held"]}
    alone = {row["hospital"]: row for row in _of_kind(summary, "standalone")}
    parts = [_said(summary, "run"), *_headline(summary)]
    parts += _alone(summary, own, alone, chances)
    parts += _classes(summary, own)
    parts += [*_all(summary), *_probabilities(summary, own)]
    return section(TITLE, *parts)


def data(summary: Summary) -> str:
    """The section on the images of each hospital."""
    if not summary.data:
        return ""
    rows = []
    for hospital, own in sorted(summary.data.items()):
        sizes = [tested(own[part]) for part in ("train", "test")]
        changed = ", ".join(f"{key} = {value}" for key, value in own["own_settings"].items())
        prints = [own[part]["fingerprint"] or "not told" for part in ("train", "test")]
        unusable = whole(own["unusable"])
        rows.append(
            [
                hospital,
                own["kind"],
                *sizes,
                unusable,
                changed or "–",
                " / ".join(prints),
            ]
        )
    by_class = [
        [hospital, name, *(whole(own[part]["classes"].get(name)) for part in ("train", "test"))]
        for hospital, own in sorted(summary.data.items())
        for name in summary.classes
        if own["train"]["classes"] or own["test"]["classes"]
    ]
    head = ["hospital", "source", "trained on", "tested on", "unusable", "settings of its own"]
    return section(
        DATA,
        paragraph(
            "What each hospital used. It keeps its test images apart, and trains no model on "
            "them. Where fingerprints are equal, the images and their classes are. Hospitals of a "
            "deployment make them with a secret: only those of one hospital can be compared."
        ),
        _fold(len(rows), "By hospital", table([*head, "fingerprints"], rows, about="By hospital")),
        folded(
            "Images of each class",
            table(["hospital", "class", "trained on", "tested on"], by_class, about="By class"),
        )
        if by_class
        else "",
    )


def _headline(summary: Summary) -> Iterator[str]:
    """What hospitals hold and what all models are everywhere, each with its worst case."""
    first = summary.headline
    if first is None:
        return
    value, _, within = interval(first).partition(" ")
    tests = _of_kind(summary, "model")
    held = [row for row in tests if row["held"]] or tests
    everywhere = figure_everywhere(summary.assessments, vars(summary))
    rows = [*_mean_and_worst("the models that hospitals hold", first, held)]
    rows += _mean_and_worst("every model at every hospital", everywhere, tests)
    noise = f", and on the noise, which alone may be ±{Z * first.get('noise', 0):.3f}"
    yield figure(
        "Balanced accuracy of the model that a hospital holds, on its own test images, averaged "
        f"over hospitals; on {size(first)}, after round {first['round']}. It is the share of a "
        "class's images that are answered right, averaged over the classes, so that a rare class "
        f"counts as much as a common one. Always the same answer gives {shown(mean_chance(held))}, "
        "and 1 is perfect. In brackets a 95 % interval: how far the figure depends on which "
        f"patients happened to be tested{noise * ('noise' in first)}. Below it the worst model.",
        f'<p class="headline"><b>{value}</b> {within}</p>\n',
        plots.spans("Balanced accuracy of the run", rows),
    )


def _mean_and_worst(name: str, mean: Figure | None, tests: Sequence[Told]) -> Iterator[Row]:
    """The mean over models at hospitals, and the worst one."""
    if mean is None:
        return
    yield Row(f"Mean of {name}", [span(mean)], mean_chance(tests))
    if len(tests) > 1:
        least = worst(tests)
        label = f"Worst: '{least['model']}' at {least['hospital']}"
        yield Row(label, [span(least["balanced_accuracy"])], chance(least))


def _alone(
    summary: Summary,
    own: Mapping[str, Told],
    alone: Mapping[str, Told],
    chances: Mapping[str, float],
) -> Iterator[str]:
    """Each hospital's own model before the first hand-off, and the one that it ends with."""
    if not own:
        return
    compares = bool(alone) or any(row["gain"] for row in own.values())
    title = "Is it better than staying alone?" if compares else "What each hospital holds"
    yield heading(title, 3)
    yield _said(summary, "hospital")
    names = ["the model that it holds after the run"]
    if alone:
        names.insert(0, "the hospital's own model, before the first hand-off")
    rows = []
    for hospital, row in own.items():
        spans = [span(row["balanced_accuracy"])]
        if alone:
            first = alone.get(hospital)
            spans.insert(0, span(first["balanced_accuracy"] if first else None))
        rows.append(Row(hospital, spans, chances[hospital]))
    drawn = plots.spans("Balanced accuracy by hospital", rows, names, CHANCE)
    caption = "Balanced accuracy on each hospital's own test images, with 95 % intervals."
    if not compares:
        yield figure(
            f"{caption} There is no model from before a first hand-off to compare with.",
            drawn,
        )
        return
    yield figure(
        f"{caption} The table "
        "has the difference of the two on the same images; if its interval has 0 in it, no "
        "difference is shown. The hospital's own model was trained for one visit: a hospital that "
        "trains alone for longer may get further, as a run with the strategy standalone shows."
        + noise_note(
            summary,
            "The intervals allow for the noise. A difference that it hides here may show on the "
            "hospital's exact page, and so may one in classes that are not told.",
        ),
        drawn,
    )
    lines = [
        [
            hospital,
            interval(alone[hospital]["balanced_accuracy"]) if hospital in alone else None,
            interval(row["balanced_accuracy"]),
            interval(row["gain"], signed=True),
            compared_cell(row),
            tested(row),
        ]
        for hospital, row in own.items()
    ]
    head = ["hospital", "alone", "after the run", "gain", "is better?", "tested on"]
    about = "Balanced accuracy alone and after the run, by hospital"
    yield _fold(len(lines), "These figures as numbers", table(head, lines, about=about))


def _classes(summary: Summary, own: Mapping[str, Told]) -> Iterator[str]:
    """What is found of each class at each hospital."""
    if not summary.classes or not own:
        return
    yield heading("For which class?", 3)
    yield _said(summary, "class")
    shares = [
        [span(_class(row, place, "recall")).value for row in own.values()]
        for place in range(len(summary.classes))
    ]
    caption = (
        "The share of each class's images (rows) that the model a hospital holds (columns) gets "
        "right, on the hospital's own test images. A dash: no such images, or too few patients to "
        "tell."
    ) + noise_note(summary, "Shares have noise.")
    halves = [0.5] * len(own)
    drawn = plots.heat("Share right", summary.classes, list(own), shares, halves, "half or less")
    if any(isfinite(share) for row in shares for share in row):
        yield figure(caption, drawn)
    for place, name in enumerate(summary.classes):
        at = [Row(hospital, [span(_class(row, place, "recall"))]) for hospital, row in own.items()]
        lines = [class_row(hospital, row["classes"][place]) for hospital, row in own.items()]
        head = ["hospital", *OF_CLASS]
        parts = [table(head, lines, about=f"Class {name} by hospital")]
        if any(map(isfinite, shares[place])):
            caption = f"The share of the images of class {name} that the model a hospital holds "
            drawn = plots.spans(f"Share of class {name} that is right, by hospital", at)
            parts.insert(0, figure(f"{caption}gets right, with 95 % intervals.", drawn))
        many = len(summary.classes) > 3 or len(own) > FOLDED
        if many:
            yield folded(f"Class {name}", *parts)
        else:
            yield heading(f"Class {name}", 4) + "".join(parts)
    yield paragraph(
        "Right: the model's most probable answer is this class. Sensitivity and specificity: of "
        "this class against all others, where its probability is compared with a threshold that "
        "was chosen on training images."
        + noise_note(
            summary,
            "Numbers of images are rounded. A share that the noise would hide is left out: each "
            "hospital's exact page has it.",
        ),
        soft=True,
    )


def _all(summary: Summary) -> Iterator[str]:
    """All figures of all models, hospital by hospital and together."""
    if not summary.assessments:
        return
    rows, note = summary.assessments, ""
    if len(summary.hospitals) > EACH:
        rows = [row for row in rows if row["held"] or row["kind"] != "model"]
        note = " Of the models only the ones that hospitals hold; summary.json has all."
    head = ["balanced accuracy", "accuracy", "always the commonest class", "AUROC", "ECE", "images"]
    yield heading("All figures", 3)
    yield paragraph(
        "AUROC: how often an image of a class is given more of this class than an image of "
        "another; 0.5 is guessing. ECE: how far, on average, the probability that a model gives "
        "is from the share that is right; 0 is best."
        + noise_note(summary, "All have noise, for which the intervals allow.")
        + note,
        soft=True,
    )
    everywhere = [[row["hospital"], *_figures(row)] for row in rows]
    yield folded(
        "Every model at every hospital",
        table(["at", "model", *head], everywhere, about="All figures of all models"),
    )
    together = table(["model", *head], map(_figures, summary.pooled), about="Models on all images")
    about = "AUROC and ECE are means over hospitals."
    title = "Every model on the images of all hospitals together"
    yield folded(title, paragraph(about, soft=True), together)


def _figures(row: Told) -> list[object]:
    return [
        MODELS.get(row["kind"], row["model"]),
        *(interval(row[key]) for key in ("balanced_accuracy", "accuracy")),
        commonest(row["largest_class"]),
        *(interval(row[key]) for key in ("auroc", "ece")),
        tested(row),
    ]


def _probabilities(summary: Summary, own: Mapping[str, Told]) -> Iterator[str]:
    """Confusion counts and calibration of the models that hospitals hold."""
    confused = [
        heading(hospital, 4) + confusion(summary.classes, row["confusion"])
        for hospital, row in own.items()
        if row["confusion"]
    ]
    if confused:
        note = noise_note(
            summary,
            "Counts have noise. Numbers of images are in whole groups, and rows add up to them.",
        )
        title = "What is taken for what: the model that each hospital holds"
        yield folded(title, *([paragraph(note, soft=True)] if note else []), *confused)
    panels = [reliability(h, row["calibration"]) for h, row in own.items() if row["calibration"]]
    if panels:
        yield folded(
            "Can its probabilities be believed?",
            figure(
                "Reliability of the model that each hospital holds: of the images that are "
                "answered with a probability (from left to right), the share that is right "
                "(upwards). On the dashed line a model is right as often as it says."
                + noise_note(summary, "The shares have noise, most where few images are."),
                f'<div class="panels small">{"".join(panels)}</div>\n',
            ),
        )


def noise_note(summary: Summary, text: str) -> str:
    """What a caption adds about noise; empty if figures are exact."""
    return f" {text}" if isfinite(summary.noise) else ""


def _said(summary: Summary, about: str) -> str:
    """The summary's own sentences."""
    said = [(row["judgement"], row["text"]) for row in summary.worth if row["about"] == about]
    more = judged(said[SAID:])
    return judged(said[:SAID]) + (folded(f"{len(said) - SAID} more", more) if more else "")


def _of_kind(summary: Summary, kind: str) -> list[Told]:
    """The rows of a kind that have a figure, by hospital."""
    rows = [row for row in summary.assessments if row["kind"] == kind and row["balanced_accuracy"]]
    return sorted(rows, key=lambda row: str(row["hospital"]))


def _fold(rows: int, title: str, markup: str) -> str:
    return folded(title, markup) if rows > EACH else markup


def _class(row: Told, place: int, key: str) -> Figure | None:
    found: Figure | None = row["classes"][place][key]
    return found
