"""What is said of a run, from what hospitals measured: rows, headline, words."""

from dataclasses import asdict, replace
from math import isnan, nan

import pytest

from pages.figures import assessment
from pages.figures_view import compared_cell
from pages.page import Marked
from pages.verdicts.model import (
    compare_largest_class,
    is_useful,
    judge,
    objection,
    pair,
    worst_pair,
)
from server_app.assessments import figure_everywhere
from server_app.data import describe
from server_app.report import render
from server_app.summary import Record, judge_with_baseline, measure_round, summarise
from strategies.engine.events import Event

CLASSES = ["benign", "melanoma"]


def told(benign, melanoma, half=0.05, gain=None, sizes=(80, 20)):
    """What a hospital tells of a model with these recalls, each ± `half`."""
    figures = {
        "recall-of-class-0": benign,
        "recall-of-class-1": melanoma,
        "accuracy": (sizes[0] * benign + sizes[1] * melanoma) / sum(sizes),
        "balanced-accuracy": (benign + melanoma) / 2,
        "auroc": 0.8,
        "sensitivity-of-class-1": 0.75,
        "specificity-of-class-1": 0.6,
        **({} if gain is None else {"gain": gain}),
    }
    ends = {
        f"{name}-{end}": value + sign * half
        for name, value in figures.items()
        for end, sign in (("low", -1), ("high", 1))
    }
    counts = {
        "num-examples": sum(sizes),
        **{f"images-of-class-{k}": size for k, size in enumerate(sizes)},
        "answers-0-of-class-0": sizes[0] * benign,
        "answers-1-of-class-0": sizes[0] * (1 - benign),
        "answers-0-of-class-1": sizes[1] * (1 - melanoma),
        "answers-1-of-class-1": sizes[1] * melanoma,
        "images-in-bin-8": 100,
        "right-in-bin-8": 0.8,
    }
    return {**figures, **ends, **counts}


def summary_of(tests, standalone=None, held=(("A", "A"), ("B", "B")), details=True, stays=False):
    """Of one round in which these models were trained and tested at hospitals A and B."""
    events = [
        Event("evaluate", 1, 1, hospital, model, metrics=metrics)
        for (model, hospital), metrics in tests.items()
    ]
    events += [Event("hand-off", 1, 1, hospital, model) for model, hospital in held]
    events += [
        Event("standalone", 1, 1, hospital, metrics=metrics)
        for hospital, metrics in (standalone or {}).items()
    ]
    models = sorted({model for model, _ in tests})
    trained = [Event("train", 1, 1, model, model) for model in models]
    trained += [Event("train", 1, 2, "AB"[model == "A"], model) for model in models if not stays]
    measured = measure_round(1, [*trained, *events], cross=True)
    return summarise(Record("cwt", [*trained, *events], [measured], 1.0, "", classes=CLASSES))


EVERYWHERE = [(model, hospital) for model in "AB" for hospital in "AB"]


def said(summary, about="run"):
    return [(each["judgement"], each["text"]) for each in summary.worth if each["about"] == about]


def test_the_headline_has_an_interval_over_hospitals():
    """0.75 at each; models at one hospital err together, hospitals do not: 0.05 / sqrt(2)."""
    summary = summary_of(dict.fromkeys(EVERYWHERE, told(0.8, 0.7)))
    headline = summary.headline
    assert headline is not None
    assert headline["figure"] == "personalized_balanced_accuracy"
    assert headline["value"] == summary.personalized_balanced_accuracy == pytest.approx(0.75)
    half = 0.05 / 2**0.5
    assert (headline["low"], headline["high"]) == pytest.approx((0.75 - half, 0.75 + half))
    assert (headline["images"], headline["patients"], headline["models"]) == (200, None, 2)
    [(judgement, text), *_] = said(summary)
    assert judgement == "good"
    assert "balanced accuracy 0.750 (0.715 to 0.785)" in text


