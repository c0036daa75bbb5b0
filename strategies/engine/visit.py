"""The visit: one training of one model at one hospital, the atom of every method."""

from dataclasses import dataclass
from typing import Literal

Images = Literal["own", "everyone", "public", "none"]


@dataclass(frozen=True)
class Visit:
    """A planned visit."""

    hospital: str  # the hospital that trains
    model: str  # the name of the model in `State.models`
    learner: str  # the local objective (learning.learners.LEARNERS)
    epochs: int  # passes over the hospital's training images
    verb: str = "train"  # the message type
    leg: int = 1  # number of this training among those of the model in one round, from 1
    replay: tuple[str, ...] = ()  # the hospitals whose buffers are trained on beside the images
    # The images to train on: the hospital's own, those of all hospitals (in a simulation), those of
    # a public archive, or none
    images: Images = "own"
    # The kind of embeddings of its images that the hospital sends; empty = none
    embeddings: str = ""
    # Whether the hospital tests the model right after training it, in evaluated rounds
    test: bool = False
    # Number of this visit in its lineage, from 1, if the method does not wait; it then replaces the
    # hop. 0 = the present hop.
    number: int = 0

    @property
    def key(self) -> str:
        """The hospital and the model: no two visits under way have the same."""
        return f"{self.hospital} {self.model}"
