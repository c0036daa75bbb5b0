import json
from pathlib import Path

import PIL.Image
import pytest
import torch

from client_app.authority.node_config import NODE_CONFIG, OwnError
from client_app.authority.permission import admit_run, judge
from client_app.authority.policy import PolicyError
from client_app.hospital import open_hospital
from client_app.session import session_for
from learning.models import Architecture
from strategies.protocol.may_leave import OWN_FILES
from strategies.protocol.settings import SettingsError
from strategies.registry import STRATEGIES
from strategies.rwt import RWT
from tests.fakes import context, run_config


@pytest.mark.parametrize(
    ("given", "node_config", "name"),
    [
        ("", {}, "hospital-1"),
        ("", {"site": "Graz"}, "Graz"),
        ("registered", {}, "registered"),
        ("registered", {"site": "Graz"}, "Graz"),
        ("../elsewhere", {"site": "Graz"}, "Graz"),
    ],
)
def test_the_hospital_s_own_name_counts_before_the_server_s(given, node_config, name):
    """It names the hospital's folder."""
    assert open_hospital(context(1, 3, run_config(), **node_config), given).name == name


@pytest.mark.parametrize(
    ("learner", "size", "images"),
    [
        ("", 5000, (32, 0, 0)),
        ("er", 5000, (700, 5000, 0)),
        ("er", 0, (32, 0, 0)),
        ("ser", 40, (60, 40, 0)),  # of derpp, which draws twice
        ("mah", 40, (60, 40, 0)),
        ("lwf", 40, (32, 0, 1)),
        ("rehearsal", 0, (32, 128, 0)),  # a tenth of some 770 images; 0.1 · 32 in the second task
    ],
)
def test_what_a_learner_keeps_counts_for_the_memory(learner, size, images):
    """Of fewer kept images than `reservoir.batch-size` a batch has as many as there are."""
    kept = {"reservoir__size": size, "reservoir__batch_size": 700}
    config = run_config(strategy="cwt", learner=learner, train__batch_size=32, **kept)
    assert open_hospital(context(0, 2, config)).memory_of_a_visit == images
    if learner == "rehearsal":  # half of each of 5 tasks: 0.5 · 32 · 4 images beside a batch
        config |= {"rehearsal.share": 0.5, "tasks": 5}
        assert open_hospital(context(0, 2, config)).memory_of_a_visit == (64, 512, 0)


def test_a_gradient_for_each_image_of_a_batch_counts_for_the_memory():
    """DP-SGD cuts the gradient of each image."""
    config = run_config(strategy="rwt", train__batch_size=32, train__dp__noise_multiplier=1.0)
    assert open_hospital(context(0, 2, config)).memory_of_a_visit == (32, 0, 32)


def test_the_learner_of_a_method_may_have_another_name(monkeypatch):
    """Here the one of FedProx, which keeps a copy of the weights."""
    monkeypatch.setitem(STRATEGIES, "own", type("Own", (RWT,), {"learner": "fedprox"}))
    assert open_hospital(context(0, 2, run_config(strategy="own"))).memory_of_a_visit == (32, 0, 1)


@pytest.mark.parametrize("end", ["", "/manifest.csv", "/"])
def test_simulated_hospitals_are_called_after_their_own_folders(end, tmp_path):
    for name in ("graz", "vienna"):
        (tmp_path / name).mkdir()
        for k in range(8):
            PIL.Image.new("L", (4, 4), k).save(tmp_path / name / f"{k}.png")
        rows = "".join(f"{k}.png,{k % 2}\n" for k in range(8))
        (tmp_path / name / "manifest.csv").write_text("image,label\n" + rows)
    dataset = "manifest:" + ", ".join(f"{tmp_path / name}{end}" for name in ("vienna", "graz"))
    config = run_config(dataset=dataset, partition="site")
    places = [context(k, 2, config, **{"store-dir": str(tmp_path / "store")}) for k in range(2)]
    assert [open_hospital(place).name for place in places] == ["vienna", "graz"]