def test_a_model_that_always_says_the_same_is_called_that():
    """The accuracy of 0.8 is that of always answering 'benign'; melanoma is found nowhere."""
    always = told(1.0, 0.0) | {"recall-of-class-1-low": 0.0, "recall-of-class-1-high": 0.16}
    summary = summary_of(dict.fromkeys(EVERYWHERE, always))
    run = said(summary)
    assert run[0][0] == "bad"
    assert run[0][1].startswith("At 0 of 2 hospitals, the model that the hospital holds is shown")
    assert run[2][0] == "bad"
    assert "Accuracy 0.800" in run[2][1]
    assert "no better than always answering 'benign' (0.800)" in run[2][1]
    [(judgement, text)] = said(summary, "class")
    assert judgement == "bad"
    assert text.startswith("No model finds an image of 'melanoma': 0 of 40 images")
    assert "sensitivity of 0.750" in text
    assert all("It finds no image of 'melanoma'" in text for _, text in said(summary, "hospital"))
    pooled = summary.pooled[0]
    assert pooled["confusion"] == [[160, 0], [40, 0]]
    assert pooled["classes"][1]["right"] == 0


def test_a_class_that_one_model_finds_is_not_said_to_be_missed():
    tests = dict.fromkeys(EVERYWHERE, told(1.0, 0.0))
    summary = summary_of({**tests, ("B", "A"): told(0.9, 0.9), ("B", "B"): told(0.9, 0.9)})
    assert said(summary, "class") == []


@pytest.mark.parametrize(
    ("gain", "judgement", "begins", "compared"),
    [
        (0.2, "good", "Better than", "better"),
        (-0.2, "bad", "Worse than", "worse"),
        (0.03, "open", "Not shown to be better", "not shown"),
    ],
)
def test_staying_alone_is_beaten_only_outside_of_the_interval(gain, judgement, begins, compared):
    """Each gain is ± 0.05; the mean of two is ± 0.035."""
    summary = summary_of(
        dict.fromkeys(EVERYWHERE, told(0.8, 0.7, gain=gain)),
        dict.fromkeys("AB", told(0.75 - gain, 0.75 - gain)),
    )
    found = [(kind, text) for kind, text in said(summary) if "own models" in text]
    assert [(kind, text.startswith(begins)) for kind, text in found] == [(judgement, True)]
    held = [row for row in summary.assessments if row["held"]]
    assert [row["compared"] for row in held] == [compared, compared]
    assert summary.standalone_balanced_accuracy == pytest.approx(0.75 - gain)


def test_models_that_stay_are_not_compared_with_staying_alone():
    tests = dict.fromkeys(EVERYWHERE, told(0.8, 0.7, gain=0.2))
    summary = summary_of(tests, dict.fromkeys("AB", told(0.5, 0.6)), stays=True)
    assert not [text for _, text in said(summary) if "own models" in text]
    assert {(row["kind"], row["gain"]) for row in summary.assessments} == {("model", None)}


def test_the_page_does_not_call_other_models_those_that_hospitals_hold():
    """Each hospital reports figures of the other's model alone."""
    away = summary_of({("A", "B"): told(0.8, 0.8), ("B", "A"): told(0.8, 0.8)})
    shown = render("run", away, [], "")
    assert "Balanced accuracy of every model at every hospital that tested it; on" in shown
    assert "Mean of every model at every hospital" in shown
    assert "the models that hospitals hold" not in shown
    assert "Every model on the images of all hospitals that tested it, together" in shown
    assert "the model that a hospital holds, on its own" in render(
        "run", summary_of(dict.fromkeys(EVERYWHERE, told(0.8, 0.8))), [], ""
    )


def test_few_images_are_said_to_be_few():
    """The mean of two hospitals is ± 0.3 / √2. A gain on the same images may be surer than that."""
    tests = dict.fromkeys(EVERYWHERE, told(0.9, 0.8, half=0.3, sizes=(8, 4)))
    (few,) = [text for _, text in said(summary_of(tests)) if "few test images (24" in text]
    assert few.endswith("(24 images): the balanced accuracy has an interval 0.42 wide.")


