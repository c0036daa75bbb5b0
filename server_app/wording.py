"""The lines of a run, for the log, `watch` and the page: a round, an answer, a wait, the progress.

In the line of a round, `lowest` is the worst pair behind a mean; `visits` has the global accuracies
of a model that was tested after each visit. summary.py has the meaning of the other figures.
"""

from collections.abc import Iterable, Sequence
from logging import INFO, WARNING
from math import isfinite, nan

from learning.intervals import Z, number
from pages.verbs import VERBS
from server_app.measures import Round, sampled_figure, visit_ends
from server_app.summary import LABELS
from strategies.engine.courier import Awaited
from strategies.engine.events import Event
from strategies.protocol.console import duration
from strategies.protocol.names import join_names
from strategies.protocol.text import amount

LONG_ANSWER = 60.0  # seconds after which an answer gets a line of its own
LATELY = 5  # latest rounds that the estimate of the time left uses
FAILURES = 3  # most failures that are shown, the newest
# What to do, by the kind of a failure (`strategies.protocol.may_leave.Failure`).
CURES = {
    "settings": "Change the setting that the reason names.",
    "data": "At the hospital, `fedhandoff preflight` names the images.",
    "parcel": "If this happens again, compare the versions of fedhandoff.",
    "diverged": "Lower train.learning-rate, for all hospitals or in the hospital's node-config.",
    "timeout": "Give it more time with hop-timeout or prepare-timeout.",
    "crashed": "The hospital's log has the error.",
    "undeclared": "Compare the code of the hospital with that of the server.",
    "gone": "At the hospital, `fedhandoff hospital status` shows whether it runs.",
    "release": "The hospital's log has the reason; the run goes on without these images.",
    "policy": "Change the setting, or ask the hospital to change its policy.",
    "ledger": "Free space on the hospital's disk.",
    "useless": "Lower train.learning-rate at the hospital that trained the model.",
}


def round_line(measured: Round, rounds: int, hospitals: int, left: float = nan) -> str:
    """The line of a round; `left` is the estimated number of seconds until the end of the run."""
    parts = [f"round {measured.number:>{len(str(rounds))}}/{rounds}"]
    figures = measured.figures
    for name in main_figures(figures):
        figure = sampled_figure(figures, name)
        text = number(figure) if figure else f"{figures[name]:.3f}"
        parts.append(f"{LABELS[name]} {text}{_lowest_pair(measured, name)}")
    if noise := noise_text(figures):
        parts.append(noise)
    visits = visit_ends(measured.visits)
    accuracies = [row["global_accuracy"] for row in visits if isfinite(row["global_accuracy"])]
    if len(accuracies) > len({row["lineage"] for row in visits}):
        parts.append(f"visits {min(accuracies):.3f} to {max(accuracies):.3f}")
    if len(parts) == 1 and isfinite(loss := figures["train_loss"]):
        parts.append(f"loss {loss:.3f}")
    if len(measured.trained) < hospitals:
        parts.append(f"{len(measured.trained)} of {amount(hospitals, 'hospital')}")
    if isfinite(left) and measured.number < rounds:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def noise_text(figures: dict[str, float]) -> str:
    """The 95 % bound of the noise in a round's mean; empty if figures are exact."""
    return f"noise ±{Z * figures['noise']:.3f}" if isfinite(figures["noise"]) else ""


def _lowest_pair(measured: Round, name: str) -> str:
    """The worst pair of model and hospital behind a mean; empty for a single pair."""
    kind, _, metric = name.partition("_")
    pairs = {
        "personalized": measured.held_pairs,
        "federation": measured.tests.keys() - measured.held_pairs,
    }
    if not pairs.get(kind):
        return ""
    known = {
        pair: value
        for pair in pairs[kind] | measured.held_pairs
        if isfinite(value := measured.tests.get(pair, {}).get(metric.replace("_", "-"), nan))
    }
    if len(known) < 2:
        return ""
    model, hospital = min(known, key=lambda pair: (known[pair], pair))
    named = f", '{model}'" if kind == "federation" else ""
    return f" (lowest {known[model, hospital]:.3f}{named} at {hospital})"


def main_figures(figures: dict[str, float]) -> list[str]:
    """The names of a round's main figures: balanced ones if they exist."""
    known = {name for name in LABELS if isfinite(figures[name])}
    plain = {name.replace("_balanced", "") for name in known if "_balanced" in name}
    return [name for name in LABELS if name in known - plain]


def curves(done: Sequence[Round]) -> dict[str, list[float]]:
    """By label, each main figure of finished rounds; NaN in a round without it."""
    mains = [main_figures(each.figures) for each in done]
    return {
        LABELS[name]: [
            each.figures[name] if name in main else nan
            for each, main in zip(done, mains, strict=True)
        ]
        for name in dict.fromkeys(name for main in mains for name in main)
    }


def time_left(done: Sequence[Round], rounds: int) -> float:
    """Estimated seconds until the run ends, by the ends of its finished rounds; NaN = unknown."""
    late = done[-LATELY - 1 :]
    if not late:
        return nan
    first, last = late[0], late[-1]
    passed = last.number - first.number
    pace = (last.ended - first.ended) / passed if passed else last.seconds
    return pace * (rounds - last.number)


def event_line(event: Event) -> tuple[int, str] | None:
    """The level and the line of the log about an answer; None for an unimportant answer."""
    when = f"round {event.round}: " if event.round else ""
    action = VERBS.get(event.verb, event.verb)
    if event.outcome != "ok":
        why = f"{event.hospital} failed to {action} ({event.outcome}): {event.reason}"
        return WARNING, when + why
    took = duration(event.seconds)
    if event.verb == "query.prepare":
        counts = [(event.metrics.get(f"num-{part}", nan), part) for part in ("train", "test")]
        parts = [f"{amount(count, 'image')} to {part} on" for count, part in counts if count >= 0]
        known = f": {', '.join(parts)}" if parts else ""
        return INFO, f"{event.hospital} is ready{known} ({took})"
    if event.seconds >= LONG_ANSWER:
        return INFO, f"{when}{event.hospital} took {took} to {action}"
    return None


def wait_line(waits: Sequence[Awaited], now: float) -> str:
    """The line about awaited answers; `now` is in the time of their `since`."""
    parts = []
    for verb in dict.fromkeys(each.verb for each in waits):
        of_verb = [each for each in waits if each.verb == verb]
        named = [each.hospital for each in of_verb if each.hospital]
        names = [join_names(named)] if named else []
        if unnamed := len(of_verb) - len(named):
            names.append(amount(unnamed, "hospital"))
        longest = max(0.0, now - min(each.since for each in of_verb))
        parts.append(f"{', '.join(names)} to {VERBS.get(verb, verb)} ({duration(longest)})")
    return f"waits for {'; '.join(parts)}"


def progress_line(finished: int, rounds: int, hospitals: int, left: float) -> str:
    """The finished rounds, the hospitals, and the seconds until the end (NaN = unknown)."""
    parts = [f"{finished} of {amount(rounds, 'round')}"]
    if hospitals:
        parts.append(amount(hospitals, "hospital"))
    if isfinite(left):
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def failures(events: Iterable[Event]) -> list[str]:
    """A line for each failure, in order, with its cure."""
    failed = [event for event in events if event.outcome != "ok"]
    lines = ((event_line(event), CURES.get(event.outcome, "")) for event in failed)
    return [f"{line[1]} {cure}".rstrip() for line, cure in lines if line]
