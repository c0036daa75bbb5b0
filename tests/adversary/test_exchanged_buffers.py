"""A server that hands one hospital's buffer out as another's."""

from typing import Any

import pytest
from flwr.app import Message, RecordDict

from tests.test_sealed_federation import failures, federate


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_buffers")
def test_an_exchanged_buffer_is_not_used_and_the_run_goes_on(tmp_path):
    """In round 3 hospital-1 gets, under the right name, the buffer of another hospital."""
    seen: dict[str, Any] = {}
    exchanged: list[str] = []

    def exchange(message):
        content, order = message.content, message.content.get("order", {})
        if not order.get("replay"):
            return message
        (name, _, hash_) = order["replay"][0].partition("=")
        seen.setdefault(name, (hash_, content.get(f"{hash_}/buffer")))
        others = [entry for whose, entry in seen.items() if whose != name]
        if order["hospital"] != "hospital-1" or order["round"] < 3 or exchanged or not others:
            return message
        other, buffer = others[0]
        exchanged.append(name)
        order["replay"] = [f"{name}={other}"]
        content = RecordDict({**content, f"{other}/buffer": buffer})
        return Message(content, message.metadata.dst_node_id, "train", ttl=60)

    settings = {"feder__buffer_size": 60, "num_server_rounds": 4, "train__epochs": 1}
    _, ledger, _ = federate(tmp_path, "feder", change=exchange, **settings)
    assert exchanged
    (unused,) = [visit for visit in ledger.of("train") if visit.metrics.get("buffer-unused-0")]
    assert (unused.hospital, unused.round, unused.outcome) == ("hospital-1", 3, "ok")
    # The server sends a buffer once, so the right one has not arrived.
    ((hospital, outcome, reason),) = failures(ledger)
    assert (hospital, outcome) == ("hospital-1", "parcel")
    assert "is missing, or has changed on its way" in reason