@pytest.mark.parametrize(
    ("melanoma", "half", "judgement", "beside"),
    [
        (0.0, 0.05, "bad", "no better than"),  # 0.8 · 1 beside 0.8
        (0.1, 0.05, "open", "not shown to be better than"),  # 0.82 ± .05 / √2 in two hospitals
        (0.2, float("nan"), "open", "not shown to be better than"),
        (0.9, 0.05, "note", "better than"),  # 0.98
    ],
)
def test_the_accuracy_is_called_no_better_only_where_it_is_not_higher(
    melanoma, half, judgement, beside
):
    summary = summary_of(dict.fromkeys(EVERYWHERE, told(1.0, melanoma, half=half)))
    ((found, text),) = [row for row in said(summary) if "always answering" in row[1]]
    assert found == judgement
    assert f" is {beside} always answering 'benign' (0.800)." in text


@pytest.mark.parametrize("models", [1, 3])
def test_the_same_answer_everywhere_is_no_better_than_always_answering_it(models):
    """Both means are over the same numbers: added in another order, they differ in a last bit."""
    shares = [0.7634, 0.5890, 0.5278, 0.7311, 0.5029]
    rows = [
        assessment("model", f"{model}", f"{hospital}", metrics, CLASSES)
        for model in range(models)
        for hospital, share in enumerate(shares)
        for metrics in [told(1.0, 0.0, sizes=(share, 1 - share)) | {"accuracy": share}]
    ]
    (found,) = compare_largest_class(rows)
    assert found["judgement"] == "bad", found["text"]


def test_the_bound_for_a_class_that_no_model_finds_is_that_of_the_named_images():
    """A, tested at one hospital, has 20 such images; B has 2 there, and more is possible."""
    few = told(1.0, 0.0, sizes=(8, 2)) | {"recall-of-class-1-high": 0.66}
    many = told(1.0, 0.0) | {"recall-of-class-1-high": 0.16}
    ((_, text),) = said(summary_of({("A", "A"): many, ("B", "B"): few}), "class")
    assert text.startswith("No model finds an image of 'melanoma': 0 of 2 images (at most 66% of")


def test_a_small_bound_is_not_zero():
    missed = told(1.0, 0.0) | {"recall-of-class-1-high": 0.0038}
    ((_, text),) = said(summary_of({("A", "A"): missed}), "class")
    assert "(at most 0.38% of such images)" in text


def test_what_hospitals_hold_comes_first_and_everything_else_second():
    """Each model is inverted at the other hospital: .393 everywhere, and well where it is held."""
    away = told(0.2, 0.1) | {"auroc": 0.286, "auroc-low": 0.2, "auroc-high": 0.37}
    tests = {pair: told(0.7, 0.6) if pair[0] == pair[1] else away for pair in EVERYWHERE}
    summary = summary_of(tests)
    (home, at_home), (away_from_home, everywhere), *_ = said(summary)
    assert home == "good"
    assert at_home.startswith("At 2 of 2 hospitals, the model that the hospital holds is shown to")
    assert "balanced accuracy 0.650 (0.615 to 0.685) on average" in at_home
    assert away_from_home == "bad"
    assert everywhere.startswith("Everywhere: in 2 of 4 tested pairs of model and hospital")
    assert "balanced accuracy 0.400" in everywhere
    assert "the worst is 0.150 (0.100 to 0.200), 'A' at B, where it is inverted" in everywhere
    assert "(AUROC 0.286 (0.200 to 0.370))" in everywhere


