"""Models out of the results of runs that are over."""

import re

import numpy as np
import pytest
import tomli_w
import torch
from flwr.app import Array, ArrayRecord
from flwr.common.config import unflatten_dict
from pydantic_core import to_json

from cli import main
from learning.export import load_model, read_manifest
from learning.models import Architecture
from learning.packing import pack_network
from server_app.results import Results
from strategies.engine.events import Event
from strategies.protocol.parcel import Manifest, pack, save
from tests.fakes import settings


@pytest.fixture
def result(tmp_path):
    """A result directory with the model of graz, and that network."""
    results, _ = Results.open(settings(output_dir=str(tmp_path), image_size=8, strategy="rwt"))
    blueprint = Architecture("mlp", 1, 8, 8, 2, (4,))
    network = blueprint.build()
    label = Manifest(
        "graz", blueprint.to_json(), ["a", "b"], round=2, hop=1, epochs=3, visited=["graz", "linz"]
    )
    (results.path / "parcels").mkdir()
    save(pack_network(network, label), results.path / "parcels" / "graz.npz")
    results.record(Event("query.prepare", 0, 0, "graz", metrics={"num-train": 40, "num-test": 10}))
    for round_, accuracy, testers in ((1, 0.5, ("graz", "linz")), (2, 0.9, ("graz",))):
        results.record(Event("train", round_, 1, "graz", "graz", epochs=3))
        metrics = {"num-examples": 10.0, "accuracy": accuracy, "seconds-evaluate": 1.0}
        for hospital in testers:
            results.record(
                Event("evaluate", round_, 1, hospital, "graz", metrics=metrics, epochs=3)
            )
    failed = Event("evaluate", 2, 1, "linz", "graz", "timeout", "No answer.", epochs=3)
    results.record(failed)
    return results.path, network


@pytest.fixture
def call(monkeypatch, capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["export", *map(str, arguments)])
        printed = capsys.readouterr()
        return printed.err if ended.value.code else printed.out.split()

    return call


def test_a_model_of_an_open_run_is_exported_with_what_the_hospitals_told(result, call, tmp_path):
    path, network = result
    to = tmp_path / "graz.safetensors"
    printed = call("graz", "--result", path, "--to", to)
    assert printed == [str(to), str(tmp_path / "graz.md")]
    loaded, manifest = load_model(to)
    state = network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    assert manifest.images == {"graz": {"train": 40, "test": 10}}
    assert manifest.tested == {"graz": {"num-examples": 10, "accuracy": 0.9}}
    assert manifest.settings["image-size"] == 8
    assert manifest.run == path.name
    assert "| graz | all | 40 | 10 |" in (tmp_path / "graz.md").read_text()


def test_figures_of_a_copy_that_was_undone_are_not_those_of_the_copy_before(result, call, tmp_path):
    path, _ = result
    undone = Event("undo", 3, 1, "linz", "graz", "useless", "wien refused it.")
    older = Event("evaluate", 3, 1, "linz", "graz", metrics={"accuracy": 0.7}, epochs=3)
    with (path / "metrics.jsonl").open("ab") as log:
        log.writelines(to_json(event, inf_nan_mode="null") + b"\n" for event in (undone, older))
    call("graz", "--result", path, "--to", tmp_path / "graz.safetensors")
    _, manifest = load_model(tmp_path / "graz.safetensors")
    assert manifest.tested == {"linz": {"accuracy": 0.7}}


def test_figures_of_an_older_copy_in_a_log_that_was_cut_are_not_those_of_the_model(
    result, call, tmp_path
):
    path, _ = result
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (path / "metrics.jsonl").write_bytes(b"".join(lines[:4]))  # up to the tests of round 1
    call("graz", "--result", path, "--to", tmp_path / "graz.safetensors")
    assert read_manifest(tmp_path / "graz.safetensors").tested == {}


def test_a_model_has_the_name_of_the_run_in_whose_folder_one_is(
    result, call, tmp_path, monkeypatch
):
    monkeypatch.chdir(result[0])
    call("graz", "--result", ".", "--to", tmp_path / "graz.safetensors")
    assert read_manifest(tmp_path / "graz.safetensors").run == result[0].name


@pytest.mark.parametrize("file", ["parcels/graz.npz", "config.toml"])
def test_a_file_that_was_cut_is_named(file, result, call, tmp_path):
    path = result[0] / file
    path.write_bytes(path.read_bytes()[: 60 if file == "config.toml" else 1000])
    path.write_bytes(path.read_bytes().rpartition(b"\n")[0])  # in TOML whole lines
    said = call("graz", "--result", result[0], "--to", tmp_path / "x.safetensors")
    assert f"fedhandoff export: {path} is damaged" in said
    assert len(said) < 600


def test_an_unknown_model_is_refused_with_those_that_are_there(result, call, tmp_path):
    said = call("../x", "--result", result[0], "--to", tmp_path / "x.safetensors")
    assert re.search(r"no model '\.\./x' in .*; choose one of graz\.", said)


def test_a_sealed_model_is_refused(result, call, tmp_path):
    path, _ = result
    record = ArrayRecord({"sealed": Array(np.zeros(9, np.uint8))})
    label = Manifest("graz", "", ["a", "b"])
    save(pack({"model": record}, label), path / "parcels" / "graz.npz")
    assert "`fedhandoff open`" in call("graz", "--result", path, "--to", tmp_path / "x.safetensors")


def test_a_model_whose_layers_stayed_at_hospitals_is_refused_with_the_cure(result, call, tmp_path):
    path, _ = result
    run = settings(strategy="fedbn", image_size=8)
    (path / "config.toml").write_text(tomli_w.dumps(unflatten_dict(run.run_config)))
    said = call("graz", "--result", path, "--to", tmp_path / "x.safetensors")
    assert "BatchNorm layers stay at the hospitals. Export the model that a hospital keeps" in said
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize(("kappa", "tested"), [(0, {"graz": 0.9}), (-1, {})])
def test_no_figure_of_a_classifier_for_home_is_one_of_the_exported_model(
    kappa, tested, result, call, tmp_path
):
    path, _ = result
    run = settings(
        strategy="sums", train__freeze="body", num_server_rounds=1, sums__kappa=kappa, image_size=8
    )
    (path / "config.toml").write_text(tomli_w.dumps(unflatten_dict(run.run_config)))
    call("graz", "--result", path, "--to", tmp_path / "w.safetensors")
    found = read_manifest(tmp_path / "w.safetensors").tested
    assert {name: figures["accuracy"] for name, figures in found.items()} == tested
