from dataclasses import replace
from itertools import combinations
from math import isnan, nan
from statistics import fmean

import pytest
from pydantic_core import to_json

from learning.intervals import number
from pages.figures import assessment
from server_app.measures import sampled_figure
from server_app.summary import Record, measure_round, summarise
from strategies.engine.events import Event
from tests.server_app.conftest import evaluated, serial_round


def measured(events, *rounds, cross=True):
    return [measure_round(r, [e for e in events if e.round == r], cross) for r in rounds]


def summary_of(events, error=""):
    return summarise(Record("rwt", events, measured(events, 1, 2), 60.0, error))


def test_the_figures_of_a_round(events):
    """Round 1, from the table in conftest.py.

    federation    (0.9 + 0.5 + 0.6 + 0.8) / 4                   = 0.7
    pooled        (10·(0.9 + 0.6) + 30·(0.5 + 0.8)) / (2·40)    = 0.675
    personalized  A holds model B: 0.6, B holds A: 0.5          = 0.55
    origin        A's model at A 0.9, B's at B 0.8              = 0.85
    as printed    (0.9 + 0.5 + 0.6 + 0.8) / (2·2)               = 0.7
    disagreement  at A 0.9 and 0.6, at B 0.5 and 0.8: both 0.3/√2
    after visit   A trained A: 0.9, B trained B: 0.8            = 0.85
    """
    [round_] = measured(events, 1)
    assert round_.figures["federation_accuracy"] == pytest.approx(0.7)
    assert round_.figures["pooled_federation_accuracy"] == pytest.approx(0.675)
    assert round_.figures["personalized_accuracy"] == pytest.approx(0.55)
    assert round_.figures["origin_accuracy"] == pytest.approx(0.85)
    assert round_.figures["fa_as_printed"] == pytest.approx(0.7)
    assert round_.figures["disagreement"] == pytest.approx(0.3 / 2**0.5)
    assert round_.figures["accuracy_after_visit"] == pytest.approx(0.85)
    assert round_.figures["train_loss"] == pytest.approx(0.4)
    assert round_.held_figures("accuracy") == {"A": 0.6, "B": 0.5}
    assert round_.trained == {"A", "B"}


@pytest.mark.parametrize("cross", [True, "sample:2"])
def test_the_order_of_answers_changes_no_digit_and_no_row(cross):
    """In floating point 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1."""
    metrics = [
        {"accuracy": k / 10, "num-examples": 1.0, "accuracy-noise": k / 70} for k in (1, 2, 3)
    ]
    ready = {"release-passed": 1.0, "release-discarded": 0.0, "epsilon-spent": 1.0}
    answers = [
        event
        for name, own in zip("ABC", metrics, strict=True)
        for event in (
            Event("query.prepare", 0, 0, name, metrics=ready),
            Event("hand-off", 1, 1, name, "global"),
            Event("evaluate", 1, 1, name, "global", metrics=own),
        )
    ]
    found = []
    for events in (answers, answers[::-1]):
        rounds = [measure_round(1, events, cross)]
        found.append(to_json(summarise(Record("fedavg", events, rounds, 60.0, ""))))
    assert found[0] == found[1]


def test_a_summary_is_about_the_last_evaluated_round(events):
    """Round 2: federation 2.4/4; A holds A and B holds B: (0.8 + 0.5)/2; only A made a visit."""
    summary = summary_of(events)
    assert summary.federation_accuracy == pytest.approx(0.6)
    assert summary.personalized_accuracy == pytest.approx(0.65)
    assert summary.accuracy_after_visit == pytest.approx(0.7)
    assert summary.accuracy_matrix == [[0.8, 0.4], [0.7, 0.5]]
    assert summary.history["round"] == [1, 2]
    assert summary.history["federation_accuracy"] == pytest.approx([0.7, 0.6])
    assert summary.history["held"] == {"A": [0.6, 0.8], "B": [0.5, 0.5]}
    assert (summary.rounds, summary.best_round) == (2, 1)
    assert summary.origin_accuracy == pytest.approx((0.8 + 0.5) / 2)


def test_the_best_of_each_accuracy_may_come_from_different_rounds(events):
    """Federation 0.7 and 0.6, personalized 0.55 and 0.65."""
    best = summary_of(events).best
    assert best["federation_accuracy"] == pytest.approx(0.7)
    assert best["personalized_accuracy"] == pytest.approx(0.65)
    assert isnan(best["ensemble_accuracy"])


