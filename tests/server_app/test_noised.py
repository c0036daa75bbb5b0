"""What is said of figures with noise."""

import csv
import html
import json
import re
from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import PIL.Image
import pytest

from client_app.afterwards import worth_here
from client_app.afterwards.past_hospital import reopen_hospital
from client_app.afterwards.past_run import PastRun
from client_app.authority.policy import Policy
from learning.intervals import Figure, number
from pages.figures import assessment, direction
from pages.verdicts.run import COMMAND, texts
from server_app import wording
from server_app.summary import Summary, measure_round
from tests.fakes import deployment, run_config, run_here
from tests.server_app.fake_runs import FIGURES, NAMES, RUNS, fake_run, ring


def page_of(run):
    return html.unescape(re.sub("<[^>]+>", "", run.page()))


def test_the_page_says_that_there_is_noise_and_where_the_exact_figures_are():
    page = page_of(RUNS["with_noise"]())
    assert page.count("Hospitals have put noise into their figures on purpose") == 1
    assert "Of 2 classes, a hospital's figures are about 1 to 2." in page
    assert COMMAND in page
    assert "(benign, melanoma; figures of 1 to 2)" in page
    assert page.count("noise") > 10  # each caption of a figure
    assert "which alone may be ±0.034" in page  # 1.96 · 0.03 / √3
    for cause in ("few test images", "No model finds", "Not shown to be better"):
        assert cause not in page


def test_before_details_leave_no_class_is_said_to_be_left_out():
    """In a run under way, and in one that failed, figures have noise and no classes."""
    noise = {"accuracy-noise": 0.03, "balanced-accuracy-noise": 0.03}
    events = [
        replace(event, metrics={**event.metrics, **noise}) if event.verb == "evaluate" else event
        for event in ring(NAMES, 2, detail=False)
    ]
    page = page_of(fake_run(events, error="RunError: no more"))
    assert "Hospitals have put noise into their figures on purpose" in page
    assert "on about 80 images." in page
    for words in ("figures of 0", "figures are about", "0 of 2 classes"):
        assert words not in page


@pytest.mark.parametrize("noised", [True, False])
def test_noise_alone_fails_no_check_of_synthetic_images(noised):
    """The hospital has judged the exact figures; with noise a probability may leave as 0."""
    told = {**FIGURES, "release-nearer-p": 0.0, "release-discarded": 0.6}
    told |= {"diversity-synthetic-lpips-vgg": 0.001}
    run = RUNS["with_noise" if noised else "learnt"]()
    events = [
        replace(event, metrics={**event.metrics, **told})
        if event.verb == "query.prepare"
        else event
        for event in run.events
    ]
    page = page_of(fake_run(events, "feder"))
    assert page.count("FAIL") == (0 if noised else 2 * len(NAMES))
    assert page.count("cannot tell") == (2 * len(NAMES) + 1 if noised else 0)  # and what it means
    for remark in ("missed its purpose", "little of the variety"):
        assert (remark in page) != noised


def test_of_shares_that_noise_hides_there_is_no_picture():
    run = RUNS["with_noise"]()
    assert page_of(run).count("gets right") == 3  # of all classes, and of each of two
    for row in run.summary.assessments:
        for each in row["classes"]:
            each["recall"] = None
    assert "gets right" not in page_of(run)
    assert "A share that the noise would hide is left out" in page_of(run)


def test_of_exact_figures_nobody_speaks_of_noise():
    run = RUNS["learnt"]()
    assert isnan(run.summary.noise)
    assert "noise" not in page_of(run).partition("All settings")[0].replace("noise-multiplier", "")


def test_where_classes_are_left_out_no_model_is_called_better_than_the_hospital_s_own():
    summary = RUNS["with_noise"]().summary
    better = {row["hospital"]: row["compared"] for row in summary.assessments if row["held"]}
    assert better == {"graz": "better", "linz": "better", "wien": ""}
    said = {row["hospital"]: row for row in summary.worth if row["about"] == "hospital"}
    assert "That is better than its own" in said["graz"]["text"]
    assert "Its exact page says whether that is better" in said["wien"]["text"]
    assert said["wien"]["judgement"] == "open"
    (gain,) = [text for text in texts(summary.worth, "run") if "hospitals' own" in text]
    assert gain.startswith("Each hospital's exact page says whether models are better than")
    assert "of the reported classes" in gain


