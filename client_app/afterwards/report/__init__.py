"""A hospital's own report of a run, as one page for its own eyes.

First what a clinician asks: are the models better here, for which class, which one to use
(worth.py); then what the run was and what left the hospital (run.py), and how private that was
(privacy.py). Every text reaches the page through `strategies.protocol`, which escapes it.
"""

from collections.abc import Sequence
from pathlib import Path

from client_app.afterwards.past_run import PastRun
from client_app.afterwards.report import privacy, run, worth
from client_app.afterwards.worth_here import own_lineages
from pages.figures import Assessment
from pages.page import document, heading, judged, notice, paragraph, section
from pages.verdicts.home import judge_home


def page(past: PastRun, rows: Sequence[Assessment], inexact: str, policy: Path | None) -> str:
    """The page, which needs no other file.

    Args:
        past: The run.
        rows: What models are worth here.
        inexact: Why these figures are those that were told; empty if they are exact.
        policy: The file with the policy of the run; None if it is not at hand.
    """
    title = f"{run.method(past)} at {past.site}, {run.dates(past)}"
    said = judge_home(past.site, rows, own_lineages(past))
    parts = {
        "What the models are worth here": worth.part(past, rows, inexact),
        "Which model to use here": worth.use(past, rows),
        "What the run was": run.part(past),
        "What left the hospital, and what came": run.left(past),
        "Privacy": privacy.part(past, policy),
        "Other runs": run.others(past),
    }
    sections = {name: "".join(each) for name, each in parts.items()}
    shown = {name: each for name, each in sections.items() if each}
    return document(
        title,
        heading(title, 1),
        paragraph(f"Run {past.run}, as {past.site} knows of it.", soft=True),
        judged((each["judgement"], each["text"]) for each in said),
        notice("amber", paragraph(_whose(past, rows, inexact))),
        notice("red", paragraph(f"{past.broken} This page is about what is before."))
        if past.broken
        else "",
        *(section(*each) for each in shown.items()),
        contents=list(shown),
    )


def _whose(past: PastRun, rows: Sequence[Assessment], inexact: str) -> str:
    """Where the figures come from, and where they may go."""
    own = f"This page is for {past.site}'s own eyes, and is to stay inside."
    if not rows:
        return own
    if not inexact:
        return (
            f"{own} Its figures of models are exact: when it was written, all models were tested "
            "again on the hospital's own test images."
        )
    noise = ", with noise and without classes of few patients" if past.lines else ""
    return f"{own} Its figures of models are those that the hospital told{noise}. {inexact}"