def test_the_printed_form_is_the_mean_for_two_models_only():
    """Three models at two hospitals, right half the time: 6 · 0.5 / (2·2) = 0.75."""
    tests = [evaluated(1, model, h, 0.5) for model in ("A", "B", "C") for h in ("A", "B")]
    figures = measured(tests, 1)[0].figures
    assert figures["federation_accuracy"] == 0.5
    assert figures["fa_as_printed"] == pytest.approx(0.75)


def test_convergence_has_n_minus_1_in_its_deviation(events):
    """At B: 0.4 and 0.5, mean 0.45, deviations ∓0.05, std √(2·0.05² / (2 - 1)) = 0.05·√2."""
    at_b = summary_of(events).node_convergence["B"]
    same = {"mean": pytest.approx(0.45), "std": pytest.approx(0.05 * 2**0.5)}
    assert at_b == {**same, **{f"balanced_{name}": value for name, value in same.items()}}


def test_one_model_has_no_deviation(events):
    events = [event for event in events if event.lineage != "B"]
    assert isnan(summary_of(events).node_convergence["A"]["std"])


def test_waiting_is_what_hospitals_did_not_report(events):
    """All messages: 2·5 + 3·10 + 20 + 8·0.5 = 64 s.

    Reported: prepare 2·3, train 3·6, serialise 5·1; nothing of the 8 evaluations. 64 - 29 = 35.
    """
    assert summary_of(events).seconds == {
        "prepare": 6.0,
        "train": 18.0,
        "evaluate": 0.0,
        "serialise": 5.0,
        "wait": 35.0,
    }


def test_bytes_per_hop_are_those_of_a_visit_that_succeeded(events):
    summary = summary_of(events)
    assert (summary.bytes_sent, summary.bytes_received) == (4 * 100, 3 * 120)
    assert summary.bytes_per_hop == 220


def test_who_took_part_and_who_failed(events):
    summary = summary_of(events)
    assert summary.status == "completed with failures"
    assert summary.participation == {
        "A": {"visits": 2, "epochs": 0, "visited": [1, 2], "missed": []},
        "B": {"visits": 1, "epochs": 0, "visited": [1], "missed": [2]},
    }
    assert summary.failures == [
        {
            "round": 2,
            "hop": 1,
            "verb": "train",
            "hospital": "B",
            "lineage": "A",
            "outcome": "timeout",
            "reason": "No answer.",
        }
    ]


def test_a_privacy_account_is_that_after_the_last_visit(events):
    spending = [
        replace(event, metrics={**event.metrics, "epsilon-spent": float(k)})
        for k, event in enumerate(events)
        if event.verb == "train" and event.outcome == "ok"
    ]
    last = {event.hospital: event.metrics["epsilon-spent"] for event in spending}
    assert len(set(last)) == 2
    assert summary_of(spending).epsilon_spent == last
    assert summary_of(events).epsilon_spent == {}


def test_status_without_failures_and_with_an_error(events):
    assert summary_of(events[:10]).status == "completed"
    assert summary_of(events, "RunError: nobody is there").status == "failed"


def test_after_visit_is_not_read_from_a_model_that_others_trained_too():
    """The matrix shows `global` after the last hop: what C left of it, not A (hop 1) or B (hop 1).

    A said itself how the model did after its visit, B did not: (0.9 + 0.7) / 2 = 0.8.
    """
    events = [
        Event("train", 1, 1, "A", "global", metrics={"accuracy-after-visit": 0.9}),
        Event("train", 1, 1, "B", "global"),
        Event("train.rewind", 1, 2, "C", "global"),
        *(Event("evaluate", 1, 2, h, "global", metrics={"accuracy": 0.7}) for h in "ABC"),
    ]
    [round_] = measured(events, 1)
    assert round_.figures["accuracy_after_visit"] == pytest.approx(0.8)


def test_everything_but_visits_is_about_the_latest_version_of_a_model(serial):
    """From the table in conftest.py: what B left, 0.5 at A, 0.9 at B."""
    [round_] = measured(serial, 1)
    accuracies = {pair: test["accuracy"] for pair, test in round_.tests.items()}
    assert accuracies == {("global", "A"): 0.5, ("global", "B"): 0.9}
    assert round_.held_figures("accuracy") == {"A": 0.5}
    assert round_.figures["federation_accuracy"] == pytest.approx(0.7)
    assert round_.figures["pooled_federation_accuracy"] == pytest.approx(0.8)


