"""What may be said of a comparison of methods: in a terminal and on a page alike."""

from collections.abc import Iterator, Sequence

from server_app.comparison import FIGURES, SEEDS, Comparison, Difference, Figure, Method, listed
from server_app.measures import mean, spread
from strategies.protocol.text import counted

AT_HOME, EVERYWHERE = FIGURES[2], FIGURES[0]  # what the conclusion is about
ABOUT = (
    "Mean ± standard deviation over runs. At home: the model that a hospital holds after the "
    "hand-off. Everywhere: every model at every hospital. Differences: mean over the seeds that "
    "both methods have, with a 95 % interval from three seeds on (Student's t: hospitals of one "
    "seed share their models and are no independent repetitions, and a bootstrap of so few seeds "
    "is too narrow). It says how far other seeds would move the difference, not other hospitals "
    "or patients. Of 20 such intervals one misses."
)
APART = "Not alike. Methods with other data or another split are not compared in pairs."


def cell(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation, as far as they exist; of costs the mean alone."""
    if not values:
        return "–"
    deviation = f"±{spread(values):.{digits}f}" if len(values) > 1 and digits > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


def interval(difference: Difference, digits: int) -> str:
    """A difference and its interval, if there are seeds enough for one."""
    if not difference.by_seed:
        return "–"
    low, high = (f"{end:+.{digits}f}" for end in difference.interval)
    within = f" [{low}, {high}]" if len(difference.by_seed) >= SEEDS else ""
    return f"{difference.mean:+.{digits}f}{within}"


def conclusions(comparison: Comparison) -> Iterator[str]:
    """A sentence about the models that hospitals hold, and one about all models everywhere."""
    yield from _conclusion(comparison, AT_HOME, "At home, with the model that a hospital holds")
    yield from _conclusion(comparison, EVERYWHERE, "Everywhere, every model at every hospital")


def _conclusion(comparison: Comparison, figure: Figure, where: str) -> Iterator[str]:
    """Which of the methods that have the same images is highest, and above which this is shown."""
    differences = [each for each in comparison.differences(figure) if each.by_seed]
    if not differences:
        return
    methods = {method.name: method for each in differences for method in (each.first, each.second)}
    best = max(methods.values(), key=lambda method: mean(method.values(figure)))
    value, constant = mean(best.values(figure)), best.constant(figure)
    text = f"{where}: {listed([best.name])} has the highest balanced accuracy ({value:.3f})"
    if value <= constant:
        text += f", which is no more than always the same answer reaches ({constant:.3f})"
    by_verdict: dict[str, list[str]] = {}
    for each in differences:
        if best in (each.first, each.second):
            other = each.second if each.first is best else each.first
            kind = "few" if len(each.by_seed) < SEEDS else verdict(each)
            by_verdict.setdefault(kind, []).append(other.name)
    above = by_verdict.pop(f"{best.name} is higher", [])
    few = by_verdict.pop("few", [])
    rest = [name for names in by_verdict.values() for name in names]
    parts = []
    if above:
        parts.append(f"shown to be above {listed(above)}")
    if rest:
        parts.append(f"not shown to differ from {listed(rest)}")
    if few:
        parts.append(f"not to be compared with {listed(few)} ({SEEDS} seeds are needed)")
    yield f"{text}; {'; '.join(parts)}."


def several(differences: Sequence[Difference]) -> str:
    """What it means that many pairs are compared at once; nothing for one pair."""
    count = sum(len(each.by_seed) >= SEEDS for each in differences)
    if count < 2:
        return ""
    return (
        f"{count} pairs are compared at once: if no method differed, {count / 20:.1f} of these "
        "intervals would leave out 0 by chance."
    )


def made_of(method: Method) -> str:
    """What a method is, and of how many runs."""
    runs = method.runs.values()
    seeds, folds = ({key[place] for key in method.runs} for place in (0, 1))
    seed = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, sorted(seeds)))}"
    parts = [f"{counted(len(runs), 'run')}, {seed}"]
    if len(folds) > 1:
        parts.append(f"{len(folds)} folds")
    if broken := sum(run.status != "completed" for run in runs):
        parts.append(f"{broken} with failures of hospitals")
    return f"{method.name} ({', '.join(parts)})"


def names(difference: Difference) -> list[str]:
    """Which methods, and over how many seeds."""
    pair = f"{difference.first.name} − {difference.second.name}"
    return [pair, counted(len(difference.by_seed), "seed")]


def verdict(difference: Difference) -> str:
    """What may be said of a difference: one is higher only if the interval leaves out 0."""
    low, high = difference.interval
    if not difference.by_seed:
        return "not measured, or no seed in common"
    if (count := len(difference.by_seed)) < SEEDS:
        return f"{counted(count, 'seed')}: too few to say"
    if low <= 0 <= high:
        return "no difference shown"
    return f"{(difference.first if low > 0 else difference.second).name} is higher"
