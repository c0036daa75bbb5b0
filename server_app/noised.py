"""What may be said of figures with noise, in words.

Hospitals of a deployment put noise into what they tell, and leave out classes that few patients
have (client_app/release/disclosure.py). Their own pages are exact, so nothing is said here that
those would contradict: no cause, no count, and of two models only what holds wherever noise has the
difference.
"""

from collections.abc import Iterator, Sequence

from pages.figures import RARELY, Row, compared, number, size
from server_app.assessments import mean_over_hospitals
from strategies.protocol.text import counted

COMMAND = (
    "uv run python -m client_app report --site NAME --store-dir FOLDER --data-dir IMAGES "
    "--to report.html"
)
EXACT = f"Each hospital's own page is exact. The hospital makes it with `{COMMAND}`."
Said = tuple[str, str, str, dict[str, str]]  # about, judgement, text, place


def classes_told(rows: Sequence[Row]) -> tuple[int, int, int]:
    """The fewest and the most classes that a hospital's figures are about, and how many exist."""
    told = [sum(bool(each["images"]) for each in row["classes"]) for row in rows] or [0]
    return min(told), max(told), len(rows[0]["classes"]) if rows else 0


def banner(rows: Sequence[Row]) -> str:
    """That there is noise, why, what is left out, and where the exact figures are."""
    return (
        "Hospitals have put noise into their figures on purpose, so that nobody can tell from them "
        f"what a model says of one patient. {left_out(rows)}{EXACT}"
    )


def some_of(rows: Sequence[Row]) -> str:
    """How many classes a hospital's figures are about, such as "5 to 6"."""
    fewest, most, _ = classes_told(rows)
    return str(fewest) if fewest == most else f"{fewest} to {most}"


def left_out(rows: Sequence[Row]) -> str:
    """Which classes are in no figure; empty if all are."""
    fewest, _, count = classes_told(rows)
    if fewest == count:
        return ""
    return (
        f"Of {count} classes, a hospital's figures are about {some_of(rows)}. It tests on too few "
        "patients of the others, or on none, and what models have learnt of those elsewhere does "
        "not show. "
    )


def sentences(own: Sequence[Row], pooled: Sequence[Row], round_: int) -> Iterator[Said]:
    """What is said after what models are worth beside chance, in order.

    Args:
        own: The rows of `Summary.assessments` of models where they are held.
        pooled: `Summary.pooled`.
        round_: The last evaluated one.
    """
    yield "noise", "note", banner(own), {}
    if gained := [row for row in own if row["gain"]]:
        yield _gain(gained, round_)
    yield from _missed(pooled)
    for row in own:
        yield _at(row)


def _gain(rows: Sequence[Row], round_: int) -> Said:
    """The models that hospitals hold beside their own before the first hand-off."""
    gain = mean_over_hospitals(rows, "gain")
    shown = (
        f"{number(gain, signed=True)} in balanced accuracy after round {round_}, mean over "
        f"{counted(len(rows), 'hospital')}"
    )
    fewest, _, count = classes_told(rows)
    verdict = compared(gain) if fewest == count else ""
    if verdict == "better":
        return (
            "run",
            "good",
            f"Better than the hospitals' own models, also with noise: {shown}.",
            {},
        )
    if verdict == "worse":
        return "run", "bad", f"Worse than the hospitals' own models, also with noise: {shown}.", {}
    about = "" if fewest == count else ", of the classes that are told"
    return (
        "run",
        "open",
        "Whether models are better than the hospitals' own, each hospital's exact page says. The "
        f"difference with noise{about}: {shown}.",
        {},
    )


def _missed(pooled: Sequence[Row]) -> Iterator[Said]:
    """Classes that all models find rarely, wherever noise has the share."""
    models = [row for row in pooled if row["kind"] == "model"]
    for each in zip(*(row["classes"] for row in models), strict=True):
        recalls = [row["recall"] for row in each if row["recall"]]
        highs = [recall["high"] for recall in recalls if recall["high"] is not None]
        if not highs or len(highs) < len(models) or max(highs) >= RARELY:
            continue
        best = max(recalls, key=lambda recall: float(recall["value"]))
        name = each[0]["name"]
        text = f"All models miss most of '{name}': the best finds {number(best)}, with noise."
        yield "class", "bad", text, {"class": name}


def _at(row: Row) -> Said:
    hospital, judgement = row["hospital"], "note"
    fewest, _, count = classes_told([row])
    about = size(row) if fewest == count else f"{size(row)} of {fewest} of {count} classes"
    text = f"{hospital} holds a model with balanced accuracy {number(row['balanced_accuracy'])}"
    text += f" with noise, on about {about}."
    if row["gain"]:
        words = {"better": ("good", "That is better"), "worse": ("bad", "That is worse")}
        judgement, verdict = words.get(
            row["compared"], ("open", "Its exact page says whether that is better")
        )
        text += (
            f" {verdict} than its own before the first hand-off; the difference with noise is "
            f"{number(row['gain'], signed=True)}."
        )
    return "hospital", judgement, text, {"hospital": hospital, "model": row["model"]}
