"""What is said of a run, from what hospitals measured: rows, headline, words."""

from dataclasses import asdict

import pytest

from server_app.data import describe
from server_app.measures import measure_round, summarise
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
    return summarise("cwt", [*trained, *events], [measured], 1.0, "", classes=CLASSES)


EVERYWHERE = [(model, hospital) for model in "AB" for hospital in "AB"]


def said(summary, about="run"):
    return [(each["judgement"], each["text"]) for each in summary.worth if each["about"] == about]


def test_the_headline_has_an_interval_over_hospitals():
    """0.75 at each; models at one hospital err together, hospitals do not: 0.05 / sqrt(2)."""
    summary = summary_of(dict.fromkeys(EVERYWHERE, told(0.8, 0.7)))
    headline = summary.headline
    assert headline is not None
    assert headline["figure"] == "federation_balanced_accuracy"
    assert headline["value"] == summary.federation_balanced_accuracy == pytest.approx(0.75)
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
    assert "not shown that the models have learnt" in run[0][1]
    assert run[1][0] == "bad"
    assert "Accuracy 0.800" in run[1][1]
    assert "no better than always answering 'benign' (0.800)" in run[1][1]
    [(judgement, text)] = said(summary, "class")
    assert judgement == "bad"
    assert text.startswith("No model finds 'melanoma': 0 of 40 images")
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


def test_few_images_are_said_to_be_few():
    summary = summary_of(dict.fromkeys(EVERYWHERE, told(0.9, 0.8, half=0.3, sizes=(8, 4))))
    assert any("few test images (24 images)" in text for _, text in said(summary))


def test_without_details_there_are_figures_without_intervals():
    """A run that ended before its last round."""
    figures = {"accuracy": 0.8, "balanced-accuracy": 0.5, "num-examples": 100}
    summary = summary_of(dict.fromkeys(EVERYWHERE, figures))
    row = summary.assessments[0]
    assert row["balanced_accuracy"]["value"] == 0.5
    assert row["balanced_accuracy"]["low"] is None
    assert (row["ece"], row["gain"], row["confusion"], row["largest_class"]) == (
        None,
        None,
        [],
        None,
    )
    assert [kind for kind, _ in said(summary)] == ["note"]


def test_hospitals_that_tell_nothing_leave_no_hole():
    summary = summary_of({("A", "A"): {}, ("A", "B"): {"num-examples": 0}})
    assert summary.headline is None
    assert said(summary) == [("open", "No model was tested, or no hospital tells of it.")]
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
    data = summarise("cwt", [event], [], 1.0, "", classes=CLASSES).data["A"]
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
