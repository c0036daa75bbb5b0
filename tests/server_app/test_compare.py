"""Methods compared over made-up result directories."""

import csv
import errno
import fcntl
import json
import os
from dataclasses import replace
from itertools import combinations
from math import isnan, nan, sqrt

import pytest
import tomli_w
from flwr.common.config import unflatten_dict
from pydantic_core import to_json

from cli import main
from pages.verdicts.methods import count_pairs
from pages.verdicts.model import mean_chance
from server_app.compare import HEADER, WIDTH, records, text
from server_app.compare_page import page
from server_app.comparison import COLUMNS, COSTS, MORE, Difference, compare
from server_app.runs import find
from server_app.summary import Record, Summary, measure_round, summarise
from strategies.engine.events import Event
from tests.fakes import run_config
from tests.server_app.test_report import bare

BALANCED, ACCURACY, HELD, _ = COLUMNS


def write_run(folder, strategy, seed, values=(0.6, 0.8), status="completed", **settings):
    """A run whose two models have, at hospitals A and B, `values` as balanced accuracy.

    The accuracy is 0.1 more. Hospital A holds model B, and the other way round; a model is
    worth 0.1 more where it is held, and 0.1 less elsewhere, so that the means stay.
    """
    folder.mkdir(parents=True)
    images = settings.pop("images", 10)
    config = run_config(strategy=strategy, seed=seed, output_dir=str(folder), **settings)
    (folder / "config.toml").write_text(tomli_w.dumps(unflatten_dict(config)))
    events = [
        Event("query.prepare", 0, 0, h, h, metrics={"num-train": 90.0, "num-test": images})
        for h in "AB"
    ]
    for round_, shift in ((1, 0.5), (2, 0.0)):  # what was before the last round does not count
        for hop, old in ((1, 0.3), (2, 0.0)):  # nor what a model was before its last visit
            for model in "AB":
                for hospital, value in zip("AB", values, strict=True):
                    balanced = value - shift - old + (0.1 if model != hospital else -0.1)
                    metrics = {"balanced-accuracy": balanced, "accuracy": balanced + 0.1}
                    events.append(Event("evaluate", round_, hop, hospital, model, metrics=metrics))
        events += [Event("hand-off", round_, 2, *pair) for pair in ("AB", "BA")]
    rounds = [measure_round(n, [e for e in events if e.round == n], cross=True) for n in (1, 2)]
    error = "the power went" if status == "failed" else ""
    summary = replace(
        summarise(Record(strategy, events, rounds, 60.0, error)),
        history={"round": [1, 2]},
        personalized_accuracy=nan,
        bytes_sent=1_500_000,
        bytes_received=500_000,
    )
    (folder / "metrics.jsonl").touch()
    (folder / "summary.json").write_bytes(to_json(summary, inf_nan_mode="null"))
    return folder


@pytest.fixture
def study(tmp_path):
    """Five methods and three seeds; the last method has another split.

    rwt has 0.1, 0.2 and 0.3 more than cwt; fedavg and fedprox differ by 0.02, -0.01 and 0.01.
    """
    for seed, (rwt, fedprox) in enumerate([(0.1, 0.02), (0.2, -0.01), (0.3, 0.01)]):
        for strategy, more in (("cwt", 0.0), ("rwt", rwt), ("fedavg", 0.0), ("fedprox", fedprox)):
            folder = tmp_path / "runs" / strategy / f"{seed}"
            write_run(folder, strategy, seed, (0.3 + more, 0.5 + more))
        write_run(tmp_path / "runs" / "feder" / f"{seed}", "feder", seed, partition_alpha=0.1)
    return tmp_path / "runs"


def pair(comparison, names, figure=BALANCED, hospital=""):
    (found,) = [
        each
        for each in comparison.differences(figure, hospital)
        if [each.first.name, each.second.name] == names
    ]
    return found


def interval(difference):
    assert difference.figure is not None
    return difference.figure["low"], difference.figure["high"]


def test_figures_are_those_of_the_summary():
    names = {figure.name for figure in COLUMNS + MORE + COSTS}
    assert names - Summary.__dataclass_fields__.keys() == {"megabytes"}


