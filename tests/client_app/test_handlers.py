"""The handlers, called as Flower calls them."""

import gc
import logging
import re
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import PIL.Image
import pytest
import torch
import torchvision
from flwr.app import Array, ArrayRecord, Message, RecordDict

from client_app import app as module
from client_app import session
from client_app.app import app
from client_app.authority.ledger import path_of, read
from client_app.authority.policy import Policy
from client_app.authority.privacy_account import epsilon, read_account
from client_app.datasets import LocalData
from client_app.hospital import open_hospital
from client_app.release import buffer
from client_app.release.buffer.job import Release
from client_app.visit import _private_steps
from learning.learners import LEARNERS
from learning.learners.plain import Plain
from learning.models import Architecture
from learning.packing import pack_buffer
from learning.samples import Samples
from strategies.protocol import console
from strategies.protocol.code import code_hash
from strategies.protocol.files import MOST
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import bundle, check_parcel, hash_arrays, pack, unbundle
from strategies.protocol.records import to_record
from tests.fakes import context, deployed, run_config, settings

DIGITS = list("0123456789")


def ask(verb, tmp_path, parcels=None, ttl=60.0, model="mlp", config=None, site=None, **order):
    fields = {
        "round": 1,
        "hop": 1,
        "hospital": "hospital-0",
        "learner": "plain",
        "run": "1",
        **order,
    }
    fields = {"classes": DIGITS, **fields}
    content = RecordDict({**(parcels or {}), "order": to_record(Order(**fields))})
    settings = run_config(model=model, **(config or {}))
    node_config = {"store-dir": str(tmp_path), **({"site": site} if site else {})}
    place = context(0, 2, settings, **node_config)
    return app(Message(content, 100, verb, ttl=ttl), place)


def prepared(tmp_path, model="mlp"):
    return ask("query.prepare", tmp_path, model=model).content


def parcel_of(content):
    return {name: content[name] for name in ("model", "manifest")}


def test_new_modules_are_not_searched_for_garbage(monkeypatch):
    """Only while they are imported: later searches find what was made since."""
    searched: list[bool] = []
    monkeypatch.setattr(module, "import_module", lambda name: searched.append(gc.isenabled()))
    before = gc.get_freeze_count()
    module._load("new", "sys")
    assert searched == [False]
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


def test_enrolling_gives_the_hospital_s_name_and_classes(tmp_path):
    content = ask("query.enrol", tmp_path, code=code_hash(), hospital="", classes=[]).content
    assert dict(content["card"]) == {
        "hospital": "hospital-0",
        "classes": DIGITS,
        "shape": [1, 8, 8],
    }
    assert set(content) == {"card", "metrics"}


