"""What a hospital of its own sends of its class means, and what it keeps."""

from typing import Any

import pytest
from flwr.app import Message

from client_app.app import app
from client_app.run import Kept
from client_app.store import Store
from learning.models import Architecture
from learning.packing import pack_network
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest
from strategies.protocol.prototypes import check_prototypes
from strategies.protocol.records import to_record
from tests.fakes import deployed


@pytest.mark.parametrize(
    ("smallest", "models", "leg"), [(4, 10, 1), (13, 10, 1), (4, 1000, 1), (4, 10, 2)]
)
def test_means_leave_that_are_of_enough_patients(tmp_path, smallest, models, leg):
    """Each of two classes has twelve images, of which about ten are trained on."""
    settings: dict[str, Any] = {"strategy": "fedrewind", "rewind__base": "fedspace"}
    place = deployed(tmp_path, **settings, train__epochs=10, model="rotation-mlp", mlp__hidden="6")
    policy = f"runs.sealed-only = false\nfigures.smallest-group = {smallest}\n"
    policy += f"images.min-train-patients = 8\nfigures.max-models = {models}\n"
    (tmp_path / "policy.toml").write_text(policy, "utf-8")
    architecture = Architecture("rotation-mlp", 1, 8, 8, 2, (6,))
    label = Manifest("global", architecture.to_json(), ["a", "b"])
    content = pack_network(architecture.build(), label)
    order = Order(1, leg, "graz", ["a", "b"], "fedspace", "1", epochs=1, leg=leg)
    content["order"] = to_record(order)
    verb = "train.rewind" if leg == 2 else "train"
    answer = app(Message(content, 100, verb, ttl=600.0), place)
    if smallest == 13:
        assert answer.error.code == Failure.POLICY
        return
    assert not answer.has_error(), answer.error
    sent = answer.content.array_records.get("memory")
    kept = Kept(Store(tmp_path / "store" / "graz" / "runs" / "1"), "rehearsal").load(
        (1, 2), after=True
    )
    if leg == 2:
        assert (sent, kept) == (None, {})
        return
    assert kept["counts"].min() >= 8  # what stays is exact
    if models == 1000:
        assert sent is None
        return
    assert sent is not None
    check_prototypes(sent, 2, 6)
    assert {count % 4 for count in sent["counts"].numpy().tolist()} == {0}