@pytest.mark.parametrize("held", [(0.5, 0.5), (0.52, 0.5), (0.3, 0.3)])
@pytest.mark.parametrize("gain", [0.2, None])
def test_nothing_of_the_run_is_good_while_a_held_model_is_at_chance(held, gain):
    """B's own model at B; the other three pairs, and the means, are far above chance."""
    tests = dict.fromkeys(EVERYWHERE, told(0.95, 0.9, gain=gain))
    benign, melanoma = held
    summary = summary_of({**tests, ("B", "B"): told(benign, melanoma, gain=gain)})
    assert "good" not in [kind for kind, _ in said(summary)]
    kind, text = said(summary, "hospital")[0]  # the gravest comes first
    assert text.startswith("B holds a model")
    assert kind in ("open", "bad")
    first = summary.worth[0]
    assert (first["hospital"], first["model"]) == ("B", "B")
    assert first["text"].startswith("At 1 of 2 hospitals")
    assert f"the worst is {sum(held) / 2:.3f}" in first["text"]
    assert "'B' at B, where chance is 0.500" in first["text"]
    (row,) = [row for row in summary.assessments if row["model"] == row["hospital"] == "B"]
    assert not isinstance(compared_cell(row), Marked)


def test_the_worst_is_at_chance_or_has_the_lowest_figure():
    """Of two classes chance is 0.5: 0.48 is worse than 0.45 of three classes."""
    of_three = told(0.55, 0.55) | {"images-of-class-2": 50, "recall-of-class-2": 0.4}
    of_three |= {"balanced-accuracy": 0.45, "balanced-accuracy-low": 0.4}
    third = assessment("model", "m", "linz", of_three, [*CLASSES, "other"])
    poor, good, better = (
        assessment("model", "m", "graz", told(share, share), CLASSES) for share in (0.48, 0.6, 0.8)
    )
    assert worst_pair([better, good]) is good
    assert worst_pair([better, third, poor]) is poor
    assert pair(poor).endswith("'m' at graz, where chance is 0.500")


def test_where_one_class_is_tested_nobody_can_say_what_is_above_chance():
    """The same answer is always right there."""
    perfect = assessment("model", "m", "linz", told(1.0, 0, sizes=(80, 0)), CLASSES)
    assert judge(perfect) == "note"
    assert not objection(perfect)
    assert not is_useful(perfect)


def test_a_mean_is_beside_a_constant_answer_at_the_same_hospitals():
    """B tests one class, of which it finds all; the constant answer has 0.75 on average."""
    at = {"A": told(0.5, 0.4), "B": told(1.0, 0, sizes=(80, 0))}
    at["B"] = {k: v for k, v in at["B"].items() if "of-class-1" not in k}
    at["B"] |= {f"balanced-accuracy{end}": 1.0 for end in ("", "-low", "-high")}
    summary = summary_of({pair: at[pair[1]] for pair in EVERYWHERE})
    _, text = said(summary)[0]
    assert "balanced accuracy 0.725" in text
    assert text.endswith("A constant answer gives 0.750.")
    (_, of_a), (_, of_b) = sorted(said(summary, "hospital"), key=lambda each: each[1])
    assert "A holds a model with balanced accuracy 0.450 (0.400 to 0.500) on 100 images." in of_a
    assert "1.000 (1.000 to 1.000) on 80 images of 1 of 2 classes." in of_b


def test_where_no_class_is_told_nobody_knows_what_chance_is():
    """The figures have intervals."""
    untold = {k: v for k, v in told(0.8, 0.7).items() if "images-of-class" not in k}
    kind, text = said(summary_of(dict.fromkeys(EVERYWHERE, untold)))[0]
    assert kind == "note"
    assert text.startswith("At 2 hospitals, the model that the hospital holds was tested; whether")
    assert "0.750 (0.715 to 0.785)" in text


def test_an_inverted_model_is_never_praised():
    """Balanced accuracy above chance, and an AUROC that is wholly below 0.5."""
    inverted = told(0.9, 0.8, gain=0.3) | {"auroc": 0.3, "auroc-low": 0.2, "auroc-high": 0.4}
    summary = summary_of(dict.fromkeys(EVERYWHERE, inverted))
    assert {each["judgement"] for each in summary.worth if each["about"] != "class"} <= {
        "bad",
        "note",
    }
    assert all("It is inverted there: AUROC 0.300" in text for _, text in said(summary, "hospital"))


