"""What may be said of methods that are compared over their runs."""

from collections.abc import Iterable, Mapping

from pages.figures import Figure, direction
from strategies.protocol.text import counted

SEEDS = 3  # the least number that an interval is made of
ABOUT = (
    "Mean ± standard deviation over runs. At home: the model that a hospital holds after the "
    "hand-off. Everywhere: every model at every hospital. Differences: mean over the seeds that "
    "both methods have, with a 95 % interval from three seeds on (Student's t: hospitals of one "
    "seed share their models and are no independent repetitions, and a bootstrap of so few seeds "
    "is too narrow). It says how far other seeds would move the difference, not other hospitals "
    "or patients. Of 20 such intervals one misses."
)
APART = "Not alike. Methods with other data or another split are not compared in pairs."


def list_methods(names: Iterable[str]) -> str:
    """Names of methods in a sentence; those with a comma in them have quotes."""
    return ", ".join(f"'{name}'" if "," in name else name for name in names)


def describe_noise(names: Iterable[str]) -> str:
    """What is to be said of methods whose figures have noise."""
    return (
        f"Hospitals have put noise into the figures of {list_methods(names)}, and have left out "
        "classes that few patients have. Each seed has noise of its own, so the intervals include "
        "it. The hospitals' own pages of a run are exact."
    )


def higher_method(difference: Figure | None, first: str, second: str) -> str:
    """Which of two is shown to be higher: only if the interval leaves out 0; empty: none."""
    word = direction(difference) if difference else ""
    return {"better": first, "worse": second}.get(word, "")


def judge_difference(seeds: int, higher: str) -> str:
    """What may be said of a difference over so many seeds, with the one shown to be higher."""
    if not seeds:
        return "not measured, or no seed in common"
    if seeds < SEEDS:
        return f"{counted(seeds, 'seed')}: too few to say"
    return f"{higher} is higher" if higher else "no difference shown"


def conclude(
    where: str, best: str, value: float, constant: float, others: Mapping[str, tuple[int, str]]
) -> str:
    """Which method is highest, and above which others that is shown.

    Args:
        where: Which models it is about.
        best: The highest.
        value: Its balanced accuracy.
        constant: What always the same answer reaches.
        others: Of each other one the seeds in common, and which of the two is shown to be higher.
    """
    text = f"{where}: {list_methods([best])} has the highest balanced accuracy ({value:.3f})"
    if value <= constant:
        text += f", which is no more than always the same answer reaches ({constant:.3f})"
    few = [name for name, (seeds, _) in others.items() if seeds < SEEDS]
    above = [name for name, (_, higher) in others.items() if higher == best]
    parts = {
        "shown to be above {}": above,
        "not shown to differ from {}": [name for name in others if name not in above + few],
        f"not to be compared with {{}} ({SEEDS} seeds are needed)": few,
    }
    said = [words.format(list_methods(names)) for words, names in parts.items() if names]
    return f"{text}; {'; '.join(said)}."


def count_pairs(count: int) -> str:
    """What it means that many pairs are compared at once; nothing for one pair."""
    if count < 2:
        return ""
    return (
        f"{count} pairs are compared at once: if no method differed, {count / 20:.1f} of these "
        "intervals would leave out 0 by chance."
    )
