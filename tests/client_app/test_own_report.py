"""The report that a hospital writes of a run, from what is in its own folder."""

import hashlib
import html
import json
import math
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common.config import flatten_dict

from cli import main
from client_app.afterwards.alone import _manifest as manifest_alone
from client_app.afterwards.alone import settings_of
from client_app.afterwards.own_buffer import PAIRS, PASSES, Examination, examine
from client_app.afterwards.past_hospital import reopen_hospital
from client_app.afterwards.past_run import PastRun
from client_app.afterwards.report import page
from client_app.afterwards.report.worth import advice
from client_app.afterwards.worth_here import exact_assessments, open_details, own_lineages
from client_app.app import app
from client_app.authority.ledger import append, path_of, read
from client_app.authority.policy import DEFAULTS, Policy
from client_app.datasets import open_data
from client_app.hospital import Hospital
from client_app.release.buffer.job import Release
from client_app.store import Store
from deploy.own_file import write_own
from learning.evaluation import probabilities
from learning.export import load_model, save_model
from learning.model_card import model_card
from learning.samples import Samples
from pages.figures import assessment, is_noised
from pages.verdicts.home import ALL_ROUNDS, OWN_SUMS, judge_home
from pages.verdicts.model import is_useful
from strategies.protocol.files import parse_toml
from strategies.protocol.settings import Settings, SettingsError, defaults
from tests.fakes import FakeGrid, Ledger, deployed, go, run_config

SITES = ("graz", "wien")
SETTINGS = {"strategy": "cwt", "num_server_rounds": 2, "model": "mlp", "image_size": 8, "seed": 4}
SETTINGS |= {"mlp__hidden": "4", "train__epochs": 1}


