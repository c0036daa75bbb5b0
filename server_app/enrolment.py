"""Who is to take part in which task, if that is planned (strategies/engine/presence.py)."""

from collections.abc import Sequence

from server_app.measures import participants
from strategies.engine.events import Event
from strategies.engine.presence import ACTIVE, planned
from strategies.protocol.settings import Settings, SettingsError
from strategies.protocol.streams import task_at


def plan_of(settings: Settings, events: Sequence[Event]) -> dict[str, list[str]]:
    """`Summary.enrolment`: what each hospital that was ever ready is in each task.

    Empty if nothing is planned; or if the table cannot be used, which ends a run with a message.
    """
    if not settings.enrolment:
        return {}
    ready = {e.hospital for e in events if e.verb == "query.prepare" and e.outcome == "ok"}
    try:
        return planned(settings, sorted(ready))
    except SettingsError:
        return {}


def expected_count(settings: Settings, events: Sequence[Event], server_round: int) -> int:
    """How many hospitals are to train in a round: without a plan all that have answered so far."""
    if plan := plan_of(settings, events):
        task = max(task_at(settings, server_round), 1)
        return sum(states[task - 1] == ACTIVE for states in plan.values())
    return len(participants(events))