def undone_in_round(round_, visit_round=2, hop=2):
    """A took the copy of `hop` for good, B did not; then both test the copy of hop 1."""
    return [
        evaluated(round_, "m", "A", 0.1, hop),
        Event("evaluate", round_, hop, "B", "m", "useless"),
        Event("undo", visit_round, hop, "C", "m", "useless"),
        evaluated(round_, "m", "A", 0.7, 1),
        evaluated(round_, "m", "B", 0.9, 1),
    ]


@pytest.mark.parametrize("visit_round", [1, 2])
def test_the_figures_of_an_undone_model_are_those_of_the_copy_that_is_tested_instead(visit_round):
    round_ = measure_round(2, undone_in_round(2, visit_round), cross=True)
    assert round_.figures["federation_accuracy"] == pytest.approx(0.8)
    assert round_.trained == frozenset()
    assert [row["hop"] for row in round_.visits] == [1, 2]  # every version


def test_an_undone_model_that_is_not_tested_again_keeps_its_figures():
    """Also while its tests are under way: without rounds, hospitals refuse it meanwhile."""
    before = undone_in_round(2)[:3]
    for after in ([], [evaluated(2, "m", "D", 0.3, 2)]):
        tests = measure_round(2, [*before, *after], cross=True).tests
        assert tests.keys() == {("m", "A"), *(("m", event.hospital) for event in after)}


@pytest.mark.parametrize("lineage", ["m", ""])
@pytest.mark.parametrize("hop", [1, 2])
def test_who_cannot_test_the_copy_before_has_no_figures_of_the_undone_one(lineage, hop):
    """Both copies may have the same hop. An absence (no lineage) is about all models."""
    others = evaluated(2, "other", "A", 0.4)
    *before, _, again = undone_in_round(2, hop=hop)
    fails = Event("evaluate", 2, 1, "A", lineage, "gone")
    tests = measure_round(2, [others, *before, fails, again], cross=True).tests
    found = {pair: test["accuracy"] for pair, test in tests.items()}
    assert found == {("other", "A"): 0.4, ("m", "B"): 0.9}


def test_an_ensemble_with_an_undone_model_does_not_count():
    """B cannot test all models after the undone visit."""

    def together(hospital, accuracy):
        return replace(evaluated(2, "", hospital, accuracy), verb="ensemble")

    events = [*map(together, "AB", (0.3, 0.3)), *undone_in_round(2), together("A", 0.9)]
    found = measure_round(2, events, cross=True).ensemble
    assert {name: test["accuracy"] for name, test in found.items()} == {"A": 0.9}


def test_an_undone_visit_of_another_round_undoes_no_version_of_this_one(serial):
    undone = Event("undo", 1, 2, "B", "global", "useless")
    events = [undone, *(event for event in serial if event.round == 2)]
    assert measure_round(2, events, cross=True).tests == measured(serial, 2)[0].tests


def test_after_visit_is_read_from_the_version_that_the_visit_left(serial):
    """A had 0.9 in hand before B changed it to 0.5; B 0.9."""
    assert measured(serial, 1)[0].figures["accuracy_after_visit"] == pytest.approx(0.9)


def test_every_tested_version_is_a_row(serial):
    rows = summary_of(serial).visits
    assert [(row["hop"], row["epochs"], row["hospital"]) for row in rows[:4]] == [
        (1, 1, "A"),
        (1, 2, "A"),
        (2, 1, "B"),
        (2, 2, "B"),
    ]
    assert [row["global_accuracy"] for row in rows[:4]] == pytest.approx([0.2, 0.6, 0.5, 0.8])
    assert rows[1]["own_accuracies"] == {"A": 0.9, "B": 0.5}
    assert [(row["round"], row["lineage"]) for row in rows] == [(1, "global")] * 4 + [
        (2, "global")
    ] * 4


def test_a_parallel_run_has_a_row_for_each_model(events):
    """Round 2: A trained model B, and nobody model A, whose visit to B failed."""
    rows = summary_of(events).visits
    assert [(row["round"], row["lineage"], row["hospital"]) for row in rows] == [
        (1, "A", "A"),
        (1, "B", "B"),
        (2, "A", ""),
        (2, "B", "A"),
    ]


