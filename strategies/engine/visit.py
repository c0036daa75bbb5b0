"""The visit: one training of one model at one hospital, the atom of every method."""

from dataclasses import dataclass

from strategies.protocol.order import Images


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
    images: Images = "own"  # the images to train on
    embeddings: str = ""  # the kind of embeddings that the hospital sends; empty = none
    test: bool = False  # whether the hospital tests the trained model, in evaluated rounds
    # Number of this visit in its lineage, from 1, if the method does not wait; it then replaces the
    # hop. 0 = the present hop.
    number: int = 0

    @property
    def key(self) -> str:
        """The hospital and the model: no two visits under way have the same."""
        return f"{self.hospital} {self.model}"