def federate(folder, **changes):
    """Two hospitals of their own, each with a ledger, after an open run."""
    places = [deployed(folder / site, site, **{**SETTINGS, **changes}) for site in SITES]

    def hospital(place):
        return lambda message: app(message, place)

    grid = FakeGrid({100 + k: hospital(place) for k, place in enumerate(places)})
    state = go(Settings.parse(run_config(**{**SETTINGS, **changes})), grid, Ledger())
    return SimpleNamespace(folder=folder, run=state.run)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return federate(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def place(finished, tmp_path):
    """The same, to be changed."""
    shutil.copytree(finished.folder, tmp_path / "copy")
    return tmp_path / "copy" / "graz"


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """`fedhandoff report` with arguments: exit status, errors, and the page as text."""

    def report(folder, *more, site="graz"):
        to = tmp_path / "report.html"
        given = ["report", "--site", site, "--store-dir", folder / "store", "--to", to, *more]
        with pytest.raises(SystemExit) as ended:
            main([*map(str, given)])
        written = to.read_text(encoding="utf-8") if to.exists() else ""
        return ended.value.code, capsys.readouterr().err, written

    return report


@pytest.fixture
def run(monkeypatch, capsys):
    """`fedhandoff <command>` of graz: exit status, and all that it printed."""

    def run(folder, command, *more):
        given = [command, "--site", "graz", "--store-dir", folder / "store", *more]
        with pytest.raises(SystemExit) as ended:
            main([*map(str, given)])
        return ended.value.code, "".join(capsys.readouterr())

    return run


@pytest.mark.slow
def test_the_commands_of_the_readme_work_one_after_the_other(place, tmp_path, monkeypatch, capsys):
    """After a run of the hospital that docs/deployment.md sets up."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    graz = tmp_path / "fedhandoff" / "graz"
    shutil.copytree(place, graz)
    own = {"name": "graz", "data": "~/skin", "policy": "policy.toml"}
    write_own(graz, "hospital.toml", own)
    shutil.copytree(place / "images", tmp_path / "skin")
    shutil.copytree(place / "images", tmp_path / "new")
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    readme = readme.replace("\\\n", "")
    asked = re.findall(r"^uv run fedhandoff (\w+ .*--hospital graz.*)", readme, re.MULTILINE)
    assert [each.split()[0] for each in asked] == ["ledger", "predict", "report"]
    for command in asked:
        with pytest.raises(SystemExit) as ended:
            main(command.replace("~", str(tmp_path)).split())
        assert ended.value.code == 0, command
    assert (tmp_path / "predictions.csv").exists()
    assert "Exact figures need" not in capsys.readouterr().err


def text_of(page):
    """What people read: cells apart by |."""
    cells = re.sub(r"</t[dh]>", " | ", re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL))
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", cells)).split())


def own(folder):
    """What the exact figures of a hospital in `folder` need."""
    return ("--data-dir", folder / "images", "--policy", folder / "policy.toml")


def test_exact_figures_are_those_of_the_models_on_the_own_test_images(finished, report, tmp_path):
    place = finished.folder / "graz"
    status, errors, written = report(place, *own(place))
    assert (status, errors) == (0, "")
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o600
    text = text_of(written)
    assert "figures of models are exact" in text
    settings = Settings.parse(run_config(**SETTINGS, dataset=f"folder:{place / 'images'}"))
    data = open_data(settings, 0, 1, ("a", "b"), tmp_path)
    labels = data.test.labels.numpy()
    for lineage in SITES:
        home = place / "store" / "graz" / "models" / finished.run
        network, _ = load_model(home / f"{lineage}.safetensors")
        right = probabilities(network, data.test.images, 1e12).argmax(1).numpy() == labels
        balanced = np.mean([right[labels == k].mean() for k in (0, 1)])
        assert re.search(rf" {lineage} \| {balanced:.3f} \(", text)
        assert f"| {right.mean():.3f} (" in text
    alone = Store(place / "store" / "graz" / "runs" / finished.run).load("alone")["test"]
    right = alone.argmax(1) == labels
    balanced = np.mean([right[labels == k].mean() for k in (0, 1)])
    assert f"its own, before the first hand-off | {balanced:.3f} (" in text
    first = re.search(r'<ul class="judged">\s*<li.*?</li>', written, re.DOTALL)
    assert first is not None
    assert re.search(r"better( or worse)? here, on graz's own test images", text_of(first[0]))


@pytest.mark.slow
def test_a_model_trained_alone_for_all_rounds_is_what_others_are_compared_with(
    place, run, report, tmp_path
):
    status, printed = run(place, "alone", *own(place))
    home = next((place / "store" / "graz" / "models").iterdir())
    file = home / "alone" / "graz.safetensors"
    assert status == 0
    assert printed.splitlines()[0] == str(file)
    weights = json.loads((home / "mixture.json").read_text())
    assert set(weights) == {*SITES, "alone/graz"}
    assert f"{weights['alone/graz']:.2f} of 'alone/graz'" in printed
    assert file.stat().st_mode & 0o777 == 0o600

    network, manifest = load_model(file)
    for site in SITES:  # which split the hospitals
        kept = (place.parent / site / "store" / site / "figures-secret").read_bytes()
        (folder := tmp_path / site / "store" / site).mkdir(parents=True)
        (folder / "figures-secret").write_bytes(kept)
    standalone = federate(tmp_path, strategy="standalone")
    expected, label = load_model(
        tmp_path / "graz" / "store" / "graz" / "models" / standalone.run / "graz.safetensors"
    )
    assert manifest.architecture == label.architecture
    for name, tensor in expected.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor)
    assert (manifest.visited, manifest.round, manifest.tested) == (label.visited, 2, {})
    assert manifest.settings["strategy"] == "standalone"

    settings = Settings.parse(run_config(**SETTINGS, dataset=f"folder:{place / 'images'}"))
    secret = (place / "store" / "graz" / "figures-secret").read_bytes()
    data = open_data(settings, 0, 1, ("a", "b"), tmp_path, secret=secret)
    labels = data.test.labels.numpy()
    right = probabilities(network, data.test.images, 1e12).argmax(1).numpy() == labels
    balanced = np.mean([right[labels == k].mean() for k in (0, 1)])
    text = text_of(report(place, *own(place))[2])
    assert f"its own, trained alone for all rounds | {balanced:.3f} (" in text
    assert "on graz's own test images, than graz's own model trained alone for all rounds." in text
    assert "before the first hand-off" not in text


def test_the_card_of_a_model_trained_alone_names_no_image_of_others(place):
    past = PastRun.find("graz", place / "store", None)
    of_run = past.model
    assert len(of_run.visited) == 2
    lent = replace(of_run, replayed=["2=wien"], not_own=["2=none"])
    vars(past)["models"] = {"graz": lent}
    policy = Policy.read(place / "policy.toml")
    hospital = reopen_hospital(past, place / "images", policy, settings_of(past))
    card = model_card(manifest_alone(past, hospital))
    assert "Visits: graz 2. Route: graz → graz. " in card
    assert "It was trained on no synthetic images." in card
    assert "At 1 of these visits" in model_card(lent)
    assert "of these visits" not in card


@pytest.mark.parametrize(
    ("spoilt", "more", "words"),
    [
        ("images", (), "not the hospital's images of the run"),
        ("policy.toml", (), "Give the policy of the run"),
        ("store/graz/ledger.jsonl", (), "no ledger of the run .* --run-config"),
        ("", ("--run-config", "tasks=2 task-cut='permuted'"), "arrived in tasks"),
        ("", ("--run-config", "num-server-rounds=9"), "as in the run: give its config.toml"),
        (
            "",
            ("--run-config", "train.freeze='body'"),
            r"weights is \(none\) in the run, and [0-9a-f]",
        ),
        (
            "",
            ("--run-config", "strategy='sums' train.freeze='body'"),
            r"at home already: \S+/own/graz\.",
        ),
    ],
)
def test_no_model_is_trained_alone_on_other_terms(place, run, spoilt, more, words):
    if spoilt == "images":
        next((place / spoilt).rglob("*.png")).unlink()
    elif spoilt == "policy.toml":
        (place / spoilt).write_text("runs.max-visits = 3", encoding="utf-8")
    elif spoilt:
        (place / spoilt).unlink()
    status, printed = run(place, "alone", *own(place), *more)
    assert status == 2
    assert re.search(words, printed)
    assert not [*place.rglob("alone/*.safetensors")]


def test_a_model_that_diverged_alone_replaces_no_other(place, run, monkeypatch):
    home = next((place / "store" / "graz" / "models").iterdir())
    mixture = (home / "mixture.json").read_bytes()
    first_model = Hospital.first_model

    def spoilt(self):
        network = first_model(self)
        for weight in network.parameters():
            weight.data.fill_(math.nan)
        return network

    monkeypatch.setattr(Hospital, "first_model", spoilt)
    status, printed = run(place, "alone", *own(place))
    assert status == 2
    assert "Training alone diverged, and nothing was kept: outputs are not finite" in printed
    assert "Lower train.learning-rate (it is 0.001) with --run-config." in printed
    assert not (home / "alone").exists()
    assert (home / "mixture.json").read_bytes() == mixture


@pytest.mark.parametrize(
    ("own_settings", "batch_size"),
    [(("train.batch-size=3", "model=cnn"), 3), (("mah.auxiliary=a",), 0)],
)
def test_the_settings_of_a_run_are_those_that_it_had_at_the_hospital(
    place, own_settings, batch_size, monkeypatch
):
    past = PastRun.find("graz", place / "store", None)
    monkeypatch.setattr(PastRun, "card", {"own-settings": own_settings})
    if batch_size:
        assert settings_of(past).train.batch_size == batch_size
    else:
        with pytest.raises(SettingsError, match=r"'mah[.]auxiliary' was the hospital's own file"):
            settings_of(past)


def test_a_ledger_that_is_broken_at_its_start_is_the_reason(place, run, report):
    """Without its first lines the policy and the settings of the run are unknown."""
    ledger = path_of("graz", place / "store")
    ledger.write_bytes(b"{}\n" + ledger.read_bytes())
    broken = "Line 1 is not a line of a ledger."
    settings = place / "config.toml"
    settings.write_text("num-server-rounds = 2\n")
    to = ("--output", place / "predictions.csv")
    for command in (
        ("alone", "--data-dir", place / "images"),
        ("alone", *own(place), "--run-config", settings),
        ("predict", "--data", place / "images", "--calibrate", place / "images", *to),
    ):
        assert broken in run(place, *command)[1], command
    _, _, shown = report(place, *own(place))
    assert f"unknown. {broken}" in text_of(shown)


def test_a_temperature_is_fitted_only_with_the_images_and_the_policy_of_the_run(
    place, run, tmp_path
):
    """Otherwise it could be fitted on images that the run has tested on."""
    given = ["--model", "graz", "--data", place / "images", "--output", tmp_path / "out.csv"]
    given += ["--calibrate", place / "images"]
    status, printed = run(place, "predict", *given)
    assert status == 2
    assert "Give the policy of the run (--policy)" in printed
    given += ["--policy", place / "policy.toml"]
    status, printed = run(place, "predict", *given)
    assert status == 0
    past, policy = PastRun.find("graz", place / "store", None), Policy.read(place / "policy.toml")
    train = reopen_hospital(past, place / "images", policy).data.train
    assert f"fitted on {len(train)} images" in printed
    next((place / "images" / "a").iterdir()).unlink()
    status, printed = run(place, "predict", *given)
    assert status == 2
    assert "These are not the hospital's images of the run" in printed


def test_own_files_of_a_run_leave_only_the_trial_of_synthetic_images_out(
    place, report, monkeypatch
):
    card = {**PastRun.find("graz", place / "store", None).card, "own-settings": ["pretrained=a"]}
    buffer = Release(Samples(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 2), {})
    monkeypatch.setattr(PastRun, "card", card)
    monkeypatch.setattr(PastRun, "buffer", buffer)
    status, errors, written = report(place, *own(place))
    assert (status, errors) == (0, "")
    text = text_of(written)
    assert "Its figures of models are exact" in text
    assert "the hospital used files of its own" in text
    assert "Use for training" not in text


def test_where_no_model_is_as_good_the_own_one_is_advised(place, run):
    run(place, "alone", *own(place))
    past = PastRun.find("graz", place / "store", None)
    of = {"num-examples": 40.0, "images-of-class-0": 20.0, "images-of-class-1": 20.0}
    good = of | estimate("balanced-accuracy", 0.9)
    own_one = assessment("standalone", ALL_ROUNDS, "graz", good, "ab")
    worse = of | estimate("balanced-accuracy", 0.7) | estimate("gain", -0.2)
    other = assessment("model", "wien", "graz", worse, "ab")
    told = advice(past, [own_one, other])
    best = "graz's own, trained alone for all rounds: the best of the others, 'wien'"
    assert told["advice"].startswith(best)
    assert told["model"] == f"{past.run}/alone/graz"
    vars(past)["strategy"] = "sums"
    told = advice(past, [own_one | {"model": OWN_SUMS}, other])
    best = "graz's own, from its own sums alone: the best of the others, 'wien'"
    assert told["advice"].startswith(best)
    assert told["model"] == f"{past.run}/own/graz"


def test_advice_by_noised_figures_says_so(place):
    past = PastRun.find("graz", place / "store", None)
    of = {"num-examples": 40.0, "images-of-class-0": 20.0, "images-of-class-1": 20.0}
    exact = of | estimate("balanced-accuracy", 0.9)
    for figures, noised in ((exact, False), (exact | {"balanced-accuracy-noise": 0.1}, True)):
        row = assessment("model", past.site, "graz", figures, "ab")
        assert is_noised([row]) == noised
        assert ("have noise" in advice(past, [row])["advice"]) == noised


def test_a_run_with_tasks_is_not_tested_again(place, report):
    """The images would be those of another split, or of the first task alone."""
    past = PastRun.find("graz", place / "store", None)
    for file in past.files.values():
        network, manifest = load_model(file)
        save_model(file, network, replace(manifest, tasks=2))
    _, errors, written = report(place, *own(place))
    assert "Images of this run arrived in tasks" in errors + text_of(written)


def test_an_average_has_no_list_of_its_hospitals(place):
    past = PastRun.find("graz", place / "store", None)
    vars(past)["models"] = {"global": replace(past.model, lineage="global", visited=[])}
    text = text_of(page(past, [], "They moved.", None))
    assert "global | several hospitals, averaged" in text
    assert "hospitals in the models here" not in text


def estimate(name, value):
    return {name: value, f"{name}-low": value - 0.1, f"{name}-high": value + 0.1}


def test_it_says_what_the_run_was_and_what_left(finished, report, place):
    _, _, written = report(place, *own(place))
    text = text_of(written)
    lines = [line.entry for line in read(path_of("graz", place / "store"))]
    counts = Counter(line["verb"] for line in lines)
    sizes = sum(
        r.get("bytes", 0) for line in lines if line["verb"] == "train" for r in line["left"]
    )
    assert f"train | {counts['train']} | 0 | {counts['train']} models" in text
    assert f"| {sizes:,} |" in text
    assert "method | cwt |" in text
    assert "rounds | 2 of 2 |" in text
    assert 'mlp.hidden = "4"' in text
    (everything,) = re.findall(r"<summary>All settings</summary><pre>(.*?)</pre>", written, re.S)
    assert flatten_dict(parse_toml(html.unescape(everything))) == lines[0]["settings"]
    assert f"predict --model {finished.run}/" in text
    assert "A mixture is at home, with weights that suit the hospital's own test images" in text
    assert " of 'own/graz'" in text
    assert "No synthetic images left the hospital in this run." in text
    assert "runs.sealed-only | an open run" not in text
    assert "runs.sealed-only | sealed runs and open ones | an open run |" in text


@pytest.mark.parametrize("named", ["graz", "a folder", "nothing"])
def test_its_commands_name_the_hospital_as_short_as_they_can(report, place, monkeypatch, named):
    """`graz` is below ~/fedhandoff; without a hospital.toml, a command needs name and store."""
    if named == "graz":
        monkeypatch.setenv("HOME", str(place.parents[1]))
        place = place.parent.rename(place.parents[1] / "fedhandoff") / "graz"
    if named != "nothing":
        write_own(place, "hospital.toml", {"name": "graz", "store": "store"})
    wanted = {
        "graz": "--hospital graz",
        "a folder": f"--hospital {place}",
        "nothing": f"--site graz --store-dir {place}/store",
    }[named]
    text = text_of(report(place)[2])
    assert f"predict {wanted} --data IMAGES" in text
    assert text.count(wanted) >= 3
    assert text.count("--hospital") == (0 if named == "nothing" else text.count(wanted))


def test_its_commands_work_everywhere_if_it_was_written_in_the_hospital_s_folder(
    report, place, monkeypatch
):
    write_own(place, "hospital.toml", {"name": "graz", "store": "store"})
    monkeypatch.chdir(place)
    assert f"predict --hospital {place} --data IMAGES" in text_of(report(Path())[2])


@pytest.mark.parametrize(("times", "words"), [(1, "1 sample of"), (2, "2 samples of")])
def test_embeddings_that_left_are_counted_by_samples(finished, report, place, times, words):
    left = [{"name": "embeddings", "bytes": 4096, "sha256": "3f" * 32}]
    entry = {"run": finished.run, "verb": "train", "time": "2026-11-22T14:20:03+00:00"}
    for _ in range(times):
        append(path_of("graz", place / "store"), {**entry, "left": left})
    _, _, written = report(place, *own(place))
    assert f", {words} embeddings |" in text_of(written)


def test_figures_that_were_told_are_said_to_be(report, place):
    """Of 24 images without patients' names so few are tested on that no figure leaves."""
    _, errors, written = report(place)
    assert "those that left the hospital" in errors
    assert "No model of this run has a balanced accuracy at graz" in text_of(written)
    status, errors, _ = report(place, "--data-dir", place / "images")
    assert status == 0
    assert "need the policy of the run (--policy)" in errors


def test_other_images_are_not_tested_on(report, place):
    (place / "images" / "a" / "0.png").unlink()
    status, errors, written = report(place, *own(place))
    assert status == 0
    assert "These are not the hospital's images of the run" in errors
    assert "figures of models are exact" not in text_of(written)


def test_what_is_wrong_is_named_in_one_line(finished, report, place, tmp_path):
    home = place / "store" / "graz" / "models" / finished.run
    for more, site, named in (
        ((), "linz", "There is no folder '.*linz': name the hospital"),
        (("--run", "other"), "graz", f"There is no run 'other' in .*; it has {finished.run}"),
    ):
        status, errors, _ = report(place, *more, site=site)
        assert status == 2
        assert re.search(named, errors.splitlines()[-1])
    (place / "store" / "empty").mkdir()
    status, errors, _ = report(place, site="empty")
    assert status == 2
    assert "Hospital 'empty' has taken part in no run yet" in errors
    for name, wrong in (("ensemble.json", "{"), ("graz.safetensors", "hello")):
        (home / name).write_text(wrong)
        status, errors, _ = report(place)
        assert status == 2
        assert f"{name}" in errors.splitlines()[-1]
    assert not (tmp_path / "report.html").exists()


def test_a_changed_ledger_is_seen_first(report, place):
    path = path_of("graz", place / "store")
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace("graz", "graf")
    path.write_text("\n".join(lines) + "\n")
    _, _, written = report(place, *own(place))
    assert '<div class="red">' in written
    assert "Line 4 does not follow from the line before it" in written


def test_without_models_it_says_how_to_take_them_from_the_results(finished, report, place):
    shutil.rmtree(place / "store" / "graz" / "models")
    _, errors, written = report(place, *own(place))
    assert "need a model of the run, and none is at home" in errors
    # Parcels of an open run are not sealed, so `open` refuses them.
    assert "fedhandoff export NAME --result RESULT --to model.safetensors" in text_of(written)
    assert "fedhandoff open" not in text_of(written)


def test_a_run_that_was_refused_is_told_without_its_words_as_markup(report, tmp_path):
    folder = tmp_path / "there"
    path = path_of("graz", folder / "store")
    hostile = "<script>alert(1)</script>"
    failure = {"class": "policy", "reason": "no", "rule": hostile}
    terms = {"settings": {"strategy": hostile}, "code": "c", "policy": "p"}
    asked = {"time": "2026-11-22T10:00:00+00:00", "verb": "query.enrol", "round": 0}
    append(path, {**asked, "run": "../../escape", "failure": failure}, terms)
    for each in (asked, {**asked, "verb": "evaluate"}):
        append(path, {**each, "run": "the-run", "failure": failure}, terms)
    status, _, written = report(folder)
    assert status == 0
    assert "<script" not in written
    text = text_of(written)
    assert f"policy: no {hostile}" in text
    assert "The hospital was asked, and did not take part." in text
    assert "No model of this run is at home: the hospital did not take part." in text
    assert "fedhandoff predict" not in text
    assert "SHA-256 p. The file is not at hand" in text
    assert "Run the-run," in text
    assert "escape" not in text


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"strategy": "sums", "sums.epsilon": 1.0}, "another version: .*'sums.weights' is"),
        ({"strategy": "feder", "gan.preset": "none"}, "another version: .*'gan.preset' is 'none'"),
        ({"gan": 5, "train": "x", "release.quantile.x": 1}, 'gan = 5 train = "x"'),
    ],
)
def test_settings_that_the_hospital_refused_leave_the_rest_of_the_page(
    setting, words, report, tmp_path
):
    """A server chooses them: a run that no method can do must not prevent the report."""
    folder = tmp_path / "there"
    failure = {"class": "settings", "reason": "no"}
    entry = {"time": "2026-11-22T10:00:00+00:00", "verb": "query.enrol", "run": "r"}
    policy = hashlib.sha256(DEFAULTS.read_bytes()).hexdigest()
    terms = {"settings": {**defaults(), **setting}, "code": "c", "policy": policy}
    append(path_of("graz", folder / "store"), {**entry, "failure": failure}, terms)
    status, errors, written = report(folder)
    assert status == 0, errors
    assert re.search(words, text_of(written))