def test_an_average_was_left_by_no_hospital_in_particular():
    """So nothing is known of what A and B had in hand before it."""
    events = [
        *(Event("train", 1, 1, hospital, "global") for hospital in "AB"),
        *(evaluated(1, "global", hospital, 0.7) for hospital in "AB"),
    ]
    [round_] = measured(events, 1)
    assert [row["hospital"] for row in round_.visits] == [""]
    assert isnan(round_.figures["accuracy_after_visit"])


def test_no_share_is_above_1_if_a_hospital_claims_more_right_answers_than_images():
    claimed = {"images-of-class-0": 2.0, "right-of-class-0": 1e6}
    told = evaluated(1, "global", "A", 0.9, **claimed)
    row = measure_round(1, [told], cross=True).visits[0]
    assert row["global_balanced_accuracy"] == 1
    found = assessment("model", "global", "A", told.metrics, ["a"])
    assert found["classes"][0]["recall"]["value"] == 1


def test_global_balanced_accuracy_is_that_of_the_pooled_images():
    """Class 0: (8 + 0) / (8 + 2) = 0.8; class 1: (1 + 14) / (2 + 28) = 0.5; nobody has class 2.

    Their mean is 0.65. The hospitals' own would be (8/8 + 1/2) / 2 = 0.75 and (0 + 14/28) / 2 =
    0.25, on average 0.5. Of all 40 images 23 are right.
    """

    def counts(*of_classes):
        keys = ("right-of-class", "images-of-class")
        return {
            f"{key}-{k}": count
            for k, counts in enumerate(of_classes)
            for key, count in zip(keys, counts, strict=True)
        }

    events = [
        evaluated(1, "global", "A", 9 / 10, **counts((8, 8), (1, 2), (0, 0))),
        evaluated(1, "global", "B", 14 / 30, **counts((0, 2), (14, 28), (0, 0))),
    ]
    [row] = measured(events, 1)[0].visits
    assert row["global_balanced_accuracy"] == pytest.approx(0.65)
    assert row["global_accuracy"] == pytest.approx(23 / 40)


def test_counts_of_a_class_count_only_together():
    """Half of A's four images are right; B, which does not tell what it gets right, is left out."""
    events = [
        evaluated(1, "m", "A", 0.5, **{"images-of-class-0": 4, "right-of-class-0": 2}),
        evaluated(1, "m", "B", 0.5, **{"images-of-class-0": 9}),
    ]
    (row,) = measured(events, 1)[0].visits
    assert row["global_balanced_accuracy"] == 0.5


def test_the_last_rounds_are_ten_and_only_finished_visits_count():
    """Rounds 3 to 12 have 0.6 and 0.8, ten times each, not the 0.2 and 0.5 within the visits.

    Their mean is 0.7, their deviation √(20·0.1² / (20 - 1)). Round 1 and 2 are at 0.
    """
    before = [evaluated(round_, "global", where, 0.0) for round_ in (1, 2) for where in "AB"]
    events = [*before, *(event for round_ in range(3, 13) for event in serial_round(round_))]
    last = summarise(Record("cwc", events, measured(events, *range(1, 13)), 60.0, "")).last_rounds
    assert last["mean"] == pytest.approx(0.7)
    assert last["std"] == pytest.approx((20 * 0.1**2 / 19) ** 0.5)
    assert isnan(last["balanced_mean"])
    assert isnan(last["balanced_std"])


def test_without_cross_evaluation_nothing_is_said_about_the_federation(events):
    rounds = measured(events, 1, 2, cross=False)
    summary = summarise(Record("rwt", events, rounds, 60.0, ""))
    assert isnan(summary.federation_accuracy)
    assert isnan(summary.pooled_federation_accuracy)
    assert isnan(summary.last_rounds["mean"])
    assert summary.visits == []
    assert summary.best_round == 2  # personalized accuracy was 0.55, then 0.65


SAMPLED = {  # of models A and B; B holds A, and A holds B
    "A": {"B": 0.9, "A": 0.4, "C": 0.6},
    "B": {"A": 0.8, "B": 0.7, "D": 0.7},
}


def sampled(tests, pairs=("AB", "BA")):
    """The figures of a round; `pairs` are a model and a hospital that holds it."""
    events = [evaluated(1, model, at, a) for model in tests for at, a in tests[model].items()]
    held = [Event("hand-off", 1, 1, hospital, model) for model, hospital in pairs]
    return measure_round(1, [*events, *held], "sample:2").figures