@pytest.mark.parametrize(
    ("low", "high", "noise", "word"),
    [
        (0.01, 0.19, 0.0, "better"),
        (0.01, 0.19, 0.03, "not shown"),  # exact it may be 0.04, ± 0.07 for patients
        (0.05, 0.15, 0.02, "better"),
        (-0.15, -0.05, 0.02, "worse"),
        (0.001, 0.199, 0.05, "not shown"),
    ],
)
def test_a_verdict_holds_wherever_noise_has_the_exact_difference(low, high, noise, word):
    value = (low + high) / 2
    gain: Figure = {"value": value, "low": low, "high": high, "noise": noise}
    assert direction(gain) == word


def test_lines_say_how_far_noise_may_have_moved_the_first_figure():
    events = [event for event in RUNS["with_noise"]().events if event.round == 2]
    line = wording.round_line(measure_round(2, events, cross=True), 4, 3)
    assert "noise ±0.020" in line  # 1.96 · 0.03 / √9
    exact = [event for event in RUNS["learnt"]().events if event.round == 2]
    assert "noise" not in wording.round_line(measure_round(2, exact, cross=True), 4, 3)


def test_a_figure_without_an_interval_has_its_noise_beside_it():
    told = {"balanced-accuracy": 0.5, "balanced-accuracy-noise": 0.1}
    row = assessment("model", "a", "a", told, ["x", "y"])
    assert number(row["balanced_accuracy"]) == "0.500 (noise ±0.196)"


SITES = ("graz", "linz")


@pytest.fixture(scope="module")
def deployed_run(tmp_path_factory):
    """Two hospitals of three classes, one of them rare at each, with the default figures."""
    folder = tmp_path_factory.mktemp("deployed")
    places = []
    for index, site in enumerate(SITES):
        rng = np.random.default_rng(index)
        for label, count in enumerate(((225, 150, 12), (150, 12, 225))[index]):
            for place in range(count):
                pixels = rng.integers(0, 120, (8, 8))
                pixels[:, 2 * label : 2 * label + 2] += 120
                image = folder / site / "abc"[label] / f"{place}.png"
                image.parent.mkdir(parents=True, exist_ok=True)
                PIL.Image.fromarray(pixels.astype(np.uint8)).save(image)
        secret = folder / "store" / site / "figures-secret"
        secret.parent.mkdir(parents=True)
        secret.write_bytes(bytes(32))  # the same noise in every test run
        (folder / f"{site}.toml").write_text("runs.sealed-only = false", "utf-8")
        own = {"site": site, "store_dir": folder / "store", "data_dir": folder / site}
        config: dict[str, Any] = {"num_server_rounds": 2, "min_hospitals": 2, "test_fraction": 0.5}
        config |= {"strategy": "rwt", "model": "mlp", "output_dir": str(folder / "runs")}
        context = deployment(run_config(**config), policy=folder / f"{site}.toml", **own)
        context.node_id += index
        places.append(context)
    return folder, run_here(places)[0]


@pytest.mark.slow
def test_the_server_s_page_does_not_contradict_those_of_the_hospitals(deployed_run):
    folder, result = deployed_run
    summary = Summary.read(result)
    assert summary.noise > 0
    assert len(summary.classes) == 3
    for site in SITES:
        past = PastRun.find(site, folder / "store", None)
        policy = Policy.read(folder / f"{site}.toml")
        hospital = reopen_hospital(past, folder / site, policy)
        rows = worth_here.exact_assessments(past, worth_here.open_details(past, hospital))
        exact = {(row["kind"], row["model"]): row for row in rows}
        for row in summary.assessments:
            if row["hospital"] != site:
                continue
            assert [each["images"] is None for each in row["classes"]].count(True) == 1
            assert row["compared"] == ""  # a class is left out
            for cells, each in zip(row["confusion"], row["classes"], strict=True):
                assert sum(cell or 0 for cell in cells) == (each["images"] or 0)
            same = exact[row["kind"], row["model"]]
            for told, true in zip(row["classes"], same["classes"], strict=True):
                if told["recall"]:
                    value, low, high = (told["recall"][end] for end in ("value", "low", "high"))
                    # Of twenty intervals one misses; one of twice the length hardly ever does.
                    assert abs(true["recall"]["value"] - value) <= 2 * max(
                        high - value, value - low
                    )
    said = " ".join(texts(summary.worth, "run", "noise", "class", "hospital"))
    assert "figures are about 2." in said
    for verdict in ("That is better", "That is worse", "Better than", "Worse than", "few test"):
        assert verdict not in said


@pytest.mark.slow
def test_files_say_that_their_figures_have_noise(deployed_run):
    _, result = deployed_run
    with (result / "accuracy_matrix.csv").open(encoding="utf-8") as file:
        assert next(csv.reader(file))[0] == "model (accuracies with noise)"
    page = (result / "report.html").read_text("utf-8")
    assert "(a, b, c; figures of 2)" in page
    assert json.loads((result / "summary.json").read_bytes())["headline"]["noise"] > 0
