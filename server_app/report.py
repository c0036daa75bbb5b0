"""The report of a run: its summary as one HTML page.

Every text from outside, such as a hospital's name, its reason for a failure or a setting, reaches
the page through `strategies.protocol.page`, which escapes it, or through matplotlib, which escapes
what it writes into an SVG.
"""

from math import isfinite, nan

from server_app import plots
from server_app.measures import LAST_ROUNDS, METRICS, finished
from server_app.summary import Summary
from strategies.protocol.page import document, heading, notice, paragraph, shown, table, verbatim

LISTED = 20  # failures on the page; summary.json has all of them
COLUMNS = 6  # hospitals in the table of synthetic images


def render(name: str, summary: Summary, config: str) -> str:
    """Make the page.

    Args:
        name: Of the run.
        summary: Its figures.
        config: Its settings, as TOML.
    """
    parts = [_head(name, summary)]
    if summary.status != "completed":
        parts.append(_failures(summary))
    if summary.history["round"]:
        parts.append(_accuracies(summary))
    if _is_serial(summary):
        parts.append(_visits(summary))
    if any(each["visited"] or each["missed"] for each in summary.participation.values()):
        parts.append(_participation(summary))
    if summary.synthetic:
        parts.append(_synthetic(summary))
    parts += [_costs(summary), heading("Settings"), verbatim(config)]
    return document(name, *parts)


def _head(name: str, summary: Summary) -> str:
    facts = [
        name,
        summary.status,
        f"rounds: {summary.rounds}",
        f"hospitals: {len(summary.hospitals)}",
        f"models: {len(summary.models)}",
        plots.duration(summary.wall_seconds),
    ]
    if summary.resumed:
        facts.append(f"interrupted and resumed: {summary.resumed}")
    rows = [
        [label, *(getattr(summary, f"{key}_{metric.replace('-', '_')}") for metric in METRICS)]
        for label, key in (
            ("federation", "federation"),
            ("ensemble", "ensemble"),
            ("personalised", "personalized"),
        )
    ]
    rows += [
        ["origin", summary.origin_accuracy, nan, nan],
        ["after visit", summary.accuracy_after_visit, nan, nan],
    ]
    return (
        heading(summary.strategy, 1)
        + paragraph(" · ".join(facts))
        + table(["", "accuracy", "balanced accuracy", "area under ROC curve"], rows)
        + paragraph(
            "Measured after the last evaluated round, on the hospitals' own test images; every "
            "hospital counts alike. Federation: every model at every hospital. Ensemble: the mean "
            "probability of all models. Personalised: the model that a hospital holds after the "
            "hand-off. Origin: the model that started there. After visit: the model that the "
            "hospital has just trained. If every image counts alike, the federation accuracy is "
            f"{shown(summary.pooled_federation_accuracy)}. The accuracies of all models at one "
            f"hospital have a standard deviation of {shown(summary.disagreement)}, as a mean over "
            f"hospitals. Best round, chosen on test data: {shown(summary.best_round)}."
        )
    )


def _failures(summary: Summary) -> str:
    columns = ["round", "hop", "hospital", "verb", "lineage", "outcome", "reason"]
    rows = [[failure[column] for column in columns] for failure in summary.failures]
    listed = _listed(LISTED, len(rows))
    return notice(
        "red",
        paragraph(f"The run failed. {summary.error}") if summary.error else "",
        paragraph(f"Failures of hospitals: {len(rows)}.{listed}"),
        table(columns, rows[:LISTED]) if rows else "",
    )


def _accuracies(summary: Summary) -> str:
    return (
        heading("Every model at every hospital")
        + paragraph(
            "Accuracy after the last evaluated round. Rows are models, by the hospital they "
            "started at; columns are hospitals; grey was not measured, or is not told. Below, if "
            "there are several models: their mean and standard deviation. The smaller the "
            "deviation, the more they agree."
        )
        + plots.matrix(summary)
        + heading("Over the rounds")
        + plots.progress(summary)
        + heading("What each hospital holds")
        + paragraph(
            "Accuracy of the model that a hospital holds after a round, on its own test images."
        )
        + plots.hospitals(summary)
    )


def _is_serial(summary: Summary) -> bool:
    """Whether one model was tested after several visits of a round."""
    visits = finished(summary.visits)
    return len(summary.models) == 1 and len(visits) > len({row["round"] for row in visits})


def _visits(summary: Summary) -> str:
    last = summary.last_rounds
    rounds = min(LAST_ROUNDS, summary.rounds)
    amplitude = f"{shown(last['mean'])} ± {shown(last['std'])}"
    if isfinite(last["balanced_mean"]):
        amplitude += f", balanced {shown(last['balanced_mean'])} ± {shown(last['balanced_std'])}"
    page = (
        heading("After every visit")
        + paragraph(
            "Global accuracy of the model that goes from hospital to hospital: on the test images "
            "of all hospitals, every image counting alike. Dots: the end of a visit. Mean and "
            f"standard deviation over all visits of the last {rounds} rounds: {amplitude}. The "
            "deviation is the amplitude of the oscillation; progress in these rounds adds to it."
        )
        + plots.oscillation(summary)
    )
    if len(summary.hospitals) <= plots.NAMED:
        page += paragraph(
            "Accuracy of that model at each hospital. Dots: the hospital has just trained it."
        ) + plots.own(summary)
    return page


def _participation(summary: Summary) -> str:
    return (
        heading("Who took part")
        + paragraph("Blue: trained a model. Red: missed a visit. Grey: was not asked.")
        + plots.participation(summary)
    )


def _synthetic(summary: Summary) -> str:
    hospitals = sorted(summary.synthetic)[:COLUMNS]
    figures = sorted({name for each in summary.synthetic.values() for name in each})
    rows = [[name, *(summary.synthetic[h].get(name, nan) for h in hospitals)] for name in figures]
    listed = _listed(COLUMNS, len(summary.synthetic))
    return (
        heading("Synthetic images")
        + paragraph(
            "What the hospitals measured of their GANs and of the images that they handed on; "
            "docs/privacy.md says what each figure means. The images themselves are in the "
            f"hospitals' own folders. Hospitals: {len(summary.synthetic)}.{listed}"
        )
        + table(["", *hospitals], rows)
    )


def _costs(summary: Summary) -> str:
    return (
        heading("Time and traffic")
        + paragraph(
            "Summed over hospitals. Wait is the time between a message and its answer in which the "
            "hospital was not working on it."
        )
        + plots.seconds(summary)
        + paragraph(
            f"To hospitals {_size(summary.bytes_sent)}, from hospitals "
            f"{_size(summary.bytes_received)}; one visit moves {_size(summary.bytes_per_hop)}, to "
            "and from the hospital together."
        )
    )


def _listed(most: int, number: int) -> str:
    return f" The first {most}; summary.json has all." if number > most else ""


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if isfinite(num_bytes) else "–"
