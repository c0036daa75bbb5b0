"""Which embeddings left which hospital (strategies/fil_ver.py), and what was measured of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from strategies.engine.events import Event

FIGURE = "embedding-"  # how the names begin of what a hospital measures of embeddings


def embeddings_of(events: Iterable[Event], tasks: Sequence[int]) -> list[dict[str, Any]]:
    """`Summary.embeddings`.

    A hospital that sent none of a task is asked again in the next round. Of visits that failed
    nobody knows what has left.

    Args:
        events: All of the run.
        tasks: Of which task each round is, from the first; 0: there are no tasks.
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
            "figures": {k: v for k, v in event.metrics.items() if k.startswith(FIGURE)},
        }
    return [rows[place] for place in sorted(rows)]