def test_a_hospital_whose_images_change_during_a_run_takes_no_further_part(tmp_path):
    """The next run takes it as it is then."""
    folder = tmp_path / "data"
    for k in range(12):
        (folder / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        PIL.Image.new("L", (4, 4), k).save(folder / "ab"[k % 2] / f"{k}.png")
    place = context(0, 1, run_config(), **{"data-dir": str(folder), "store-dir": str(tmp_path)})

    def asked(verb, classes, run="1"):
        session._opener.cache_clear()
        order = Order(0, 0, "", classes, "plain", run, code=code_hash())
        return app(Message(RecordDict({"order": to_record(order)}), 100, verb), place)

    assert not asked("query.enrol", []).has_error()
    assert not asked("query.prepare", ["a", "b"]).has_error()
    PIL.Image.new("L", (4, 4), 99).save(folder / "a" / "new.png")
    answer = asked("query.prepare", ["a", "b"])
    assert answer.error.code == Failure.DATA
    assert "have changed since it joined the run" in answer.error.reason
    assert "as many hospitals as before" in answer.error.reason  # else a simulation has others
    assert asked("query.enrol", []).has_error()  # as when the run is resumed
    assert not asked("query.enrol", [], "2").has_error()
    assert not asked("query.prepare", ["a", "b"], "2").has_error()


def test_a_real_hospital_forgets_removed_images_before_the_next_run(tmp_path):
    """Also in a process that stays between two runs with the same settings."""
    place = deployed(tmp_path)
    first = session.session_for(place, "", (), "1")
    (tmp_path / "images" / "a" / "0.png").unlink()
    assert session.session_for(place, "", (), "1") is first
    data = [session.session_for(place, "", (), run).hospital.data for run in "12"]
    assert [len(each.train) + len(each.test) for each in data] == [24, 23]


def test_a_policy_with_other_classes_counts_as_other_images(tmp_path):
    """If a patient has images of several classes, all of them decide who is for testing."""
    place = deployed(tmp_path)
    first = session.session_for(place, "", (), "1").images
    with (tmp_path / "policy.toml").open("a") as policy:
        policy.write("\nimages.classes = ['a', 'b']\n")
    assert session.session_for(place, "", (), "1").images != first


def test_a_real_hospital_keeps_the_images_of_one_session(tmp_path, monkeypatch):
    """Those of another run, or of other classes, would fill the memory while it opens its own."""
    alive: list[int] = []
    opened: list[weakref.ref[LocalData]] = []

    def open_spied(*inputs):
        alive.append(sum(each() is not None for each in opened))
        hospital = open_hospital(*inputs)
        opened.append(weakref.ref(hospital.data))
        return hospital

    monkeypatch.setattr(session, "open_hospital", open_spied)
    place = deployed(tmp_path)
    for classes, run in (((), "1"), (("a", "b"), "1"), (("a", "b"), "2"), ((), "1")):
        last = session.session_for(place, "", classes, run)
        assert session.session_for(place, "", classes, run) is last
        del last
    assert alive == [0] * 4


def _enlarge(policy):
    with policy.open("ab") as file:
        file.truncate(MOST + 1)


DAMAGES = {
    "removed": lambda policy: policy.unlink(),
    "a folder": lambda policy: (policy.unlink(), policy.mkdir()),
    "too large": _enlarge,
    "no text": lambda policy: policy.write_bytes(b"\xff"),
    "newer": lambda policy: policy.write_text("version = 2"),
    "another type": lambda policy: policy.write_text("runs = 1"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_policy_that_is_damaged_during_a_run_refuses_all_in_a_line(damage, tmp_path, caplog):
    place, policy = deployed(tmp_path, strategy="rwt", model="mlp"), tmp_path / "policy.toml"
    order = Order(0, 0, "graz", [], "plain", "1", code=code_hash())

    def enrol():
        content = RecordDict({"order": to_record(order)})
        return app(Message(content, 100, "query.enrol", ttl=60.0), place)

    assert not enrol().has_error()
    damage(policy)
    caplog.clear()
    answer = enrol()
    assert answer.error.code == Failure.SETTINGS
    assert answer.error.reason == "The hospital's policy cannot be used; its own log says why."
    (line,) = caplog.messages
    assert str(policy) in line
    assert len([*read(path_of("graz", tmp_path / "store"))]) == 2


def test_preparing_gives_sizes_and_a_first_model(tmp_path):
    content = prepared(tmp_path)
    assert content["metrics"]["num-train"] > content["metrics"]["num-test"] > 100
    assert check_parcel(content).visited == []


@pytest.mark.parametrize(
    ("withheld", "told"),
    [([], ("no part", "ε = 1")), (["gan-private"], ("ε = 1",)), (["gan-epsilon"], ("no part",))],
)
def test_a_withheld_figure_is_not_on_the_card_either(withheld, told, tmp_path, monkeypatch):
    figures = {"gan-private": 0.0, "gan-epsilon": 1.0, "gan-delta": 1e-5}

    def make(hospital, size, *_):
        return Release(hospital.data.train[torch.arange(size)], figures)

    monkeypatch.setattr(buffer, "make_buffer", make)
    place = deployed(tmp_path, strategy="feder", model="mlp", feder__buffer_size=8)
    with (tmp_path / "policy.toml").open("a") as policy:
        policy.write(f"\nfigures.withheld = {withheld}")
    order = Order(0, 0, "graz", ["a", "b"], "feder", "1", buffer_size=8)
    content = RecordDict({"order": to_record(order)})
    answer = app(Message(content, 100, "query.prepare", ttl=60.0), place)
    assert not answer.has_error(), answer.error
    sentence = str(answer.content["card"]["release"])
    assert [text for text in ("no part", "ε = 1") if text in sentence] == [*told]
    assert not {*answer.content["metrics"]} & {*withheld}


@pytest.mark.slow
def test_the_first_model_starts_from_pretrained_weights(tmp_path):
    weights = torchvision.models.resnet18().state_dict()
    torch.save(weights, tmp_path / "weights.pth")
    config = {"pretrained": str(tmp_path / "weights.pth"), "image_channels": 3}
    first = [
        ask("query.prepare", tmp_path, model="resnet18", config=each).content["model"]
        for each in (config, config | {"pretrained": ""})
    ]
    stems, heads = (
        [torch.from_numpy(model[entry].numpy()) for model in first]
        for entry in ("conv1.weight", "fc.weight")
    )
    assert torch.equal(stems[0], weights["conv1.weight"])
    assert not torch.equal(*stems)
    assert torch.equal(*heads)


def test_other_code_is_refused(tmp_path):
    answer = ask("query.enrol", tmp_path, code="0" * 64)
    assert answer.error.code == Failure.SETTINGS
    assert "runs other code than the server" in answer.error.reason
    assert code_hash() in answer.error.reason
    assert "0" * 64 in answer.error.reason


def test_a_visit_writes_itself_into_the_label(tmp_path):
    content = prepared(tmp_path)
    answer = ask("train", tmp_path, parcel_of(content), epochs=1, round=3, hop=2, test=True).content
    label = check_parcel(answer)
    assert (label.lineage, label.round, label.hop) == ("hospital-0", 3, 2)
    assert label.visited == ["hospital-0"]
    assert label.parent == check_parcel(content).hash_of["model"]
    assert 0 < answer["metrics"]["accuracy-after-visit"] <= 1


def test_a_visit_says_in_the_hospital_s_own_log_how_far_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(console, "PAUSE", 0.0)
    with caplog.at_level(logging.INFO):
        ask("train", tmp_path, parcel_of(prepared(tmp_path)), epochs=2)
    told = r"hospital-0 trains the model of hospital-0: (\d+) of (\d+) images, [\d.]+/s, \d+ s left"
    done, total = map(int, re.findall(told, caplog.text)[-1])
    assert done == total > 1000


@pytest.mark.slow
def test_a_visit_that_is_ordered_again_starts_from_the_layers_of_the_visit_before(tmp_path):
    """With FedBN; its answer was lost. Tests take the layers of the visit they follow."""

    def asked(verb, parcels, round_):
        order = {"round": round_, "learner": "fedbn", "epochs": 1}
        return ask(verb, tmp_path, parcels, model="cnn", **order).content

    first = ask("query.prepare", tmp_path, model="cnn", round=0, hop=0, learner="fedbn").content
    once = asked("train", parcel_of(first), 1)
    lost = asked("train", parcel_of(once), 2)
    again = asked("train", parcel_of(once), 2)
    assert check_parcel(lost) == check_parcel(again)
    tested = bundle({"a": RecordDict(parcel_of(again))})
    accuracy = [asked("evaluate", tested, round_)["metrics"]["a/accuracy"] for round_ in (2, 2)]
    third = asked("train", parcel_of(again), 3)
    assert accuracy[0] == accuracy[1]
    assert asked("evaluate", tested, 2)["metrics"]["a/accuracy"] == accuracy[0]
    assert check_parcel(third) != check_parcel(again)
    kept = {path.stem for path in tmp_path.glob("hospital-0/runs/1/local/*.npz")}
    assert kept == {"2-1", "3-1"}


class Counting(Plain):
    """Keeps for the hospital's stream how many images it has seen there; `found` has each start."""

    found: ClassVar[list[int]] = []

    def begin_visit(self):
        self.seen = self.received.rehearsal.get("seen", torch.tensor(0))
        self.found.append(int(self.seen))

    def rehearsal(self):
        return {"seen": self.seen + len(self.samples), "some": self.samples.images[:2]}


@pytest.fixture
def _counting(monkeypatch):
    monkeypatch.setitem(LEARNERS, "counting", Counting)
    monkeypatch.setattr(Counting, "found", [])


@pytest.mark.usefixtures("_counting")
def test_what_a_learner_keeps_for_the_stream_of_a_hospital_is_there_at_the_next_visit(tmp_path):
    """Whichever model comes, on whichever leg. A visit ordered again finds what it found before."""

    def visit(verb, round_, run="1"):
        order = {"round": round_, "run": run, "learner": "counting", "epochs": 1}
        return ask(verb, tmp_path, parcel_of(start), **order).content

    start = prepared(tmp_path)
    images = start["metrics"]["num-train"]
    for verb, round_ in (("train", 1), ("train", 2), ("train", 2), ("train.rewind", 3)):
        answer = visit(verb, round_)
        assert set(answer) == {"model", "manifest", "metrics"}
    assert Counting.found == [0, images, images, 2 * images]
    kept = {path.stem for path in tmp_path.glob("hospital-0/runs/1/rehearsal/*.npz")}
    assert kept == {"2-1", "3-1"}
    visit("train", 1, run="2")
    assert Counting.found[-1] == 0


@pytest.mark.parametrize(
    ("config", "order", "words"),
    [
        ({"cwc__decay": 2.0}, {"learner": "cwc"}, "'cwc.decay' is 2.0; it must be 0 to 1"),
        ({"gan__preset": "tinny"}, {"buffer_size": 512}, "'gan.preset' is 'tinny'; it must be one"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_at_enrolment(tmp_path, config, order, words):
    order = {"code": code_hash(), "hospital": "", "classes": [], **order}
    answer = ask("query.enrol", tmp_path, config=config, **order)
    assert answer.error.code == Failure.SETTINGS
    assert words in answer.error.reason


def test_a_preset_that_no_method_asks_for_is_not_looked_up(tmp_path):
    config = {"gan__preset": "tinny"}
    assert not ask("query.enrol", tmp_path, config=config, code=code_hash()).has_error()


def test_images_that_are_not_square_and_are_to_be_turned_are_refused_at_enrolment(tmp_path):
    images = np.zeros((8, 6, 4), np.uint8)
    labels = np.arange(8) % 2
    file = tmp_path / "data.npz"
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    config = {"dataset": f"npz:{file}", "partition": "iid"}
    order = {"code": code_hash(), "hospital": "", "classes": []}
    turned = {**config, "train__augment": "flip-rotate"}
    answer = ask("query.enrol", tmp_path, config=turned, **order)
    assert answer.error.code == Failure.SETTINGS
    assert "'train.augment' is 'flip-rotate'" in answer.error.reason
    assert "1x6x4: set image-size" in answer.error.reason
    card = ask("query.enrol", tmp_path, config=config, **order).content["card"]
    assert card["shape"] == [1, 6, 4]


def test_the_server_s_name_for_a_hospital_leads_nowhere_else(tmp_path):
    """Neither a path nor another hospital's folder, where the hospital has a name of its own."""
    store = tmp_path / "store"
    answer = ask("query.enrol", store, hospital="../elsewhere", code=code_hash())
    assert answer.error.code == Failure.SETTINGS
    assert not list(tmp_path.glob("elsewhere*"))
    other = {"hospital": "hospital-1", "code": code_hash()}
    card = ask("query.enrol", store, site="graz", **other).content["card"]
    assert card["hospital"] == "graz"
    assert [path.name for path in store.iterdir()] == ["graz"]


def test_an_identity_of_a_run_that_is_none_names_no_file(tmp_path):
    answer = ask("query.prepare", tmp_path, run="../1")
    assert answer.error.code == Failure.PARCEL
    assert "'../1' is not the identity of a run" in answer.error.reason


@pytest.mark.parametrize("order", [{"epochs": 0}, {"epochs": 1, "images": "none"}])
def test_a_visit_that_trains_nothing_is_refused(order, tmp_path):
    answer = ask("train", tmp_path, parcel_of(prepared(tmp_path)), **order)
    assert answer.error.code == Failure.PARCEL
    assert "training with no epoch, or with no image" in answer.error.reason


def test_a_visit_ends_at_its_deadline(tmp_path):
    answer = ask("train", tmp_path, parcel_of(prepared(tmp_path)), ttl=1e-9, epochs=1)
    assert answer.error.code == Failure.TIMEOUT


def test_a_parcel_damaged_on_its_way_is_refused(tmp_path):
    parcel = parcel_of(prepared(tmp_path))
    del parcel["model"]["1.bias"]
    answer = ask("train", tmp_path, parcel, epochs=1)
    assert answer.error.code == Failure.PARCEL
    assert "changed on its way" in answer.error.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ["cat", "dog"]}, "has the classes ['cat', 'dog']"),
        (
            {"architecture": Architecture("cnn", 1, 9, 9, 10).to_json()},
            "is for (1, 9, 9) images (channels, height, width), hospital 'hospital-0' has "
            "(1, 8, 8): set image-size for the whole run",
        ),
        (
            {"architecture": Architecture("cnn", 3, 9, 8, 10).to_json()},
            "is for (3, 9, 8) images (channels, height, width), hospital 'hospital-0' has "
            "(1, 8, 8): set image-channels for the whole run",
        ),
    ],
)
def test_a_model_for_other_images_is_refused(tmp_path, change, words):
    """A cnn has the same arrays whatever the size of its images."""
    content = prepared(tmp_path, model="cnn")
    parcel = pack({"model": content["model"]}, replace(check_parcel(content), **change))
    answer = ask("train", tmp_path, dict(parcel), epochs=1)
    assert answer.error.code == Failure.PARCEL
    assert words in answer.error.reason


def test_evaluation_answers_with_figures_alone(tmp_path):
    content = prepared(tmp_path)
    bundle = {f"a/{name}": record for name, record in parcel_of(content).items()}
    answer = ask("evaluate", tmp_path, bundle).content
    assert list(answer) == ["metrics"]
    assert {key for key in answer["metrics"] if key.startswith("a/")} == {
        *("a/accuracy", "a/balanced-accuracy", "a/auroc", "a/num-examples"),
    }


def received(level=9):
    """A buffer of another hospital, of 512 grey images, and its hash."""
    images = torch.full((512, 1, 8, 8), level, dtype=torch.uint8)
    record = pack_buffer(Samples(images, torch.zeros(512, dtype=torch.int64)), "0" * 64)
    return record, hash_arrays(record)


def replay(tmp_path, content, hash_, sent=None):
    parcels = parcel_of(content) | ({f"{hash_}/buffer": sent} if sent else {})
    order = {"learner": "feder", "replay": [f"linz={hash_}"], "buffer_size": 512}
    return ask("train", tmp_path, parcels, epochs=1, **order)


def test_a_buffer_that_came_once_is_kept(tmp_path):
    content, (buffer, hash_) = prepared(tmp_path), received()
    first = replay(tmp_path, content, hash_, buffer).content
    again = replay(tmp_path, content, hash_).content
    assert check_parcel(first).hash_of == check_parcel(again).hash_of


def test_a_buffer_that_is_nowhere_is_missed(tmp_path):
    answer = replay(tmp_path, prepared(tmp_path), received()[1])
    assert answer.error.code == Failure.PARCEL
    assert "is missing" in answer.error.reason


def test_a_buffer_that_changed_on_its_way_is_refused_and_not_kept(tmp_path):
    answer = replay(tmp_path, prepared(tmp_path), received(9)[1], received(8)[0])
    assert answer.error.code == Failure.PARCEL
    assert list(tmp_path.rglob("buffers/*")) == []


@pytest.mark.parametrize(
    "spoilt",
    [
        {"labels": np.full(512, 99)},
        {"labels": np.zeros(511, dtype=np.int64)},
        {"images": np.zeros(99, dtype=np.uint8)},
        {"images": np.zeros(99)},
        {"dossier": np.zeros(31, dtype=np.uint8)},
        {"more": np.zeros(1)},
    ],
)
def test_a_visit_goes_on_without_a_buffer_that_cannot_be_used(spoilt, tmp_path):
    """As if it had not been ordered; also when the server does not send it again."""
    content, (buffer, _) = prepared(tmp_path), received()
    spoilt = {name: Array(value) for name, value in spoilt.items()}
    bad = ArrayRecord({**buffer, **spoilt})
    alone = ask("train", tmp_path, parcel_of(content), epochs=1, learner="feder").content
    for sent in (bad, None):
        answer = replay(tmp_path, content, hash_arrays(bad), sent).content
        assert check_parcel(answer) == check_parcel(alone)
        assert answer["metrics"]["buffer-unused-0"] == 1


def test_a_visit_without_any_image_fails(tmp_path):
    buffer, _ = received()
    bad = ArrayRecord({name: each for name, each in buffer.items() if name != "dossier"})
    config = {"strategy": "feder", "feder__variant": "synthetic-only", "feder__buffer_size": 512}
    parcels = parcel_of(prepared(tmp_path)) | {f"{hash_arrays(bad)}/buffer": bad}
    order = {"learner": "feder", "images": "none", "buffer_size": 512}
    replayed = [f"linz={hash_arrays(bad)}"]
    answer = ask("train", tmp_path, parcels, config=config, epochs=1, replay=replayed, **order)
    assert answer.error.code == Failure.PARCEL
    assert "can use none of the buffers" in answer.error.reason


def test_a_kept_buffer_that_was_damaged_is_replaced_when_it_is_sent_again(tmp_path):
    content, (buffer, hash_) = prepared(tmp_path), received()
    replay(tmp_path, content, hash_, buffer)
    (path,) = tmp_path.rglob("buffers/*.npz")
    path.write_bytes(b"damaged")
    assert replay(tmp_path, content, hash_).error.code == Failure.PARCEL
    assert not replay(tmp_path, content, hash_, buffer).has_error()
    assert not replay(tmp_path, content, hash_).has_error()


def test_a_hash_that_is_no_hash_names_no_file(tmp_path):
    answer = replay(tmp_path, prepared(tmp_path), "../../home")
    assert answer.error.code == Failure.PARCEL
    assert "as its hash" in answer.error.reason


def consolidate(tmp_path, parcel, decay=0.0, **order):
    config = {"cwc__decay": decay, "cwc__strength": 0.1, "mlp__hidden": "16"}
    answer = ask("train", tmp_path, parcel, config=config, learner="cwc", epochs=1, **order).content
    return {name: answer[name] for name in ("model", "memory", "manifest")}


def vector(record):
    return np.concatenate([array.numpy().ravel() for array in record.values()])


def test_the_consolidation_matrix_decays_when_a_round_begins_wherever_that_is(tmp_path):
    """With γ = 0 the second round begins as if there had been no first one.

    Its first visit is at hop 2 here: the hospital before was away.
    """
    start = ask("query.prepare", tmp_path, config={"mlp__hidden": "16"}).content
    first = consolidate(tmp_path, parcel_of(start), round=1, hop=1)
    same_round = consolidate(tmp_path, first, round=1, hop=2)
    assert np.all(vector(same_round["memory"]) >= vector(first["memory"]))
    next_round = consolidate(tmp_path, first, round=2, hop=2)
    forgotten = consolidate(tmp_path, parcel_of(first), round=2, hop=2)
    np.testing.assert_array_equal(vector(next_round["memory"]), vector(forgotten["memory"]))
    kept = consolidate(tmp_path, first, decay=1.0, round=2, hop=2)
    assert np.all(vector(kept["memory"]) >= vector(first["memory"]))


def test_a_matrix_for_another_network_is_refused(tmp_path):
    config = {"mlp__hidden": "16"}
    start = ask("query.prepare", tmp_path, config=config).content
    first = consolidate(tmp_path, parcel_of(start))
    memory = ArrayRecord({**first["memory"], "1.bias": Array(np.zeros(3, "f4"))})
    label = check_parcel(RecordDict(first))
    parcel = dict(pack({"model": first["model"], "memory": memory}, label))
    answer = ask("train", tmp_path, parcel, config=config, learner="cwc", epochs=1)
    assert answer.error.code == Failure.USELESS
    assert "The consolidation matrix has '1.bias'" in answer.error.reason


def test_an_optimizer_state_that_is_not_asked_for_is_refused(tmp_path):
    travels = {"train__optimizer_state": "travels"}
    start = parcel_of(prepared(tmp_path))
    first = ask("train", tmp_path, start, config=travels, epochs=1).content
    sent = {name: first[name] for name in ("model", "optimizer", "manifest")}
    assert "optimizer" in ask("train", tmp_path, sent, config=travels, epochs=1).content
    answer = ask("train", tmp_path, sent, epochs=1)
    assert answer.error.code == Failure.PARCEL
    assert "'train.optimizer-state' is fresh" in answer.error.reason


def test_a_visit_answers_with_copies_of_the_model_after_each_epoch(tmp_path):
    """The first of two epochs leaves the same model as a visit of one epoch."""
    start = parcel_of(prepared(tmp_path))
    both = unbundle(ask("train", tmp_path, start, epochs=2, snapshots=True).content)
    once = ask("train", tmp_path, start, epochs=1).content
    assert list(both) == ["epoch-1"]
    copy = check_parcel(both["epoch-1"])
    assert copy == check_parcel(once)


def test_counts_of_classes_are_told_only_if_asked_for(tmp_path):
    start = RecordDict(parcel_of(prepared(tmp_path)))
    parcels = dict(bundle({"x": start}))
    plain = ask("evaluate", tmp_path, parcels).content["metrics"]
    assert not any("class-" in key for key in plain)
    told = ask("evaluate", tmp_path, parcels, config={"evaluate__per_class": True}).content[
        "metrics"
    ]
    images = [told[f"x/images-of-class-{k}"] for k in range(10)]
    right = [told[f"x/right-of-class-{k}"] for k in range(10)]
    assert sum(images) == told["x/num-examples"]
    assert sum(right) / sum(images) == pytest.approx(told["x/accuracy"])


PRIVATE = {"train__dp__noise_multiplier": 1.0, "train__dp__delta": 1e-4}


@pytest.mark.slow
def test_dp_sgd_tells_what_it_has_spent_over_all_visits_and_restarts(tmp_path):
    """Two visits of two epochs, 23 steps each at q = 32 / 718 or so: ε composed over all."""
    sent = parcel_of(ask("query.prepare", tmp_path, config=PRIVATE).content)
    spent = []
    for hop in (1, 2):
        answer = ask("train", tmp_path, sent, config=PRIVATE, epochs=2, hop=hop)
        spent.append(answer.content["metrics"]["epsilon-spent"])
    releases = read_account(tmp_path / "hospital-0" / "runs" / "1")
    assert [each.steps for each in releases] == [round(1 / releases[0].rate) * 2] * 2
    assert spent[0] == epsilon(releases[:1], 1e-4)
    assert spent[1] == epsilon(releases, 1e-4) > spent[0]


@pytest.mark.parametrize("policy", [None, Policy.read()])
def test_noise_follows_from_the_seed_in_a_simulation_alone(policy):
    """A server that knows the seed could subtract it."""
    chosen = settings(**PRIVATE)
    data = SimpleNamespace(train=SimpleNamespace(patients=np.arange(100)))
    hospital = SimpleNamespace(data=data, policy=policy, settings=chosen, smallest_group=10)
    order, network = (
        Order(1, 1, "graz", [], "plain", "1"),
        torch.nn.Sequential(torch.nn.Linear(1, 1)),
    )
    asked: Any = SimpleNamespace(hospital=hospital, order=order, verb="train", spend=lambda *_: 0.0)
    one, two = (_private_steps(asked, chosen.train, network, (1, 1, "graz")) for _ in range(2))
    same = np.array_equal(one[0].secret.random(9), two[0].secret.random(9))
    assert same == (policy is None)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"learner": "derpp", "epochs": 1}, "DP-SGD is for 'plain' alone"),
        ({"epochs": 1, "images": "everyone"}, "own images only"),
    ],
)
def test_dp_sgd_is_for_own_images_and_cross_entropy(tmp_path, asked, words):
    sent = parcel_of(ask("query.prepare", tmp_path, config=PRIVATE).content)
    answer = ask("train", tmp_path, sent, config=PRIVATE, **asked)
    assert words in answer.error.reason


def test_dp_sgd_with_batchnorm_is_refused_before_the_first_hop(tmp_path):
    answer = ask(
        "query.enrol",
        tmp_path,
        code=code_hash(),
        hospital="",
        classes=[],
        config=PRIVATE,
        model="cnn",
    )
    assert answer.error.code == Failure.SETTINGS
    assert "BatchNorm" in answer.error.reason