def test_a_gain_on_average_does_not_hide_who_loses():
    tests = dict.fromkeys(EVERYWHERE, told(0.9, 0.8, gain=0.4))
    summary = summary_of({**tests, ("B", "B"): told(0.8, 0.7, gain=-0.1)})
    ((kind, text),) = [each for each in said(summary) if "own models" in each[1]]
    assert kind == "note"
    assert text.startswith("Better than the hospitals' own models: +0.150")
    assert text.endswith("lowest -0.100 (-0.150 to -0.050) at B.")


@pytest.mark.parametrize(("ends", "estimated"), [((0.7, 0.78), True), ((nan, nan), False)])
def test_a_sample_of_all_pairs_is_no_estimate(ends, estimated):
    """Then the intervals of the pairs count: 0.05 / sqrt(2), since two hospitals err apart."""
    figures = {"": 0.75, "_low": ends[0], "_high": ends[1]}
    rows = summary_of(dict.fromkeys(EVERYWHERE, told(0.8, 0.7))).assessments
    named = {f"federation_balanced_accuracy{end}": value for end, value in figures.items()}
    mean = figure_everywhere(rows, named)
    assert mean is not None
    assert mean["low"] == pytest.approx(ends[0] if estimated else 0.75 - 0.05 / 2**0.5)
    assert ("sampled" in mean) == estimated


def test_a_hospital_that_tells_nothing_is_named():
    summary = summary_of({("A", "A"): told(0.9, 0.8), ("B", "B"): {}})
    kind, text = said(summary)[0]
    assert kind == "open"
    assert text.startswith("At 1 of 2 hospitals")
    assert text.endswith("No figures from B.")


def test_a_gain_at_some_hospitals_is_not_one_at_all():
    """A serial method has an own model at the first hospital only."""
    tests = {pair: told(0.9, 0.8, gain=0.2 if pair[1] == "A" else None) for pair in EVERYWHERE}
    (found,) = [each for each in said(summary_of(tests)) if "own models" in each[1]]
    assert found[0] == "note"
    assert found[1].endswith("before the first hand-off, at A, 1 of 2 hospitals.")


def test_nothing_of_the_run_is_good_while_a_hospital_tells_nothing():
    better = told(0.9, 0.8, gain=0.2)
    summary = summary_of(
        {("A", "A"): better, ("B", "A"): better, ("B", "B"): {}}, {"A": told(0.7, 0.6)}
    )
    kinds = {text.split()[0]: kind for kind, text in said(summary)}
    assert (kinds["At"], kinds["Everywhere:"], kinds["Better"]) == ("open", "note", "note")


@pytest.mark.parametrize(
    ("sizes", "said_of"),
    [((455, 5), "5 images of 'melanoma' at A"), ((437, 23), "23 images of 'melanoma' at A")],
)
def test_a_class_of_few_test_images_is_named_with_its_hospital(sizes, said_of):
    """One image of five is worth a tenth of the mean over two classes."""
    tests = {("A", "A"): told(0.9, 0.8, sizes=sizes), ("B", "B"): told(0.9, 0.8, sizes=(80, 40))}
    (few,) = [text for _, text in said(summary_of(tests)) if text.startswith("Classes with few")]
    assert f"Classes with few test images: {said_of}. One image" in few
    assert f"moves the balanced accuracy at A by {1 / sizes[1] / 2:.3f}" in few
    assert few.endswith("the share that is right is 0.800 (0.750 to 0.850).")
    del tests["B", "B"]
    (few,) = [text for _, text in said(summary_of(tests)) if text.startswith("Classes with few")]
    assert " at A" not in few


def test_without_details_there_are_figures_without_intervals():
    """A run that ended before its last round."""
    figures = {"accuracy": 0.8, "balanced-accuracy": 0.5, "num-examples": 100}
    summary = summary_of(dict.fromkeys(EVERYWHERE, figures))
    row = summary.assessments[0]
    assert row["balanced_accuracy"]["value"] == 0.5
    assert isnan(row["balanced_accuracy"]["low"])
    assert (row["ece"], row["gain"], row["confusion"], row["largest_class"]) == (
        None,
        None,
        [],
        None,
    )
    assert [kind for kind, _ in said(summary)] == ["note", "note"]