def test_settings_are_those_under_which_the_hospital_answered(tmp_path):
    """Those of a message that it refused say nothing of the run."""
    entry = {"time": "2026-11-22T10:00:00+00:00", "verb": "train", "run": "r"}
    failure = {"class": "policy", "reason": "no"}
    for number, outcome in ((1, {"left": []}), (2, {"left": []}), (3, {"failure": failure})):
        terms = {"settings": {"seed": number}, "code": "c", "policy": f"p{number}"}
        append(path_of("graz", tmp_path), {**entry, **outcome}, terms)
    past = PastRun.find("graz", tmp_path, None)
    assert past.settings == {"seed": 2}
    assert past.policies == ["p1", "p2"]
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    with pytest.raises(OSError, match=r"This is a pipe or a device, and not a file: .*pipe"):
        past.policy_file(tmp_path / "pipe")
    assert "Changes of the policy during the run: 1." in text_of(page(past, [], "", None))


@pytest.mark.parametrize(
    ("changed", "told"), [({}, True), ({"strategy": "sums"}, False), ({"tasks": 2}, False)]
)
def test_the_command_alone_is_named_where_it_trains_a_model(finished, changed, told):
    past = PastRun.find("graz", finished.folder / "graz" / "store", None)
    vars(past)["terms"] = [{**past.terms[-1], "settings": {**past.settings, **changed}}]
    rows = [row("standalone", 0.7), row("graz", 0.8, 0.1)]
    assert ("fedhandoff alone trains one" in text_of(page(past, rows, "", None))) == told


