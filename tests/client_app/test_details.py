"""What a hospital says of models after the last round, apart from who asks."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from client_app.authority.ledger_index import LONGEST
from client_app.authority.policy import Policy
from client_app.datasets import LocalData
from client_app.datasets.pool import LocalSamples
from client_app.release.details import MOST_CLASSES, Details, Outputs, _Tables
from client_app.release.disclosure import Noised, open_disclosure
from client_app.release.noise import SEPARATION, Noise
from client_app.store import Store
from learning.assessment import operating_point
from pages.figures import assessment
from strategies.protocol.may_leave import METRICS, metric_of
from strategies.protocol.order import Order


def details(tmp_path, labels, groups=None, policy=None, classes=2) -> Details:
    """Of a hospital with such test images, and as many others to train on; no policy = simulated.

    Patients are numbered from 0; None = each image is one. Its noise is the same in every run.
    """
    (tmp_path / "figures-secret").touch(0o600)
    (tmp_path / "figures-secret").write_bytes(bytes(32))
    if policy is not None:
        (tmp_path / "policy.toml").write_text(policy, "utf-8")
    shown = torch.tensor(labels)
    samples = LocalSamples(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), shown)
    test = replace(samples, groups=None if groups is None else np.array(groups))
    data = LocalData(samples, test, tuple(map(str, range(classes))))
    hospital = SimpleNamespace(
        data=data,
        policy=None if policy is None else Policy.read(tmp_path / "policy.toml"),
        store=Store(tmp_path),
        settings=SimpleNamespace(seed=0),
        name="graz",
    )
    order, run = Order(1, 1, "graz", [], "plain", "1"), Store(tmp_path / "runs/1")
    request: Any = SimpleNamespace(hospital=hospital, seal=None, run=run, order=order)
    return Details(open_disclosure(request))


def said(scores, model="m", seen=None):
    """Of test images, and of the training images if they have other scores, [n, K]."""
    test = torch.as_tensor(scores, dtype=torch.float32)
    return Outputs(
        model, test, test if seen is None else torch.as_tensor(seen, dtype=torch.float32)
    )


def saying(labels, classes=2, sure=0.8):
    """The scores of a model that says these labels, so surely."""
    rest = (1 - sure) / (classes - 1)
    return torch.where(torch.eye(classes)[torch.tensor(labels)] > 0, sure, rest)


def told_of(figures, each):
    return figures.figures(each, figures.disclosure.test_figures(each.model, each.test))


def test_twelve_images_say_how_little_they_know(tmp_path):
    """Four of class 1, all found: Wilson's interval for 4 of 4 is 0.51 to 1 (1 / (1 + 1.96²/4))."""
    labels = [0] * 8 + [1] * 4
    told = told_of(details(tmp_path, labels), said(saying(labels)))
    assert told["recall-of-class-1"] == told["recall-of-class-1-high"] == 1
    assert told["recall-of-class-1-low"] == pytest.approx(1 / (1 + 1.959964**2 / 4), abs=1e-6)
    assert told["balanced-accuracy-low"] < 0.8
    assert told["auroc-low"] < 0.8
    assert (told["answers-1-of-class-1"], told["answers-0-of-class-1"]) == (4, 0)
    assert all(metric_of(name) in METRICS for name in told)
    assert all(told[name] in METRICS[metric_of(name)] for name in told)


def test_the_details_that_a_policy_allows_fit_into_a_line_of_the_ledger(tmp_path):
    """20 models of the longest name, with as many classes as have counts of every pair."""
    labels = [k for k in range(MOST_CLASSES) for _ in range(15)]
    each = said(saying(labels, MOST_CLASSES))
    told = told_of(details(tmp_path, labels, policy="", classes=MOST_CLASSES), each)
    values = {f"{'x' * 64}/{name}": float(figure) for name, figure in told.items()}
    assert len(values) > MOST_CLASSES**2
    assert Policy.read().figures.max_detailed * len(json.dumps(values)) < LONGEST