def test_hospitals_that_tell_nothing_leave_no_hole():
    summary = summary_of({("A", "A"): {}, ("A", "B"): {"num-examples": 0}})
    assert summary.headline is None
    told = [("open", "No hospital reports the balanced accuracy of a model.")]
    assert said(summary) == told
    assert said(summary_of({("A", "A"): {"accuracy": 0.5, "num-examples": 9}})) == told
    asdict(summary)


def test_of_two_sizes_the_pool_counts_images():
    """Recalls 0.5 of 10 and 0.8 of 30 images: 0.725, ± 0.05 · sqrt(0.25² + 0.75²)."""
    tests = {
        ("A", "A"): told(1.0, 0.5, sizes=(30, 10)),
        ("A", "B"): told(1.0, 0.8, sizes=(90, 30)),
    }
    melanoma = summary_of(tests, held=()).pooled[0]["classes"][1]
    assert melanoma["recall"]["value"] == pytest.approx(0.725)
    half = 0.05 * (0.25**2 + 0.75**2) ** 0.5
    assert melanoma["recall"]["low"] == pytest.approx(0.725 - half)


def test_a_hospital_that_claims_more_images_of_a_class_than_in_all_spoils_no_pool():
    honest = told(1.0, 0.5, sizes=(30, 10)) | {"specificity-of-class-1": 0.9}
    liar = {**honest, "num-examples": 11.0, "images-of-class-1": 40.0, "specificity-of-class-1": 0}
    tests = {("A", "A"): honest, ("A", "B"): liar}
    melanoma = summary_of(tests, held=()).pooled[0]["classes"][1]
    assert melanoma["specificity"]["value"] == pytest.approx(0.9)


def test_the_settings_say_whose_images_were_used():
    """As comments: the file can still be read."""
    own = {"kind": "folder", "own_settings": {"train.batch-size": "8"}}
    text = describe({"graz": own, "linz": {**own, "own_settings": {}}}, "digits")
    assert all(line.startswith("# ") for line in text.splitlines())
    assert "dataset = 'digits' was not used" in text
    assert "graz: train.batch-size = 8" in text
    assert "linz: folder" in text
    assert describe({"graz": {"kind": "digits", "own_settings": {}}}, "digits") == ""


def test_what_hospitals_say_of_their_images_is_in_the_summary():
    facts = {"data": "folder", "train-images": "0" * 16, "own-settings": ["model=cnn"]}
    numbers = {"num-train": 8, "num-test": 2, "num-quarantined": 1, "num-train-patients": 4}
    numbers |= {"train-images-of-class-1": 3, "test-images-of-class-0": 2}
    event = Event("query.prepare", 0, 0, "A", "A", metrics=numbers, facts=facts)
    data = summarise(Record("cwt", [event], [], 1.0, "", classes=CLASSES)).data["A"]
    assert data["train"] == {
        "images": 8,
        "patients": 4,
        "fingerprint": "0" * 16,
        "classes": {"melanoma": 3},
    }
    assert (data["kind"], data["unusable"]) == ("folder", 1)
    assert data["own_settings"] == {"model": "cnn"}


def test_where_classes_are_equally_frequent_no_largest_one_is_named():
    balanced = dict.fromkeys(EVERYWHERE, told(0.9, 0.8, sizes=(50, 50)))
    assert not any("always answering" in text for _, text in said(summary_of(balanced)))
    none = dict.fromkeys(EVERYWHERE, told(0.5, 0.5, sizes=(50, 50)))
    assert any("no better than always answering" in text for _, text in said(summary_of(none)))


