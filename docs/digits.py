"""Writes scikit-learn's handwritten digits as the images of two hospitals, for the tutorial.

    uv run python docs/digits.py <folder>

Makes <folder>/graz and <folder>/linz, each with a folder for each digit, and <folder>/overview.png.
Graz has four of five images of the digits 0 to 4, and Linz four of five of 5 to 9.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from sklearn.datasets import load_digits

HOSPITALS = ("graz", "linz")


def main(folder: Path) -> None:
    """Write all images, and a picture of some."""
    digits = load_digits()
    counts = np.zeros((len(HOSPITALS), 10), int)
    for number, (image, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        often = digit >= 5  # the hospital that has this digit often
        hospital = int(often if number % 5 else not often)
        path = folder / HOSPITALS[hospital] / str(digit) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype("uint8")).save(path)
        counts[hospital, digit] += 1
    draw(folder, counts)


def draw(folder: Path, counts: np.ndarray) -> None:
    """Draw an image of each digit of each hospital, and how many there are."""
    figure, axes = plt.subplots(len(HOSPITALS), 10, figsize=(8, 2.2))
    for row, hospital in zip(axes, HOSPITALS, strict=True):
        for digit, place in enumerate(row):
            first = min((folder / hospital / str(digit)).iterdir())
            place.imshow(Image.open(first), cmap="gray")
            place.set(xticks=[], yticks=[], xlabel=counts[HOSPITALS.index(hospital), digit])
        row[0].set_ylabel(hospital)
    figure.savefig(folder / "overview.png", dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
