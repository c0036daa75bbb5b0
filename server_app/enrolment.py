"""The plan of the hospitals that take part in each task (strategies/engine/presence.py)."""

from collections.abc import Sequence

from server_app.measures import participants
from strategies.engine.events import Event
from strategies.engine.presence import ACTIVE, plan_table
from strategies.protocol.settings import Settings, SettingsError
from strategies.protocol.streams import task_at


def plan_of(settings: Settings, events: Sequence[Event]) -> dict[str, list[str]]:
    """`Summary.enrolment`: the state in each task of each hospital that was ever ready.

    Empty without a plan, or if the plan cannot be used, which ends a run with a message.
    """
    if not settings.enrolment:
        return {}
    ready = {e.hospital for e in events if e.verb == "query.prepare" and e.outcome == "ok"}
    try:
        return plan_table(settings, sorted(ready))
    except SettingsError:
        return {}


def expected_count(settings: Settings, events: Sequence[Event], server_round: int) -> int:
    """The number of hospitals expected in a round; without a plan, all that have answered."""
    if plan := plan_of(settings, events):
        task = max(task_at(settings, server_round), 1)
        return sum(states[task - 1] == ACTIVE for states in plan.values())
    return len(participants(events))
