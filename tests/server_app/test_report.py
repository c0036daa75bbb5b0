"""What the report says of runs; what a browser makes of it: test_pages_in_a_browser.py."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from server_app.report import method
from server_app.report.operation import LISTED
from strategies.engine.events import Event
from tests.server_app.fake_runs import (
    FIGURES,
    HOSTILE,
    NAMES,
    RUNS,
    detailed,
    failed,
    fake_run,
    fifty,
    handed_on_with_images,
    learnt,
    one_average,
    one_missing,
    one_model,
    ring,
    serial,
    stayed_alone,
)


class Tags(HTMLParser):
    """Which elements a page has, what it loads, and its text."""

    def __init__(self, page):
        super().__init__()
        self.names, self.loaded, self.text = set(), set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.text += " "
        self.loaded |= {value for key, value in attrs if key in ("src", "href", "xlink:href")}

    def handle_data(self, data):
        self.text += data


def bare(page):
    """A page without the titles of cells, which narrow screens show."""
    return re.sub(' data-label="[^"]*"', "", page)


def text_of(page):
    return re.sub(r"\s+", " ", Tags(page).text)


@pytest.mark.parametrize("run", RUNS)
def test_a_page_loads_and_runs_nothing(run):
    page = RUNS[run]().page()
    tags = Tags(page)
    beside = {"summary.json", "accuracy_matrix.csv", "metrics.jsonl"}  # links, which load nothing
    assert all(target.startswith("#") for target in tags.loaded - beside)
    assert not tags.names & {"script", "img", "iframe", "link", "object"}
    assert not re.search(r"url\(|@import", page)


def test_the_title_says_method_data_and_date():
    page = learnt().page()
    title = re.search("<title>(.*)</title>", page)
    assert title
    assert unescape(title[1]) == (
        "Cyclical weight transfer, in its parallel form on the hospitals' own images "
        "(benign, melanoma), 22 November 2026"
    )


def test_without_rounds_the_page_does_not_speak_of_what_happens_in_each():
    """Hop stands for the number of a model's visit; the second is here in rounds 1 and 2."""
    visits = [
        Event("train", 1, 1, "graz", "graz"),
        Event("train", 1, 1, "linz", "linz"),
        Event("train", 1, 2, "linz", "graz"),
        Event("train", 2, 2, "graz", "linz"),
    ]
    pages = [text_of(fake_run(visits, "rwt", asynchronous=each).page()) for each in (False, True)]
    for words, there in (
        ("Every round each model goes to another hospital", [True, False]),
        ("hospitals do not wait for one another", [False, True]),
        ("columns are hops", [True, False]),
        ("columns are their first visit, their second", [False, True]),
        ("Seconds and bytes of every hop", [True, False]),
    ):
        assert [words in page for page in pages] == there


def test_the_sentences_are_those_of_the_summary():
    run = learnt()
    text = text_of(run.page())
    assert run.summary.worth
    assert all(each["text"] in text for each in run.summary.worth)


def test_a_run_that_hands_nothing_on_asks_for_no_gain():
    """Handed-on models are compared with those from before; here there is nothing to compare."""
    alone, handed_on = text_of(stayed_alone().page()), text_of(learnt().page())
    for words in ("Comparison with training alone", "is better?"):
        assert words not in alone
        assert words in handed_on
    assert "Models that hospitals hold" in alone
    held = alone.partition("Models that hospitals hold")[2]
    assert "–" not in held.partition("Results by class")[0]


def test_models_agree_where_several_were_tested_at_a_hospital():
    """With evaluate.cross=false each model has a test at one hospital alone."""
    held = [
        event
        for event in ring(NAMES, 2)
        if event.verb != "evaluate" or event.hospital == event.lineage
    ]
    for events, shown in ((ring(NAMES, 2), True), (held, False)):
        assert ("Agreement of the models" in fake_run(events).page()) == shown


