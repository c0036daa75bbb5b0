"""Orders that no honest server sends: out of turn, or for more than the run's settings say."""

import shutil

import pytest
from flwr.app import Message, RecordDict

from client_app.app import app
from client_app.ledger import path_of, read
from learning.models import Architecture
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from tests.fakes import deployed


def ask(place, verb, ttl=60.0, **order):
    asked = Order(
        round=0, hop=0, hospital="", classes=["a", "b"], learner="plain", run="1", **order
    )
    return app(Message(RecordDict({"order": to_record(asked)}), 100, verb, ttl=ttl), place)


def broken_rule(folder):
    *_, line = read(path_of("graz", folder / "store"))
    return line.entry["failure"]["rule"]


def test_a_hospital_that_was_not_asked_to_enrol_builds_no_network_that_is_too_large(
    tmp_path, monkeypatch
):
    place = deployed(tmp_path, model="mlp", mlp__hidden="60000,60000")  # 14 GB
    monkeypatch.setattr(Architecture, "check", None)  # before it is built
    answer = ask(place, "query.prepare")
    assert answer.error.code == Failure.POLICY
    assert "models.max-megabytes" in broken_rule(tmp_path)


@pytest.mark.parametrize(
    ("rule", "order", "ttl"),
    [
        ("release.max-images", {"buffer_size": 10**6}, 60.0),
        ("runs.max-epochs", {"epochs": 10**6}, 60.0),
        ("runs.max-hours", {}, 1e9),
    ],
)
def test_an_order_for_too_much_is_refused_before_an_image_is_opened(rule, order, ttl, tmp_path):
    place = deployed(tmp_path, model="mlp")
    shutil.rmtree(tmp_path / "images")
    answer = ask(place, "query.prepare", ttl, **order)
    assert answer.error.code == Failure.POLICY
    assert rule in broken_rule(tmp_path)
