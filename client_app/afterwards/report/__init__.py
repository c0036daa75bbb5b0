"""A hospital's own report of a run: one page for the hospital alone.

First for a clinician: are the models better here, for which class, and which model to use
(worth.py). Then the run and the data that left (run.py), and their privacy (privacy.py,
buffer.py). `pages.page` escapes all texts.
"""

from collections.abc import Sequence
from pathlib import Path

from client_app.afterwards.own_buffer import Examination
from client_app.afterwards.past_run import PastRun
from client_app.afterwards.report import buffer, privacy, run, worth
from client_app.afterwards.worth_here import own_lineages
from pages.figures import Assessment
from pages.page import render
from pages.verdicts.home import judge_home


def page(
    past: PastRun,
    rows: Sequence[Assessment],
    inexact: str,
    policy: Path | None,
    examined: Examination | None = None,
) -> str:
    """Return the page, which needs no other file.

    Args:
        past: The run.
        rows: The test performance of models here.
        inexact: The reason why `rows` are the reported figures; empty if they are exact.
        policy: The file with the run's policy; None if it is missing.
        examined: The examination of the synthetic images; None if there was none.
    """
    return render(
        "hospital",
        f"{run.method(past)} at {past.site}, {run.dates(past)}",
        run=past.run,
        site=past.site,
        ledger=bool(past.lines),
        broken=past.fault,
        verdicts=[*judge_home(past.site, rows, own_lineages(past))],
        exact=bool(rows) and not inexact,
        inexact=inexact,
        classes=past.classes,
        worth=worth.figures(past, rows),
        kept=worth.models_at_home(past),
        visits=past.visits,
        use=worth.advice(past, rows),
        others=past.other_runs,
        **run.describe(past),
        buffer=buffer.describe(past, examined),
        **privacy.describe(past, policy),
    )
