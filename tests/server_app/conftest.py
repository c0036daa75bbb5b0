import pytest

from strategies.engine.events import Event


def evaluated(round_, model, hospital, accuracy, hop=1, epochs=0, **counts):
    """A test; the classes are balanced, so that both accuracies are the same."""
    images = {"A": 10, "B": 30}.get(hospital, 20)
    same = {"accuracy": accuracy, "balanced-accuracy": accuracy, "num-examples": images}
    metrics = {**same, **counts}
    return Event("evaluate", round_, hop, hospital, model, "ok", "", metrics, 0.5, epochs=epochs)


def visit(round_, model, hospital):
    return Event(
        "train",
        round_,
        1,
        hospital,
        model,
        metrics={"train-loss": 0.4, "seconds-train": 6.0, "seconds-serialise": 1.0},
        seconds=10.0,
        bytes_sent=100,
        bytes_received=120,
    )


@pytest.fixture
def events():
    """Two rounds of hospitals A and B. In the second one B does not answer in time.

    round 1          at A (10 images)   at B (30)     round 2       at A    at B
    model A, by A    0.9                0.5           model A       0.8     0.4
    model B, by B    0.6                0.8           model B, by A 0.7     0.5
    held after it    B                  A             held          A       B
    """
    prepared = {"seconds-prepare": 3.0, "seconds-serialise": 1.0}
    return [
        Event("query.prepare", 0, 0, "A", "A", metrics=prepared, seconds=5.0),
        Event("query.prepare", 0, 0, "B", "B", metrics=prepared, seconds=5.0),
        visit(1, "A", "A"),
        visit(1, "B", "B"),
        evaluated(1, "A", "A", 0.9),
        evaluated(1, "A", "B", 0.5),
        evaluated(1, "B", "A", 0.6),
        evaluated(1, "B", "B", 0.8),
        Event("hand-off", 1, 1, "A", "B"),
        Event("hand-off", 1, 1, "B", "A"),
        visit(2, "B", "A"),
        Event("train", 2, 1, "B", "A", "timeout", "No answer.", seconds=20.0, bytes_sent=100),
        evaluated(2, "A", "A", 0.8),
        evaluated(2, "A", "B", 0.4),
        evaluated(2, "B", "A", 0.7),
        evaluated(2, "B", "B", 0.5),
        Event("hand-off", 2, 1, "A", "A"),
        Event("hand-off", 2, 1, "B", "B"),
    ]


def serial_round(round_):
    """One model visits A (10 images), then B (30), for two epochs each, tested after every one.

                    at A    at B    global
    hop 1, by A     0.5     0.1     (5 + 3) / 40 = 0.2
                    0.9     0.5     (9 + 15) / 40 = 0.6     after the visit
    hop 2, by B     0.5     0.5     (5 + 15) / 40 = 0.5
                    0.5     0.9     (5 + 27) / 40 = 0.8     after the visit
    """
    accuracies = {(1, 1): (0.5, 0.1), (1, 2): (0.9, 0.5), (2, 1): (0.5, 0.5), (2, 2): (0.5, 0.9)}
    for hop, hospital in enumerate("AB", 1):
        yield Event("train", round_, hop, hospital, "global", epochs=2)
        for epochs in (2, 1):
            for where, accuracy in zip("AB", accuracies[hop, epochs], strict=True):
                yield evaluated(round_, "global", where, accuracy, hop, epochs)
    yield Event("hand-off", round_, 2, "A", "global")


@pytest.fixture
def serial():
    """Three such rounds."""
    return [event for round_ in (1, 2, 3) for event in serial_round(round_)]
