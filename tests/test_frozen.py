"""Runs on the features of a frozen network: `train.freeze = "body"`."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import PIL.Image
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from client_app import datasets
from client_app.authority.permission import judge
from client_app.authority.policy import MachineRules, Policy, PolicyError
from client_app.datasets import features, open_data, open_public
from client_app.datasets.features import BATCH
from client_app.datasets.preflight.rehearsal import rehearse
from client_app.hospital import open_hospital
from learning.errors import ModelError
from learning.export import ENTRY, ModelManifest, load_model, read_state, save_model, save_onnx
from learning.model_card import model_card
from learning.models import Architecture
from learning.models.frozen import Body, weights_hash
from learning.models.pretrained import load_head
from learning.models.whole import frozen_network, whole_network
from learning.packing import unpack_network
from learning.randomness import use_seed
from strategies.protocol.parcel import Manifest
from strategies.protocol.settings import Settings, SettingsError, rng_for
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import context, parcels_of, run_config, write_archive
from tests.test_federation import HOSPITALS, federate

FROZEN = {"train__freeze": "body", "model": "cnn", "feder__buffer_size": 0}

ON_FEATURES = {"strategy": "feder", "feder__buffer_size": 80, "gan__method": "class-gaussians"}


def settings(**changes):
    return Settings.parse(run_config(**{**FROZEN, **changes}))


@pytest.fixture
def digits(tmp_path):
    return open_data(settings(partition="iid"), 0, 3, store=tmp_path)


@pytest.fixture
def folder(tmp_path):
    """A folder with ten images of each of two classes."""
    for k in range(20):
        path = tmp_path / "pictures" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((8, 8), 10 * k, np.uint8)).save(path)
    return tmp_path / "pictures"


def cnn(seed=0):
    """The network that hospitals freeze: that of the run's seed."""
    with use_seed(rng_for(seed, "body")):
        return Architecture("cnn", 1, 8, 8, 2, (8,)).build().eval()


def test_features_are_those_of_the_network_without_its_last_layer(tmp_path, digits):
    images = open_data(settings(partition="iid", train__freeze="none"), 0, 3, store=tmp_path)
    for part in ("train", "test"):
        found, expected = getattr(digits, part), getattr(images, part)
        assert found.images.dtype == torch.float32
        assert torch.equal(found.labels, expected.labels)
        with torch.no_grad():
            z = normalize(cnn()[:-1](expected.images / 255))  # without scale: that is a hook
        torch.testing.assert_close(found.images[:, :, 0, 0], z)
    assert digits.train.shape == (128, 1, 1)


def test_a_body_and_a_head_are_the_whole_network():
    architecture = replace(Architecture("cnn", 1, 8, 8, 4, (8,)), frozen="0" * 64)
    with use_seed(rng_for(0, "body")):
        whole = architecture.build().eval()
    head = architecture.head(128).blank()
    layer = whole.get_submodule("14")
    head.load_state_dict(layer.state_dict(prefix="1."))
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    logits = whole(images).detach()
    torch.testing.assert_close(head(Body(whole)(images)[:, :, None, None]).detach(), logits)


def test_a_network_whose_last_layer_has_no_bias_is_refused_before_training():
    """As torchvision's maxvit_t; the head on its features has one."""
    network = cnn()
    network[-1].bias = None
    with pytest.raises(ModelError, match="last layer of the network has no bias"):
        Body(network)


def test_features_of_an_image_do_not_depend_on_the_images_beside_it(folder, tmp_path):
    """Nor on settings that the network does not read. Their hashes show whether images changed."""
    chosen = settings(dataset=f"folder:{folder}", partition="iid")
    before = open_data(chosen, 0, 1, store=tmp_path)
    label = next(path for path in folder.iterdir() if path.is_dir())
    PIL.Image.fromarray(np.full((8, 8), 7, np.uint8)).save(label / "zz.png")
    after = open_data(replace(chosen, mlp=replace(chosen.mlp, hidden="7")), 0, 1, store=tmp_path)
    assert len(list(tmp_path.glob("features/*/*.npy"))) == 1
    again = open_data(chosen, 0, 1, store=tmp_path / "other")
    parts = (before.train, after.train, again.train)
    rows = [{*map(bytes, each.pixels.flatten(1).numpy())} for each in parts]
    assert rows[0] < rows[1] == rows[2]


