"""The figures of every test of a model. Tables, pages and comparisons follow from this list."""

from math import nan
from typing import NamedTuple


class Tested(NamedTuple):
    """A figure of every test of a model, from 0 to 1."""

    heading: str
    constant: str  # the answer with a constant figure
    constant_figure: float = nan  # NaN = it depends on the images
    is_mean: bool = False  # whether several hospitals can only average it


TESTED = {
    "balanced-accuracy": Tested("balanced accuracy", "a constant answer, or chance"),
    "accuracy": Tested("accuracy", "always the most frequent class"),
    "auroc": Tested("AUROC", "chance", 0.5, is_mean=True),
}
