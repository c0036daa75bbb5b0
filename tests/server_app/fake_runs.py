"""Runs that never happened, as the report gets them: a summary, its events, its settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isnan, nan
from types import MappingProxyType
from typing import Any, NamedTuple

import tomli_w
from flwr.common.config import unflatten_dict

from pages.pictures import Strip
from server_app.report import render
from server_app.summary import Record, Summary, measure_round, summarise
from strategies.engine.events import Event
from tests.fakes import run_config

IMAGES = 40  # of each class that a hospital tests on
ALONE = 0.55  # accuracy of a hospital's own model before the first hand-off
CLASSES = ("benign", "melanoma")
HOSTILE = [
    "<script>document.title='hit'</script>",
    '"><img src=x onerror="document.title=\'hit\'">',
    "Kranken­haus " + "W" * 60,
    "& ]]> ' {{ }} $a_1",
]
FIGURES = {
    "gan-iterations": 300.0,
    "gan-private": 1.0,
    "frechet-classifier": 1.01,
    "ada-p": 0.0,
    "release-passed": 1.0,
    "release-discarded": 0.004,
    "release-refused": 0.0,
    "release-median-rank": 0.4,
    "held-out-refused": 0.01,
    "release-nearer-to-training": 0.55,
    "release-nearer-p": 0.2,
    "projection-plain-lpips-vgg": 0.0116,
    "projection-private-lpips-vgg": 0.0086,
    "diversity-real-lpips-vgg": 0.037,
    "diversity-synthetic-lpips-vgg": 0.03,
}

Accuracy = Callable[[str, str, int], float]  # of a model, at a hospital, after a round


class FakeRun(NamedTuple):
    """What `server_app.report.render` is given."""

    summary: Summary
    events: list[Event]
    toml: str

    def page(self, pictures: Mapping[str, Sequence[Strip]] | None = None) -> str:
        name = "2026-11-22_14-20-03-run"
        return render(name, self.summary, self.events, self.toml, pictures)


def rising(model: str, hospital: str, round_: int) -> float:
    """All learn; at home a model is a little better."""
    return min(0.5 + 0.1 * round_, 0.85) + 0.05 * (model == hospital)


def ring(
    names: Sequence[str], rounds: int, accuracy: Accuracy = rising, detail: bool = True
) -> list[Event]:
    """Every model goes round the same ring, and is tested everywhere after each round."""
    events = [_prepared(name) for name in names]
    for round_ in range(1, rounds + 1):
        for place, name in enumerate(names):
            model = names[(place + round_) % len(names)]
            events.append(_visit(round_, 1, name, model))
        for model in names:
            for name in names:
                share = accuracy(model, name, round_)
                told = detailed(share, 2) if round_ == rounds and detail else _plain(share)
                events.append(_test(round_, 1, name, model, told))
        for place, name in enumerate(names):
            held = names[(place + round_ + 1) % len(names)]
            events.append(Event("hand-off", round_, 1, name, held))
    return events + _alone(names, rounds, 2) * detail


def serial(names: Sequence[str], rounds: int, classes: int = 2) -> list[Event]:
    """One model goes from one to the next, and is tested everywhere after each visit."""
    events = [_prepared(name) for name in names]
    for round_ in range(1, rounds + 1):
        for hop, visited in enumerate(names, 1):
            events.append(_visit(round_, hop, visited, names[0]))
            for name in names:
                share = 0.5 + 0.4 * (name == visited)
                last = (round_, hop) == (rounds, len(names))
                told = detailed(share, classes) if last else _plain(share)
                events.append(_test(round_, hop, name, names[0], told))
        events += [Event("hand-off", round_, len(names), name, names[0]) for name in names]
    return events + _alone(names, rounds, classes)


def averaged(names: Sequence[str], rounds: int) -> list[Event]:
    """All train one model at the same time."""
    return [
        replace(event, hop=1) if event.verb != "query.prepare" else event
        for event in serial(names, rounds)
    ]


def fake_run(
    events: list[Event],
    strategy: str = "cwt",
    classes: Sequence[str] = CLASSES,
    error: str = "",
    tasks: Sequence[int] = (),
    enrolment: Mapping[str, Sequence[str]] = MappingProxyType({}),
    **overrides: Any,
) -> FakeRun:
    """The run of these events."""
    numbers = sorted({event.round for event in events} - {0})
    rounds = [
        measure_round(r, [event for event in events if event.round == r], cross=True)
        for r in numbers
    ]
    known: dict[str, Any] = {"classes": classes, "tasks": tasks, "enrolment": enrolment}
    known["began"] = "2026-11-22T14:20:03"
    summary = summarise(Record(strategy, events, rounds, 60.0, error, **known))
    config = unflatten_dict(run_config(strategy=strategy, **overrides))
    return FakeRun(summary, events, tomli_w.dumps(config))


def detailed(share: float, classes: int) -> dict[str, float]:
    """What a hospital tells of a model after the last round; nothing if the share is NaN.

    `share` of each class is right, and the rest is taken for the next class.
    """
    if isnan(share):
        return {}
    right = round(IMAGES * share)
    told = {"num-examples": IMAGES * classes, "num-patients": 30.0 * classes}
    figures = {
        **dict.fromkeys(("accuracy", "balanced-accuracy", "auroc"), share),
        "calibration-error": 0.06,
        "gain": share - ALONE,
    }
    for k in range(classes):
        told |= {f"answers-{k}-of-class-{k}": right, f"images-of-class-{k}": IMAGES}
        told |= {f"answers-{(k + 1) % classes}-of-class-{k}": IMAGES - right}
        told |= {f"patients-of-class-{k}": 30.0, f"threshold-of-class-{k}": 0.3}
        figures |= {f"{name}-of-class-{k}": share for name in ("recall", "sensitivity")}
        figures |= {f"specificity-of-class-{k}": 0.7}
    for b in (6, 8):
        told |= {f"images-in-bin-{b}": 20, f"confidence-in-bin-{b}": (b + 0.5) / 10}
        figures |= {f"right-in-bin-{b}": b / 10}
    for name, value in figures.items():
        told |= {name: value, f"{name}-low": value - 0.04, f"{name}-high": value + 0.04}
    return told


def _prepared(name: str) -> Event:
    counts = {f"{part}-images-of-class-{k}": 50.0 for part in ("train", "test") for k in (0, 1)}
    numbers = {"num-train": 100.0, "num-test": 80.0, "num-quarantined": 1.0}
    facts = {"data": "folder", "train-images": "3f0a9c0011223344", "own-settings": ["model=cnn"]}
    metrics = {"seconds-prepare": 2.0, **numbers, **counts}
    return Event("query.prepare", 0, 0, name, name, metrics=metrics, seconds=3.0, facts=facts)


def _visit(round_: int, hop: int, hospital: str, model: str) -> Event:
    return Event(
        "train",
        round_,
        hop,
        hospital,
        model,
        metrics={"train-loss": 0.4, "seconds-train": 6.0},
        seconds=7.5,
        bytes_sent=400_000,
        bytes_received=410_000,
        epochs=1,
    )


def _test(round_: int, hop: int, hospital: str, model: str, told: dict[str, float]) -> Event:
    return Event("evaluate", round_, hop, hospital, model, metrics=told, seconds=0.5, epochs=1)


def _plain(share: float) -> dict[str, float]:
    """What a hospital tells of a model after other rounds."""
    told = {"accuracy": share, "balanced-accuracy": share, "num-examples": 2.0 * IMAGES}
    return {} if isnan(share) else told


def _alone(names: Iterable[str], round_: int, classes: int) -> list[Event]:
    told = detailed(ALONE, classes)
    return [Event("standalone", round_, 0, name, metrics=told) for name in names]


NAMES = ("graz", "linz", "wien")


def learnt() -> FakeRun:
    return fake_run(ring(NAMES, 4))


def learnt_nothing() -> FakeRun:
    return fake_run(ring(NAMES, 4, lambda model, hospital, round_: 0.5))


def stayed_alone() -> FakeRun:
    """Nothing is handed on: each model is trained and held at home, and tested everywhere."""
    events = [
        replace(event, lineage=event.hospital) if event.verb in ("train", "hand-off") else event
        for event in ring(NAMES, 2)
        if event.verb != "standalone"
    ]
    return fake_run(events, "standalone")


def handed_on_with_images() -> FakeRun:
    """FedER: at wien the check failed, and it takes part without a buffer."""
    events = ring(NAMES, 4)
    events[:2] = [replace(e, metrics={**e.metrics, **FIGURES}) for e in events[:2]]
    reason = "The synthetic images may not leave: image 3 is too near."
    events.insert(0, Event("query.prepare", 0, 0, "wien", "wien", "release", reason))
    return fake_run(events, "feder")


def with_noise() -> FakeRun:
    """Real hospitals. At wien too few patients have the second class."""
    noise = {f"{name}-noise": 0.03 for name in ("accuracy", "balanced-accuracy", "gain")}

    def told(event: Event) -> dict[str, float]:
        kept = {k: v for k, v in event.metrics.items() if event.hospital != "wien" or "-1" not in k}
        return kept | {
            name: sd for name, sd in noise.items() if name.removesuffix("-noise") in kept
        }

    return fake_run([replace(event, metrics=told(event)) for event in ring(NAMES, 4)])


def failed() -> FakeRun:
    """One that ended in its second round."""
    events = ring(NAMES, 1, detail=False)
    gone = "The hospital cannot be reached."
    events += [Event("train", 2, 1, name, name, "gone", gone) for name in NAMES]
    return fake_run(events, error="RunError: too few hospitals are left")


def fifty() -> FakeRun:
    """Fifty hospitals."""
    return fake_run(ring([f"hospital-{place:02}" for place in range(50)], 3))


def hostile() -> FakeRun:
    """Hospitals, classes and failures with texts that are markup, or very long."""
    events = ring(HOSTILE, 2)
    events[:4] = [replace(e, metrics={**e.metrics, **FIGURES}) for e in events[:4]]
    events.append(Event("train", 2, 1, HOSTILE[0], HOSTILE[1], "crashed", HOSTILE[1]))
    return fake_run(events, "feder", classes=HOSTILE[:2], error=HOSTILE[0])


def one_missing() -> FakeRun:
    """Linz tells no figures, and misses its visits in the second round."""
    events = [
        replace(event, outcome="timeout", reason="No answer.", metrics={})
        if (event.verb, event.round, event.hospital) == ("train", 2, "linz")
        else event
        for event in ring(NAMES, 4, lambda m, h, r: nan if h == "linz" else rising(m, h, r))
    ]
    return fake_run(events)


def not_evaluated() -> FakeRun:
    events = [e for e in ring(NAMES, 2, detail=False) if e.verb not in ("evaluate", "hand-off")]
    return fake_run(events)


def one_model() -> FakeRun:
    """One model that visits all, tested after every visit."""
    return fake_run(serial(NAMES, 3, 10), "cwt-serial", [str(digit) for digit in range(10)])


def one_average() -> FakeRun:
    return fake_run(averaged(NAMES, 3), "fedavg")


def in_tasks(count: int = 3, rounds: int = 12) -> FakeRun:
    """Images in tasks, each half forgotten in the next one. Wien has too few patients of task 2."""
    tasks = [1 + number * count // rounds for number in range(rounds)]

    def told(event: Event) -> dict[str, float]:
        now = tasks[event.round - 1]
        learnt = 0.6 + 0.3 * tasks[: event.round].count(now) * count / rounds
        return {
            f"accuracy-{kind}-task-{task}": max(low, learnt - fall * (now - task))
            for kind, low, fall in (("of", 0.1, 0.3), ("in", 0.5, 0.1))
            for task in range(1, now + 1)
            if (event.hospital, task) != ("wien", 2)
        }

    events = [
        replace(event, metrics={**event.metrics, **told(event)})
        if event.verb == "evaluate"
        else event
        for event in ring(NAMES, rounds)
    ]
    return fake_run(events, tasks=tasks)


PLAN = {"graz": ["active", "active"], "linz": ["active", "left"], "wien": ["not-yet", "active"]}
SMALL = {"embedding-linked": 0.02, "embedding-inverted": 0.03, "embedding-bits-median": 16.0}
SENT: dict[tuple[str, int], tuple[int, dict[str, float]]] = {
    ("graz", 1): (48, {**SMALL, "embedding-bits-most": 33.0}),
    ("graz", 3): (48, {**SMALL, "embedding-linked": 0.3}),
    ("linz", 1): (0, {}),
    ("linz", 2): (0, {}),
    ("wien", 3): (20, {}),
}


def by_plan(kind: str = "sampled") -> FakeRun:
    """FIL-VER by `PLAN`, two rounds a task. Embeddings as in `SENT`: linz keeps them, twice."""
    tasks = (1, 1, 2, 2)

    def told(event: Event) -> Event:
        place = event.hospital, event.round
        if event.verb == "train" and place in SENT:
            came, figures = SENT[place]
            facts = {"embeddings": kind, "came": came}
            return replace(event, metrics={**event.metrics, **figures}, facts=facts)
        if event.verb == "evaluate":
            of_tasks = {f"accuracy-of-task-{t}": 0.6 for t in range(1, tasks[event.round - 1] + 1)}
            return replace(event, metrics={**event.metrics, **of_tasks})
        return event

    events = [
        told(event)
        for event in averaged(NAMES, 4)
        if not event.round or PLAN[event.hospital][tasks[event.round - 1] - 1] == "active"
    ]
    return fake_run(events, "fil-ver", tasks=tasks, enrolment=PLAN)


RUNS: dict[str, Callable[[], FakeRun]] = {
    run.__name__: cache(run)
    for run in (
        *(
            learnt,
            learnt_nothing,
            with_noise,
            stayed_alone,
            handed_on_with_images,
            failed,
            fifty,
            hostile,
            one_missing,
        ),
        *(not_evaluated, one_model, one_average, in_tasks, by_plan),
    )
}
