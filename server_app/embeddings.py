"""The embeddings that left each hospital (strategies/fil_ver.py), and their figures."""

from collections.abc import Iterable, Sequence
from typing import Any

from strategies.engine.events import Event


def embeddings_of(events: Iterable[Event], tasks: Sequence[int]) -> list[dict[str, Any]]:
    """`Summary.embeddings`.

    A hospital that sent no embeddings of a task is asked again in the next round. Failed visits are
    left out: the server does not know whether embeddings left.

    `tasks` has the task of each round, from the first round on; 0 = no tasks.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for event in events:
        if "embeddings" not in event.facts:
            continue
        place = event.hospital, max(tasks[event.round - 1], 1)
        rows[place] = {
            "hospital": event.hospital,
            "task": place[1],
            "kind": event.facts["embeddings"],
            "count": event.facts["came"],
            "figures": {k: v for k, v in event.metrics.items() if k.startswith("embedding-")},
        }
    return [rows[place] for place in sorted(rows)]
