"""The visit: one training of one model at one hospital, the atom of every method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Images = Literal["own", "everyone", "public", "none"]


@dataclass(frozen=True)
class Visit:
    """What is to happen.

    Attributes:
        hospital: Where.
        model: The name of the model in `State.models`.
        learner: The local objective (learning.learners.LEARNERS).
        epochs: Passes over the hospital's training images.
        verb: The message type.
        leg: Which of several trainings of the model in one round this is, from 1.
        replay: The hospitals whose buffers are trained on beside the images.
        images: Which images are trained on: the hospital's own, everyone's (in a simulation), those
            of a public archive, none.
        embeddings: The kind of embeddings of its images that the hospital sends; empty = none.
        test: Whether the hospital tests the model right after training it, in evaluated rounds.
        number: Which visit of its lineage this is, from 1, if the method does not wait: it then
            stands in the place of a hop. 0 = the hop that goes on.
    """

    hospital: str
    model: str
    learner: str
    epochs: int
    verb: str = "train"
    leg: int = 1
    replay: Sequence[str] = ()
    images: Images = "own"
    embeddings: str = ""
    test: bool = False
    number: int = 0

    @property
    def key(self) -> str:
        """Tells it from all others that are under way."""
        return f"{self.hospital} {self.model}"
