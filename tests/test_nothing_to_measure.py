"""What is measured after training survives that there is nothing to measure it on."""

import json

import numpy as np
import pytest
import torch

from learning.evaluation import probabilities
from learning.models import Architecture
from tests.fakes import NETWORKS, context, run_config, run_here

NETWORK = {"pass": "rotation-mlp", **NETWORKS}


def write_tasks(path):
    """Four classes, two in each task; of the first two there are training images alone."""
    rng = np.random.default_rng(0)
    labels = {"train": np.repeat([0, 1, 2, 3], 12), "test": np.repeat([2, 3], 6)}
    arrays = {f"y_{part}": each.astype(np.uint8) for part, each in labels.items()}
    for part, each in labels.items():
        arrays[f"x_{part}"] = rng.integers(0, 256, (len(each), 8, 8), dtype=np.uint8)
    np.savez(path, allow_pickle=False, **arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "learner"),
    [
        *((strategy, "") for strategy in ("fedavg", "fedprox", "fedspace", "fil-ver", "feder")),
        *((strategy, "") for strategy in ("cwt", "rwt", "cwt-serial", "cwc", "fedrewind")),
        *(("cwt", learner) for learner in ("derpp", "er-ace", "lwf", "oewc", "rehearsal")),
        ("fedavg", "pass"),
        ("standalone", ""),
    ],
)
def test_a_first_task_without_a_test_image(tmp_path, strategy, learner):
    """All visits count; a hospital that cannot test yet says so, and tests later."""
    write_tasks(tmp_path / "data.npz")
    config = run_config(
        strategy=strategy,
        learner=learner,
        model=NETWORK.get(learner, NETWORK.get(strategy, "mlp")),
        dataset=f"npz:{tmp_path / 'data.npz'}",
        test_fraction=0.0,
        partition="iid",
        tasks=2,
        num_server_rounds=2,
        mlp__hidden="8",
        image_size=16 if strategy == "fil-ver" else 0,
        train__epochs=3 if strategy == "fedrewind" else 1,
        feder__buffer_size=0,
        filver__server_steps=2,
        filver__pretrain_epochs=1,
        output_dir=str(tmp_path / "runs"),
    )
    store = {"store-dir": str(tmp_path / "store")}
    result, _ = run_here([context(k, 2, config, **store) for k in range(2)])
    summary = json.loads((result / "summary.json").read_text())
    assert {(f["verb"], f["outcome"], f["round"]) for f in summary["failures"]} <= {
        ("evaluate", "data", 1)
    }
    assert all(each["visited"] == [1, 2] for each in summary["participation"].values())


@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "rotation-cnn", "ser-cnn", "vee", "ebr", "resnet18"]
)
def test_the_outputs_for_no_image(name):
    network = Architecture(name, 1, 16, 16, 3).build()
    assert probabilities(network, torch.zeros(0, 1, 16, 16, dtype=torch.uint8), 1e12).shape == (
        0,
        3,
    )