def test_the_federation_s_accuracy_is_estimated_from_a_sample():
    """Each model has one test where it is held, and two at the three other hospitals.

    A    0.9 + 3·0.5 = 2.4    squared error 3²·(1 - 2/3)·0.02/2 = 0.03
    B    0.8 + 3·0.7 = 2.9    none, as both are alike
    """
    figures = sampled(SAMPLED)
    half = 1.959964 * 0.03**0.5 / 8
    assert figures["federation_accuracy"] == pytest.approx(5.3 / 8)
    assert figures["federation_accuracy_low"] == pytest.approx(5.3 / 8 - half)
    assert figures["federation_accuracy_high"] == pytest.approx(5.3 / 8 + half)
    assert isnan(figures["disagreement"])
    assert figures["personalized_accuracy"] == pytest.approx(0.85)


def test_over_all_samples_the_estimate_is_right():
    """The mean over the three pairs of hospitals that may be drawn for A, which B holds.

    All others hold B, so that it is tested everywhere.
    """
    others, everywhere = {"A": 0.4, "C": 0.6, "D": 0.1}, {"A": 0.8, "B": 0.7, "C": 0.2, "D": 0.3}
    estimates = [
        sampled({"A": {"B": 0.9, **dict(drawn)}, "B": everywhere}, ("AB", "BA", "BC", "BD"))
        for drawn in combinations(others.items(), 2)
    ]
    truth = fmean([0.9, *others.values(), *everywhere.values()])
    assert fmean(each["federation_accuracy"] for each in estimates) == pytest.approx(truth)


def test_a_sample_of_all_pairs_has_no_error():
    """Two models at two hospitals: each is held at one, and the other is drawn for sure."""
    figures = sampled({"A": {"A": 0.4, "B": 0.9}, "B": {"A": 0.8, "B": 0.7}})
    names = [f"federation_accuracy{end}" for end in ("", "_low", "_high")]
    assert [figures[name] for name in names] == pytest.approx([0.7, nan, nan], nan_ok=True)
    assert sampled_figure(figures, "federation_accuracy") is None


def test_equal_drawn_tests_are_still_a_sample():
    """A: 0.9 + 3·0.5 = 2.4; B: 0.8 + 3·0.7 = 2.9. The plain mean of the tests is 4.1 / 6."""
    tests = {"A": {"B": 0.9, "A": 0.5, "C": 0.5}, "B": {"A": 0.8, "C": 0.7, "D": 0.7}}
    figure = sampled_figure(sampled(tests), "federation_accuracy")
    assert figure is not None
    assert figure["sampled"]
    assert number(figure) == f"{5.3 / 8:.3f}"


def test_means_are_over_what_was_measured():
    """The area under the ROC curve is undefined where only one class occurs."""
    events = [
        Event("evaluate", 1, 1, hospital, "A", metrics={"accuracy": 0.5, **auroc})
        for hospital, auroc in {"A": {"auroc": 0.9}, "B": {"auroc": nan}, "C": {}}.items()
    ]
    assert measured(events, 1)[0].figures["federation_auroc"] == 0.9


def test_a_run_that_measured_nothing_can_be_summed_up():
    summary = summarise(Record("rwt", [], [], 1.0, "RunError: nobody is there"))
    assert isnan(summary.federation_accuracy)
    assert (summary.hospitals, summary.best_round, summary.rounds) == ([], None, 0)


def test_the_ensemble_is_the_mean_over_hospitals_and_no_model_of_the_matrix(events):
    told = [
        Event("ensemble", 2, 1, name, metrics={"accuracy": a})
        for name, a in (("A", 0.9), ("B", 0.6))
    ]
    summary = summary_of([*events, *told])
    assert summary.ensemble_accuracy == pytest.approx(0.75)
    assert summary.models == ["A", "B"]
    assert summary.federation_accuracy == summary_of(events).federation_accuracy


def test_synthetic_images_are_summed_up_by_hospital(events):
    figures = {"num-train": 7.0, "release-passed": 1.0, "fid": 12.5, "seconds-prepare": 3.0}
    prepared = Event("query.prepare", 0, 0, "A", "A", metrics=figures)
    assert summary_of([prepared, *events]).synthetic == {"A": {"fid": 12.5}}