def test_one_class_or_one_patient_is_an_assessment_too(tmp_path):
    """Of one patient nothing is known of others: 12 right images are worth as much as one."""
    told = told_of(details(tmp_path, [1] * 12), said(saying([1] * 12)))
    assert told["recall-of-class-1-low"] == pytest.approx(0.757, abs=0.001)  # Wilson, 12 of 12
    assert not {"auroc", "recall-of-class-0", "threshold-of-class-1"} & told.keys()
    told = told_of(details(tmp_path, [1] * 12, groups=[0] * 12), said(saying([1] * 12)))
    assert told["num-patients"] == 1
    assert told["recall-of-class-1-low"] == pytest.approx(1 / (1 + 1.959964**2), abs=1e-6)


def test_operating_points_are_chosen_on_training_images_alone(tmp_path):
    """A model that never says class 1 ranks it well; on test images it would be best at 0.1."""
    labels = [0] * 80 + [1] * 20
    figures = details(tmp_path, labels)
    test = torch.tensor([[0.95, 0.05]] * 80 + [[0.75, 0.25]] * 20)
    seen = torch.tensor([[0.85, 0.15]] * 80 + [[0.6, 0.4]] * 20)
    told = told_of(figures, said(test, seen=seen))
    assert told["recall-of-class-1"] == 0
    assert told["threshold-of-class-1"] == pytest.approx(0.3)
    assert told["sensitivity-of-class-1"] == 0  # at 0.1 it would be 1
    assert told["specificity-of-class-1"] == 1
    told = told_of(figures, said(test))
    assert told["threshold-of-class-1"] == pytest.approx(0.1)
    assert told["sensitivity-of-class-1"] == told["specificity-of-class-1"] == 1


def test_calibration_is_that_of_the_bins_by_hand(tmp_path):
    """60 answers at 0.95, 45 right, and 40 at 0.55, 30 right: errors of 0.2 each."""
    labels = [0] * 100
    scores = [[0.95, 0.05]] * 45 + [[0.05, 0.95]] * 15 + [[0.55, 0.45]] * 30 + [[0.45, 0.55]] * 10
    told = told_of(details(tmp_path, labels), said(scores))
    assert told["calibration-error"] == pytest.approx(0.2, abs=1e-6)
    assert (told["images-in-bin-9"], told["right-in-bin-9"]) == (60, 0.75)
    assert told["confidence-in-bin-5"] == pytest.approx(0.55)
    assert told["calibration-error-low"] < 0.2 < told["calibration-error-high"]


@pytest.fixture
def alone(tmp_path):
    """A hospital whose own model gets 70 of 100 images right, half of them of each class."""
    labels = [0, 1] * 50
    figures = details(tmp_path, labels)
    wrong = [1 - k if at < 30 else k for at, k in enumerate(labels)]
    own = said(saying(wrong), "own")
    arrays = {"test": own.test.numpy(), "seen": own.seen.numpy(), "model": np.array("own")}
    run = figures.disclosure.request.run
    run.save("alone", {**arrays, "images": np.array("others")})
    assert figures.alone_figures() == {}
    run.save("alone", {**arrays, "images": np.array(figures.images)})
    assert figures.alone_figures()["balanced-accuracy"] == pytest.approx(0.7)
    return figures, labels


def test_the_gain_over_the_hospitals_own_model_is_of_the_same_images(alone):
    """80 right: 10 more, of which none was right before; that is ±0.06, and not ±0.12 as unpaired.

    The variance of the mean of 100 differences, 10 of 1 and 90 of 0, is 0.09 / 100 = 0.03².
    """
    figures, labels = alone
    better = [1 - k if at < 20 else k for at, k in enumerate(labels)]
    told = told_of(figures, said(saying(better)))
    assert told["gain"] == pytest.approx(0.1)
    half = (told["gain-high"] - told["gain-low"]) / 2
    assert half == pytest.approx(1.96 * 0.03, rel=0.2)
    same = told_of(figures, said(saying([1 - k if at < 30 else k for at, k in enumerate(labels)])))
    assert same["gain"] == 0
    assert same["gain-low"] <= 0 <= same["gain-high"]