@pytest.mark.parametrize("strategy", ["cwt", "sums"])
def test_the_own_model_of_sums_was_not_trained_for_a_visit(strategy):
    page = fake_run(ring(("graz", "linz"), 2), strategy=strategy).page()
    assert ("was trained for one visit only" in page) == (strategy != "sums")
    assert ("is the closed form of its own sums." in page) == (strategy == "sums")


def test_the_worst_model_is_drawn_below_each_mean():
    drawn = unescape(
        fake_run(ring(NAMES, 2, lambda model, at, _: 0.3 if at == "linz" else 0.8)).page()
    )
    assert "Worst: 'graz' at linz" in drawn
    assert "Mean of the models that hospitals hold" in drawn
    assert "Mean of every model at every hospital" in drawn


def test_the_same_run_gives_the_same_page():
    assert learnt().page() == learnt().page()


def test_a_run_of_five_hospitals_and_a_hundred_rounds_is_below_a_megabyte():
    names = [f"hospital-{place}" for place in range(5)]
    for run in (fake_run(ring(names, 100)), fake_run(serial(names, 100), "cwt-serial"), fifty()):
        assert len(run.page().encode()) < 1e6


def test_of_very_many_hospitals_no_picture_of_all_pairs_is_drawn(monkeypatch):
    said = "There are too many hospitals to show every model"
    picture = "Balanced accuracy of every model (row) at every hospital (column)"
    assert picture in learnt().page()
    monkeypatch.setattr(method, "PICTURED", 2)
    page = learnt().page()
    assert said in page
    assert picture not in page


@pytest.mark.parametrize(("high", "shown"), [(0.66, " (0.610 to 0.660)."), (0.61, ".")])
def test_what_is_estimated_from_a_sample_has_its_interval(high, shown):
    """An interval without width is none, here as in the verdict."""
    run = learnt()
    summary = replace(
        run.summary,
        federation_balanced_accuracy_low=0.61,
        federation_balanced_accuracy_high=high,
    )
    page = run._replace(summary=summary).page()
    value = f"{summary.federation_balanced_accuracy:.3f}"
    text = f"is estimated from a sample of them: after the last round {value}{shown}"
    assert text in " ".join(page.split())
    assert "estimated from a sample" not in run.page()


def test_too_many_numbers_for_the_cells_are_said_to_be_elsewhere():
    said = "There are too many hospitals to print the numbers"
    assert said in fifty().page()
    assert said not in learnt().page()


def test_what_comes_from_outside_cannot_become_markup():
    page = RUNS["hostile"]().page()
    assert "<script" not in page
    assert "<img" not in page
    assert all(name in text_of(page) for name in (HOSTILE[0], HOSTILE[1], HOSTILE[3]))


def test_routes_show_which_hospital_trained_a_model():
    """The model of graz: at linz, then at graz; wien is 3 on the way back."""
    events = [
        Event("train", round_, 1, hospital, "graz")
        for round_, hospital in enumerate(("graz", "linz", "graz"), 1)
    ] + [
        Event("train", 1, 1, "linz", "linz"),
        Event("train", 2, 1, "graz", "linz", "timeout", "No answer."),
        Event("train.rewind", 3, 1, "linz", "linz"),
    ]
    page = fake_run(events).page()
    cells = '<td class="{}">{}</td>'.format
    graz = cells("at home", 1) + cells("at", 2) + cells("at home", 1)
    linz = cells("at home", 2) + cells("miss", "1×") + cells("at home", "2↺")
    assert f'<th scope="row">1 graz</th>{graz}' in page
    assert f'<th scope="row">2 linz</th>{linz}' in page
    assert "×: the hospital missed the visit. ↺: the model was sent back" in text_of(page)


def test_the_routes_of_one_model_have_a_row_for_each_round():
    row = '<th scope="row">round 3</th><td class="at home">1</td><td class="at">2</td>'
    assert row in one_model().page()
    assert "there are no routes" in one_average().page()