def test_features_are_computed_once(tmp_path, digits, monkeypatch):
    datasets._pool_and_shares.cache_clear()
    monkeypatch.setattr(features, "_compute", None)
    again = open_data(settings(partition="iid", num_server_rounds=9), 1, 3, store=tmp_path)
    assert len(again.train) + len(again.test) < len(np.unique(again.train.pixels))
    with pytest.raises(TypeError):  # another network
        open_data(settings(partition="iid", seed=1), 0, 3, store=tmp_path)


def test_features_of_a_folder_are_computed_once(folder, tmp_path, monkeypatch):
    chosen = settings(dataset=f"folder:{folder}", partition="iid")
    first = open_data(chosen, 0, 1, store=tmp_path)
    datasets._pool_and_shares.cache_clear()
    monkeypatch.setattr(features, "_compute", None)
    again = open_data(chosen, 0, 1, store=tmp_path)
    assert torch.equal(again.train.pixels, first.train.pixels)


def test_a_copy_of_an_image_needs_no_computation(folder, tmp_path, monkeypatch):
    chosen = settings(dataset=f"folder:{folder}", partition="iid")
    open_data(chosen, 0, 1, store=tmp_path)
    datasets._pool_and_shares.cache_clear()
    (folder / "a/copy.png").write_bytes((folder / "a/0.png").read_bytes())
    monkeypatch.setattr(Body, "forward", None)
    data = open_data(chosen, 0, 1, store=tmp_path)
    assert len(data.train) + len(data.test) == 21


def test_only_images_without_features_are_computed(tmp_path, digits, monkeypatch):
    (file,) = tmp_path.glob("features/*/*.npy")
    table = np.load(file)
    np.save(file, np.flip(table[3 * BATCH :]))  # as after a kill, but for the order
    counted = Mock(side_effect=Body.forward)
    monkeypatch.setattr(Body, "forward", lambda *args: counted(*args))
    datasets._pool_and_shares.cache_clear()
    open_data(settings(partition="iid"), 0, 3, store=tmp_path)
    again = np.load(file)
    assert (again["id"] == table["id"]).all()
    np.testing.assert_allclose(again["z"], table["z"], atol=1e-6)
    assert counted.call_count == 3


