"""The figures of a run over time: pure functions of its events.

They exist for asynchronous runs and for runs in virtual time (`async.*`). Time is in seconds since
the start of the run; virtual seconds if the run has virtual time.

    busy of a hospital     share of the time in which it had a visit, until the last visit of the
                           run began: no visit was left to hand out then
    staleness of a model   visits of the model since its last visit at a hospital; since its first
                           visit if it was never there. Visits for one average count as one
"""

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any

from strategies.engine.events import Event, visits


def measure(events: Iterable[Event], rounds: Sequence[int]) -> dict[str, Any]:
    """`Summary.over_time`.

    `rounds` are the evaluated ones.

    Returns:
        `time`: the end of the last visit of each round; `busy`: by hospital; `staleness`: by
        lineage, its `mean` over all its visits and all hospitals, and under `at` its value for each
        hospital at the end of the run, NaN if the model was never there.
    """
    trained = visits(events)
    good = [event for event in trained if event.outcome == "ok"]
    ends: dict[int, float] = {}
    for event in trained:
        ends[event.round] = max(event.time, ends.get(event.round, 0.0))
    hospitals = sorted({event.hospital for event in trained})
    paths: dict[str, dict[tuple[int, int], set[str]]] = {}
    for event in good:
        visited = paths.setdefault(event.lineage, {})
        visited.setdefault((event.round, event.hop), set()).add(event.hospital)
    return {
        "time": [ends.get(each, nan) for each in rounds],
        "busy": _busy(trained, hospitals),
        "staleness": {
            name: _staleness([*hops.values()], hospitals) for name, hops in sorted(paths.items())
        },
    }


def _busy(visits: Sequence[Event], hospitals: Sequence[str]) -> dict[str, float]:
    first = min((event.began for event in visits), default=nan)
    last = max((event.began for event in visits), default=nan)
    spent = dict.fromkeys(hospitals, 0.0)
    for event in visits:
        spent[event.hospital] += min(event.time, last) - event.began
    return {name: each / (last - first) if last > first else nan for name, each in spent.items()}


def _staleness(path: Sequence[set[str]], hospitals: Sequence[str]) -> Mapping[str, Any]:
    since = dict.fromkeys(hospitals, 0)
    means = []
    for visited in path:
        since = {name: 0 if name in visited else visits + 1 for name, visits in since.items()}
        means.append(fmean(since.values()))
    known = set().union(*path)
    at = {name: visits if name in known else nan for name, visits in since.items()}
    return {"mean": fmean(means), "at": at}
