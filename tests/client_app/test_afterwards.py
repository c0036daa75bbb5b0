"""A sealed federation of three folders, and what its hospitals can do once it is over."""

import csv
import json
import math
import os
import re
import shlex
import shutil
from dataclasses import replace
from glob import glob
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tomli_w
import torch
from flwr.common.config import unflatten_dict
from flwr.supercore.task_identity import TaskIdentity

from cli import main
from client_app.afterwards import home, predicting, worth_here
from client_app.afterwards.home import keep_mixture
from client_app.afterwards.past_hospital import reopen_hospital
from client_app.afterwards.past_run import PastRun
from client_app.afterwards.report.worth import advice
from client_app.app import app as hospital_app
from client_app.authority.identity import Identity
from client_app.authority.members import read_members
from client_app.authority.node_config import OwnError
from client_app.authority.policy import Policy, PolicyError
from client_app.authority.sealing import Seal
from client_app.datasets import open_data
from client_app.datasets.unlabelled import list_images
from client_app.errors import DataError
from client_app.hospital import open_hospital
from client_app.release.disclosure import Exact, Noised, open_disclosure
from client_app.request import Clock
from client_app.run import run_folder
from client_app.store import Store, own_folder
from deploy.own_file import write_own
from learning.calibration import LOWEST, fit_temperature
from learning.errors import ModelError
from learning.evaluation import probabilities
from learning.export import load_model, read_manifest, save_model
from learning.mixture import mixture_weights
from pages.figures import assessment
from strategies.protocol.parcel import check_parcel, save
from strategies.protocol.settings import Settings, SettingsError
from tests.fakes import FakeGrid, Ledger, context, go, parcels_of, run_config

ROOT = Path(__file__).parents[2]
NAMES = ("graz", "linz", "wien")
KEEP = {"graz": "visits", "linz": "final", "wien": "none"}


def draw(path, label, seed):
    """A grey image of 8 x 10 pixels: one half is brighter, which half is its class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(seed).integers(0, 120, (10, 8), dtype=np.uint8)
    image[:5] += np.uint8(100 * (label == "upper"))
    image[5:] += np.uint8(100 * (label == "lower"))
    PIL.Image.fromarray(image).save(path)


def write_folders(place):
    for number, name in enumerate(NAMES):
        for k in range(24):
            label = ("lower", "upper")[k % 2]
            draw(
                place / "images" / name / label / f"patient-{k % 6}" / f"{k}.png",
                label,
                100 * number + k,
            )


def federate(place, strategy="rwt", sealed=True, keep=KEEP, **overrides):
    folders = ",".join(str(place / "images" / name) for name in NAMES)
    config = run_config(
        strategy=strategy,
        dataset=f"folder:{folders}",
        partition="site",
        sealed=sealed,
        **{
            "num_server_rounds": 2,
            "model": "mlp",
            "mlp__hidden": "8",
            "image_size": 12,
            "image_fit": "pad",
            "seed": 3,
            "train__epochs": 1,
            **overrides,
        },
    )

    def hospital(index):
        own = {"store-dir": str(place / NAMES[index] / "store"), "keep": keep[NAMES[index]]}
        own |= {"members": "first-use"} if sealed else {}
        there = context(index, 3, config, **own)
        return lambda message: hospital_app(message, there)

    ledger, grid = Ledger(), FakeGrid({100 + index: hospital(index) for index in range(3)})
    state = go(Settings.parse(config), grid, ledger)
    assert {event.outcome for event in ledger.events} == {"ok"}
    return state, ledger, Settings.parse(config)


class Finished:
    """A run that is over: its state, its events, and the folders of its hospitals."""

    def __init__(self, place, **options):
        self.place = place
        write_folders(place)
        self.state, self.ledger, self.settings = federate(place, **options)
        self.result = place / "runs" / "the-run"
        (self.result / "parcels").mkdir(parents=True)
        config = tomli_w.dumps(unflatten_dict(self.settings.run_config))
        (self.result / "config.toml").write_text(config)
        (self.result / "metrics.jsonl").touch()
        for name, parcel in parcels_of(self.state).items():
            save(parcel, self.result / "parcels" / f"{name}.npz")

    def store(self, name):
        return self.place / name / "store"

    def home(self, name):
        return self.store(name) / name / "models" / self.state.run

    def hospital(self, name):
        return ["--site", name, "--store-dir", str(self.store(name))]

    def data(self, name, **changes):
        """A hospital's images, as on its own machine."""
        dataset = f"folder:{self.place / 'images' / name}"
        settings = replace(self.settings, dataset=dataset, partition="iid", **changes)
        return open_data(settings, 0, 1, store=self.store(name))

    def opened(self, lineage):
        """A model at the end of the run, as arrays, and the label of its parcel."""
        own = self.store("graz") / "graz"
        seal = Seal(
            Identity.load("graz", own / "identity"), read_members(own / "members"), self.state.run
        )
        parcel = parcels_of(self.state)[lineage]
        label = check_parcel(parcel)
        model = seal.open(parcel, label).array_records["model"]
        return {name: array.numpy() for name, array in model.items()}, label


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        return Finished(tmp_path_factory.mktemp("run"))


