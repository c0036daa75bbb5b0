"""Every method between hospitals of their own: each with its policy and ledger, no simulation."""

import json
from typing import Any

import pytest

from client_app.authority import node_config
from client_app.authority.ledger import path_of, read
from strategies.registry import STRATEGIES
from tests.fakes import deployed, run_here

SITES = ("graz", "linz", "wien")
# Sums leave in sealed runs only (tests/test_sums.py).
CASES: dict[str, dict[str, Any]] = {n: {"strategy": n} for n in STRATEGIES if n != "sums"} | {
    "centralized": {"strategy": "centralized", "centralized__data": "synthetic"},
    "asynchronous rwt": {"strategy": "rwt", "asynchronous": True},
    "asynchronous feder": {"strategy": "feder", "asynchronous": True},
    "feder buffer-only": {"strategy": "feder", "feder__variant": "buffer-only"},
    "feder synthetic-only": {"strategy": "feder", "feder__variant": "synthetic-only"},
    "fedrewind fedavg": {"strategy": "fedrewind", "rewind__base": "fedavg"},
    "fedrewind fedspace": {
        "strategy": "fedrewind",
        "rewind__base": "fedspace",
        "model": "rotation-mlp",
    },
    "learner": {"strategy": "cwt", "learner": "derpp"},
    "tasks": {"strategy": "rwt", "tasks": 2, "task_cut": "permuted"},
    "own streams": {
        "strategy": "fedavg",
        "tasks": 2,
        "task_cut": "permuted",
        "task_order": "shuffled",
    },
    "each epoch": {"strategy": "cwt-serial", "evaluate__epochs": True, "train__epochs": 2},
}
RULES = """
embeddings.kinds = ["sampled"]
figures.smallest-group = 1
"""
QUICK = ("rwt", "feder", "fedrewind", "fedavg")


@pytest.mark.usefixtures("_quick_buffers")
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_hospitals_carry_out_all_that_a_method_orders(name, tmp_path, monkeypatch):
    monkeypatch.setattr(node_config, "_simulates", False)
    case = CASES[name]
    network = {"fil-ver": "vee", "fedspace": "rotation-mlp", "fedbn": "cnn"}
    chosen: dict[str, Any] = {"model": network.get(case["strategy"], "mlp"), "mlp__hidden": "8"}
    chosen |= {"num_server_rounds": 2, "train__epochs": 1, "min_hospitals": 3}
    chosen |= {"train__epochs": 3} if case["strategy"] == "fedrewind" else {}
    chosen |= {"image_size": 16, "filver__pretrain_epochs": 2} if name == "fil-ver" else {}
    chosen |= {"feder__buffer_size": 24, "output_dir": str(tmp_path / "results"), **case}
    places = [deployed(tmp_path / site, site, **chosen) for site in SITES]
    for node, (place, site) in enumerate(zip(places, SITES, strict=True)):
        place.node_id += node
        policy = tmp_path / site / "policy.toml"
        policy.write_text(policy.read_text("utf-8") + RULES, "utf-8")
    result, _ = run_here(places)
    events = [json.loads(line) for line in (result / "metrics.jsonl").read_text().splitlines()]
    assert {event["outcome"] for event in events} == {"ok"}
    trained = {event["hospital"] for event in events if event["verb"].startswith("train")}
    assert trained == {"graz"} if case["strategy"] == "centralized" else {*SITES}
    for site in SITES:
        left = [line.entry for line in read(path_of(site, tmp_path / site / "store"))]
        assert not any("failure" in entry for entry in left)
        assert any(entry["verb"] == "evaluate" for entry in left)