def test_a_difference_has_students_interval_over_the_seeds_of_both(study):
    """By hand: cwt - rwt is -0.1, -0.2, -0.3; mean -0.2, std 0.1, t(2) = 4.3027.

    half = 4.3027 * 0.1 / sqrt(3) = 0.2484: the interval has 0 in it.
    """
    comparison = compare([study])
    names = [method.name for method in comparison.methods]
    assert names == ["cwt", "fedavg", "feder", "fedprox", "rwt"]
    difference = pair(comparison, ["cwt", "rwt"])
    assert difference.by_seed == pytest.approx({0: -0.1, 1: -0.2, 2: -0.3})
    half = 4.302653 * 0.1 / sqrt(3)
    assert interval(difference) == pytest.approx((-0.2 - half, -0.2 + half))
    assert difference.cells[2:] == ["-0.200 (-0.448 to +0.048)", "no difference shown"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by_seed", "words"),
    [
        ({}, "not measured, or no seed and hospitals in common"),
        ({0: 0.5}, "1 seed: too few to say"),
        ({0: 0.5, 1: 0.4}, "2 seeds: too few to say"),  # t(1) = 12.7
        ({0: 0.5, 1: 0.49, 2: 0.51}, "cwt is higher"),
        ({0: -0.5, 1: -0.49, 2: -0.51}, "rwt is higher"),
        ({0: 0.0, 1: 0.0, 2: 0.0}, "no difference shown"),
        ({0: 0.5, 1: 0.5, 2: 0.5}, "no interval: the same at every seed"),
        ({0: -0.1, 1: -0.1, 2: -0.1 - 1e-16}, "no interval: the same at every seed"),
    ],
)
def test_a_method_is_called_higher_only_outside_the_interval(by_seed, words, study):
    methods = compare([study]).methods
    assert Difference(methods[0], methods[4], by_seed).cells[-1] == words


def test_equal_means_of_different_numbers_are_no_difference(tmp_path):
    """0.05 + 0.1 is 0.15000000000000002; so the means differ in their last bit, at every seed."""
    for seed in range(3):
        write_run(tmp_path / "cwt" / f"{seed}", "cwt", seed, (0.55, 0.55))
        write_run(tmp_path / "rwt" / f"{seed}", "rwt", seed, (0.55, 0.55))
        for name, value in (("cwt", 0.15), ("rwt", 0.05 + 0.1)):
            path = tmp_path / name / f"{seed}" / "summary.json"
            told = json.loads(path.read_text())
            path.write_text(json.dumps({**told, BALANCED.name: value}))
    assert 0.05 + 0.1 > 0.15
    difference = pair(compare([tmp_path]), ["cwt", "rwt"])
    assert difference.cells[2:] == ["+0.000 (+0.000 to +0.000)", "no difference shown"]


def test_a_difference_that_is_the_same_at_every_seed_is_not_shown(tmp_path):
    """No spread between seeds can be estimated from it."""
    for seed in range(3):
        write_run(tmp_path / "cwt" / f"{seed}", "cwt", seed, (0.75, 0.75))
        write_run(tmp_path / "rwt" / f"{seed}", "rwt", seed, (0.5, 0.5))
    comparison = compare([tmp_path])
    assert pair(comparison, ["cwt", "rwt"]).cells[2:] == [
        "+0.250",
        "no interval: the same at every seed",
    ]
    assert all("not shown to differ from rwt" in each for each in comparison.conclusions)
    assert "no interval: the same at every seed" in page(comparison)


def test_methods_with_equal_shortened_values_have_names_of_their_own(tmp_path):
    """Their paths end in the same 23 letters; at home the first one is higher by about 0.3."""
    for folder, more in (("first", 0.3), ("second", 0.0)):
        for seed in range(3):
            pretrained = f"/{folder}/the/same/long/weights.safetensors"
            values = (0.3 + more, 0.5 + more * (1 + seed / 100))
            run = tmp_path / f"{folder}-{seed}"
            write_run(run, "cwt", seed, values, pretrained=pretrained)
    comparison = compare([tmp_path])
    name = "cwt, pretrained=…ong/weights.safetensors"
    assert [method.name for method in comparison.methods] == [name, f"{name} (2)"]
    first = comparison.methods[0]
    assert first.facts["pretrained"].startswith("/first")
    assert pair(comparison, [name, f"{name} (2)"]).higher_method == name
    assert all(f"{name} (2)" in conclusion for conclusion in comparison.conclusions)


