import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from server_app.measures import measure_round, summarise
from server_app.plots import NAMED
from server_app.report import LISTED, render
from strategies.engine.events import Event


def page_of(events, cross=True, error=""):
    rounds = [
        measure_round(r, [event for event in events if event.round == r], cross)
        for r in sorted({event.round for event in events} - {0})
    ]
    return render("the-run", summarise("rwt", events, rounds, 60.0, error), 'model = "cnn"\n')


def serial(names, rounds=3):
    """One model goes from one to the next, and is tested everywhere after each visit."""
    for round_ in range(1, rounds + 1):
        for hop, visited in enumerate(names, 1):
            yield Event("train", round_, hop, visited, "global", epochs=1)
            for name in names:
                metrics = {"accuracy": 0.5 + 0.4 * (name == visited), "num-examples": 10}
                yield Event("evaluate", round_, hop, name, "global", metrics=metrics, epochs=1)
        for name in names:
            yield Event("hand-off", round_, len(names), name, "global")


def federation(names):
    """Two rounds in which everybody trains the model of everybody's next neighbour."""
    for round_ in (1, 2):
        for place, name in enumerate(names):
            yield Event("train", round_, 1, name, names[(place + round_) % len(names)], seconds=1.0)
        for model in names:
            for name in names:
                metrics = {"accuracy": 0.5 + 0.1 * round_, "num-examples": 10}
                yield Event("evaluate", round_, 1, name, model, metrics=metrics)
        for place, name in enumerate(names):
            yield Event("hand-off", round_, 1, name, names[(place + round_ + 1) % len(names)])


class Tags(HTMLParser):
    """Which elements a page has, and what it loads."""

    def __init__(self, page):
        super().__init__()
        self.names, self.loaded = set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.loaded |= {value for key, value in attrs if key in ("src", "href", "xlink:href")}


@pytest.mark.parametrize("count", [1, 2, 10, 15])
def test_a_page_shows_every_hospital_and_loads_nothing(count):
    names = [f"hospital-{place:02}" for place in range(count)]
    page = page_of(list(federation(names)))
    tags = Tags(page)
    assert all(f">{name}</text>" in page for name in names)
    assert page.count("<svg") == 5
    assert all(target.startswith(("#", "data:")) for target in tags.loaded)
    assert "script" not in tags.names
    assert not re.search(r"url\((?!#)|@import", page)


@pytest.mark.parametrize(("count", "pictures"), [(2, 7), (NAMED, 7), (NAMED + 1, 6)])
def test_a_serial_run_is_shown_after_every_visit(count, pictures):
    """Every global accuracy is the mean of one 0.9 and otherwise 0.5."""
    page = page_of(list(serial([f"hospital-{place:02}" for place in range(count)])))
    assert "<h2>After every visit</h2>" in page
    assert f"of the last 3 rounds: {0.5 + 0.4 / count:.3f} ± 0.000. The deviation" in page
    assert page.count("<svg") == pictures


def test_the_balanced_accuracy_of_visits_is_shown_where_it_was_measured():
    counts = {"images-of-class-0": 4, "right-of-class-0": 3}
    events = [
        replace(event, metrics={**event.metrics, **counts}) if event.verb == "evaluate" else event
        for event in serial(["A", "B"])
    ]
    assert "0.700 ± 0.000, balanced 0.750 ± 0.000." in page_of(events)


def test_other_runs_are_not_shown_after_every_visit(events):
    """Several models; one model that all train at once, or one hospital; no cross-evaluation."""
    fedavg = [replace(event, hop=min(event.hop, 1)) for event in serial(["A", "B"])]
    for others in (events, fedavg, list(serial(["A"]))):
        assert "After every visit" not in page_of(others)
    assert "After every visit" not in page_of(list(serial(["A", "B"])), cross=False)


def test_the_same_run_gives_the_same_page(events):
    assert page_of(events) == page_of(events)


def test_what_comes_from_outside_cannot_become_markup():
    bad = "<script>$a_1</script>"
    events = [
        *federation([bad, "B"]),
        Event("train", 2, 1, bad, bad, "crashed", "<script>alert(1)</script>"),
    ]
    assert "<script" not in page_of(list(serial([bad, "B"])))
    page = page_of(events, error="RuntimeError: <script>alert(2)</script>")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;script&gt;alert(2)" in page


def test_failures_are_named(events):
    page = page_of(events)
    assert 'class="red"' in page
    assert "<td>B</td><td>train</td><td>A</td><td>timeout</td><td>No answer.</td>" in page
    assert 'class="red"' not in page_of(events[:10])


def test_many_failures_are_cut_short(events):
    page = page_of([*events, *events[11:12] * LISTED])
    assert page.count("<td>timeout</td>") == LISTED
    assert f"Failures of hospitals: {LISTED + 1}." in page


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_run_may_fail_before_anything_was_measured(events, count):
    assert "The run failed. RunError" in page_of(events[:count], error="RunError: no more")


def test_a_page_without_cross_evaluation(events):
    own = [e for e in events if e.verb != "evaluate" or e.hospital != e.lineage]
    assert "<td>–</td>" in page_of(own, cross=False)


def test_what_hospitals_measured_of_their_synthetic_images_is_shown(events):
    figures = {"num-train": 7.0, "release-passed": 1.0, "fid": 12.5, "seconds-prepare": 3.0}
    prepared = [Event("query.prepare", 0, 0, name, name, metrics=figures) for name in "BA"]
    page = page_of([*prepared, *events])
    assert "<th></th><th>A</th><th>B</th>" in page
    assert "<td>fid</td><td>12.500</td><td>12.500</td>" in page
    assert "release-passed" not in page
    assert "Synthetic images" not in page_of(events)


@pytest.mark.parametrize("silent", ["A", "B", "AB"])
@pytest.mark.parametrize("one_model", [False, True])
def test_hospitals_that_tell_no_figures_are_shown_as_such(silent, one_model, events):
    """A hospital of a deployment may have too few patients for any."""
    events = list(serial("AB")) if one_model else events
    told = [
        replace(event, metrics={})
        if event.verb == "evaluate" and event.hospital in silent
        else event
        for event in events
    ]
    page = page_of(told)
    assert "completed" in page
    assert ("Every model at every hospital" in page) == (silent != "AB")
