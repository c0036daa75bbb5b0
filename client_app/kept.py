"""What stays at a hospital between its visits of one run, and never leaves it."""

import numpy as np
from numpy.typing import NDArray

from client_app.store import Store

Place = tuple[int, ...]  # round and hop of a visit


class Kept:
    """Named arrays, as each of the last two visits left them.

    A visit whose answer was lost with the server is ordered again when the run is resumed. It then
    starts from what the visit before it left, as it did the first time.

    Args:
        run: The run's folder.
        kind: "local": the state-dict keys that stay local (`Learner.local`); or "rehearsal": what
            a learner keeps for the hospital's stream (`Learner.rehearsal`).
    """

    def __init__(self, run: Store, kind: str) -> None:
        self.run = run
        self.kind = kind

    def before(self, visit: Place) -> dict[str, NDArray[np.generic]]:
        """What the last visit before this one left; nothing before the first."""
        return self._newest([each for each in self._visits() if each < visit])

    def after(self, visit: Place) -> dict[str, NDArray[np.generic]]:
        """What this visit left, or else the last one before it; nothing before the first."""
        return self._newest([each for each in self._visits() if each <= visit])

    def save(self, visit: Place, arrays: dict[str, NDArray[np.generic]]) -> None:
        """Keep what this visit leaves, and what the visit before it left; forget all others.

        A visit that comes after this one was made before the run went back to this one.
        """
        self.run.save(self._name(visit), arrays)
        visits = self._visits()
        keep = [visit, *[each for each in visits if each < visit][-1:]]
        for each in visits:
            if each not in keep:
                self.run.discard(self._name(each))

    def _newest(self, visits: list[Place]) -> dict[str, NDArray[np.generic]]:
        return self.run.load(self._name(visits[-1])) if visits else {}

    def _visits(self) -> list[Place]:
        """The visits that left something, in order."""
        return sorted(tuple(map(int, name.split("-"))) for name in self.run.names(self.kind))

    def _name(self, visit: Place) -> str:
        return f"{self.kind}/{'-'.join(map(str, visit))}"