def repeatedly(figures, scores, times, seen=None):
    """What is told of one model after another, which say the same and have other noise."""
    for number in range(times):
        (figures.disclosure.request.run.folder / "detailed").unlink(missing_ok=True)
        yield told_of(figures, said(scores, str(number), seen))


HALF = [0, 1, 1, 0] * 100  # wrong about half of [0, 1] * 200, in each class


@pytest.mark.slow
def test_counts_of_a_deployment_have_noise_for_all_that_is_told(tmp_path):
    """The noise in a cell is √2 · √(5 · 20) / 4 images, and 4 times that if a patient has three."""
    for times, groups in ((1, None), (4, [0, 0, 0, *range(1, 398)])):
        figures = details(tmp_path, [0, 1] * 200, groups, "figures.max-detailed = 20")
        told = [each["answers-1-of-class-1"] for each in repeatedly(figures, saying(HALF), 100)]
        assert np.std(told) == pytest.approx(times * np.sqrt(2 * 5 * 20) / SEPARATION, rel=0.25)
        assert np.mean(told) == pytest.approx(100, abs=times)
        assert np.array_equal(told, np.rint(told))


def test_the_noise_of_a_table_is_that_of_what_an_image_moves_in_it(tmp_path, monkeypatch):
    """Nine tenths at least: by the calibration error an image moves 2 / n less its own sureness.

    The others make bin 8 less sure than right, and bin 9 surer. The one image is of class 0.
    """
    tables: list[dict[str, Any]] = []
    moved: dict[str, float] = {}
    release = Details._release_table

    def record(details, model, name, table, by, most):
        tables[-1][name], moved[name] = table, by
        return release(details, model, name, table, by, most)

    monkeypatch.setattr(Details, "_release_table", record)
    monkeypatch.setattr(Details, "_operating_point", lambda *_: np.full(3, 0.3))
    labels = [0, 1, 2] * 20
    figures = details(tmp_path, labels, policy="", classes=3)
    scores = saying(labels, 3, sure=0.81)
    scores[::2] = saying([(k + 1) % 3 for k in labels[::2]], 3, sure=0.95)
    for first in ([0.95, 0.03, 0.02], [0.88, 0.06, 0.06], [0.34, 0.33, 0.33], [0.03, 0.95, 0.02]):
        for own in (first, [first[1], first[0], first[2]]):
            scores[0] = torch.tensor(own)
            tables.append({})
            told_of(figures, said(scores))
    assert len(moved) == 5
    for name, most in moved.items():
        changes = [np.linalg.norm(a[name] - b[name]) for a in tables for b in tables]
        assert 0.9 * most < max(changes) < most + 1e-9, name


def test_a_released_table_has_noise_of_what_an_image_moves_times_the_width(tmp_path):
    """Of a patient with three images the width is 4 · √(5 · 20) / 4; shares of 100 have a 100th."""
    groups, policy = [0, 0, 0, *range(1, 398)], "figures.max-detailed = 20"
    figures = details(tmp_path, [0, 1] * 200, groups, policy)
    noise = figures._release_table("m", "found", np.zeros(1000), 2.0, 100.0)
    assert np.std(noise) == pytest.approx(2 * 4 * 10 / SEPARATION / 100, rel=0.1)