@pytest.fixture
def call(monkeypatch, capsys):
    """`fedhandoff` with arguments: its exit status, and what it printed."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
        return ended.value.code, capsys.readouterr()

    return call


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors"))


@pytest.mark.slow
def test_a_hospital_takes_home_what_it_says(run):
    finals = [f"{name}.safetensors" for name in NAMES]
    own = [event for event in run.ledger.of("train") if event.hospital == "graz"]
    visits = [f"visits/{e.lineage}-{e.round}-{e.hop}.safetensors" for e in own]
    assert len(visits) == 2
    assert files(run.home("graz")) == sorted([*finals, *visits, "own/graz.safetensors"])
    assert files(run.home("linz")) == sorted([*finals, "own/linz.safetensors"])
    assert not run.home("wien").exists()
    assert run.home("graz").parent.stat().st_mode & 0o777 == 0o700
    for path in run.home("graz").rglob("*.*"):
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("lineage", NAMES)
def test_models_at_home_are_those_of_the_sealed_parcels_and_say_what_they_are(lineage, run):
    network, manifest = load_model(run.home("graz") / f"{lineage}.safetensors")
    arrays, label = run.opened(lineage)
    assert all(np.array_equal(network.state_dict()[name], array) for name, array in arrays.items())
    assert manifest.visited == label.visited
    assert (manifest.round, manifest.hop) == (label.round, label.hop)
    assert manifest.parcel == label.hash_of["model"]
    assert (manifest.run, manifest.lineage) == (run.state.run, lineage)
    assert manifest.classes == ["lower", "upper"]
    assert manifest.settings["image-fit"] == "pad"
    (event,) = [
        event
        for event in run.ledger.of("evaluate")
        if (event.hospital, event.lineage, event.round) == ("graz", lineage, 2)
    ]
    assert manifest.tested["graz"].items() <= dict(event.metrics).items()
    assert manifest.tested["graz"]["num-examples"] == manifest.images["graz"]["test"]
    together = json.loads((run.home("graz") / "ensemble.json").read_text())
    (event,) = [event for event in run.ledger.of("ensemble") if event.hospital == "graz"]
    assert together["graz"].items() <= dict(event.metrics).items()


def test_a_manifest_counts_images_and_patients(run):
    counts = read_manifest(run.home("graz") / "linz.safetensors").images["graz"]
    data = run.data("graz")
    assert counts["train"] == len(data.train)
    assert counts["train/upper"] == int((data.train.labels == 1).sum())
    assert counts["test/lower"] == int((data.test.labels == 0).sum())
    assert counts["train-groups"] + counts["test-groups"] == 6


@pytest.mark.parametrize("smallest", [1, 2, 9])
def test_between_real_hospitals_a_manifest_has_no_class_of_few_patients(smallest, run, tmp_path):
    """Three patients have each class: two are for training, and one is for testing."""
    policy = Policy.read()
    policy = replace(policy, figures=replace(policy.figures, smallest_group=smallest))
    config = {**run.settings.run_config, "partition": "iid"}
    config["dataset"] = f"folder:{run.place / 'images' / 'graz'}"
    hospital = open_hospital(context(0, 1, config, **{"store-dir": str(tmp_path)}), "graz")
    request: Any = SimpleNamespace(
        hospital=replace(hospital, policy=policy), seal=None, run=Store(tmp_path / "run")
    )
    _, label = run.opened("graz")
    manifest = home._manifest(
        open_disclosure(request), label, {"accuracy": 0.5, "num-examples": 4.0}
    )
    counts = manifest.images["graz"]
    assert ("train/upper" in counts) == ("train" in counts) == (smallest < 9)
    assert ("test/upper" in counts) == ("test" in counts) == (smallest == 1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["cwt-serial", "fedbn"])
def test_other_methods_leave_the_last_model_whole(strategy, tmp_path):
    """Of `cwt-serial` all visits of the last round are tested, of `fedbn` layers stay here."""
    cnn = {"model": "cnn"} if strategy == "fedbn" else {}
    keep = dict.fromkeys(NAMES, "final")
    done = Finished(tmp_path, strategy=strategy, sealed=False, keep=keep, **cnn)
    (lineage,) = parcels_of(done.state)
    label = check_parcel(parcels_of(done.state)[lineage])
    states = {}
    for name in NAMES:
        network, manifest = load_model(done.home(name) / f"{lineage}.safetensors")
        assert manifest.age == (label.round, label.hop, label.epochs)
        states[name] = network.state_dict()
    arrays = parcels_of(done.state)[lineage].array_records["model"]
    assert all(np.array_equal(states["graz"][name], arrays[name].numpy()) for name in arrays)
    own = states["graz"].keys() - arrays.keys()
    assert bool(own) == (strategy == "fedbn")
    assert all(not torch.equal(states["graz"][n], states["linz"][n]) for n in own if "mean" in n)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("save_model", OSError("no space left on device")),
        ("whole_network", ModelError("the frozen weights have changed")),
    ],
)
def test_a_model_that_cannot_be_written_disturbs_no_run(step, error, tmp_path, monkeypatch, caplog):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(home, step, fail)
    done = Finished(tmp_path)
    assert not files(done.place)
    assert f"A model is not kept ({error})" in caplog.text


@pytest.mark.parametrize("spare", [1000, -1000])
def test_the_policy_bounds_the_disk(spare, run, tmp_path):
    network, manifest = load_model(run.home("graz") / "graz.safetensors")
    config = run_config(dataset=f"folder:{run.place / 'images' / 'graz'}", image_size=12)
    hospital = open_hospital(context(0, 1, config, **{"store-dir": str(tmp_path)}), "graz")
    size = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
    size += sum(tensor.nbytes for tensor in network.state_dict().values())
    policy = Policy.read()
    policy = replace(policy, machine=replace(policy.machine, max_disk_gb=(size + spare) / 1e9))
    hospital = replace(hospital, policy=policy)
    if spare > 0:
        home.keep_model(hospital, tmp_path / "m.safetensors", network, manifest)
    else:
        with pytest.raises(PolicyError, match="machine"):
            home.keep_model(hospital, tmp_path / "m.safetensors", network, manifest)


@pytest.mark.parametrize(("node_config", "keep"), [({}, "none"), ({"keep": "visits"}, "visits")])
def test_simulated_hospitals_keep_nothing_unless_they_say_so(node_config, keep):
    assert open_hospital(context(0, 2, run_config(), **node_config)).keep == keep


def test_real_hospitals_keep_the_final_models(run):
    own = {"data-dir": str(run.place / "images" / "graz"), "store-dir": str(run.store("graz"))}
    own |= {"site": "graz"}
    there = context(0, 1, run_config(image_size=12, sealed=True), **own)
    del there.node_config["partition-id"], there.node_config["num-partitions"]
    assert open_hospital(there, "graz").keep == "final"


def test_an_unknown_word_is_refused():
    with pytest.raises(OwnError) as refusal:
        open_hospital(context(0, 2, run_config(), keep="all"))
    assert "'keep' is 'all'; it must be one of final, visits, none" in refusal.value.explain()


def test_a_hospital_opens_the_server_s_parcels_with_its_own_key(run, call):
    parcels = [run.result / "parcels" / f"{name}.npz" for name in NAMES]
    config = run.result / "config.toml"
    status, printed = call("open", *parcels, *run.hospital("wien"), "--run-config", config)
    assert status == 0
    assert printed.out.split() == [str(run.home("wien") / f"{n}.safetensors") for n in NAMES]
    for name in NAMES:
        network, manifest = load_model(run.home("wien") / f"{name}.safetensors")
        arrays, label = run.opened(name)
        assert all(np.array_equal(network.state_dict()[key], arrays[key]) for key in arrays)
        assert manifest.visited == label.visited
        assert manifest.settings == read_manifest(run.home("graz") / "graz.safetensors").settings
    shutil.rmtree(run.home("wien"))


@pytest.mark.parametrize(
    ("key", "other", "words"),
    [
        ("image-size", 9, "9; it must be 12"),
        ("image-fit", "crop", "'crop'; it must be 'pad'"),
        ("test-balanced", True, "true; it must be false"),
    ],
)
def test_settings_of_another_run_open_no_parcel(key, other, words, run, call, tmp_path):
    """The model would get images of another form, or be tested on images that trained it."""
    joined = run_folder(Store(run.store("wien") / "wien"), run.state.run)
    kept = joined.load("terms")
    terms = json.dumps(run.settings.run_config).encode()
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(unflatten_dict({**run.settings.run_config, key: other})))
    joined.save("terms", {**kept, "settings": np.array(terms)})  # as a real hospital's
    parcel = run.result / "parcels" / "graz.npz"
    try:
        status, printed = call("open", parcel, *run.hospital("wien"), "--run-config", config)
        assert (status, printed.out) == (1, "")
        assert f"'{key}' is {words}, as in the run: give its config.toml" in printed.err
        assert not run.home("wien").exists()
        config = run.result / "config.toml"
        assert not call("open", parcel, *run.hospital("wien"), "--run-config", config)[0]
    finally:
        joined.save("terms", kept)
        shutil.rmtree(run.home("wien"), ignore_errors=True)


def test_nobody_else_opens_them(run, call, tmp_path):
    """Not with other keys; nor a parcel of a run that the hospital took no part in."""
    parcel, own = run.result / "parcels" / "graz.npz", run.store("graz") / "graz"
    given = ["--site", "wien", "--store-dir", tmp_path, "--members", own / "members"]
    given += ["--run-config", "image-size=12"]
    status, printed = call("open", parcel, *given)
    assert status == 2
    assert "wien/identity': name the hospital with --hospital" in printed.err
    call("hospital", "identity", *given[:4])
    status, printed = call("open", parcel, *given)
    assert (status, printed.out) == (1, "")
    assert "opens in no run that the hospital knows (0)" in printed.err
    (tmp_path / "wien" / "runs" / run.state.run).mkdir(parents=True)
    (tmp_path / "wien" / "runs" / ".tested.lock").touch()  # is no run
    _, printed = call("open", parcel, *given)
    assert "opens in no run that the hospital knows (1)" in printed.err
    assert "have this hospital's present key?" in printed.err
    (tmp_path / "cut.npz").write_bytes(parcel.read_bytes()[:-100])
    status, printed = call("open", tmp_path / "cut.npz", *given)
    assert status == 1
    assert "Not an archive of arrays" in printed.err
    os.mkfifo(tmp_path / "pipe.npz")  # reading it would wait for ever
    status, printed = call("open", tmp_path / "pipe.npz", *given)
    assert status == 1
    assert "This is a pipe or a device, and not a file: " in printed.err


def test_no_output_takes_the_place_of_a_model_or_its_card(run, call, tmp_path):
    images = run.place / "images" / "graz"
    model = run.home("graz") / "graz.safetensors"
    before = model.read_bytes()
    asked = ("predict", *run.hospital("graz"), "--data", images, "--output", model)
    status, printed = call(*asked)
    assert (status, model.read_bytes()) == (2, before)
    assert "graz.safetensors' does not end in .csv: name such a file." in printed.err
    status, printed = call("export", "graz", *run.hospital("graz"), "--to", tmp_path / "graz.md")
    assert status == 2
    assert "--to': " in printed.err
    assert "graz.md' does not end in .safetensors or .onnx: name such a file." in printed.err


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_without_a_name_the_mixture_that_suits_the_test_images_predicts(run, call, tmp_path):
    """Also of the hospital's own model, before the first hand-off."""
    home = run.home("graz")
    weights = json.loads((home / "mixture.json").read_text())
    assert set(weights) == {*NAMES, "own/graz"}
    loaded = {name: load_model(home / f"{name}.safetensors")[0] for name in weights}
    assert read_manifest(home / "own" / "graz.safetensors").visited == ["graz"]
    data = run.data("graz")
    said = {name: probabilities(each, data.test.images, 1e12) for name, each in loaded.items()}
    fitted = mixture_weights(torch.stack([*said.values()]), data.test.labels)
    assert list(weights.values()) == pytest.approx(fitted.tolist())

    output = tmp_path / "out.csv"
    asked = ("predict", *run.hospital("graz"), "--output", output)
    status, printed = call(*asked, "--data", run.place / "images" / "graz")
    assert status == 0
    large = {name: weight for name, weight in weights.items() if weight >= 0.01}
    for name, weight in large.items():
        assert re.search(rf" {name} \(round \d, weight {weight:.2f}\)", printed.out)
    images = torch.cat([data.train.images, data.test.images])
    mean = sum(
        weight * probabilities(loaded[name], images, 1e12) for name, weight in large.items()
    ) / sum(large.values())
    expected = sorted(float(row[0]) for row in mean.tolist())
    assert sorted(float(row[2]) for row in table(output)[1:]) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "There is no mixture of models in .*: name models with --model"),
        ("{", "is damaged"),
        ("é", r"mixture\.json is damaged, or of another version: .*utf-8.* Move it away\.$"),
        ("{}", "its weights do not sum to 1. Move it away"),
        ('{"graz": NaN}', "its weights do not sum to 1"),
        ('{"graz": 1e999}', "its weights do not sum to 1"),
    ],
)
def test_a_mixture_that_is_not_there_is_said(run, call, tmp_path, text, words):
    shutil.copytree(run.store("graz") / "graz" / "models", tmp_path / "graz" / "models")
    (mixture,) = tmp_path.rglob("mixture.json")
    mixture.unlink()
    if text:
        mixture.write_text(text, "latin-1")
    status, printed = call(
        *("predict", "--site", "graz", "--store-dir", tmp_path, "--output", tmp_path / "out.csv"),
        *("--data", run.place / "images" / "graz"),
    )
    assert status
    assert re.search(words, printed.err)