FIGURES = {
    **{"release-passed": 1.0, "release-median-rank": 0.4, "release-discarded": 0.0312},
    **{"release-nearer-to-training": 0.5, "release-nearer-p": 0.123456, "gan-private": 1.0},
}


ATTACKED = json.dumps(
    {"leak": {"value": 0.01, "low": -0.01, "high": 0.03}, "limit": 0.05, "noticed": 0.25}
)


@pytest.mark.parametrize("known", [True, False])
def test_figures_of_the_own_buffer_are_exact_if_it_is_found(known, tmp_path):
    told = {name: float(f"{figure:.2g}") for name, figure in FIGURES.items()}
    sets = np.zeros((2, 16, 1, 8, 8), np.uint8)
    sets[1] = 200  # of another set, with the same figures
    labels, folder = np.zeros(16, np.int64), tmp_path / "graz" / "dossiers" / "the-run"
    folder.mkdir(parents=True)
    left = hashlib.sha256(sets[0].tobytes() + labels.tobytes()).hexdigest()
    (folder / "dossier.json").write_text(json.dumps({"fingerprints": {"buffer": left}}))
    dossier = hashlib.sha256((folder / "dossier.json").read_bytes()).hexdigest()
    store = Store(tmp_path / "graz")
    figures = {"names": np.array([*FIGURES]), "values": np.array([*FIGURES.values()])}
    figures["code"] = np.array("0" * 64)
    for name, images in (("a", sets[1]), ("b", sets[int(not known)])):
        kept = {**figures, "images": images, "labels": labels, "attacked": np.array(ATTACKED)}
        store.save(f"gan/{name}/{name}", kept)
    records = [
        {"name": "metrics", "values": {**told, "seconds-train": 3.0}},
        {"name": "card", "values": {"release": "16 synthetic images passed.", "dossier": dossier}},
        {"name": "buffer", "bytes": 1, "sha256": "1" * 64},  # sealed
        {"name": "manifest", "values": {"classes": ["a"]}},
    ]
    entry = {"time": "2026-11-22T10:00:00+00:00", "verb": "query.prepare", "run": "the-run"}
    terms = {"settings": defaults(), "code": "c", "policy": "p"}
    append(path_of("graz", tmp_path), {**entry, "left": records}, terms)
    past = PastRun.find("graz", tmp_path, None)
    written = page(past, [], "", None)
    text = text_of(written)
    assert "16 synthetic images passed." in text
    assert ("check are exact" in text) == known
    leak = "0.010 (-0.010 to 0.030) | upper end at most 0.05 | pass"
    assert (leak in text) == known
    assert ("data:image/png" in written) == known
    assert ("with probability 0.123" if known else "with probability 0.12") in text