def test_counts_for_operating_points_have_noise_for_all_images_of_a_patient(tmp_path, monkeypatch):
    """Four training images: they move 4 · √(K T) in Euclidean length."""
    told = []

    def record(own, others, sizes):
        told.append(own)
        return operating_point(own, others, sizes)

    monkeypatch.setattr("client_app.release.details.operating_point", record)
    monkeypatch.setattr(Noise, "table", lambda *_, shape, **__: np.ones(shape))
    labels = [0, 1] * 50
    for policy in (None, "figures.max-detailed = 20"):
        request: Any = details(tmp_path, labels, policy=policy).disclosure.request
        data = request.hospital.data
        train = replace(data.train, groups=np.arange(100) // 4)
        request.hospital.data = replace(data, train=train)
        Details(open_disclosure(request))._operating_point(said(saying(labels)))
    exact, noised = told
    assert noised - exact == pytest.approx(4 * np.sqrt(exact.size * 20) / SEPARATION)


@pytest.mark.slow
def test_intervals_of_a_deployment_hold_what_is_true_without_noise(tmp_path):
    """Noise alone moves a figure out of an interval that also has room for other patients rarely.

    What is told of the classes is what is told of all.
    """
    figures = details(tmp_path, [0, 1] * 200, policy="")
    names = (
        "balanced-accuracy",
        "accuracy",
        "recall-of-class-1",
        "auroc",
    )
    told = list(repeatedly(figures, saying(HALF), 100))
    for name in names:
        inside = [each[f"{name}-low"] <= 0.5 <= each[f"{name}-high"] for each in told]
        assert np.mean(inside) > 0.93, name
        assert (
            told[0][f"{name}-high"] - told[0][f"{name}-low"] > 2 * 1.96 * 0.5 / np.sqrt(400) * 0.99
        )
    recalls = [np.mean([each[f"recall-of-class-{k}"] for k in (0, 1)]) for each in told]
    assert [each["balanced-accuracy"] for each in told] == pytest.approx(recalls)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([0, 0, 0, *range(3, 512)], [0, 0, 0, 0, *range(4, 512)]),  # three images of one, or four
        ([*range(256), *range(20), *range(276, 512)], [*range(256), *range(24), *range(280, 512)]),
    ],
)
def test_no_figure_tells_the_exact_numbers_of_images_of_patients(tmp_path, one, other):
    """Neither the most images of one patient, nor the number of patients with both classes."""
    labels = [0] * 256 + [1] * 256
    for groups in (one, other):
        figures = details(tmp_path, labels, groups, policy="")
        figures.disclosure.request.run.folder.joinpath("detailed").unlink(missing_ok=True)
        told = told_of(figures, said(saying([0, 1, 1, 1] * 128)))
        assert "accuracy-noise" in told
        if groups is one:
            first = told
    assert told == first


@pytest.mark.parametrize(("policy", "told_of_all"), [("", 60), (None, 48)])
def test_patients_are_rounded_in_each_class_of_each_task(tmp_path, policy, told_of_all):
    """Of tasks that a server chooses: 16 patients with one image in each of three tasks.

    Rounded once, 48 patients would be 50, and the server would learn a rounded number of each union
    that it chooses. One owner learns the exact number: 16, or 48 without names of patients.
    """
    labels, tasks = [0] * 48, np.repeat([1, 2, 3], 16)
    for groups, exact in (([*range(48)], 48), ([*range(16)] * 3, 16)):
        figures = details(tmp_path, labels, groups)
        data = figures.disclosure.data
        data = replace(data, test=replace(data.test, tasks=tasks))
        hospital: Any = figures.disclosure.request.hospital
        hospital.data = data
        if policy is not None:
            hospital.policy = Policy.read()
        figures = Details(open_disclosure(figures.disclosure.request))
        told = figures._patient_counts
        assert told["num-patients"] == (exact if policy is None else told_of_all)
        assert told["patients-of-class-0"] == told["num-patients"]


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("count", [15, 19, 24, 25, 34])  # 15 and 24 are reported as 20
def test_the_reported_noise_is_at_least_that_of_the_exact_numbers_of_images(
    tmp_path, monkeypatch, count, tasks
):
    """Of two classes in each task; a share of n images has 2.5 / n, √2 or 2 times that."""
    labels = [0, 1] * count * tasks
    figures = details(tmp_path, labels, policy="")
    hospital: Any = figures.disclosure.request.hospital
    arrived = np.repeat(np.arange(tasks), 2 * count) if tasks > 1 else None
    hospital.data = replace(hospital.data, test=replace(hospital.data.test, tasks=arrived))
    figures = Details(open_disclosure(figures.disclosure.request))
    noise: dict[str, float] = {}
    add = _Tables.add

    def record(tables, name, share, deviation):
        noise[name] = deviation
        return add(tables, name, share, deviation)

    monkeypatch.setattr(_Tables, "add", record)
    told = told_of(figures, said(saying(labels, sure=0.75)))
    images, released = count * tasks, told["images-of-class-0"] + told["images-of-class-1"]
    for name, exact in (
        ("recall-of-class-1", np.sqrt(2) * 2.5 / images),
        ("sensitivity-of-class-1", 2.5 / images),
        ("specificity-of-class-1", 2.5 / images),
        ("calibration-error", 2 * 2.5 / (2 * images)),
        ("right-in-bin-7", 2 * 2.5 * released / (2 * images) / told["images-in-bin-7"]),
    ):
        assert exact * 0.999 <= noise[name] <= exact * 1.7, name
    assert "recall-of-class-1" in told
    assert 2.5 / images * 0.999 <= told["balanced-accuracy-noise"] <= 2.5 / images * 1.7