def test_the_newest_run_is_not_the_one_whose_models_were_written_last(tmp_path):
    """`alone` and `open` write models of an old run."""
    store = tmp_path / "graz"
    for when, run in ((100, "old"), (200, "new")):
        terms = store / "runs" / run / "terms.npz"
        model = store / "models" / run / "graz.safetensors"
        for file in (terms, model):
            file.parent.mkdir(parents=True)
            file.touch()
        os.utime(terms, (when, when))
    for file in ("graz.safetensors", "mixture.json"):
        (store / "models" / "old" / file).touch()
    for file in ("", "graz.safetensors"):
        os.utime(store / "models" / "new" / file, (0, 0))
    os.utime(store / "runs" / "new", (0, 0))
    assert home.newest_run(store).name == "new"
    assert home.find_model(store, "graz").parent.name == "new"
    assert PastRun.find("graz", tmp_path, None).run == "new"


def test_of_many_models_alike_none_is_left_out(tmp_path):
    weights = {f"hospital-{k}": 1 / 150 for k in range(150)}
    (tmp_path / "mixture.json").write_text(json.dumps(weights))
    assert len(home.read_mixture(tmp_path)) == 150


@pytest.mark.parametrize("together", [False, True])
def test_predictions_are_what_the_run_s_own_test_computes(together, run, call, tmp_path):
    """The same images, in the same form, through the same models: the same probabilities."""
    output = tmp_path / "out.csv"
    status, printed = call(
        *("predict", "--model", "linz", *["--ensemble"] * together, *run.hospital("graz")),
        *("--data", run.place / "images" / "graz", "--output", output),
    )
    assert status == 0
    assert printed.out.startswith("24 images predicted, 0 skipped, by ")
    header, *rows = table(output)
    assert header == [
        "image",
        "predicted",
        "probability of lower",
        "probability of upper",
    ]
    data = run.data("graz")
    models = NAMES if together else ("linz",)
    scores = torch.stack(
        [
            probabilities(load_model(run.home("graz") / f"{name}.safetensors")[0], images, 1e12)
            for name in models
            for images in [torch.cat([data.train.images, data.test.images])]
        ]
    ).mean(0)
    found = sorted([*map(float, row[2:])] for row in rows)
    # All digits of float32: an AUROC from the table must equal that of the report.
    np.testing.assert_allclose(found, sorted(scores.tolist()), rtol=5e-7)
    assert all(row[1] == ("lower" if float(row[2]) > float(row[3]) else "upper") for row in rows)
    assert output.stat().st_mode & 0o777 == 0o600