def test_methods_with_another_split_are_named_and_not_compared(study):
    comparison = compare([study])
    names = ["cwt", "fedavg", "fedprox", "rwt"]
    assert [(a.name, b.name) for a, b in comparison.pairs] == [*combinations(names, 2)]
    values = "0.5 (cwt, fedavg, fedprox, rwt); 0.1 (feder)"
    assert comparison.different_settings == [("split", "partition-alpha", values)]
    assert f"split: partition-alpha – {values}" in text(comparison)


def test_figures_at_hospitals_are_of_the_latest_models_and_of_those_held(study):
    """cwt has 0.3 at A and 0.5 at B; the model that a hospital holds has 0.1 more."""
    method = compare([study]).methods[0]
    assert method.values(BALANCED, "A") == pytest.approx([0.3] * 3)
    assert method.values(ACCURACY, "B") == pytest.approx([0.6] * 3)
    assert method.values(HELD, "A") == pytest.approx([0.4] * 3)
    assert method.values(COLUMNS[3]) == []  # null
    assert method.values(COLUMNS[3], "A") == []
    assert [method.values(figure) for figure in COSTS] == [[60.0] * 3, [2.0] * 3]
    assert pair(compare([study]), ["cwt", "rwt"], BALANCED, "B").by_seed[2] == pytest.approx(-0.3)


def test_methods_of_one_strategy_are_named_by_what_differs(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "feder", seed, feder__variant="buffer-only")
        write_run(tmp_path / f"b{seed}", "feder", seed, train__epochs=7)
    write_run(tmp_path / "c", "cwt", 5, dataset="npz:/a/very/long/name/of/a/file.npz")
    comparison = compare([tmp_path])
    assert [method.name for method in comparison.methods] == [
        "cwt",
        "feder, train.epochs=3, feder.variant=buffer-only",
        "feder, train.epochs=7, feder.variant=full",
    ]
    assert [row[:2] for row in comparison.different_settings] == [
        ("data", "dataset"),
        ("setting", "train.epochs"),
    ]
    first, second = comparison.methods[1:]
    difference = pair(comparison, [first.name, second.name])
    assert difference.cells[-1] == "2 seeds: too few to say"
    (said, _) = comparison.conclusions
    assert f"'{first.name}' has the highest" in said  # a name with a comma has quotes
    assert f"not to be compared with '{second.name}' (3 seeds are needed)" in said


def test_runs_that_lose_visits_on_purpose_are_another_method(tmp_path):
    for losses, value in (("", 0.6), ("lost 0.2", 0.5)):
        run = write_run(tmp_path / f"runs-{losses}" / "run", "rwt", 0, (value, value))
        (run / "visits").write_text(losses)
    comparison = compare(sorted(tmp_path.iterdir()))
    assert comparison.left_out == {}
    names = ["rwt, visits=all", "rwt, visits=lost 0.2"]
    assert [method.name for method in comparison.methods] == names
    values = "all ('rwt, visits=all'); lost 0.2 ('rwt, visits=lost 0.2')"
    assert comparison.different_settings == [("setting", "visits", values)]


def test_runs_with_other_code_or_own_settings_of_hospitals_are_no_silent_repetitions(tmp_path):
    for seed, (code, rate) in enumerate([("1", ""), ("2", ""), ("2", "0.5")]):
        path = write_run(tmp_path / f"{seed}", "cwt", seed) / "summary.json"
        summary = json.loads(path.read_text())
        own = {"train.learning-rate": rate} if rate else {}
        summary["data"]["A"]["own_settings"] = own
        path.write_text(json.dumps(summary | {"code": 64 * code}))
    first, second = (method.title for method in compare([tmp_path]).methods)
    assert "0.5 (1 run, seed 2)" in first + second
    assert "own-settings=none (2 runs, seeds 0, 1, 2 versions of the code)" in first + second
    said = {key: values for _, key, values in compare([tmp_path]).different_settings}
    assert "A: train.learning-rate = 0.5 (" in said["own-settings"]
    assert said["code"].startswith("111111111111, 222222222222 (")


def test_folds_of_a_seed_are_averaged_before_seeds_are_counted(tmp_path):
    for seed in (0, 1):
        for fold, more in enumerate((0.1, 0.3)):
            folder = tmp_path / f"{seed}{fold}"
            split = {"num_folds": 2, "fold": fold}
            write_run(folder / "cwt", "cwt", seed, (0.3 + more, 0.5 + more), **split)
            write_run(folder / "rwt", "rwt", seed, (0.3, 0.5), **split)
    difference = pair(compare([tmp_path]), ["cwt", "rwt"])
    assert difference.by_seed == pytest.approx({0: 0.2, 1: 0.2})