@pytest.mark.parametrize(
    ("node_config", "kind"),
    [({}, "manifest"), ({"dataset": "folder"}, "folder"), ({"dataset": "manifest"}, "manifest")],
)
def test_a_hospital_names_its_own_folder(node_config, kind, tmp_path):
    """What the folder holds decides how it is read, unless the hospital says so."""
    for k in range(8):
        folder = tmp_path / "data" / str(k % 2)
        folder.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("L", (4, 4), k).save(folder / f"{k}.png")
    rows = "".join(f"{k % 2}/{k}.png,{'ab'[k % 2]}\n" for k in range(8))
    (tmp_path / "data" / "manifest.csv").write_text("image,label\n" + rows)
    place = {"data-dir": str(tmp_path / "data"), "store-dir": str(tmp_path / "store")}
    hospital = open_hospital(context(0, 1, run_config(), **place, **node_config))
    assert hospital.settings.dataset == f"{kind}:{tmp_path / 'data'}"
    assert hospital.data.classes == (("0", "1") if kind == "folder" else ("a", "b"))


def test_numbers_in_names_sort_as_numbers():
    names = [open_hospital(context(i, 12, run_config(partition="iid"))).name for i in (2, 11)]
    assert names == ["hospital-02", "hospital-11"]


@pytest.mark.parametrize("name", ["a/b", "..", "..//x", "global", "St. Anna", "Köln"])
def test_a_name_that_cannot_be_used_is_refused(name):
    with pytest.raises(SettingsError, match=f"cannot be called '{name}'.* Set 'site'"):
        open_hospital(context(0, 2, run_config(), site=name))
    with pytest.raises(SettingsError, match=f"cannot be called '{name}'"):
        open_hospital(context(0, 2, run_config()), name)


def test_what_the_hospital_says_of_its_data_set_wins():
    hospital = open_hospital(context(0, 2, run_config(dataset="npz:/x.npz"), dataset="digits"))
    assert hospital.settings.dataset == "digits"


def test_what_the_hospital_says_of_its_training_wins():
    own = {"train.batch-size": 8, "train.learning-rate": 0.5}
    train = open_hospital(context(0, 2, run_config(train__epochs=5), **own)).settings.train
    assert (train.batch_size, train.learning_rate, train.epochs) == (8, 0.5, 5)
    with pytest.raises(OwnError) as refusal:
        open_hospital(context(0, 2, run_config(), **{"train.batch-size": 1}))
    assert "'train.batch-size' is 1" in refusal.value.explain()


def test_batch_sizes_are_dealt_out_to_simulated_hospitals():
    config = run_config(train__batch_sizes="32, 8")
    hospitals = [open_hospital(context(k, 3, config)) for k in range(3)]
    assert [each.settings.train.batch_size for each in hospitals] == [32, 8, 32]
    # They share one copy of the data set all the same.
    assert len({each.data.train.pixels.data_ptr() for each in hospitals}) == 1
    with pytest.raises(SettingsError, match=r"'train.batch-sizes' is '32,1'"):
        open_hospital(context(0, 2, run_config(train__batch_sizes="32,1")))


def test_data_are_loaded_once_per_process():
    first, second = (session_for(context(0, 2, run_config()), "", (), "run") for _ in range(2))
    assert first is second


def test_the_architecture_fits_the_images():
    hospital = open_hospital(context(0, 2, run_config(model="mlp", mlp__hidden="5", image_size=12)))
    assert hospital.architecture == Architecture("mlp", 1, 12, 12, 10, (5,))
    assert hospital.data.train.images.dtype == torch.uint8


def test_threads_are_those_of_the_settings_not_of_the_process():
    open_hospital(context(0, 2, run_config(cpu_threads=2)))
    assert torch.get_num_threads() == 2
    open_hospital(context(0, 2, run_config()))
    assert torch.get_num_threads() == 1