@pytest.mark.parametrize(
    ("alone", "judgement", "begins", "difference"),
    [
        (0.7, "good", "At home better than standalone", "+0.100 (+0.050 to +0.150)"),
        (0.78, "open", "At home not shown to be better than", "+0.020 (-0.030 to +0.070)"),
        (0.9, "bad", "At home worse than standalone", "-0.100 (-0.150 to -0.050)"),
    ],
)
def test_a_run_is_compared_with_its_baseline(alone, judgement, begins, difference):
    """By hand: each test ± .05, the mean of two hospitals ± .05 / √2, a difference of two ± .05."""
    ours = summary_of({each: told(0.8, 0.8, gain=0.2) for each in EVERYWHERE})
    assert "Better than the hospitals' own models" in str(ours.worth)
    theirs = summary_of({each: told(alone, alone) for each in EVERYWHERE})
    worth = judge_with_baseline(ours, replace(theirs, strategy="standalone")).worth
    assert [each for each in worth if each["about"] == "run"] == [
        *(e for e in ours.worth if e["about"] == "run" and "own models" not in e["text"]),
        *(each for each in worth if "standalone" in each["text"]),
    ]
    at_home, everywhere = (each for each in worth if "standalone" in each["text"])
    assert at_home["text"].startswith(begins)
    assert everywhere["text"].startswith("Everywhere")
    for each in (at_home, everywhere):
        assert each["judgement"] == judgement
        assert f"a difference of {difference}; the worst is " in each["text"]


@pytest.mark.parametrize(
    ("at_a", "at_b", "words", "judgement", "worst"),
    [
        (0.99, 0.60, "better than", "note", "-0.100 (-0.141 to -0.059) at B"),
        (0.60, 0.99, "better than", "note", "-0.100 (-0.141 to -0.059) at A"),
        (0.99, 0.69, "better than", "good", "-0.010 (-0.051 to +0.031) at B"),
        (0.75, 0.60, "not shown to be better than", "open", "-0.100 (-0.141 to -0.059) at B"),
        (0.69, 0.60, "worse than", "bad", "-0.100 (-0.141 to -0.059) at B"),
    ],
)
def test_a_mean_above_its_baseline_hides_no_hospital_below_it(at_a, at_b, words, judgement, worst):
    """Alone 0.7 at A and at B. By hand: each test ± .029, a difference of two ± .041."""
    at = {"A": at_a, "B": at_b}
    ours = {(m, h): told(at[h], at[h], half=0.029) for m, h in EVERYWHERE}
    theirs = summary_of(dict.fromkeys(EVERYWHERE, told(0.7, 0.7, half=0.029)))
    worth = judge_with_baseline(summary_of(ours), theirs).worth
    found = [each for each in worth if "alone for as long" in each["text"]]
    assert len(found) == 2
    for each in found:
        assert words in each["text"]
        assert each["judgement"] == judgement
        assert each["text"].endswith(f"; the worst is {worst}.")
        assert each["hospital"] == worst[-1]


def test_a_baseline_is_beaten_without_praise_where_a_held_model_is_at_chance():
    ours = summary_of({(m, h): told(0.9, 0.9 if h == "A" else 0.1) for m, h in EVERYWHERE})
    theirs = summary_of({each: told(0.3, 0.3) for each in EVERYWHERE})
    found = [e for e in judge_with_baseline(ours, theirs).worth if "alone for as long" in e["text"]]
    assert [each["judgement"] for each in found] == ["note", "note"]
    assert all("better than cwt" in each["text"] for each in found)


def test_a_baseline_is_compared_over_the_hospitals_that_both_runs_have():
    """B holds no model of the run: there 0.2 of the baseline is no gain. Here 0.8 beside 0.8."""
    ours = summary_of(dict.fromkeys(EVERYWHERE, told(0.8, 0.8)), held=[("A", "A")])
    theirs = summary_of({(m, h): told(*[0.8 if h == "A" else 0.2] * 2) for m, h in EVERYWHERE})
    at_home, everywhere = (
        each["text"]
        for each in judge_with_baseline(ours, theirs).worth
        if "alone for as long" in each["text"]
    )
    assert at_home.startswith("At home (of A) not shown to be better than cwt")
    assert "0.800 (0.750 to 0.850) instead of 0.800 (0.750 to 0.850)" in at_home
    assert "0.800 (0.765 to 0.835) instead of 0.500" in everywhere
    assert everywhere.startswith("Everywhere better")