def test_values_are_those_of_toml(tmp_path):
    write_run(tmp_path / "a", "cwt", 0)
    write_run(tmp_path / "b", "rwt", 0, asynchronous=True)
    words = ("setting", "asynchronous", "false (cwt); true (rwt)")
    assert words in compare([tmp_path]).different_settings
    write_run(tmp_path / "c", "fedavg", 0, asynchronous=True, pretrained="imagenet")
    words = ("setting", "pretrained", '"" (cwt, rwt); imagenet (fedavg)')
    assert words in compare([tmp_path]).different_settings


def test_means_over_different_hospitals_are_not_compared(tmp_path):
    """Hospital A is hard. It did not test rwt; cwt and rwt are alike at B."""
    for seed in range(3):
        write_run(tmp_path / "cwt" / f"{seed}", "cwt", seed, (0.5, 0.8))
        write_run(tmp_path / "feder" / f"{seed}", "feder", seed, (0.5, nan))
        write_run(tmp_path / "rwt" / f"{seed}", "rwt", seed, (nan, 0.8))
    for run in tmp_path.glob("*/*/summary.json"):
        run.write_text(json.dumps({**json.loads(run.read_text()), "wall_seconds": 60.0}))
    comparison = compare([tmp_path])
    assert pair(comparison, ["cwt", "rwt"], COSTS[0]).by_seed == dict.fromkeys(range(3), 0.0)
    for column in (BALANCED, HELD):
        assert pair(comparison, ["cwt", "rwt"], column).by_seed == dict.fromkeys(range(3), 0.0)
        assert pair(comparison, ["feder", "rwt"], column).by_seed == {}
    assert "not shown to differ from cwt; not compared with feder" in comparison.conclusions[1]


BEHIND = {"cwt": ["AB", "AB", "AB"], "feder": ["AB", "A", "AB"], "rwt": ["AB", "AB", "A"]}


@pytest.mark.parametrize(
    ("name", "unlike"),
    [
        ("ensemble_balanced_accuracy", {"rwt"}),
        ("ensemble_accuracy", {"rwt"}),
        ("accuracy_over_tasks", {"rwt"}),
        ("accuracy_within_tasks", {"rwt"}),
        ("forgetting", {"feder", "rwt"}),
        ("backward_transfer", {"feder", "rwt"}),
    ],
)
def test_means_that_are_not_known_by_hospital_are_compared_over_the_same_ones(
    name, unlike, tmp_path
):
    """Of rwt hospital B has no ensemble and no test after the last task, of feder none after the
    second task.
    """
    for strategy, after in {**BEHIND, "fedavg": BEHIND["cwt"]}.items():
        file = write_run(tmp_path / strategy, strategy, 0) / "summary.json"
        found = json.loads(file.read_text())
        row = {"accuracy": found["headline"], "balanced_accuracy": found["headline"]}
        found["assessments"] += [row | {"kind": "ensemble", "hospital": h} for h in after[-1]]
        tasks = {"hospitals": [[*each] for each in after]}
        file.write_text(json.dumps({**found, name: 0.5, "tasks": tasks}))
    (column,) = (each for each in MORE if each.name == name)
    comparison = compare([tmp_path])
    for other in ("fedavg", "feder", "rwt"):
        difference = pair(comparison, ["cwt", other], column)
        assert difference.by_seed == ({} if other in unlike else {0: 0.0})


def test_images_that_changed_between_two_runs_are_noticed(tmp_path):
    write_run(tmp_path / "a", "cwt", 0)
    write_run(tmp_path / "b", "rwt", 0, images=12)
    comparison = compare([tmp_path])
    words = ("data", "images at seed 0", "differ between cwt, rwt")
    assert comparison.different_settings == [words]
    assert pair(comparison, ["cwt", "rwt"]).by_seed == {}


