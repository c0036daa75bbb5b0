"""The handlers, called as Flower calls them."""

from dataclasses import replace

import pytest
import torch
from flwr.app import Message, RecordDict

from client_app.app import app
from client_app.datasets import Samples
from client_app.models import Architecture
from client_app.packing import pack_buffer
from strategies.parcel import Failure, Order, check_parcel, code_hash, hash_arrays, pack, to_record
from tests.fakes import context, run_config


def ask(verb, tmp_path, parcels=None, ttl=60.0, model="mlp", **order):
    fields = {"round": 1, "hop": 1, "hospital": "hospital-0", "learner": "plain", **order}
    content = RecordDict({**(parcels or {}), "order": to_record(Order(**fields))})
    place = context(0, 2, run_config(model=model), **{"store-dir": str(tmp_path)})
    return app(Message(content, 100, verb, ttl=ttl), place)


def prepared(tmp_path, model="mlp"):
    return ask("query.prepare", tmp_path, code=code_hash(), hospital="", model=model).content


def parcel_of(content):
    return {name: content[name] for name in ("model", "manifest")}


def test_preparing_gives_name_sizes_and_a_first_model(tmp_path):
    content = prepared(tmp_path)
    assert dict(content["card"]) == {"hospital": "hospital-0"}
    assert content["metrics"]["num-train"] > content["metrics"]["num-test"] > 100
    assert check_parcel(content).visited == []


def test_other_code_is_refused(tmp_path):
    answer = ask("query.prepare", tmp_path, code="0" * 64)
    assert answer.error.code == Failure.SETTINGS
    assert "runs other code than the server" in answer.error.reason


def test_a_visit_writes_itself_into_the_label(tmp_path):
    content = prepared(tmp_path)
    answer = ask("train", tmp_path, parcel_of(content), epochs=1, round=3, hop=2, test=True).content
    label = check_parcel(answer)
    assert (label.lineage, label.round, label.hop) == ("hospital-0", 3, 2)
    assert label.visited == ["hospital-0"]
    assert label.parent == check_parcel(content).hash_of["model"]
    assert 0 < answer["metrics"]["accuracy-after-visit"] <= 1


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
        ({"classes": ["cat", "dog"]}, "tells ['cat', 'dog'] apart"),
        ({"architecture": Architecture("cnn", 1, 9, 9, 10).to_json()}, "is for (1, 9, 9) images"),
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
    """A buffer of another hospital, of 512 grey images (feder.buffer-size), and its hash."""
    images = torch.full((512, 1, 8, 8), level, dtype=torch.uint8)
    record = pack_buffer(Samples(images, torch.zeros(512, dtype=torch.int64)))
    return record, hash_arrays(record)


def replay(tmp_path, content, hash_, sent=None):
    parcels = parcel_of(content) | ({f"{hash_}/buffer": sent} if sent else {})
    return ask("train", tmp_path, parcels, epochs=1, learner="feder", replay=[hash_])


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


def test_a_kept_buffer_that_was_damaged_is_replaced_when_it_is_sent_again(tmp_path):
    content, (buffer, hash_) = prepared(tmp_path), received()
    replay(tmp_path, content, hash_, buffer)
    (path,) = tmp_path.rglob("buffers/*.npz")
    path.write_bytes(b"damaged")
    assert replay(tmp_path, content, hash_).has_error()
    assert not replay(tmp_path, content, hash_, buffer).has_error()
    assert not replay(tmp_path, content, hash_).has_error()


def test_a_hash_that_is_no_hash_names_no_file(tmp_path):
    answer = replay(tmp_path, prepared(tmp_path), "../../home")
    assert answer.error.code == Failure.PARCEL
    assert "not the hash of a buffer" in answer.error.reason