def drawn(seed, most=40):
    """A hospital's labels, and what two models of unequal skill say of them."""
    rng = np.random.default_rng(seed)
    count = int(rng.choice([2, 3, 5, 10]))
    labels = np.repeat(np.arange(count), rng.integers(10, most, count))
    skills = [rng.uniform(0, 3, count)]
    skills.append(skills[0] + rng.choice([-1.0, 0.0, 0.3, 1.0]))
    scores = []
    for skill in skills:
        sure = 2 * (
            rng.normal(size=(len(labels), count)) + np.eye(count)[labels] * skill[labels, None]
        )
        scores.append(torch.from_numpy(sure).softmax(dim=1))
    return labels.tolist(), *scores


def row(tmp_path, seed, policy, most=40):
    """What pages get of the second model, with that of the first as the hospital's own."""
    labels, own, new = drawn(seed, most)
    count = new.shape[1]
    figures = details(tmp_path, labels, policy=policy, classes=count)
    if isinstance(figures.disclosure, Noised):
        figures.disclosure.noise = Noise(seed.to_bytes(2))
    (figures.disclosure.request.run.folder / "detailed").unlink(missing_ok=True)
    figures.alone_figures(said(own, "own"))
    told = told_of(figures, said(new, f"model {seed}"))
    return assessment("model", "a", "graz", told, [*map(str, range(count))])


@pytest.mark.parametrize("seed", range(12))
def test_noised_figures_do_not_contradict_one_another(tmp_path, seed):
    told = row(tmp_path, seed, policy="", most=90)
    classes = told["classes"]
    total, known = sum(each["images"] for each in classes), True
    for k, (each, cells) in enumerate(zip(classes, told["confusion"], strict=True)):
        if each["recall"] is None:
            assert cells == [None] * len(classes)
            known = False
            continue
        assert sum(cells) == each["images"]
        assert cells[k] == each["right"] == pytest.approx(each["recall"]["value"] * each["images"])
        if len(classes) == 2 and each["threshold"] == 0.5:
            assert each["sensitivity"]["value"] == pytest.approx(each["recall"]["value"])
    recalls = [each["recall"]["value"] for each in classes if each["recall"]]
    least = sum(recalls) / len(classes)
    rest = 1 - len(recalls) / len(classes)
    assert least - 1e-9 <= told["balanced_accuracy"]["value"] <= least + rest + 1e-9
    if known:
        right = sum(each["right"] for each in classes)
        assert told["accuracy"]["value"] == pytest.approx(right / total)
        assert sum(each["images"] for each in told["calibration"]) <= total
    if told["auroc"]:
        areas = [
            each["sensitivity"]["value"] * each["specificity"]["value"]
            for each in classes
            if each["sensitivity"] and each["specificity"]
        ]
        assert told["auroc"]["value"] >= sum(areas) / len(classes) - 1e-9


