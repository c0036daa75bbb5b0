"""Verdicts on methods that are compared over their runs."""

from collections.abc import Iterable, Mapping

from strategies.protocol.text import amount

SEEDS = 3  # the least number of seeds for an interval
OVER_RUNS = "Mean ± standard deviation over runs."
MODELS = (
    "At home: the model that a hospital holds after the hand-off. Everywhere: every model at every "
    "hospital."
)
DIFFERENCES = (
    "Differences: mean over the seeds and hospitals that both methods have, with a 95 % interval "
    "from three seeds on (Student's t: hospitals of one seed share their models and are no "
    "independent repetitions, and a bootstrap of so few seeds is too narrow). It covers the effect "
    "of other seeds on the difference, not of other hospitals or patients. One of 20 such "
    "intervals misses the true difference."
)
APART = "Not alike. Methods with other data or another split are not compared in pairs."


def explain(runs: int, methods: int) -> str:
    """What the figures are: means over `runs` of a method, and differences of `methods`."""
    parts = [*([OVER_RUNS] if runs > 1 else []), MODELS, *([DIFFERENCES] if methods > 1 else [])]
    return " ".join(parts)


def list_methods(names: Iterable[str]) -> str:
    """Names of methods in a sentence; names with a comma have quotes."""
    return ", ".join(f"'{name}'" if "," in name else name for name in names)


def describe_noise(names: Iterable[str]) -> str:
    """The remark on methods whose figures have noise."""
    return (
        f"Hospitals have put noise into the figures of {list_methods(names)}, and have left out "
        "classes of few patients. Each seed has noise of its own, so the intervals include the "
        "noise. The hospitals' own pages of a run are exact."
    )


def judge_difference(seeds: int, has_interval: bool, higher: str) -> str:
    """The verdict on a difference over some seeds; `higher` is the method shown to be higher."""
    if not seeds:
        return "not measured, or no seed and hospitals in common"
    if seeds < SEEDS:
        return f"{amount(seeds, 'seed')}: too few to say"
    if not has_interval:
        return "no interval: the same at every seed"
    return f"{higher} is higher" if higher else "no difference shown"


def conclude(
    where: str, best: str, value: float, constant: float, others: Mapping[str, tuple[int, str]]
) -> str:
    """The sentence on the highest method, and on the methods that it is shown to be above.

    `where` names the models in question. `value` is the balanced accuracy of `best`, the highest
    one; `constant` that of a constant answer. `others` has for each other method the number of
    common seeds with the same images, and the method that is shown to be higher on these.
    """
    apart = [name for name, (seeds, _) in others.items() if not seeds]
    few = [name for name, (seeds, _) in others.items() if 0 < seeds < SEEDS]
    above = [name for name, (_, higher) in others.items() if higher == best]
    below = [name for name, (_, higher) in others.items() if higher == name]
    named = [*apart, *few, *above, *below]
    text = f"{where}: {list_methods([best])} has the highest balanced accuracy ({value:.3f})"
    if apart:
        text += " of those that are compared"
    if value <= constant:
        text += f", which is not above that of a constant answer ({constant:.3f})"
    parts = {
        "shown to be above {}": above,
        "shown to be below {} on common seeds and hospitals": below,
        "not shown to differ from {}": [name for name in others if name not in named],
        f"not to be compared with {{}} ({SEEDS} seeds are needed)": few,
        "not compared with {} (no common seed with the same images)": apart,
    }
    phrases = [words.format(list_methods(names)) for words, names in parts.items() if names]
    return f"{text}; {'; '.join(phrases)}."


def count_pairs(count: int) -> str:
    """The caution on comparing many pairs at once; empty for one pair."""
    if count < 2:
        return ""
    return (
        f"{count} pairs are compared at once: if no method differed, {count / 20:.1f} of these "
        "intervals would exclude 0 by chance."
    )