def test_the_last_line_tells_a_hospital_s_own_model_from_the_one_that_travelled(
    run, call, tmp_path
):
    output, own, travelled = tmp_path / "out.csv", f"{run.state.run}/own/graz", "graz"
    status, printed = call(
        *("predict", "--model", own, "--model", travelled, *run.hospital("graz")),
        *("--data", run.place / "images" / "graz", "--output", output),
    )
    assert status == 0
    named = rf"by own/graz \(round \d\), {run.state.run}/graz \(round \d\): "
    assert re.search(named, printed.out)


def test_damaged_files_are_named_and_skipped(run, call, tmp_path):
    data, output = tmp_path / "data", tmp_path / "out.csv"
    draw(data / "=cmd|calc.png", "upper", 0)
    draw(data / "deep" / "b.png", "lower", 1)
    (data / "broken.png").write_bytes((data / "deep" / "b.png").read_bytes()[:60])
    PIL.Image.new("RGB", (8, 10)).save(data / "colour.png")
    (data / "notes.txt").write_text("nothing")
    (data / ".hidden.png").write_text("nothing")
    status, printed = call(
        "predict", "--model", "graz", *run.hospital("linz"), "--data", data, "--output", output
    )
    assert status == 1
    assert "2 images predicted, 2 skipped" in printed.out
    skipped = printed.err.splitlines()
    assert skipped[0].startswith("Skipped broken.png: cannot be read or decoded")
    assert skipped[1] == (
        "Skipped colour.png: is 3 x 12 x 12 where 1 x 12 x 12 is needed (channels x height x "
        "width)."
    )
    assert [row[0] for row in table(output)[1:]] == ["'=cmd|calc.png", "deep/b.png"]


