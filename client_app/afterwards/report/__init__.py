"""A hospital's own report of a run, as one page for its own eyes.

First what a clinician asks: are the models better here, for which class, which one to use
(worth.py); then what the run was and what left the hospital (run.py), and how private that was
(privacy.py, buffer.py). Every text reaches the page through `pages.page`, which escapes it.
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
    """The page, which needs no other file.

    Args:
        past: The run.
        rows: What models are worth here.
        inexact: Why these figures are those that were told; empty if they are exact.
        policy: The file with the policy of the run; None if it is not at hand.
        examined: What came of a look at the synthetic images; None if nobody looked.
    """
    return render(
        "hospital",
        f"{run.method(past)} at {past.site}, {run.dates(past)}",
        run=past.run,
        site=past.site,
        ledger=bool(past.lines),
        broken=past.broken,
        verdicts=[*judge_home(past.site, rows, own_lineages(past))],
        exact=bool(rows) and not inexact,
        inexact=inexact,
        classes=past.classes,
        worth=worth.figures(past, rows),
        kept=worth.kept(past),
        visits=past.visits,
        use=worth.use(past, rows),
        others=past.others,
        **run.describe(past),
        buffer=buffer.describe(past, examined),
        **privacy.describe(past, policy),
    )