def test_synthetic_images_are_tried_and_shown_beside_the_nearest_real_ones(place):
    """A copy of a training image is found first; its pair is the one with a share of nothing."""
    past = PastRun.find("graz", place / "store", None)
    hospital = reopen_hospital(past, place / "images", Policy.read(place / "policy.toml"))
    details = open_details(past, hospital)
    rows = exact_assessments(past, details)
    train, rng = hospital.data.train, torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (16, *train.shape), generator=rng, dtype=torch.uint8)
    images[5] = train.images[3]
    buffer = Release(Samples(images, torch.arange(16) % 2), {})
    looked = examine(past, buffer, hospital, details)
    assert looked.worth is not None
    assert 0 <= looked.worth["balanced_accuracy"]["value"] <= 1
    assert looked.passes == PASSES
    assert len(looked.pairs) == PAIRS
    first, *others = looked.pairs
    assert torch.equal(first.synthetic, first.real)
    assert first.unexplained < 0.001 < min(pair.unexplained for pair in others)
    vars(past)["buffer"] = buffer
    written = page(past, rows, "", None, looked)
    text = text_of(written)
    assert (
        f"({PASSES} passes, {looked.seconds:.0f} s). On the hospital's own test images it reaches"
        in text
    )
    assert "ROC of the best model here" in text
    assert f"{first.label}: 0.000 is not explained" in text
    # Strips of two classes, and the pairs.
    assert written.count("data:image/png") == 2 + PAIRS