def test_all_figures_of_a_perfect_model_may_leave(tmp_path, monkeypatch):
    """Of 9 classes, the parts 1/9 of a recall of 1 sum to 1 + 2e-16."""
    monkeypatch.setattr(Noise, "draw", lambda *_: 1.0)
    labels = [*range(9)] * 100
    told = told_of(details(tmp_path, labels, policy="", classes=9), said(saying(labels, 9)))
    assert told["balanced-accuracy"] == 1
    assert all(told[name] in METRICS[metric_of(name)] for name in told)


@pytest.mark.slow
def test_a_verdict_with_noise_is_that_of_the_exact_figures(tmp_path):
    """Of 40 verdicts about one is not (pages.figures.compared), and none is the opposite."""
    said_, other = 0, 0
    for seed in range(100):
        noised = row(tmp_path, seed, policy="")["compared"]
        if noised in ("better", "worse"):
            exact = row(tmp_path, seed, policy=None)["compared"]
            said_, other = said_ + 1, other + (exact != noised)
            assert {exact, noised} != {"better", "worse"}, seed
    assert said_ > 8
    assert other <= 2


def test_small_classes_and_what_would_be_too_coarse_are_not_told(tmp_path):
    """Of nine patients nothing, of 14 no share: the noise in a recall is 3.5 / 14 and more."""
    labels = [0] * 200 + [1] * 9 + [2] * 13
    told = told_of(details(tmp_path, labels, policy="", classes=3), said(saying(labels, 3)))
    assert not [name for name in told if name.endswith(("class-1", "class-1-low", "class-1-high"))]
    assert "recall-of-class-2" not in told
    assert "answers-2-of-class-2" not in told
    assert "sensitivity-of-class-2" in told
    assert "answers-0-of-class-0" in told


def test_so_many_models_are_told_of_and_no_more(tmp_path):
    figures = details(tmp_path, [0, 1] * 50, policy="figures.max-detailed = 2")
    told = [told_of(figures, said(saying([0, 1] * 50), str(number))) for number in range(3)]
    assert [("answers-0-of-class-0" in each) for each in told] == [True, True, False]
    again = told_of(figures, said(saying([0, 1] * 50), "0"))
    assert again == told[0]
    none = details(tmp_path, [0, 1] * 50, policy="figures.max-detailed = 0")
    few = said(saying([0, 1] * 50))
    assert told_of(none, few) == none.disclosure.test_figures(few.model, few.test)


@pytest.mark.slow
def test_a_training_image_does_not_decide_on_an_operating_point(tmp_path):
    """Of 100 training images of class 1, 25 have 0.45, and 51 have 0.2, or 49; of class 0 half.

    At 0.1, Youden's J is 0.25 + 0.51 - 0.5, or less 0.02; at 0.3 it is 0.25. All test images of the
    class have 0.2: the exact sensitivity is 1 or 0, and tells of single training images. With noise
    in the counts that a threshold is chosen by, either comes about as often in both cases.
    """
    labels = [0, 1] * 100
    test = torch.tensor([[0.99, 0.01], [0.8, 0.2]] * 100)

    def seen(number):
        ones = torch.full((200,), 0.01)
        ones[0:100:2] = 0.2
        ones[1:51:2] = 0.45
        ones[51 : 51 + 2 * number : 2] = 0.2
        return torch.stack([1 - ones, ones], dim=1)

    cases = [seen(51), seen(49)]
    exact = details(tmp_path, labels)
    told = [told_of(exact, said(test, seen=case)) for case in cases]
    assert [each["sensitivity-of-class-1"] for each in told] == [1, 0]
    figures = details(tmp_path, labels, policy="")
    shares = [
        np.mean(
            [each["sensitivity-of-class-1"] > 0.5 for each in repeatedly(figures, test, 100, c)]
        )
        for c in cases
    ]
    assert abs(shares[0] - shares[1]) < 0.25
