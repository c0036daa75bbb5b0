"""The page of a run under way: its state, above the report of the finished rounds.

`fedhandoff watch` reads the same state from under-way.json.

The state is small, and is written every few seconds. The report is computed again only after new
events, and as seldom as the limit of CPU time needs.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import localtime, monotonic, strftime, thread_time

from pydantic_core import to_json

from pages.page import render
from strategies.protocol.files import FileError, read_text, write_whole

NAME, STATE = "report.html", "under-way.json"
TIME = "%Y-%m-%d %H:%M:%S"
# Least seconds between two states and between two reports; the most CPU seconds in a second of the
# run, for states and for reports.
PAUSE = 3.0
STATE_SHARE, REPORT_SHARE = 0.001, 0.004
# A report has these two lines before and after the state. The third makes a browser load it again.
BEGIN, END = "<!-- state -->\n", "<!-- end of state -->\n"
RELOAD = f'<meta http-equiv="refresh" content="{PAUSE:.0f}">\n'


@dataclass(frozen=True)
class LiveState:
    """The state of a run, as in under-way.json."""

    progress: str = ""  # a line: numbers of finished rounds and of hospitals, and the time left
    curves: dict[str, list[float]] = field(default_factory=dict)  # main figures of finished rounds
    noise: str = ""  # in the last figures, in words
    waits: str = ""  # the line about awaited answers; empty if there are none
    failed: int = 0  # number of failures of hospitals
    failures: list[str] = field(default_factory=list)  # lines about the newest failures


def write_state(folder: Path, state: LiveState) -> None:
    """Write the state of a run to its result directory."""
    write_whole(folder / STATE, to_json(state, inf_nan_mode="null"))


class LivePage:
    """The writer of the page, which replaces the file each time."""

    def __init__(self, folder: Path) -> None:
        self._pause = PAUSE  # seconds between two states, by the CPU time of the last one
        self._folder = folder
        self._report = ""
        self._contents: Hashable = None
        self._due = self._report_due = monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a new page."""
        return monotonic() >= self._due

    def write(
        self, state: Callable[[], LiveState], report: Callable[[], str], contents: Hashable
    ) -> None:
        """Write the page, and the state.

        `report` makes the report, with an empty state, again only if `contents` have changed.
        """
        if contents != self._contents and monotonic() >= self._report_due:
            began, first = thread_time(), self._contents is None
            self._report, self._contents = report(), contents
            # The first report compiles the templates, which the run needs at its end anyway.
            spent = 0.0 if first else thread_time() - began
            self._report_due = monotonic() + max(PAUSE, spent / REPORT_SHARE)
        began = thread_time()
        now = state()
        write_state(self._folder, now)
        pause = f"{self._pause:.0f}"
        text = render("state", "", state=now, written=strftime(TIME), pause=pause)
        _write(self._folder / NAME, self._report, text)
        self._pause = max(PAUSE, (thread_time() - began) / STATE_SHARE)
        self._due = monotonic() + self._pause


def mark_ended(folder: Path) -> str:
    """Write on a run's page that its server has ended, and stop the page's reloading.

    Returns:
        The file with the settings to resume the run with; empty if there is none.
    """
    path, file = folder / NAME, folder / "checkpoint" / "resume.toml"
    resume = str(file) if file.exists() else ""
    with suppress(OSError, FileError):
        page, written = read_text(path), strftime(TIME, localtime(path.stat().st_mtime))
        if RELOAD in page:
            state = render("ended", "", written=written, resume=resume)
            _write(path, page.replace(RELOAD, ""), state)
    return resume


def _write(path: Path, report: str, state: str) -> None:
    before, begin, rest = report.partition(BEGIN)
    _, end, after = rest.partition(END)
    write_whole(path, before + begin + state + end + after)