@pytest.mark.parametrize("silent_in", [(0,), (1,), (0, 1)])
def test_a_baseline_is_beaten_without_praise_if_a_hospital_reports_nothing(silent_in):
    """In the run, in the baseline or in both; one that has left by plan need not report."""

    def tests(place, share):
        silent = "B" if place in silent_in else ""
        return {(m, h): {} if h == silent else told(share, share) for m, h in EVERYWHERE}

    ours, theirs = (summary_of(tests(*each)) for each in enumerate((0.9, 0.6)))
    left = replace(ours, enrolment={"A": ["active", "active"], "B": ["active", "left"]})
    for run, judgement in ((ours, "note"), (left, "good")):
        worth = judge_with_baseline(run, theirs).worth
        found = [each for each in worth if "alone for as long" in each["text"]]
        assert [each["judgement"] for each in found] == [judgement] * 2
        for each in found:
            assert " better than cwt" in each["text"]
            assert ("At least one of the runs has no figures from B." in each["text"]) == (
                judgement == "note"
            )


def test_a_baseline_that_trains_longer_or_shorter_is_said_to():
    ours, theirs = (summary_of(dict.fromkeys(EVERYWHERE, told(0.8, 0.8))) for _ in range(2))
    longer = {**theirs.participation, "B": theirs.participation["B"] | {"epochs": 9}}
    found = judge_with_baseline(ours, replace(theirs, participation=longer)).worth
    texts = [each["text"] for each in found if "its own model alone" in each["text"]]
    assert len(texts) == 2
    assert all("model alone, some for longer or shorter than here: " in text for text in texts)


def test_without_an_interval_over_patients_no_baseline_is_beaten():
    """The interval of a sample of pairs covers the choice of pairs."""
    ours, theirs = (summary_of(dict.fromkeys(EVERYWHERE, told(each, each))) for each in (0.9, 0.6))
    ends = {"federation_balanced_accuracy_low": 0.88, "federation_balanced_accuracy_high": 0.92}
    found = judge_with_baseline(replace(ours, **ends), theirs).worth
    texts = [each["text"] for each in found if "alone for as long" in each["text"]]
    assert [text.split()[:2] for text in texts] == [["At", "home"]]


def rewound(last, first=0.1, rounds=(1, 2), failed=()):
    """The sentences on a FedRewind run whose last legs have these training losses.

    `failed`: the hops that fail in round 2.
    """
    legs = [("train", first), ("train.rewind", 5.0), ("train", last)]
    events = [
        Event(verb, round_, hop, "A", "A", metrics={"train-loss": loss})
        for round_ in rounds
        for hop, (verb, loss) in enumerate(legs, start=1)
        if (round_, hop) not in {(2, each) for each in failed}
    ]
    lost = Event("train", 2, 3, "B", "B", "timeout", metrics={"train-loss": 9.0})
    rows = summarise(Record("fedrewind", [*events, lost], [], 0.0, "", classes=CLASSES)).worth
    return [row["text"] for row in rows if "last leg" in row["text"]]


def test_a_last_leg_that_does_not_bring_back_what_the_rewind_leg_undid_is_named():
    (text,) = rewound(0.75)  # ln 2 = 0.69
    assert "loss of 0.75, more than the 0.69" in text
    assert rewound(0.65) == []
    assert rewound(0.65, first=0.9) == []  # the first leg starts from another hospital's model
    assert rewound(0.75, rounds=()) == []


def test_no_other_leg_is_taken_for_a_last_leg_that_failed():
    """The rewind leg has a loss of 5, and begins with another hospital's model."""
    assert rewound(0.75, failed=(3,)) == []
    assert rewound(0.65, failed=(1,)) == []
    (text,) = rewound(0.75, failed=(2, 3))  # then round 1 is the last one with a rewind leg
    assert "loss of 0.75" in text