def test_a_table_stays_if_no_image_can_be_used(run, call, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_text("no image")
    output = tmp_path / "out.csv"
    output.write_text("older\n")
    status, printed = call(
        *("predict", "--model", "graz", *run.hospital("linz")),
        *("--data", tmp_path / "data", "--output", output),
    )
    assert status == 2
    assert "No image can be used. The first one: a.png: is not an image file" in printed.err
    assert output.read_text() == "older\n"


def test_an_image_without_finite_probabilities_has_no_class(run, call, tmp_path, monkeypatch):
    for k in range(2):
        draw(tmp_path / "data" / f"{k}.png", "upper", k)
    found = torch.tensor([[math.nan, math.nan], [0.25, 0.75]])
    monkeypatch.setattr(predicting.Predictor, "probabilities", lambda self, images: found)
    output = tmp_path / "out.csv"
    status, printed = call(
        *("predict", "--model", "graz", *run.hospital("linz")),
        *("--data", tmp_path / "data", "--output", output),
    )
    assert status == 1
    assert "1 image predicted, 1 skipped" in printed.out
    reason = "gets numbers from the model that are not finite"
    assert printed.err == f"Skipped 0.png: {reason}.\n"
    assert [row[0] for row in table(output)[1:]] == ["1.png"]


def test_a_manifest_needs_no_labels(run, call, tmp_path):
    for k, label in enumerate(("upper", "lower")):
        draw(tmp_path / "data" / "images" / f"{k}.png", label, k)
    (tmp_path / "data" / "manifest.csv").write_text("image,age\n1.png,60\n7.png,50\n")
    for name in ("list.TSV", "list.txt"):
        (tmp_path / "data" / name).write_text("image\tage\n1.png\t60\n7.png\t50\n")
    for data in (tmp_path / "data" / name for name in ("", "manifest.csv", "list.TSV", "list.txt")):
        status, printed = call(
            *("predict", "--model", "graz", *run.hospital("linz")),
            *("--data", data, "--output", tmp_path / "out.csv"),
        )
        assert status == 1
        assert "Skipped row 3 (7.png): names an image that is not there" in printed.err
        assert [row[0] for row in table(tmp_path / "out.csv")[1:]] == ["images/1.png"]


def test_dicom_is_found_whatever_it_is_called(tmp_path):
    """A PACS exports files without an ending; a CD has a table of contents beside them."""
    (tmp_path / "deep").mkdir()
    for name in ("1.2.840.10008.5", "deep/IM0001", "DICOMDIR"):
        (tmp_path / name).write_bytes(bytes(128) + b"DICM")
    (tmp_path / "notes.txt").write_text("nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "deep")
    listing = list_images(tmp_path)
    assert [entry.where for entry in listing.entries] == ["1.2.840.10008.5", "deep/IM0001"]
    assert [each.reason for each in listing.unusable] == ["is a link to a folder"]
    (tmp_path / "deep" / "IM0001").unlink()
    for place in ("deep", "nowhere"):
        with pytest.raises(DataError, match=f"{place}' (with images|holds no image)"):
            list_images(tmp_path / place)


def test_one_image_is_enough(run, call, tmp_path):
    draw(tmp_path / "a.png", "upper", 0)
    given = ("predict", "--model", run.home("graz") / "graz.safetensors", "--data")
    status, _ = call(*given, tmp_path / "a.png", "--output", tmp_path / "out.csv")
    assert status == 0
    assert len(table(tmp_path / "out.csv")) == 2
    (tmp_path / "manifest.csv").write_text("image\na.png\n")
    before = (tmp_path / "manifest.csv").read_bytes()
    status, printed = call(*given, tmp_path, "--output", tmp_path / "manifest.csv")
    assert status == 2
    assert "manifest.csv' is an image, or the manifest: write the table else" in printed.err
    assert (tmp_path / "manifest.csv").read_bytes() == before


@pytest.mark.parametrize("held_out", [False, True])
def test_the_temperature_is_fitted_on_no_test_image(held_out, call, tmp_path, monkeypatch):
    """On the images that the run validated on, or else trained on, and then it is 1 or more."""
    fraction = 0.25 if held_out else 0.0
    run = Finished(tmp_path / "run", num_server_rounds=1, validation_fraction=fraction)
    seen = []

    def fit(*given):
        seen.append(given)
        return fit_temperature(*given)

    monkeypatch.setattr(predicting, "fit_temperature", fit)
    network, _ = load_model(run.home("graz") / "graz.safetensors")
    draw(tmp_path / "a.png", "upper", 0)
    given = ("predict", "--model", "graz", *run.hospital("graz"), "--calibrate")
    to = ("--data", tmp_path / "a.png", "--output", tmp_path / "out.csv")
    status, printed = call(*given, run.place / "images" / "graz", *to)
    assert status == 0
    data = run.data("graz")
    used = data.test if held_out else data.train
    ((scores, labels, lowest),) = seen
    assert torch.equal(labels, used.labels)
    assert torch.equal(scores, probabilities(network, used.images, 1e12))
    assert lowest == (LOWEST if held_out else 1.0)
    assert f"fitted on {len(used)} images" in printed.out
    tested = run.data("graz", validation_fraction=0.0).test.images
    assert not any((image == used.images).all((1, 2, 3)).any() for image in tested)
    status, printed = call(*given, run.place / "images" / "linz", *to)
    assert status == 2
    assert "These are not the hospital's images of the run" in printed.err


def test_models_of_other_images_are_not_mixed(run, call, tmp_path):
    network, manifest = load_model(run.home("graz") / "graz.safetensors")
    other = replace(manifest, settings={**manifest.settings, "image-fit": "squash"})
    save_model(tmp_path / "other.safetensors", network, other)
    draw(tmp_path / "a.png", "upper", 0)
    status, printed = call(
        *("predict", "--model", "graz", "--model", tmp_path / "other.safetensors"),
        *run.hospital("graz"),
        *("--data", tmp_path / "a.png", "--output", tmp_path / "out.csv"),
    )
    assert status == 2
    assert "'image-fit' is 'pad' for one and 'squash' for another" in printed.err
    assert not (tmp_path / "out.csv").exists()


def test_a_model_is_found_by_its_name_its_run_or_its_file(run, tmp_path):
    own, there = run.store("graz") / "graz", run.home("graz") / "linz.safetensors"
    visit = next((run.home("graz") / "visits").iterdir())
    for name in ("linz", f"{run.state.run}/linz", str(there)):
        assert home.find_model(own, name) == there
    assert home.find_model(own, f"{run.state.run}/visits/{visit.stem}") == visit
    with pytest.raises(SettingsError, match=rf"no model 'salzburg' .*{run.state.run}/graz, "):
        home.find_model(own, "salzburg")


def test_export_copies_the_model_and_writes_its_card(run, call, tmp_path):
    there = run.home("graz") / "linz.safetensors"
    to = tmp_path / "model.safetensors"
    status, printed = call("export", "linz", *run.hospital("graz"), "--to", to)
    assert status == 0
    assert printed.out.split() == [str(to), str(tmp_path / "model.md")]
    assert to.read_bytes() == there.read_bytes()
    card = (tmp_path / "model.md").read_text()
    assert "not a medical device" in card
    assert " → ".join(read_manifest(there).visited) in card


def exact(past, images):
    details = worth_here.open_details(past, reopen_hospital(past, images, None))
    return worth_here.exact_assessments(past, details)


def test_the_own_report_tests_models_again_as_the_run_did(run):
    """In a simulation figures are exact when they are told: the same, interval by interval."""
    past = PastRun.find("graz", run.store("graz"), None)
    again = exact(past, run.place / "images" / "graz")
    alone, *others = again
    assert alone["kind"] == "standalone"
    assert all(len(row.pop("roc")) == len(past.classes) for row in others)
    assert others == worth_here.released_assessments(past)
    assert [row["kind"] for row in others] == ["model"] * 3 + ["ensemble"]
    assert all(row["gain"] and row["patients"] for row in others if row["kind"] == "model")
    (event,) = [event for event in run.ledger.of("standalone") if event.hospital == "graz"]
    assert alone["balanced_accuracy"]["value"] == event.metrics["balanced-accuracy"]
    with pytest.raises(
        DataError, match=r"/images/\w+: These are not the hospital's images of the run"
    ):
        exact(past, run.place / "images" / "linz")


@pytest.mark.slow
def test_heads_on_features_are_used_at_home_as_whole_networks(call, tmp_path, monkeypatch):
    """Home tests body and head on bytes; the run tested the head on features."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    run = Finished(tmp_path, model="cnn", train__freeze="body")
    past = PastRun.find("graz", run.store("graz"), None)
    again, released = (
        exact(past, tmp_path / "images" / "graz")[1:],
        worth_here.released_assessments(past),
    )
    figures = ("kind", "model", "images", "patients", "balanced_accuracy", "accuracy", "auroc")
    assert [[row.get(key) for key in figures] for row in again] == [
        [row.get(key) for key in figures] for row in released
    ]
    with pytest.raises(DataError, match="not the hospital's images of the run"):
        exact(past, tmp_path / "images" / "linz")
    at_home, images = run.hospital("graz"), tmp_path / "images" / "graz"
    table, page, model = (tmp_path / name for name in ("out.csv", "page.html", "m.safetensors"))
    for command in (
        ["predict", "--data", images, "--output", table],
        ["report", "--data-dir", images, "--to", page],
        ["export", "linz", "--to", model],
    ):
        status, printed = call(*command, *at_home)
        assert status == 0, printed.err
    assert len(table.read_text().splitlines()) == 1 + 24
    assert "cnn" in read_manifest(model).architecture

    asked = ("alone", "--data-dir", images, "--run-config", run.result / "config.toml")
    status, printed = call(*asked, *at_home)
    assert status == 0, printed.err
    assert " of 'alone/graz'" in printed.out
    head, manifest = load_model(past.alone_file)
    standalone = Finished(
        tmp_path / "standalone", strategy="standalone", model="cnn", train__freeze="body"
    )
    expected, of_run = load_model(standalone.home("graz") / "graz.safetensors")
    assert manifest.architecture == of_run.architecture
    for name, tensor in expected.state_dict().items():
        assert torch.equal(head.state_dict()[name], tensor)
    status, printed = call("report", "--data-dir", images, "--to", page, *at_home)
    assert status == 0, printed.err
    assert "trained alone for all rounds" in page.read_text()
    status, printed = call(*asked, *at_home, "--run-config", "train.freeze='body' seed=4")
    assert status == 2
    assert "The SHA-256 of the frozen weights is" in printed.err


def test_a_simulated_hospital_trains_alone_by_the_settings_of_the_results(run, call, tmp_path):
    shutil.copytree(run.store("graz"), tmp_path / "store")
    where = ("--store-dir", tmp_path / "store", "--data-dir", run.place / "images" / "graz")
    asked = ("alone", "--site", "graz", *where)
    status, printed = call(*asked)
    assert status == 2
    assert "no ledger" in printed.err
    status, printed = call(*asked, "--run-config", run.result / "config.toml")
    assert status == 0
    assert " of 'alone/graz'" in printed.out
    manifest = read_manifest(next(tmp_path.rglob("alone/graz.safetensors")))
    assert (
        manifest.architecture == read_manifest(run.home("graz") / "graz.safetensors").architecture
    )


@pytest.mark.slow
def test_a_model_that_is_trained_alone_keeps_an_optimizer_that_travels(call, tmp_path, monkeypatch):
    """As in the strategy `standalone`; a new Adam in each round would train another model."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    run = Finished(tmp_path, strategy="standalone", train__optimizer_state="travels")
    given = ("--data-dir", tmp_path / "images" / "graz", "--run-config", run.result / "config.toml")
    status, printed = call("alone", *given, *run.hospital("graz"))
    assert status == 0, printed.err
    alone, of_run = (
        load_model(run.home("graz") / f"{place}.safetensors")[0].state_dict()
        for place in ("alone/graz", "graz")
    )
    assert all(torch.equal(alone[name], of_run[name]) for name in of_run)


def test_the_own_report_of_a_simulation_says_that_there_is_no_ledger(run, call, tmp_path):
    to = tmp_path / "report.html"
    status, printed = call("report", *run.hospital("graz"), "--to", to)
    assert (status, printed.out) == (0, f"{to}\n")
    text = to.read_text()
    assert "A deployed hospital writes one; a simulation does not." in text
    assert f"{run.state.run}/visits" not in text
    assert "Models after visits of this hospital: " in text


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A simulation as it is by default: nothing is sealed, and hospitals take nothing home."""
    keep = dict.fromkeys(NAMES, "none")
    return Finished(tmp_path_factory.mktemp("simulated"), sealed=False, keep=keep)


@pytest.mark.parametrize(
    "command",
    [
        ["report", "--to", "page.html"],
        ["report", "--to", "page.html", "--data-dir", "images/graz"],
        ["predict", "--data", "images/graz", "--output", "out.csv"],
        ["predict", "--model", "graz", "--data", "images/graz", "--output", "out.csv"],
        ["export", "graz", "--to", "m.safetensors"],
        ["alone", "--data-dir", "images/graz"],
        ["open", "runs/the-run/parcels/graz.npz", "--run-config", "runs/the-run/config.toml"],
    ],
)
def test_after_a_simulation_commands_name_the_one_that_has_its_models(
    simulated, call, monkeypatch, command
):
    monkeypatch.chdir(simulated.place)
    before = {*os.listdir()}
    status, printed = call(*command, *simulated.hospital("graz"))
    assert status == 2
    assert "uv run fedhandoff export NAME --result RESULT" in printed.err
    assert {*os.listdir()} == before


def test_what_they_name_leads_to_a_table(simulated, call, monkeypatch):
    monkeypatch.chdir(simulated.place)
    status, _ = call("export", "graz", "--result", "runs/the-run", "--to", "m.safetensors")
    assert status == 0
    status, _ = call("predict", "--model", "m.safetensors", "--data", "images", "--output", "o.csv")
    assert status == 0
    assert len(table(simulated.place / "o.csv")) == 3 * 24 + 1


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["report", "--to", "nowhere/page.html"], "nowhere"),
        (["report", "--to", "page.html", "--run", "0"], "There is no run '0'"),
        (["report", "--to", "page.html", "--policy", "no.toml"], "no.toml"),
        (["export", "graz", "--to", "nowhere/m.safetensors"], "nowhere"),
        (["export", "no.safetensors", "--to", "m.safetensors"], "no.safetensors"),
        (["predict", "--data", "nowhere", "--output", "out.csv"], "nowhere"),
        (["predict", "--data", "images", "--output", "nowhere/out.csv"], "nowhere"),
        (["predict", "--ensemble", "--data", "images", "--output", "out.csv"], "--model"),
        (
            ["predict", "--model", "no.safetensors", "--data", "images", "--output", "o.csv"],
            "no.safe",
        ),
        (["dossier"], "There is no dossier"),
        (["alone", "--data-dir", "none", "--run-config", "runs/the-run/config.toml"], "'data-dir'"),
        (["open", "no.npz", "--run-config", "runs/the-run/config.toml"], "no.npz"),
        (["open", "no.npz", "--run-config", "no.toml"], "no.toml"),
    ],
)
def test_a_command_names_what_is_not_there(run, call, monkeypatch, command, named):
    monkeypatch.chdir(run.place)
    status, printed = call(*command, *run.hospital("graz"))
    assert status not in (0, None)
    assert named in printed.err
    assert "Traceback" not in printed.err


def test_a_file_that_is_no_model_is_named(run, call, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"hello")
    status, printed = call(
        *("predict", "--model", tmp_path / "x.safetensors"),
        *("--data", tmp_path, "--output", tmp_path / "out.csv"),
    )
    assert status == 2
    assert "x.safetensors: The model cannot be read as a safetensors file" in printed.err


def test_a_run_starts_from_a_model_with_its_head(run):
    """`open_hospital` reads the setting, and the hospital's classes are those of the model."""
    there = run.home("graz") / "graz.safetensors"
    config = {**run.settings.run_config, "pretrained": str(there), "partition": "iid"}
    config["dataset"] = f"folder:{run.place / 'images' / 'graz'}"
    hospital = open_hospital(context(0, 1, config, **{"store-dir": str(run.store("graz"))}))
    state = hospital.first_model().state_dict()
    expected = load_model(there)[0].state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def commands_of(page):
    """The commands of a page that are this project's own, each as one line."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("uv run fedhandoff ")]


@pytest.mark.slow
def test_the_commands_of_the_page_do_what_it_says(tmp_path, monkeypatch, capsys):
    """With $D as the demo leaves it, and $R an open run; ONNX is tested where it is written."""
    place = Finished(tmp_path / "demo").place
    own = {"name": "graz", "data": str(place / "images" / "graz"), "members": "first-use"}
    write_own(place / "graz", "hospital.toml", own)
    simulated = Finished(tmp_path / "open", sealed=False, keep=dict.fromkeys(NAMES, "none"))
    parcels = simulated.result / "parcels"
    (parcels / "graz.npz").rename(parcels / "hospital-0.npz")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands_of("using-a-model.md") if ".onnx" not in line]
    assert len(lines) == 10
    for line in lines:
        words = shlex.split(line.replace("$D", str(place)).replace("$R", str(simulated.result)))
        given = [path for word in words[3:] for path in sorted(glob(word)) or [word]]
        if given[0] == "alone":  # the demo has a ledger; below there is none
            continue
        with pytest.raises(SystemExit) as ended:
            main(given)
        assert ended.value.code == 0, capsys.readouterr()
    assert len(table(tmp_path / "predictions.csv")) == 25
    assert "Performance of the models here" in (tmp_path / "report.html").read_text()


def asks(tmp_path):
    """The last test of a run at graz, in so far as home.py looks at it."""
    data = SimpleNamespace(test=SimpleNamespace(labels=torch.tensor([0, 1] * 10)))
    store = SimpleNamespace(folder=tmp_path / "graz")
    return SimpleNamespace(
        order=SimpleNamespace(final=True),
        hospital=SimpleNamespace(keep="final", name="graz", store=store, data=data),
        run=SimpleNamespace(folder=Path("runs/1")),
        clock=Clock(60.0),
    )


@pytest.mark.parametrize(
    ("kept", "tested", "mixed"),
    [("ab", ["ab"], "ab"), ("abcd", ["ab", "cd"], ""), ("a", ["ab"], "a")],
    ids=["all", "in two messages", "one is not kept"],
)
def test_a_mixture_has_all_models_at_home_and_no_other(kept, tested, mixed, tmp_path):
    request: Any = asks(tmp_path)
    folder = own_folder(tmp_path / "graz" / "models" / "1")
    sure = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).repeat(10, 1)
    for names in tested:
        for name in set(names) & set(kept):
            (folder / f"{name}.safetensors").touch()
        keep_mixture(request, dict.fromkeys(names, sure), None)
    file = folder / "mixture.json"
    assert {*(json.loads(file.read_text()) if file.exists() else ())} == {*mixed}


@pytest.mark.parametrize("kind", [Exact, Noised])
def test_the_accuracy_after_a_visit_is_kept_with_its_noise(kind, tmp_path, monkeypatch):
    request: Any = asks(tmp_path)
    request.hospital.keep, request.is_rewind = "visits", False
    disclosure = kind.__new__(kind)
    disclosure.request, disclosure.effects = request, {"accuracy": 1 / 256}
    disclosure.rules = SimpleNamespace(max_models=1)
    kept: list[Any] = []
    monkeypatch.setattr(home, "_manifest", lambda *given: given[-1])
    monkeypatch.setattr(home, "keep_model", lambda *given: kept.append(given[-1]))
    label: Any = SimpleNamespace(lineage="ab", round=1, hop=2)
    home.keep_visit(disclosure, torch.nn.Identity(), label, {"accuracy-after-visit": 0.7})
    noise = {"accuracy-noise": 1 / 32} if kind is Noised else {}  # the square root, halved
    assert kept == [pytest.approx({"accuracy": 0.7, **noise})]


def test_only_a_model_at_home_is_advised():
    def row(kind, model, value):
        ends = {"balanced-accuracy-low": value - 0.05, "balanced-accuracy-high": value + 0.05}
        metrics = {"num-examples": 100, "balanced-accuracy": value, **ends}
        return assessment(kind, model, "graz", metrics, ["a", "b"])

    rows = [row("model", "graz", 0.8), row("model", "linz", 0.7), row("ensemble", "", 0.9)]
    past: Any = SimpleNamespace(
        models={"linz": None}, mixture={}, site="graz", folder=Path("store/graz"), run="1"
    )
    found = advice(past, rows)
    assert (found["model"], found["together"]) == ("1/linz", False)
    assert "only those that are kept here were compared" in found["advice"]
    past.models["graz"] = None
    assert advice(past, rows)["together"]
