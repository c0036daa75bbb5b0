"""A hospital's own report of a run: one page for the hospital alone.

First for a clinician: are the models better here, for which class, and which model to use
(worth.py). Then the run and the data that left (run.py), and their privacy (privacy.py,
buffer.py). `pages.page` escapes all texts.
"""

from collections.abc import Sequence
from pathlib import Path

from client_app.afterwards.own_buffer import Examination, examine
from client_app.afterwards.past_hospital import reopen_hospital
from client_app.afterwards.past_run import PastRun
from client_app.afterwards.report import buffer, privacy, run, worth
from client_app.afterwards.worth_here import (
    exact_assessments,
    open_details,
    own_lineages,
    released_assessments,
)
from client_app.authority.policy import Policy
from client_app.errors import DataError
from pages.figures import Assessment
from pages.page import render
from pages.verdicts.home import judge_home
from strategies.protocol.files import write_whole
from strategies.protocol.settings import SettingsError

# The reason why no model trained on the synthetic images alone.
UNKNOWN = (
    "The settings of the run here are not known in full: the hospital used files of its own, or "
    "another version of this app."
)


def write_report(past: PastRun, to: Path, data_dir: Path | None, policy: Path | None) -> str:
    """Write the page, with exact figures if the images of the run are in `data_dir`.

    Returns:
        The reason why the figures are not exact; empty if they are.

    Raises:
        SettingsError: A file at home is damaged.
        ModelError: A model at home is damaged, or cannot be built.
        OwnError: The policy cannot be read.
        OSError: The page cannot be written.
    """
    file = past.policy_file(policy)
    inexact, unexamined, rows, examined = "", "", [], None
    if data_dir is None:
        inexact = "Exact figures need the hospital's images (--data-dir)."
    elif not past.models:
        inexact = "Exact figures need a model of the run, and none is at home."
    elif past.terms_fault:
        inexact = f"Exact figures need the policy of the run, which is unknown. {past.terms_fault}"
    elif past.policies and file is None:
        inexact = "Exact figures need the policy of the run (--policy), which selected images."
    else:
        rules = Policy.read(file) if file else None
        try:
            hospital = reopen_hospital(past, data_dir, rules)
            details = open_details(past, hospital)
            rows = exact_assessments(past, details)
            made = past.buffer
            # At home the hospital has images, and no model for features.
            if made and not made.samples.pixels.is_floating_point():
                try:
                    examined = examine(past, made, hospital, details)
                except SettingsError:
                    unexamined = UNKNOWN
        except DataError as error:
            inexact = f"Exact figures are not possible: {error.explain()}"
    rows = rows or released_assessments(past)
    write_whole(to, page(past, rows, inexact, file, examined, unexamined), private=True)
    return inexact


def page(
    past: PastRun,
    rows: Sequence[Assessment],
    inexact: str,
    policy: Path | None,
    examined: Examination | None = None,
    unexamined: str = "",
) -> str:
    """Return the page, which needs no other file.

    `inexact` is the reason why `rows` are the reported figures, `unexamined` why no model trained
    on the synthetic images; both may be empty.
    """
    return render(
        "hospital",
        f"{past.strategy or 'A run'} at {past.site}, {run.dates(past)}",
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
        unexamined=unexamined,
        **privacy.describe(past, policy),
    )