def test_a_serial_run_is_shown_after_every_visit():
    """Every global accuracy is the mean of one 0.9 and otherwise 0.5."""
    text = text_of(fake_run(serial(NAMES, 4), "cwt-serial").page())
    mean = f"{0.5 + 0.4 / 3:.3f} ± 0.000"
    assert f"over all tested visits of the last 4 rounds: {mean}. The deviation" in text
    text = text_of(fake_run(serial(NAMES, 1), "cwt-serial").page())
    assert f"over all tested visits of the last round: {mean}. The deviation" in text
    assert "Results by visit" not in learnt().page()
    assert "Results by visit" not in one_average().page()


def test_a_visit_whose_model_is_refused_later_was_not_missed():
    """Linz refuses what graz made of its own model, and wien the first model of linz."""
    events = ring(NAMES, 2)
    refused = [("graz", "linz", 1, 1), ("linz", "linz", 0, 0)]
    late = [Event("undo", r, hop, place, model, "useless") for place, model, r, hop in refused]
    text = text_of(fake_run([*events, *late]).page())
    assert "Failures of hospitals: 2." in text
    assert "none missed a visit." in text
    assert "missed the visit" not in text
    assert "1 1 3 7.5 1.2 MB 1.2 MB 2 1 3 7.5" in text  # three visits in each hop
    own = Event("train", 3, 1, "graz", "linz", "useless")  # graz refuses a good model
    assert "graz missed at least one visit." in text_of(fake_run([*events, own]).page())


@pytest.mark.parametrize(
    ("run", "chance", "interval", "worst"),
    [
        (learnt, True, True, True),
        (lambda: fake_run(ring(NAMES[:1], 2)), True, True, False),  # one model, at one hospital
        (failed, False, False, True),  # details come after the last round
    ],
)
def test_the_caption_of_the_first_figure_names_only_what_is_there(run, chance, interval, worst):
    page = run().page()
    text, figure = text_of(page), page.partition("<figcaption>")[0]
    assert ("A constant answer gives 0.500, and 1 is perfect." in text) == chance
    assert ("A figure of 1 is perfect." in text) != chance
    assert ("In brackets the 95 % interval" in text) == interval
    assert ("Each mean of several models is followed by the worst of them." in text) == worst
    assert ("chance: a constant answer" in figure) == chance


def test_classes_are_shown_only_if_a_hospital_reports_one():
    """Until the last round none does; that is no lack of patients."""
    assert "Results by class" in learnt().page()
    text = text_of(failed().page())
    assert "Results by class" not in text
    assert "too few patients" not in text


def test_tests_are_counted_by_model():
    """A hospital tests all three in one answer; four rounds, three hospitals."""
    assert "test 36 0.5 0.5" in text_of(learnt().page())


def test_without_a_good_visit_no_bytes_of_a_visit_are_named():
    assert "One visit moves 0.8 MB, to and from the hospital together." in text_of(learnt().page())
    events = [replace(e, outcome="gone") if e.verb == "train" else e for e in ring(NAMES, 1)]
    assert "One visit moves" not in fake_run(events).page()


def test_participation_and_failures_are_named():
    page = one_missing().page()
    row = '<th scope="row">linz</th><td class="at">●</td><td class="miss">×</td>'
    assert row in page
    failure = ["timeout", "train", "1", "linz", "2", "No answer."]
    assert "".join(f"<td>{cell}</td>" for cell in failure) in bare(page)
    assert "The run was completed. Failures of hospitals: 1;" in text_of(page)


