"""The visit: one training of one model at one hospital, the atom of every method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Images = Literal["own", "everyone", "public", "none"]


@dataclass(frozen=True)
class Visit:
    """A planned visit.

    Attributes:
        hospital: The hospital that trains.
        model: The name of the model in `State.models`.
        learner: The local objective (learning.learners.LEARNERS).
        epochs: Passes over the hospital's training images.
        verb: The message type.
        leg: Number of this training among those of the model in one round, from 1.
        replay: The hospitals whose buffers are trained on beside the images.
        images: The images to train on: the hospital's own, those of all hospitals (in a
            simulation), those of a public archive, or none.
        embeddings: The kind of embeddings of its images that the hospital sends; empty = none.
        test: Whether the hospital tests the model right after training it, in evaluated rounds.
        number: Number of this visit in its lineage, from 1, if the method does not wait; it then
            replaces the hop. 0 = the present hop.
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
        """The hospital and the model: no two visits under way have the same."""
        return f"{self.hospital} {self.model}"