def test_synthetic_images_have_a_worth_also_if_no_model_here_has_one(finished):
    """All models at home diverged; the images are of one class, of which an answer is right."""
    past = PastRun.find("graz", finished.folder / "graz" / "store", None)
    buffer = Release(Samples(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2).long()), {})
    vars(past)["buffer"] = buffer
    looked = Examination(row("synthetic", 1.0, 0.1, found=(1.0,)), 3, 1.0, [])
    text = text_of(page(past, [row("standalone", 0.9)], "", None, looked))
    assert "No balanced accuracy of a model is known here." in text
    assert "reaches a balanced accuracy of 1.000 (0.950 to 1.050)" in text
    assert "a constant answer gives 1.000." in text


def test_the_policy_is_known_by_its_hash(tmp_path):
    entry = {"time": "2026-11-22T10:00:00+00:00", "verb": "train", "run": "r", "left": []}
    own = tmp_path / "policy.toml"
    own.write_text("runs.max-rounds = 3\n")
    for file in (DEFAULTS, own):
        terms = {
            "settings": {},
            "code": "",
            "policy": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        append(path_of("graz", tmp_path), entry, terms)
        past = PastRun.find("graz", tmp_path, None)
        assert past.policy_file(own) == file
        assert past.policy_file(None) == (file if file == DEFAULTS else None)


def row(model, balanced, gain=None, found=(0.9, 0.9), width=0.05):
    """A model with so much balanced accuracy, and gain, as a page has it."""
    metrics: dict[str, float] = {"num-examples": 100.0}
    given = {"balanced-accuracy": balanced, "gain": gain, "accuracy": balanced}
    given |= {f"recall-of-class-{k}": share for k, share in enumerate(found)}
    for name, value in given.items():
        if value is not None:
            metrics |= {name: value, f"{name}-low": value - width, f"{name}-high": value + width}
    metrics |= {f"images-of-class-{k}": 50.0 for k in range(len(found))}
    kind = model if model in ("standalone", "ensemble") else "model"
    return assessment(kind, model, "graz", metrics, ["benign", "melanoma"])


PAST: Any = SimpleNamespace(site="graz", models={})


def sentences(past, rows):
    said = judge_home(past.site, rows, own_lineages(past))
    return iter([(each["judgement"], each["text"]) for each in said])


@pytest.mark.parametrize(
    ("gains", "judgement", "said"),
    [
        ((0.2, 0.3), "good", "The 2 models that were handed on are all better here, on graz's own"),
        ((-0.2, -0.3), "bad", "The 2 models that were handed on are all worse here"),
        (
            (0.01, -0.01),
            "open",
            "The 2 models that were handed on are not shown to be better",
        ),
        (
            (0.2, -0.3, 0.0),
            "bad",
            "1 is better ('m0'), 1 is worse ('m1'), 1 is not shown to be better or worse ('m2')",
        ),
        (
            (0.2, 0.0),  # of 20 models one may be better by chance
            "note",
            "1 is better ('m0'), 1 is not shown to be better or worse ('m1')",
        ),
        ((0.2,), "good", "The one model that was handed on is better here"),
        ((-0.2,), "bad", "The one model that was handed on is worse here"),
        ((0.0,), "open", "The one model that was handed on is not shown to be better or worse"),
        ((None,), "open", "There are no figures of graz's own model before the first hand-off"),
    ],
)
def test_the_first_sentence_says_whether_what_came_is_better(gains, judgement, said):
    rows = [row(f"m{k}", 0.8, gain) for k, gain in enumerate(gains)]
    first = next(sentences(PAST, [row("standalone", 0.7), *rows]))
    assert first[0] == judgement
    assert said in first[1]


@pytest.mark.parametrize("at_chance", [0.52, 0.5, 0.3])
def test_no_check_mark_while_a_model_at_home_is_at_chance(at_chance):
    """Both were handed on and beat graz's own, and only one knows anything."""
    rows = [row("standalone", 0.2), row("m0", 0.8, 0.6), row("m1", at_chance, 0.2)]
    said = [*sentences(PAST, rows)]
    assert "good" not in [judgement for judgement, _ in said]
    (text,) = [text for _, text in said if text.startswith("Not shown to be better than chance")]
    assert f"1 of 1 other models; the worst is {at_chance:.3f}" in text
    assert "'m1' at graz" in text


def test_where_nothing_was_handed_on_nothing_is_compared():
    judgement, said = next(sentences(PAST, [row("graz", 0.8, 0.3)]))
    assert judgement == "note"
    assert "no model was handed on" in said


def test_a_class_that_is_not_found_is_named():
    rows = [row("a", 0.8, 0.1, found=(0.9, 0.0)), row("b", 0.7, 0.1, found=(0.0, 0.9))]
    said = [text for judgement, text in sentences(PAST, rows) if judgement == "bad"]
    assert said[0].startswith("'a' finds no image of 'melanoma': 0 of 50 images (at most 5%")
    assert said[1] == "'b' finds no image of 'benign'."
    rare = row("a", 0.8, 0.1, found=(0.9, 0.2))
    assert "'a' misses most of 'melanoma': it finds 0.200" in [*sentences(PAST, [rare])][-1][1]


def advised(past, rows):
    return advice(past, rows)["advice"]


def test_what_knows_no_more_than_a_constant_answer_is_not_advised():
    useless, worse, good = row("a", 0.52), row("a", 0.8, -0.2), row("a", 0.8, 0.2)
    assert [is_useful(each) for each in (useless, worse, good)] == [False, False, True]
    _, (judgement, text), *_ = sentences(PAST, [useless])
    assert judgement == "bad"
    assert text.endswith("The model is not shown to be better than chance (0.500).")
    past: Any = SimpleNamespace(
        site="graz",
        models={"a": SimpleNamespace(visited=["wien"])},
        mixture={},
        run="r",
        folder=Path("x/graz"),
    )
    assert "None is advised" in advised(past, [worse])
    assert "highest balanced accuracy here, 0.800 (0.750 to 0.850). No" in advised(past, [good])
    own, open_ = row("standalone", 0.9), row("a", 0.8, -0.1, width=0.2)
    higher = "before the first hand-off with 0.900 (0.850 to 0.950); neither is shown to be better."
    assert higher in advised(past, [own, open_])


@pytest.mark.parametrize(
    ("names", "kind", "applied"),
    [
        ("ab", "", "one of the models, for example 'a',"),
        ("a", "", "the model"),
        ("ab", "model", "this model"),
        ("ab", "ensemble", "this mean"),
    ],
)
def test_the_command_names_one_of_several_models_as_an_example_if_none_is_known_best(
    names, kind, applied
):
    models = {name: SimpleNamespace(visited=["wien"]) for name in names}
    past: Any = SimpleNamespace(
        site="graz", models=models, mixture={}, run="r", folder=Path("x/graz")
    )
    rows = [{**row("a", 0.8, 0.2), "kind": kind}] if kind else []
    assert advice(past, rows)["applied"] == applied


def test_what_was_told_is_read_from_the_ledger_where_no_model_is_at_home(tmp_path):
    entry = {"verb": "evaluate", "run": "r", "time": "2026-11-22T10:00:00+00:00"}
    for number, accuracy in ((1, 0.5), (2, 0.7)):
        values = {"wien/balanced-accuracy": accuracy, "standalone/balanced-accuracy": 0.4}
        left = [{"name": "metrics", "values": {**values, "seconds-evaluate": 1.0}}]
        append(path_of("graz", tmp_path), {**entry, "round": number, "left": left})
    past = PastRun.find("graz", tmp_path, None)
    assert past.released_figures() == {
        "wien": {"balanced-accuracy": 0.7},
        "standalone": {"balanced-accuracy": 0.4},
    }
    assert json.dumps(past.settings) == "{}"


def test_attacks_on_the_models_that_the_hospital_handed_on_last(place, report):
    (kept,) = place.glob("store/graz/runs/*/membership.jsonl")
    assert kept.stat().st_mode & 0o077 == 0
    with kept.open("a") as file:
        file.write('{"half a li')
    shown = text_of(report(place)[2])
    assert re.search(r"round 2 \| .* \(too few images to tell\) \| 0\.\d{3} \(", shown)
    assert "than the policy's models.max-membership allows did not leave" in shown
