"""How often 95 % intervals hold the true value, in draws of patients from a known population.

    uv run python -m benchmarks.interval_coverage

Patients have one class each and the images of one are right with a rate of their own: beta-
distributed around that of the class, so that two images of a patient have the given correlation.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.markdown import print_head, print_row
from learning.assessment import Bootstrap, Outcome, Sureness
from learning.intervals import combined

DRAWS = 400
FIGURES = ("accuracy", "balanced accuracy", "recall of the rarest class")


@dataclass(frozen=True)
class Case:
    """A population, and how many of its patients are drawn."""

    patients: int
    images: int  # of a patient, from 1 to this
    recalls: tuple[float, ...]
    shares: tuple[float, ...]  # of patients with each class
    correlation: float = 0.0

    def draw(self, rng: np.random.Generator) -> Outcome:
        """What a model says of so many patients."""
        sizes = rng.integers(1, self.images + 1, self.patients)
        classes = rng.choice(len(self.recalls), self.patients, p=self.shares)
        rates = np.array(self.recalls)[classes]
        if self.correlation:
            scale = 1 / self.correlation - 1
            rates = rng.beta(rates * scale, (1 - rates) * scale)
        labels, owner = np.repeat(classes, sizes), np.repeat(np.arange(self.patients), sizes)
        right = rng.random(len(labels)) < np.repeat(rates, sizes)
        answers = np.where(right, labels, (labels + 1) % len(self.recalls))
        scores = np.eye(len(self.recalls))[answers] * 0.5 + 0.25
        return Outcome(scores, labels, owner, np.full(len(self.recalls), np.nan))


CASES = (
    Case(12, 1, (0.9, 0.6), (0.6, 0.4)),
    Case(12, 1, (0.98, 0.9), (0.6, 0.4)),
    Case(100, 1, (0.95, 0.5), (0.85, 0.15)),
    Case(100, 1, (0.99, 0.05), (0.85, 0.15)),
    Case(500, 1, (0.9, 0.8, 0.7, 0.6, 0.3), (0.5, 0.2, 0.15, 0.1, 0.05)),
    Case(12, 7, (0.9, 0.6), (0.6, 0.4), 0.5),
    Case(100, 7, (0.9, 0.6), (0.85, 0.15), 0.5),
    Case(40, 19, (0.9, 0.6), (0.6, 0.4), 0.2),
)


def coverage(case: Case, rng: np.random.Generator) -> list[list[float]]:
    """The shares of intervals, and of percentiles of the same bootstrap, that hold the truth."""
    truth = [
        *(float(np.dot(case.shares, case.recalls)), float(np.mean(case.recalls))),
        case.recalls[-1],
    ]
    hits = np.zeros((2, len(FIGURES)))
    count = 0
    while count < DRAWS:
        outcome = case.draw(rng)
        names = [name for name in outcome.shares.names if name.startswith("recall-")]
        if len(names) < len(case.recalls):
            continue  # balanced accuracy is about the classes that there are
        count += 1
        bootstrap = Bootstrap.of(outcome, rng)
        sureness, values = Sureness(outcome, bootstrap), outcome.shares.values
        recalls = [sureness.of_share(name, values[name]) for name in names]
        weights = [1 / len(recalls)] * len(recalls)
        balanced = combined(weights, recalls, sureness.correlation())
        accuracy = sureness.of_share("accuracy", values["accuracy"])
        columns = [outcome.shares.names.index(name) for name in names]
        drawn = bootstrap.shares[:, columns]
        for k, (estimate, resampled) in enumerate(
            (
                (accuracy, bootstrap.shares[:, 0]),
                (balanced, drawn[np.isfinite(drawn).all(axis=1)].mean(axis=1)),
                (recalls[-1], drawn[:, -1][np.isfinite(drawn[:, -1])]),
            )
        ):
            low, high = np.quantile(resampled, [0.025, 0.975])
            hits[0, k] += estimate.low <= truth[k] <= estimate.high
            hits[1, k] += low <= truth[k] <= high
    shares: list[list[float]] = (hits / DRAWS).tolist()
    return shares


def main() -> None:
    """Print the table."""
    print_head("patients", "images of each", "correlation", "recalls", *FIGURES)
    rng = np.random.default_rng(0)
    for case in CASES:
        ours, percentiles = coverage(case, rng)
        cells = [f"{a:.3f} ({b:.3f})" for a, b in zip(ours, percentiles, strict=True)]
        images = "1" if case.images == 1 else f"1 to {case.images}"
        recalls = ", ".join(map(str, case.recalls))
        print_row(case.patients, images, case.correlation, recalls, *cells)


if __name__ == "__main__":
    main()
