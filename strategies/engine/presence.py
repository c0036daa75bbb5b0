"""Who takes part in which task, if that is planned: the setting `enrolment`.

The scenarios of FIL-VER (arXiv:2110.09695, Fig. 4). In a task a hospital is active; or it has left,
and what it has sent stays; or it has not joined yet. The figure's numbers are lost: with as many
hospitals as tasks, S2 has one less in each task, S3 one more, and S4 one alone.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from strategies.protocol.files import read_table
from strategies.protocol.settings import Settings, SettingsError

ACTIVE, LEFT, NOT_YET = "active", "left", "not-yet"
SCENARIOS = ("S1", "S2", "S3", "S4")


def planned(settings: Settings, hospitals: Sequence[str]) -> dict[str, list[str]]:
    """What each hospital is in each task; all are active if nothing is planned.

    Args:
        settings: Name a scenario, or a file.
        hospitals: All of the run, in order of their names; with none, a file is checked alone.

    Raises:
        SettingsError: The file is not a table of these hospitals and tasks, a hospital comes back,
            or nobody is active in a task.
    """
    chosen, tasks, count = settings.enrolment, settings.tasks, len(hospitals)
    if chosen and chosen not in SCENARIOS:
        lines = _read(Path(chosen).expanduser(), tasks)
        if missing := sorted(set(hospitals) - lines.keys()):
            _refuse(chosen, f"it has no line for '{missing[0]}'")
        table = {name: lines[name] for name in hospitals}
    else:
        table = {}
        for k, hospital in enumerate(hospitals):
            here = [_is_active(chosen, k, count, t, tasks) for t in range(tasks)]
            first = here.index(True) if True in here else tasks
            table[hospital] = [
                ACTIVE if active else NOT_YET if t < first else LEFT
                for t, active in enumerate(here)
            ]
    for t in range(tasks):
        if hospitals and not any(states[t] == ACTIVE for states in table.values()):
            _refuse(chosen, f"nobody is active in task {t + 1}")
    return table


def _is_active(scenario: str, hospital: int, hospitals: int, task: int, tasks: int) -> bool:
    """Of a hospital and a task, both from 0."""
    if scenario == "S2":
        return hospital < max(1, round(hospitals * (tasks - task) / tasks))
    if scenario == "S3":
        return hospital < max(1, round(hospitals * (task + 1) / tasks))
    if scenario == "S4":
        return hospital * tasks // hospitals == task
    return True


@cache  # so that a run keeps its plan, whatever becomes of the file
def _read(path: Path, tasks: int) -> dict[str, list[str]]:
    """The table of a CSV file: a line for each hospital, its name and what it is in each task."""
    try:
        rows = read_table(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"The table 'enrolment' cannot be read: {error}") from error
    table = {name.strip(): [state.strip() for state in states] for _, (name, *states) in rows}
    for name, states in table.items():
        order = [NOT_YET, ACTIVE, LEFT]
        if len(states) != tasks or not set(states) <= {*order}:
            _refuse(str(path), f"'{name}' needs one of {', '.join(order)} for each of the tasks")
        if sorted(states, key=order.index) != states:
            _refuse(str(path), f"'{name}' comes back, which nobody does who has left")
    return table


def _refuse(chosen: str, reason: str) -> None:
    allowed = f"{', '.join(SCENARIOS)}, or an absolute CSV file with a line for each hospital"
    raise SettingsError(f"The setting 'enrolment' is {chosen!r}: {reason}. It must be {allowed}.")
