"""A hospital's kept samples: a share of each task that it has seen.

They are a learner's `rehearsal`: `values` [m, ...], `labels` [m] and `tasks` [m], for the tasks up
to the present one, in the hospital's own order (`task-order`). A task's share is drawn once, at
random, so the number of kept samples does not grow with the number of visits. A policy sets a least
number of kept samples, and of replayed ones in a step (`Received`): one image alone could be read
from the gradient.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from learning.samples import Samples
from strategies.protocol.settings import rng_for


def earlier_samples(kept: Mapping[str, Tensor], task: int) -> Samples | None:
    """The kept samples of the tasks before this one; None if there are none."""
    if not kept or not (before := kept["tasks"] != task).any():
        return None
    return Samples(kept["values"][before], kept["labels"][before])


def draw_rows(count: int, share: float, seed: int, task: int, least: int = 1) -> Tensor:
    """The rows of a task's images that are kept, int64 [m]: a share, `least` or more, or all."""
    order = rng_for(seed, "rehearsal", task).permutation(count)
    return torch.from_numpy(order[: max(least, round(share * count))])


def replay_size(batch: Samples, samples: Samples, kept: Samples, least: int) -> int:
    """The number of kept samples beside a batch: `least`, or more.

    Above `least` an epoch is a pass over both sets.
    """
    return max(least, round(len(batch) * len(kept) / len(samples)))


def add_task(
    kept: Mapping[str, Tensor], samples: Samples, rows: Tensor, task: int
) -> dict[str, Tensor]:
    """The samples to keep: those of earlier tasks, and some rows of the present task."""
    present = samples[rows.to(samples.labels.device)]
    found = {
        "values": present.pixels,
        "labels": present.labels,
        "tasks": torch.full_like(present.labels, task),
    }
    if not kept:
        return found
    before = kept["tasks"] != task
    return {name: torch.cat([kept[name][before], found[name]]) for name in found}


def restrict(classes: Tensor, logits: Tensor) -> Tensor:
    """Logits [N, K] for a softmax over some classes [c] alone: −∞ for the others."""
    others = torch.ones_like(logits[0], dtype=torch.bool).index_fill(0, classes, False)
    return logits.masked_fill(others, -torch.inf)
