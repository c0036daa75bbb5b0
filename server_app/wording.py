"""A run in words: one line for a round, for an answer that matters, for a wait.

In a round's line `held` is the mean over the hospitals, each with the model that it holds after the
round, `balanced accuracy` that over all pairs of model and hospital, each with the worst pair
behind it, and `ensemble` that of all models together; `noise` is how far that of hospitals may have
moved the mean over all pairs (or over those that hold it), in 95 of 100 cases; `over tasks` is the
mean accuracy on the tasks so far; `visits` are the global accuracies of a model that was tested
after each visit.
"""

from collections.abc import Sequence
from logging import INFO, WARNING
from math import isfinite, nan
from statistics import fmean

from server_app.measures import Round, Z, finished
from strategies.engine.events import Event
from strategies.protocol.console import duration
from strategies.protocol.names import join_names
from strategies.protocol.text import counted

LONG_ANSWER = 60.0  # seconds after which an answer gets a line of its own
LATELY = 5  # rounds by which the time left is estimated
# Labels of figures, and where they are in `Summary`: the first that was measured counts.
FIGURES = {
    "held": "personalized_balanced_accuracy",
    "held (accuracy)": "personalized_accuracy",
    "balanced accuracy": "federation_balanced_accuracy",
    "accuracy": "federation_accuracy",
    "ensemble": "ensemble_balanced_accuracy",
    "ensemble (accuracy)": "ensemble_accuracy",
    "over tasks": "accuracy_over_tasks",
}
VERBS = {
    "query.live": "say that it is there",
    "query.enrol": "enrol",
    "query.prepare": "prepare",
    "train": "train",
    "train.rewind": "train (rewind)",
    "evaluate": "test",
    "average": "average",
}


def of_round(measured: Round, rounds: int, hospitals: int, left: float = nan) -> str:
    """The line of a round.

    Args:
        measured: Its figures.
        rounds: How many the run has.
        hospitals: How many are to take part.
        left: Seconds until the last round ends; NaN if that is not known.
    """
    parts = [f"round {measured.number:>{len(str(rounds))}}/{rounds}"]
    parts += [
        f"{label} {value:.3f}{_interval(measured.figures, label)}{_lowest(measured, label)}"
        for label, value in foremost(measured.figures).items()
    ]
    if isfinite(noise := measured.figures["noise"]):
        parts.append(f"noise ±{Z * noise:.3f}")
    visits = finished(measured.visits)
    accuracies = [row["global_accuracy"] for row in visits if isfinite(row["global_accuracy"])]
    if len(accuracies) > len({row["lineage"] for row in visits}):
        parts.append(f"visits {min(accuracies):.3f} to {max(accuracies):.3f}")
    if len(parts) == 1 and isfinite(loss := measured.figures["train_loss"]):
        parts.append(f"loss {loss:.3f}")
    if len(measured.trained) < hospitals:
        parts.append(f"{len(measured.trained)} of {hospitals} hospitals")
    if isfinite(left) and measured.number < rounds:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def _interval(figures: dict[str, float], label: str) -> str:
    """The interval of a figure that is estimated from a sample; empty for others."""
    low, high = (figures.get(f"{FIGURES[label]}_{end}", nan) for end in ("low", "high"))
    return f" ({low:.3f} to {high:.3f})" if low < high else ""  # of all pairs it has no width


def _lowest(measured: Round, label: str) -> str:
    """The worst pair of model and hospital behind a mean; empty if there are not several."""
    kind, _, metric = FIGURES[label].partition("_")
    pairs = {"personalized": measured.held, "federation": measured.tests.keys() - measured.held}
    if not pairs.get(kind):
        return ""
    known = {
        pair: value
        for pair in pairs[kind] | measured.held
        if isfinite(value := measured.tests.get(pair, {}).get(metric.replace("_", "-"), nan))
    }
    if len(known) < 2:
        return ""
    model, hospital = min(known, key=lambda pair: (known[pair], pair))
    which = f", '{model}'" if kind == "federation" else ""
    return f" (lowest {known[model, hospital]:.3f}{which} at {hospital})"


def foremost(figures: dict[str, float]) -> dict[str, float]:
    """The figures of a round that matter most, by their labels: balanced ones if there are any."""
    measured = {label: figures[name] for label, name in FIGURES.items() if isfinite(figures[name])}
    plain = {"balanced accuracy": "accuracy", "held": "held (accuracy)"}
    plain["ensemble"] = "ensemble (accuracy)"
    for balanced in measured.keys() & plain:
        measured.pop(plain[balanced], None)
    return measured


def time_left(seconds: Sequence[float], rounds: int) -> float:
    """Seconds until the last of so many rounds ends; NaN before the first one has.

    Args:
        seconds: How long each round took, so far.
        rounds: How many the run has.
    """
    known = [each for each in seconds[-LATELY:] if isfinite(each)]
    return fmean(known) * (rounds - len(seconds)) if known else nan


def of_event(event: Event) -> tuple[int, str] | None:
    """The line about an answer, and its level in the log; None if it is not worth one."""
    when = f"round {event.round}: " if event.round else ""
    what = VERBS.get(event.verb, event.verb)
    if event.outcome != "ok":
        why = f"{event.hospital} failed to {what} ({event.outcome}): {event.reason}"
        return WARNING, when + why
    took = duration(event.seconds)
    if event.verb == "query.prepare":
        train, test = (event.metrics.get(name, nan) for name in ("num-train", "num-test"))
        counts = f": {train:.0f} images to train on, {test:.0f} to test on"
        known = counts if isfinite(train) else ""
        return INFO, f"{event.hospital} is ready{known} ({took})"
    if event.seconds >= LONG_ANSWER:
        return INFO, f"{when}{event.hospital} took {took} to {what}"
    return None


def of_wait(waits: Sequence[tuple[str, str, float]]) -> str:
    """Whom the server waits for: hospital, message type, and seconds of each."""
    told = []
    for verb in dict.fromkeys(verb for _, verb, _ in waits):
        hospitals = [hospital for hospital, each, _ in waits if each == verb]
        named = [hospital for hospital in hospitals if hospital]
        whom = [join_names(named)] if named else []
        if unnamed := len(hospitals) - len(named):
            whom.append(counted(unnamed, "hospital"))
        longest = max(seconds for _, each, seconds in waits if each == verb)
        told.append(f"{', '.join(whom)} to {VERBS.get(verb, verb)} ({duration(longest)})")
    return f"waits for {'; '.join(told)}"