def test_in_a_simulation_the_images_of_everyone_are_those_of_all_hospitals():
    places = [context(k, 2, run_config()) for k in range(2)]
    alone = [open_hospital(place).data.train for place in places]
    assert len(open_hospital(places[0]).images_of_all()) == sum(map(len, alone))


def write_images(folder: Path, numbers: dict[str, int]) -> None:
    """A folder of images, so many of each class."""
    for name, number in numbers.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(number):
            PIL.Image.new("L", (8, 8), 20 * k).save(folder / name / f"{k}.png")


def deployed(folder, policy="", own=None, **settings):
    """A hospital of its own with digits in a folder, not a simulated one."""
    file = folder / "policy.toml"
    file.write_text(policy, "utf-8")
    write_images(folder / "images", {"a": 12, "b": 12})
    place = context(0, 1, run_config(sealed=True, **settings))
    place.node_config = {
        "site": "graz",
        "data-dir": str(folder / "images"),
        "store-dir": str(folder / "store"),
        "policy": str(file),
        **(own or {}),
    }
    return open_hospital(place)


def test_outside_of_a_simulation_there_are_no_images_of_everyone(tmp_path):
    with pytest.raises(SettingsError, match="do not leave it"):
        deployed(tmp_path).images_of_all()


def test_a_hospital_s_images_are_its_own_word(tmp_path):
    place = context(0, 1, run_config(dataset=f"folder:{tmp_path}", sealed=True))
    place.node_config = {"site": "graz"}
    with pytest.raises(SettingsError, match="'data-dir'"):
        open_hospital(place)


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("key", ["without-privacy", "untested"])
def test_run_and_policy_both_decide_on_a_buffer_that_nothing_protects(
    key, allowed, asked, tmp_path
):
    policy, name = f"[release]\nallow-{key} = {str(allowed).lower()}", key.replace("-", "_")
    hospital = deployed(tmp_path, policy, **{f"release__{name}": asked})
    assert getattr(hospital.settings.release, name) == (allowed and asked)


@pytest.mark.parametrize("key", OWN_FILES)
def test_no_file_is_opened_because_a_server_said_so(key, tmp_path):
    secret = str(tmp_path / "secret.pt")
    with pytest.raises(SettingsError, match=f"Set '{key}' in the hospital's node") as refusal:
        deployed(tmp_path, **{key.replace("-", "_").replace(".", "__"): secret})
    assert secret not in str(refusal.value)
    hospital = deployed(tmp_path, own={key: secret})
    assert str(hospital.settings.run_config[key]) == secret


def test_the_word_of_the_hospital_s_own_processes_counts_before_flower_s(tmp_path, monkeypatch):
    own = {"site": "graz", "data-dir": str(tmp_path / "images"), "store-dir": str(tmp_path)}
    write_images(tmp_path / "images", {"a": 12, "b": 12})
    monkeypatch.setenv(NODE_CONFIG, json.dumps(own))
    place = context(0, 1, run_config(sealed=True))
    place.node_config = {"site": "wien", "data-dir": "/etc", "partition-id": 0}
    hospital = open_hospital(place)
    assert (hospital.name, hospital.policy is None) == ("graz", False)


def test_images_that_keep_their_size_have_no_more_pixels_than_the_policy_allows(tmp_path):
    rule = "images.max-size = {}"
    hospital = deployed(tmp_path, rule.format(8), image_size=0)
    assert hospital.data.train.shape[1:] == (8, 8)
    rulings = judge(hospital.policy, hospital.settings, hospital.data)
    assert [each.holds for each in rulings if each.rule == "images.max-size"] == [True, True]
    hospital = deployed(tmp_path, rule.format(7), image_size=0)
    with pytest.raises(PolicyError) as refusal:
        admit_run(hospital)
    assert refusal.value.rule == "images.max-size"