class Overflow(torch.nn.Module):
    """Infinite for an image that is brighter than `most`."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def forward(self, images):
        return images / (images.float().mean(dim=(1, 2, 3), keepdim=True) < self.most)


@pytest.mark.parametrize("most", [185, 0])
def test_no_image_decides_whether_features_are_refused(folder, tmp_path, monkeypatch, most):
    """The refusal told the server that the hospital has the patient, whatever ε was."""

    def hostile(*args):
        network, architecture = frozen_network(*args)
        return torch.nn.Sequential(Overflow(most), *network.children()), architecture

    monkeypatch.setattr(features, "frozen_network", hostile)
    chosen = settings(dataset=f"folder:{folder}", partition="iid")
    if not most:
        with pytest.raises(ModelError, match="features that are not finite"):
            open_data(chosen, 0, 1, store=tmp_path)
        return
    data = open_data(chosen, 0, 1, store=tmp_path)
    lengths = torch.cat([part.images.flatten(1) for part in (data.train, data.test)]).norm(dim=1)
    assert lengths.sort().values.tolist() == pytest.approx([0.0] * 2 + [1.0] * 18)  # one is black


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_features_in_a_damaged_file_are_computed_again(kept, tmp_path, digits):
    (file,) = tmp_path.glob("features/*/*.npy")
    table, whole = np.load(file), file.read_bytes()
    file.unlink()  # `digits` maps it
    file.write_bytes(whole[:kept])
    draft = file.with_name(f".{file.name}.0123.part")  # of a killed process
    draft.touch()
    datasets._pool_and_shares.cache_clear()
    open_data(settings(partition="iid"), 0, 3, store=tmp_path)
    np.testing.assert_array_equal(np.load(file), table)
    assert not draft.exists()


def test_public_images_become_features_too(tmp_path, digits):
    write_archive(tmp_path / "public.npz", 20)
    like = replace(digits, whole=frozen_network(settings(), (1, 8, 8))[1])
    samples = open_public(str(tmp_path / "public.npz"), settings(), like, tmp_path)
    assert samples.shape == (128, 1, 1)
    lengths = samples.images.square().sum(dim=1).flatten()
    torch.testing.assert_close(lengths, torch.ones(len(samples)))


@pytest.fixture
def head(digits):
    """The head of a run with ten classes, and its description."""
    architecture = replace(digits.whole, classes=10).head(128)
    with use_seed(rng_for(0, "test")):
        return architecture.build(), architecture


def test_a_head_completes_the_network_that_made_its_features(tmp_path, digits, head):
    images = open_data(settings(partition="iid", train__freeze="none"), 0, 3, store=tmp_path)
    network = whole_network(head[0], head[1], settings())
    with torch.no_grad():
        logits = head[0](digits.test.images)
        torch.testing.assert_close(network(images.test.images), logits, atol=1e-5, rtol=1e-5)
    assert whole_network(network, digits.whole, settings()) is network  # it is for images


def test_a_head_for_other_frozen_weights_is_refused(head):
    with pytest.raises(ModelError, match="is for frozen weights with"):
        whole_network(head[0], head[1], settings(seed=1))


@pytest.fixture
def exported(tmp_path, head):
    """The file of the whole network behind `head`."""
    classes = [str(k) for k in range(10)]
    label = Manifest("graz", head[1].to_json(), classes, hashes=["model=" + "0" * 64])
    manifest = ModelManifest.from_label(label, settings(), "run")
    save_model(tmp_path / "m.safetensors", whole_network(head[0], head[1], settings()), manifest)
    return tmp_path / "m.safetensors"


def test_the_file_of_a_head_has_the_whole_network(head, exported):
    network, read = load_model(exported)
    frozen = frozen_network(settings(), (1, 8, 8))[1].frozen
    assert f"were frozen; their SHA-256 is {frozen}." in model_card(read)
    assert (read.network.name, read.network.image_shape) == ("cnn", (1, 8, 8))
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    with torch.no_grad():
        expected = head[0](Body(cnn())(images)[:, :, None, None])
        torch.testing.assert_close(network(images), expected, atol=1e-5, rtol=1e-5)


def starting(tmp_path, pretrained, **changes):
    """A hospital of a run that starts from a file."""
    chosen = {**FROZEN, "partition": "iid", "pretrained": str(pretrained), **changes}
    return open_hospital(context(0, 3, run_config(**chosen), **{"store-dir": str(tmp_path)}))


@pytest.mark.parametrize("freeze", ["body", "none"])
@pytest.mark.parametrize("own_start", [True, False])
def test_a_run_starts_from_an_exported_head(tmp_path, head, exported, digits, freeze, own_start):
    hospital = starting(tmp_path, exported, train__freeze=freeze)
    network = hospital.first_model(own_start).eval()
    with torch.no_grad():
        found, expected = network(hospital.data.test.images), head[0](digits.test.images)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("freeze", ["body", "none"])
def test_a_head_for_other_classes_is_left_out(tmp_path, exported, freeze):
    hospital = starting(tmp_path, exported, train__freeze=freeze)
    names = "abcdefghij"
    other = replace(hospital, data=replace(hospital.data, classes=[*names]))
    started = [
        [*replace(other, settings=replace(other.settings, seed=seed)).first_model().parameters()]
        for seed in (0, 1)
    ]
    *same, weight, bias = [torch.equal(*pair) for pair in zip(*started, strict=True)]
    assert all(same)
    assert not weight
    assert not bias


@pytest.mark.parametrize("freeze", ["body", "statistics"])
def test_a_model_that_started_from_an_exported_head_is_a_start_too(
    tmp_path, head, exported, digits, freeze
):
    changes = {**FROZEN, "train__freeze": freeze, "partition": "iid", "pretrained": str(exported)}
    state, ledger, _ = federate(tmp_path / "run", "cwc", **changes, train__learning_rate=1e-12)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    parcel = next(iter(parcels_of(state).values()))
    label, chosen = Manifest.read(parcel), settings(**changes)
    network = unpack_network(parcel, label, {}, torch.device("cpu"))
    network = whole_network(network, Architecture.from_json(label.architecture), chosen)
    save_model(tmp_path / "n.safetensors", network, ModelManifest.from_label(label, chosen, "run"))
    for freeze in ("body", "none"):
        hospital = starting(tmp_path, tmp_path / "n.safetensors", train__freeze=freeze)
        with torch.no_grad():
            found = hospital.first_model().eval()(hospital.data.test.images)
            expected = head[0](digits.test.images)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_damaged_head_is_refused(tmp_path, exported):
    state, manifest = read_state(exported)
    del state["14.bias"]
    save_file(state, exported, {ENTRY: manifest.to_json()})
    with pytest.raises(
        ModelError, match=r"last layer of 'pretrained'.* is damaged: it has no 'bias'"
    ):
        load_head(
            Architecture.from_json(manifest.architecture).head(128).build(),
            str(exported),
            manifest.classes,
        )


@pytest.mark.slow
@pytest.mark.extra
def test_onnx_computes_body_and_head_on_bytes(tmp_path, head):
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    classes = [str(k) for k in range(10)]
    label = Manifest("graz", head[1].to_json(), classes, hashes=["model=" + "0" * 64])
    manifest = ModelManifest.from_label(label, settings(), "run")
    save_onnx(tmp_path / "m.onnx", whole_network(head[0], head[1], settings()), manifest)
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (found,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        expected = head[0](Body(cnn())(images)[:, :, None, None]).softmax(dim=1)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_policy_names_the_weights_that_a_run_may_use():
    rules = Policy.read().models
    assert rules.judge_weights("imagenet", "").holds  # no list: all are allowed
    listed = replace(rules, weights=["imagenet", "a" * 64])
    assert listed.judge_weights("imagenet", "").holds
    assert listed.judge_weights("/file.pt", "a" * 64).holds
    assert listed.judge_weights("", "").holds  # random weights
    assert not listed.judge_weights("/file.pt", "b" * 64).holds


@pytest.mark.parametrize("freeze", ["none", "body"])
def test_the_hash_of_a_file_is_judged_whether_or_not_it_is_frozen(tmp_path, freeze):
    source, shape = tmp_path / "m.pt", (3, 8, 8)
    small = Architecture("mobilenet_v3_small", *shape, 2, (256, 256), "imagenet")
    torch.save(small.build().state_dict(), source)
    chosen = settings(
        model="mobilenet_v3_small", pretrained=str(source), train__freeze=freeze, image_channels=3
    )
    hash_ = frozen_network(chosen, shape)[1].frozen
    data = open_data(chosen, 0, 60, store=tmp_path)
    policy = Policy.read()
    for weights, holds in (["0" * 64], False), ([hash_], True):
        rules = replace(policy, models=replace(policy.models, weights=weights))
        (ruling,) = [each for each in judge(rules, chosen, data) if each.rule == "models.weights"]
        assert (ruling.holds, ruling.requested) == (holds, f"{source} {hash_}")
    for number in range(40):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
    own = replace(
        chosen, dataset=f"folder:{tmp_path / 'images'}", partition="iid", max_quarantined=0.5
    )
    found = [f.text for f in rehearse("graz", own, tmp_path / "store", None)]
    assert sum(f"have the SHA-256 {hash_}." in text for text in found) == 1


def test_features_have_the_fingerprint_of_their_images(tmp_path, digits):
    images = open_data(settings(partition="iid", train__freeze="none"), 0, 3, store=tmp_path)
    assert images.train.contents is None  # there are no files
    assert digits.hashes(b"") == images.hashes(b"")


@pytest.mark.parametrize("limit", [{"max_memory_gb": 1e-6}, {"max_disk_gb": 1e-6}])
def test_features_stay_within_the_limits_of_the_machine(tmp_path, limit):
    rules = MachineRules(**{"max_memory_gb": 1.0, "max_disk_gb": 1.0, **limit})
    with pytest.raises(PolicyError) as refused:
        open_data(settings(), 0, 3, store=tmp_path, machine=rules)
    assert refused.value.rule == f"machine.{next(iter(limit)).replace('_', '-')}"


def test_the_hash_of_the_weights_leaves_out_the_head():
    network, architecture = cnn(), Architecture("cnn", 1, 8, 8, 2, (8,))
    before = weights_hash(network, architecture)
    torch.nn.init.ones_(network[-1].weight)
    assert weights_hash(network, architecture) == before
    torch.nn.init.ones_(network[0].weight)
    assert weights_hash(network, architecture) != before


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("strategy", {"strategy": "fedspace"}),
        ("strategy", {"strategy": "fil-ver", "model": "vee"}),
        ("strategy", {"strategy": "fedbn"}),
        ("learner", {"learner": "twf"}),
        ("learner", {"learner": "ser"}),
        ("learner", {"learner": "pass"}),
        ("model", {"model": "cnn,mlp"}),
        ("train.augment", {"train__augment": "flip"}),
        ("task-cut", {"task_cut": "permuted"}),
        ("gan.method", {"strategy": "feder", "feder__buffer_size": 8}),
        ("gan.sampler", {**ON_FEATURES, "gan__sampler": "lci"}),
        ("gan.projections", {**ON_FEATURES, "gan__projections": 4}),
    ],
)
def test_what_needs_images_is_refused(key, changes):
    with pytest.raises(SettingsError, match=f"'{key}' is .*train.freeze 'body'"):
        strategy_of(settings(**{"strategy": "rwt", **changes}))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"fil-ver", "fedspace", "fedbn"}))
def test_every_other_strategy_trains_a_head(tmp_path, strategy):
    changes = {**FROZEN, "train__epochs": 10, "train__learning_rate": 0.05, "partition": "iid"}
    state, ledger, _ = federate(tmp_path, strategy, **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    last = [e.metrics["accuracy"] for e in ledger.of("evaluate") if e.round == 2]
    assert np.mean(last) > 0.5
    for parcel in parcels_of(state).values():
        assert {*parcel.array_records["model"]} == {"1.weight", "1.bias"}


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["derpp", "er-ace", "lwf", "oewc", "rehearsal"])
def test_learners_for_tasks_train_a_head(tmp_path, learner):
    changes = {**FROZEN, "learner": learner, "tasks": 2, "partition": "iid"}
    _, ledger, _ = federate(tmp_path, "fedavg", **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    assert len(ledger.of("evaluate")) == 2 * HOSPITALS


def test_buffers_of_features_need_features():
    with pytest.raises(SettingsError, match=r"'gan\.method' is 'class-gaussians'.*train\.freeze"):
        settings(**{**ON_FEATURES, "train__freeze": "none"})


@pytest.mark.parametrize("allowed", [True, False])
def test_the_policy_decides_on_a_generator_without_a_privacy_loss(allowed):
    policy = Policy.read()
    rules = replace(policy.release, allow_without_privacy=allowed)
    rulings = replace(policy, release=rules).judge(settings(**ON_FEATURES))
    (ruling,) = [each for each in rulings if each.rule == "release.allow-without-privacy"]
    assert ruling.holds is allowed


def feder(tmp_path, **changes):
    chosen = {**FROZEN, **ON_FEATURES, "train__epochs": 5, "train__learning_rate": 0.05, **changes}
    return federate(tmp_path, chosen.pop("strategy"), partition="iid", **chosen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"feder__variant": "full"},
        {"feder__variant": "buffer-only"},
        {"feder__variant": "synthetic-only"},
        {
            "gan__method": "dp-mean-embedding",
            "gan__epsilon": 20.0,
            "feder__variant": "synthetic-only",
            "release__max_membership": 1.0,
        },
    ],
)
def test_feder_replays_features(tmp_path, changes):
    _, ledger, _ = feder(tmp_path, **changes)
    assert [event for event in ledger.events if event.outcome != "ok"] == []
    last = [e.metrics["accuracy"] for e in ledger.of("evaluate") if e.round == 2]
    assert np.mean(last) > 0.5
    (dossier, *_) = tmp_path.rglob("dossier.html")
    text = " ".join(dossier.read_text().split())
    assert "80 synthetic vectors of 128 features" in text
    assert "synthetic image" not in text.lower()
    assert ("ε = 20 at δ = 1e-05" in text) == ("gan__method" in changes)
