"""A hospital's reservoir: a random sample of all images of its stream.

Vitter, "Random sampling with a reservoir", ACM TOMS 11(1), 1985, algorithm R: at any time each row
that was seen has the same chance to be in the sample. The length of the stream need not be known.
An image counts each time that it is trained on, as in mammoth.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from learning.settings import ReservoirSettings


class Reservoir:
    """At most `reservoir.size` rows [m, ...] of several `fields`, by name.

    `kept` is the result of `state` at the end of the last visit; empty at the first. Its rows may
    change.
    """

    def __init__(self, settings: ReservoirSettings, kept: Mapping[str, Tensor]) -> None:
        self.size, self.batch_size = settings.size, settings.batch_size
        self.seen = int(kept["seen"]) if kept else 0
        self.fields = {name: rows for name, rows in kept.items() if name != "seen"}

    def __len__(self) -> int:
        return min(self.seen, self.size)

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Random rows, none of them twice: `reservoir.batch-size`, or all if there are fewer."""
        drawn = torch.randperm(len(self), generator=generator)[: self.batch_size]
        return {name: rows[drawn.to(rows.device)] for name, rows in self.fields.items()}

    def add(self, generator: torch.Generator, **rows: Tensor) -> None:
        """Offer new rows [n, ...] of each field, in their order; none is kept if `size` is 0."""
        if not self.size:
            return
        places: dict[int, int] = {}  # where rows go; a later one replaces an earlier one
        count = len(next(iter(rows.values())))
        chances = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
        for row, chance in enumerate(chances):
            full = self.seen >= self.size
            place = int(chance * (self.seen + 1)) if full else self.seen
            if place < self.size:
                places[place] = row
            self.seen += 1
        if not places:
            return
        for name, new in rows.items():
            old = self.fields.get(name, new[:0])
            more = max(max(places) + 1 - len(old), 0)
            old = torch.cat([old, new.new_empty(more, *new.shape[1:])])
            old[list(places)] = new[list(places.values())]
            self.fields[name] = old

    def state(self) -> dict[str, Tensor]:
        """All rows and the number of rows that were offered, for `Learner.rehearsal`."""
        return {**self.fields, "seen": torch.tensor(self.seen)}
