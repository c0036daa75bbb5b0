"""Lost visits: hospitals of a simulation that are away for a round, or leave for good.

A hospital is away for a whole round, so methods lose the same with one visit in a round or more.
Models are still tested at all hospitals: the tests show whether a model keeps the knowledge from an
absent hospital.
"""

from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message

from server_app.workers import WorkersGrid
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.settings import rng_for
from warm.workers import Workers

AWAY = "The hospital is away in this round."


@dataclass(frozen=True)
class Losses:
    """The lost visits of a run, by its seed; the same ones for all methods."""

    share: float = 0.0  # probability that a hospital is away in a round
    leaves_after: int = 0  # rounds after which one hospital leaves for good; 0 = no hospital leaves

    def __str__(self) -> str:
        lost = f"lost {self.share:g}" if self.share else ""
        leaves = f"leaves after {self.leaves_after}" if self.leaves_after else ""
        return " ".join(filter(None, [lost, leaves]))

    def is_lost(self, seed: int, server_round: int, hospital: int, hospitals: int) -> bool:
        """Whether a hospital, from 0, is away in a round, from 1."""
        away = rng_for(seed, "away", server_round, hospital).random() < self.share
        if self.leaves_after and server_round > self.leaves_after:
            away |= hospital == rng_for(seed, "leaves").integers(hospitals)
        return away


NONE = Losses()


class UnreliableGrid(WorkersGrid):
    """The hospitals of one run, with lost visits."""

    def __init__(
        self, losses: Losses, workers: Workers, hospitals: int, run_config: dict[str, Any]
    ) -> None:
        super().__init__(workers, hospitals, run_config)
        self.losses = losses

    def _accept(self, message: Message) -> None:
        """Answer a lost visit with an error; other messages wait for a process."""
        asked, seed = message.metadata, self.run_config["seed"]
        if asked.message_type.startswith("train") and self.losses.is_lost(
            seed, Order.read(message.content).round, asked.dst_node_id - 1, len(self.nodes)
        ):
            error = Error(Failure.GONE, AWAY)
            self._answers[asked.message_id] = Message(error, reply_to=message)
        else:
            super()._accept(message)
