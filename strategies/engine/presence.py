"""The plan of hospitals that take part in each task: the setting `enrolment`.

The scenarios of FIL-VER (arXiv:2110.09695, Fig. 4). In a task a hospital is active, has left, or
has not joined yet. The records of a hospital that has left stay. The figure's numbers were not
available. With as many hospitals as tasks, S2 has one hospital less in each task, S3 one more, and
S4 a single one.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from strategies.protocol.files import expand, read_table, reason_of
from strategies.protocol.settings import Settings, SettingsError

ACTIVE, LEFT, NOT_YET = "active", "left", "not-yet"
SCENARIOS = ("S1", "S2", "S3", "S4")


def plan_table(settings: Settings, hospitals: Sequence[str]) -> dict[str, list[str]]:
    """The status of each hospital in each task; without a plan all are active.

    Hospitals are in order of their names. Without hospitals the file is only checked.

    Raises:
        SettingsError: The file is not a table of these hospitals and tasks, a hospital comes back,
            or no hospital is active in a task.
    """
    chosen, tasks, count = settings.enrolment, settings.tasks, len(hospitals)
    if chosen and chosen not in SCENARIOS:
        for hospital in hospitals:
            check_planned(settings, hospital)
        lines = _read(expand(chosen), tasks)
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
            _refuse(chosen, f"no hospital is active in task {t + 1}")
    return table


def check_planned(settings: Settings, hospital: str, *, late: bool = False) -> None:
    """Refuse (SettingsError) a hospital that the plan does not have.

    `late`: the hospital is none of those that were there first. A scenario is of these alone: with
    one more it would give other hospitals to tasks that are over.
    """
    chosen = settings.enrolment
    if chosen in SCENARIOS:
        if late:
            _refuse(chosen, f"its plan is of the first hospitals, without '{hospital}'")
    elif chosen and hospital not in _read(expand(chosen), settings.tasks):
        _refuse(chosen, f"it has no line for '{hospital}'")


def _is_active(scenario: str, hospital: int, hospitals: int, task: int, tasks: int) -> bool:
    """Whether a hospital is active in a task; both are numbers from 0."""
    if scenario == "S2":
        return hospital < max(1, round(hospitals * (tasks - task) / tasks))
    if scenario == "S3":
        return hospital < max(1, round(hospitals * (task + 1) / tasks))
    if scenario == "S4":
        return hospital * tasks // hospitals == task
    return True


@cache  # a run keeps its plan if the file changes
def _read(path: Path, tasks: int) -> dict[str, list[str]]:
    """The table of a CSV file: each line has a hospital's name and its status in each task."""
    if not path.is_absolute():  # the working directory of a Flower process is not the user's
        _refuse(str(path), "it is not an absolute path")
    try:
        rows = read_table(path)
    except (OSError, ValueError) as error:
        _refuse(str(path), f"it cannot be read ({reason_of(error)})")
    order, table = [NOT_YET, ACTIVE, LEFT], dict[str, list[str]]()
    for _, cells in rows:
        name, *states = map(str.strip, cells)
        if name in table:
            _refuse(str(path), f"'{name}' has two lines")
        if len(states) != tasks or not set(states) <= {*order}:
            _refuse(str(path), f"'{name}' needs one of {', '.join(order)} for each of the tasks")
        if sorted(states, key=order.index) != states:
            _refuse(str(path), f"'{name}' comes back after it has left, which is not possible")
        table[name] = states
    return table


def _refuse(chosen: str, reason: str) -> NoReturn:
    allowed = f"{', '.join(SCENARIOS)}, or an absolute CSV file with a line for each hospital"
    raise SettingsError(f"The setting 'enrolment' is {chosen!r}: {reason}. It must be {allowed}.")
