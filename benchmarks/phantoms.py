"""Draws chest X-rays of two departments, for machines without the real ones.

    uv run python -m benchmarks.phantoms ~/phantoms
    uv run fedhandoff reproduce two_hospitals \
        --data ~/phantoms/montgomery,~/phantoms/shenzhen --workers 2

Each class, `normal` and `tb`, has as many images as in the tuberculosis sets of Montgomery and
Shenzhen (FedER, arXiv:2206.10048, section IV.A). Montgomery's are grey, Shenzhen's in colour, as in
those sets. Lungs, ribs, spine and heart vary in place and size; `tb` has one to three spots. The
drawings are far simpler than X-rays: a method that works here may fail on real ones.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

SIDE = 256  # pixels a side of a drawing, before scaling to the department's size
Drawing = NDArray[np.float64]
Y, X = np.mgrid[0:SIDE, 0:SIDE] / (SIDE - 1)


@dataclass(frozen=True)
class Department:
    """The images of a department: their numbers by class, size, brightness and colours."""

    name: str
    numbers: dict[str, int]
    size: tuple[int, int]  # width, height
    brightness: float
    mode: str  # Pillow's name


DEPARTMENTS = (
    Department("montgomery", {"normal": 80, "tb": 58}, (1200, 1000), 0.75, "L"),
    Department("shenzhen", {"normal": 326, "tb": 336}, (870, 900), 0.65, "RGB"),
)


def main() -> None:
    """Draw all images."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phantoms")
    parser.add_argument("to", type=Path, help="a folder for both departments")
    to, rng = parser.parse_args().to.expanduser(), np.random.default_rng(0)
    for department in DEPARTMENTS:
        for label, number in department.numbers.items():
            folder = to / department.name / label
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(number):
                drawn = chest(rng, department.brightness, spots=label == "tb")
                picture(drawn, department).save(folder / f"{index:04d}.png")


def picture(drawn: Drawing, department: Department) -> Image.Image:
    """A drawing as the department's device takes it."""
    image = Image.fromarray((drawn.clip(0, 1) * 255).astype(np.uint8))
    image = image.filter(ImageFilter.GaussianBlur(1)).resize(
        department.size, Image.Resampling.BICUBIC
    )
    return image.convert(department.mode)


def chest(rng: np.random.Generator, brightness: float, *, spots: bool) -> Drawing:
    """A chest from the front, [SIDE, SIDE], from about 0 to 1."""
    drawn: Drawing = brightness * (1.4 - ellipse(0.5, 0.6, 0.48, 0.62)).clip(0, 1)
    x, y = 0.28 + rng.normal(0, 0.02), 0.48 + rng.normal(0, 0.02)
    width, height = 0.15 + rng.normal(0, 0.015), 0.32 + rng.normal(0, 0.02)
    sides = (x, 1 - x + rng.normal(0, 0.015))
    lungs = np.maximum(
        *((1.6 - 1.2 * ellipse(side, y, width, height)).clip(0, 1) for side in sides)
    )
    drawn -= 0.45 * lungs
    for rib in range(9):
        place = 0.18 + 0.075 * rib + rng.normal(0, 0.004) + 0.25 * (X - 0.5) ** 2
        drawn += 0.05 * np.exp(-(((Y - place) / 0.012) ** 2)) * lungs
    drawn += 0.2 * np.exp(-(((X - 0.5) / 0.05) ** 2))  # the spine
    drawn += 0.25 * (1.2 - ellipse(0.56 + rng.normal(0, 0.02), 0.66, 0.15, 0.14)).clip(0, 1)
    for _ in range(rng.integers(1, 4) if spots else 0):
        across, down = rng.choice([x, 1 - x]) + rng.normal(0, 0.05), y - rng.uniform(-0.05, 0.2)
        size = rng.uniform(0.03, 0.08)
        drawn += rng.uniform(0.15, 0.35) * np.exp(-ellipse(across, down, size, size))
    drawn += rng.normal(0, 0.02, drawn.shape)
    return drawn


def ellipse(x: float, y: float, width: float, height: float) -> Drawing:
    """The squared distance of pixels from a centre, [SIDE, SIDE]: 1 on an ellipse around it."""
    distance: Drawing = ((X - x) / width) ** 2 + ((Y - y) / height) ** 2
    return distance


if __name__ == "__main__":
    main()