def test_what_cannot_be_compared_is_named_and_not_fatal(study, tmp_path, capsys):
    write_run(study / "failed", "cwt", 7, status="failed")
    under_way = write_run(study / "under-way", "cwt", 8)
    stopped = write_run(study / "stopped", "cwt", 9)
    for folder in (under_way, stopped):
        (folder / "summary.json").unlink()
    (stopped / "checkpoint").mkdir()
    (stopped / "checkpoint" / "resume.toml").touch()
    broken = write_run(study / "broken", "cwt", 10)
    (broken / "summary.json").write_text('{"status": ')
    bare = write_run(study / "bare", "cwt", 11)
    (bare / "config.toml").unlink()
    cut = write_run(study / "cut", "cwt", 12)
    (cut / "config.toml").write_text("strategy = 'cwt'")
    write_run(study / "cwt" / "0-again", "cwt", 0, (0.1, 0.1))
    (tmp_path / "empty").mkdir()
    places = [study, tmp_path / "empty", tmp_path / "nowhere", study / "cwt"]
    held = os.open(under_way, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        comparison = compare(places)
    finally:
        os.close(held)
    reasons = {path.name: reason for path, reason in comparison.left_out.items()}
    assert reasons["failed"] == "failed: the power went"
    assert reasons["under-way"] == "is under way"
    assert reasons["stopped"].startswith("has not completed; resume it with --run-config '")
    assert reasons["broken"].startswith(f"cannot be read ({broken}/summary.json is damaged")
    assert reasons["bare"] == "has no config.toml: it is not a result directory"
    cure = "give a result directory, or a folder that contains some"
    assert reasons["empty"] == f"holds no run: {cure}"
    assert reasons["nowhere"] == f"is not a folder: {cure}"
    assert "config.toml has no seed" in reasons["cut"]
    again = study / "cwt" / "0-again"
    assert reasons["0"] == f"has the settings and seed of {again}, which is compared in its place"
    assert len(comparison.left_out) == 9
    assert comparison.methods[0].values(BALANCED)[0] == pytest.approx(0.1)
    assert all(reason in text(comparison) for reason in comparison.left_out.values())
    assert find([study / "cwt", study / "cwt" / "1"])[1] == {}


def test_runs_beyond_the_limit_are_named(study, monkeypatch):
    monkeypatch.setattr("server_app.runs.MOST_RUNS", 3)
    found, left_out = find([study])
    assert len(found) == 3
    assert [*left_out.items()] == [
        (study, "holds more than 3 runs, of which the others are not read")
    ]


def test_the_text_fits_into_a_terminal(study):
    lines = text(compare([study])).splitlines()
    assert max(map(len, lines)) <= 80
    assert "cwt (3 runs, seeds 0, 1, 2)" in lines
    assert "cwt      0.400±0.000  0.500±0.000  0.500±0.000  –         60    2.0" in lines
    assert "feder    0.600±0.000  0.800±0.000" in lines  # at A and at B
    assert "cwt − rwt         3 seeds  -0.200 (-0.448 to +0.048)  no difference shown" in lines


def test_a_name_for_which_a_line_has_no_room_stands_above_its_figures(tmp_path):
    for epochs in (1, 2):
        write_run(tmp_path / f"{epochs}", "fedrewind", 0, train__epochs=epochs, rewind__base="rwt")
    lines = text(compare([tmp_path])).splitlines()
    place = lines.index("fedrewind, train.epochs=1")
    assert lines[place + 1].split()[:3] == ["0.700", "0.800", "0.800"]
    assert max(map(len, lines)) <= WIDTH


def test_no_interval_goes_beyond_what_a_difference_can_be(study):
    methods = compare([study]).methods
    by_seed = {0: -0.9, 1: 0.9, 2: 0.6}
    free = interval(Difference(methods[0], methods[4], by_seed))
    assert free[0] < -1
    assert free[1] > 1
    assert interval(Difference(methods[0], methods[4], by_seed, 1.0)) == (-1.0, 1.0)
    differences = compare([study]).differences
    assert {each.most for figure in COLUMNS for each in differences(figure)} == {1.0}


def test_the_conclusion_names_the_best_and_what_is_shown(study):
    """rwt has 0.2 more than cwt on average, and its interval has 0 in it."""
    home, everywhere = compare([study]).conclusions
    assert home.startswith("At home, with the model that a hospital holds: rwt has the highest")
    assert "(0.600) of those that are compared; not shown to differ from cwt, fed" in everywhere
    assert everywhere.endswith("compared with feder (no common seed with the same images).")
    for seed in range(3):  # now it is 0.1 more each time, within a thousandth
        write_run(study / "new" / f"{seed}", "fedbn", seed, (0.7 + seed / 1000, 0.9))
    _, everywhere = compare([study]).conclusions
    assert "fedbn has the highest balanced accuracy (0.800" in everywhere
    assert "shown to be above cwt, fedavg, fedprox; not shown to differ from rwt; not" in everywhere


def test_a_method_that_is_below_another_on_common_seeds_is_said_to_be(tmp_path):
    """On seeds 0 to 2 cwt has 0.1 less than rwt; on seeds 3 to 5, which rwt lacks, far more."""
    for seed in range(6):
        value = 0.4 if seed < 3 else 0.8
        write_run(tmp_path / "cwt" / f"{seed}", "cwt", seed, (value, value + seed / 1000))
        if seed < 3:
            write_run(tmp_path / "rwt" / f"{seed}", "rwt", seed, (0.5, 0.5))
    _, everywhere = compare([tmp_path]).conclusions
    assert "cwt has the highest balanced accuracy (0.6" in everywhere
    assert everywhere.endswith("; shown to be below rwt on common seeds and hospitals.")


def test_the_best_of_methods_that_learnt_nothing_is_not_praised(study):
    for run in study.glob("*/*/summary.json"):
        classes = [{"images": 5}] * 2
        row = {"kind": "model", "classes": classes, "largest_class": {"share": 0.9}}
        summary = json.loads(run.read_text())
        run.write_text(json.dumps({**summary, "assessments": [row]}))
    comparison = compare([study / "cwt", study / "fedavg"])
    _, everywhere = comparison.conclusions
    assert "(0.400), which is not above that of a constant answer (0.500);" in everywhere
    shown = page(comparison)
    assert "a constant answer, or chance: 0.500" in shown
    assert "always the most frequent class: 0.90" in shown


@pytest.mark.parametrize(("classes", "hospitals"), [(3, 4), (7, 5), (10, 3)])
def test_a_constant_answer_is_not_above_a_constant_answer(classes, hospitals):
    """Rounded after each addition, the mean of so many equal numbers is less than each of them."""
    row = {"classes": [{"images": 5}] * classes}
    assert mean_chance([row] * hospitals**2) == 1 / classes


def test_many_comparisons_at_once_are_named(study, monkeypatch):
    comparison = compare([study])
    assert "6 pairs are compared at once" in text(comparison)
    assert "0.3 of these intervals" in text(comparison).replace("\n", " ")
    assert count_pairs(1) == ""
    monkeypatch.setattr("server_app.compare_page.MOST_ROWS", 5)
    assert "6 pairs are compared at once" in page(comparison)


def test_the_page_has_curves_over_the_rounds(study):
    for run in study.glob("cwt/*/summary.json"):
        summary = json.loads(run.read_text())
        summary["history"][BALANCED.name] = [0.2, None if run.parent.name == "0" else 0.4]
        run.write_text(json.dumps(summary))
    comparison = compare([study])
    assert comparison.methods[0].curve(BALANCED) == {1: pytest.approx(0.2), 2: pytest.approx(0.4)}
    assert "Balanced accuracy, everywhere, by round" in page(comparison)


@pytest.mark.parametrize(("over_tasks", "count"), [(nan, 2), (0.5, 1)])
def test_the_dashed_line_of_curves_has_the_name_that_it_has_above(over_tasks, count, study):
    """That of the accuracy was called chance. With tasks the figure of all rounds is not one."""
    for run in study.glob("*/*/summary.json"):
        row = {"kind": "model", "classes": [], "largest_class": {"share": 0.9}}
        summary = json.loads(run.read_text())
        summary |= {"assessments": [row], "history": {"round": [1, 2], ACCURACY.name: [0.2, 0.4]}}
        summary["accuracy_over_tasks"] = None if isnan(over_tasks) else over_tasks
        run.write_text(json.dumps(summary))
    shown = page(compare([study]))
    assert shown.count(">always the most frequent class: 0.900<") == count
    assert "chance: 0.9" not in shown


def test_many_pairs_and_hospitals_are_left_to_the_files(study, tmp_path, monkeypatch):
    monkeypatch.setattr("server_app.compare.MOST_PAIRS", 5)
    monkeypatch.setattr("server_app.compare.MOST_HOSPITALS", 1)
    shown = text(compare([study]))
    assert "6 pairs of methods; --csv and --html write all of them" in shown
    assert "6 pairs are compared at once" in shown
    assert "by hospital" not in shown


def test_the_csv_file_has_every_mean_and_every_difference(study):
    comparison = compare([study])
    rows = [dict(zip(HEADER, row, strict=True)) for row in records(comparison)]
    balanced = [row for row in rows if row["figure"] == BALANCED.name]
    assert len(balanced) == (5 + 6) * 3  # over all hospitals, at A, at B
    (row,) = [r for r in balanced if (r["method"], r["minus"], r["hospital"]) == ("cwt", "rwt", "")]
    assert (row["count"], row["low"]) == (3, pytest.approx(-0.4484, abs=1e-4))
    assert {row["low"] for row in rows if not row["minus"]} == {""}
    assert not any(isinstance(v, float) and isnan(v) for row in rows for v in row.values())


def test_every_table_of_the_page_says_what_its_columns_are(study):
    write_run(study / "failed", "cwt", 7, status="failed")
    shown = page(compare([study]))
    assert '<th scope="col">place</th><th scope="col">reason</th>' in shown
    assert shown.count("<table") == shown.count("<thead>")
    assert '<th scope="col"></th>' not in shown


def test_the_page_shows_all_figures_and_loads_nothing(study):
    shown = page(compare([study]))
    assert shown.count("<svg") == 2 * 3  # two of each figure that was measured
    row = "<td>cwt − rwt</td><td>3 seeds</td><td>-0.200 (-0.448 to +0.048)</td>"
    assert row in bare(shown)
    assert "partition-alpha" in shown
    assert "<script" not in shown
    assert "<h2>Accuracy, at home</h2>" not in shown


@pytest.mark.parametrize(
    ("strategies", "seeds", "means", "differences"),
    [("c", 1, False, False), ("cr", 1, False, True), ("c", 2, True, False), ("cr", 2, True, True)],
)
def test_it_explains_only_what_it_has(strategies, seeds, means, differences, tmp_path):
    for each in strategies:
        for seed in range(seeds):
            write_run(tmp_path / each / f"{seed}", f"{each}wt", seed)
    comparison = compare([tmp_path])
    for shown in (text(comparison), page(comparison)):
        assert ("Mean ± standard deviation over runs" in shown) == means
        assert "Everywhere: every" in shown
        assert ("a bootstrap" in " ".join(shown.split())) == differences
    assert ("Grey: single" in page(comparison)) == means


def test_the_command_writes_files(study, tmp_path, monkeypatch, capsys):
    files = ["--csv", str(tmp_path / "table.csv"), "--html", str(tmp_path / "table.html")]
    with pytest.raises(SystemExit) as end:
        main(["compare", str(study), *files])
    assert end.value.code == 0
    assert "everywhere balanced, differences:" in capsys.readouterr().out
    with (tmp_path / "table.csv").open(newline="") as file:
        assert tuple(next(csv.reader(file))) == HEADER
    assert (tmp_path / "table.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(SystemExit) as end:
        main(["compare", str(tmp_path / "nowhere")])
    assert end.value.code == 1
    assert "nowhere is not a folder" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_a_folder_for_a_file_is_missed_before_the_work(option, study, tmp_path, capsys):
    file = tmp_path / "missing" / f"table.{option[2:]}"
    with pytest.raises(SystemExit) as end:
        main(["compare", str(study), option, str(file)])
    assert end.value.code == 2
    shown = capsys.readouterr()
    assert f"There is no folder '{file.parent}': make it, or name another." in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("option", ["--csv", "--html"])
def test_a_full_disk_leaves_the_file_of_before(option, study, tmp_path, monkeypatch, capsys):
    def fail(draft, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(draft))

    before = tmp_path / f"before.{option[2:]}"
    before.write_text("as it was")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(SystemExit):
        main(["compare", str(study), option, str(before)])
    assert before.read_text() == "as it was"
    assert f"No space left on device: '{before}'" in "".join(capsys.readouterr())
    assert [*tmp_path.glob("*.part")] == []


def test_the_means_over_hospitals_are_those_of_the_summary(study):
    for method in compare([study]).methods:
        at = [method.values(BALANCED, hospital) for hospital in "AB"]
        means = [sum(values) / 2 for values in zip(*at, strict=True)]
        assert means == pytest.approx(method.values(BALANCED))
