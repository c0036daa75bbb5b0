"""The figures of every test of a model. Tables, pages and comparisons follow from this list."""

from typing import NamedTuple


class Tested(NamedTuple):
    """A figure of every test of a model, from 0 to 1."""

    heading: str
    is_mean: bool = False  # whether several hospitals can only average it


TESTED = {
    "balanced-accuracy": Tested("balanced accuracy"),
    "accuracy": Tested("accuracy"),
    "auroc": Tested("AUROC", is_mean=True),
}