def test_privacy_accounts_are_shown_where_there_are_any(events):
    told = [
        replace(e, metrics={**e.metrics, "epsilon-spent": 0.0004}) if e.verb == "train" else e
        for e in events
    ]
    text = text_of(fake_run(told, train__dp__delta=1e-4).page())
    assert "Privacy accounts Models were trained with differential privacy (DP-SGD)." in text
    assert "δ is 0.0001." in text
    assert "A 0.0004" in text
    text = text_of(fake_run(told, "sums", sums__delta=1e-6).page())
    assert "Privacy accounts Sums of features have noise for differential privacy." in text
    assert "δ is 1e-06." in text
    assert "Privacy accounts" not in fake_run(events).page()


def test_failures_of_one_kind_are_one_line(events):
    page = fake_run([*events, *events[11:12] * 100]).page()
    assert "<td>timeout</td><td>train</td><td>101</td><td>B</td>" in bare(page)
    kinds = [replace(events[11], reason=f"Reason {k}.") for k in range(LISTED + 5)]
    page = fake_run([*events, *kinds]).page()
    assert page.count("<td>timeout</td>") == LISTED
    assert f"The first {LISTED} kinds are here" in page


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_run_may_fail_before_anything_was_measured(events, count):
    page = fake_run(events[:count], error="RunError: no more").page()
    assert "The run failed. RunError: no more" in page
    assert "No model was tested" in page


def test_privacy_is_told_in_words_with_limits_and_results():
    page = handed_on_with_images().page()
    text = text_of(page)
    assert "graz pass" in text
    reason = "The synthetic images may not leave: image 3 is too near."
    assert f"wien FAIL {reason} It takes part without them." in text
    assert "55%; by chance with probability 0.2 probability at least 0.001" in text
    assert "Too near and drawn again 0.4% at most 50% pass" in text
    assert "Was the privacy loss used in the training? yes yes pass" in text
    assert "fell from 0.0116 to 0.00860 (perceptual distance, LPIPS, vgg)" in text
    assert "Released synthetic images" not in learnt().page()


@pytest.mark.parametrize(
    ("figure", "value", "said"),
    [
        ("release-nearer-p", 0.0005, "50% if the generative model remembers no image FAIL"),
        ("release-refused", 0.1, "10% 0% FAIL"),
        ("release-refused", 0.0003, "0.03% 0% FAIL"),
        ("release-discarded", 0.6, "60.0% at most 50% FAIL"),
        ("gan-private", 0.0, "no yes FAIL"),
        ("diversity-synthetic-lpips-vgg", 0.01, "little of the variety"),
        ("diversity-synthetic-lpips-vgg", 0.01, "graz pass 2"),  # with that of the projection
    ],
)
def test_a_figure_beyond_its_limit_fails(figure, value, said):
    events = ring(NAMES, 2)
    events[0] = replace(events[0], metrics={**events[0].metrics, **FIGURES, figure: value})
    assert said in text_of(fake_run(events, "feder").page())


def test_a_projection_distance_that_rose_is_no_remark():
    events = ring(NAMES, 2)
    rose = {**FIGURES, "projection-private-lpips-vgg": 0.02}
    events[0] = replace(events[0], metrics={**events[0].metrics, **rose})
    assert "fell from" not in fake_run(events, "feder").page()


@pytest.mark.parametrize("silent", ["graz", "graz linz wien"])
def test_hospitals_that_tell_no_figures_are_shown_as_such(silent):
    """A hospital of a deployment may have too few patients for any."""
    events = [
        replace(event, metrics={})
        if event.verb == "evaluate" and event.hospital in silent
        else event
        for event in ring(NAMES, 2)
    ]
    page = fake_run(events).page()
    assert ("Every model at every hospital" in page) == (silent == "graz")
    assert "nan" not in text_of(page)


def test_a_class_of_which_nothing_is_told_is_a_dash():
    told = {k: v for k, v in detailed(0.8, 2).items() if "class-1" not in k}
    events = [
        replace(event, metrics=told) if (event.verb, event.round) == ("evaluate", 2) else event
        for event in ring(NAMES, 2)
    ]
    text = text_of(fake_run(events).page())
    assert "graz none, or too few patients to tell" in text
