"""Runs on a pretended CUDA device: no operation has tensors of two devices."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, get_args, get_type_hints

import pytest
import torch

from client_app.hospital import open_hospital
from client_app.release.buffer import make_buffer
from gan.adversaries import Adversaries, Examples, Privacy
from gan.codes import EFFORTS
from gan.presets import PRESETS
from gan.projection import measure_privacy
from strategies.protocol.settings import Settings
from strategies.registry import STRATEGIES
from tests.fakes import context, run_config, write_archive
from tests.pretended_cuda import CUDA, OnCuda, pretended_cuda
from tests.test_federation import federate
from warm.process import ROOT, Stem

LEARNERS = [name for name in get_args(get_type_hints(Settings)["learner"]) if name]
OPTIONS: dict[str, dict[str, Any]] = {
    "draws by class": {"train__class_balance": "sampler", "train__augment": "crop-flip-cutout"},
    "weights of classes": {"train__class_balance": "loss", "train__augment": "affine-colour"},
    "an optimizer that travels": {"strategy": "cwt-serial", "train__optimizer_state": "travels"},
    "DP-SGD": {"train__dp__noise_multiplier": 1.0, "train__dp__delta": 1e-4},
    "16 bits": {"wire_dtype": "float16"},
    "asynchronous": {"asynchronous": True},
}


@pytest.fixture
def _cuda() -> Iterator[None]:
    with pretended_cuda():
        yield


def check_run(folder, strategy="rwt", **changes):
    usual = {"feder__buffer_size": 0, "partition": "iid", "hospitals": 2, "num_server_rounds": 1}
    _, ledger, _ = federate(folder, **{"strategy": strategy, **usual, **changes})
    assert [event for event in ledger.events if event.outcome != "ok"] == []


@pytest.mark.usefixtures("_cuda")
def test_the_pretended_device_refuses_what_cuda_refuses():
    there = torch.ones(3, device="cuda")
    assert there.device == CUDA
    assert there[torch.tensor([0])].sum().item() == 1.0  # indices may be on the CPU
    assert (there * torch.tensor(2.0)).tolist() == [2.0] * 3  # and so may a single number
    assert type(there.cpu()) is torch.Tensor
    with pytest.raises(RuntimeError, match="on the CPU"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError, match="on the CPU"):
        torch.ones(3)[there.long()]
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()


@pytest.mark.slow
@pytest.mark.usefixtures("_cuda", "_quick_audits")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_runs_on_cuda(tmp_path, strategy):
    check_run(tmp_path, strategy)


@pytest.mark.slow
@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner_of_tasks_runs_on_cuda(tmp_path, learner):
    write_archive(tmp_path / "small.npz", 30)
    own = {"ser": "ser-cnn", "saliency": "ser-cnn", "pass": "rotation-mlp"}
    public = f"public:{tmp_path}/small.npz"
    check_run(
        tmp_path,
        "standalone" if learner in ("mah", "ser", "twf") else "rwt",
        learner=learner,
        dataset=f"npz:{tmp_path}/small.npz",
        tasks=2,
        task_cut="classes" if learner in ("icarl", "mah", "twf") else "permuted",
        num_server_rounds=2,
        model=own.get(learner, "cnn"),
        image_size=16,
        reservoir__size=8,
        mah__auxiliary=public if learner == "mah" else "",
        twf__teacher=public if learner == "twf" else "",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("option", OPTIONS)
def test_every_way_to_train_runs_on_cuda(tmp_path, option):
    check_run(tmp_path, num_server_rounds=2, **OPTIONS[option])


@pytest.mark.slow
@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize(
    "changes",
    [
        {"gan__sampler": "k-salsa-plan", "gan__projections": 3},
        {"gan__sampler": "lci"},
        {"gan__method": "dp-mean-embedding", "gan__epsilon": 50.0},
    ],
)
def test_buffers_are_made_on_cuda(tmp_path, monkeypatch, changes):
    monkeypatch.setattr("gan.quality.STEPS", 10)
    shortly = partial(measure_privacy, steps=3)
    monkeypatch.setattr("client_app.release.buffer.gan_sampler.measure_privacy", shortly)
    small = replace(PRESETS["tiny"], channels=(8, 6, 4), batch_size=8, fid_images=32)
    monkeypatch.setitem(PRESETS, "tiny", small)
    few = replace(EFFORTS["tiny"], images=4, projection_steps=2, paths=1, points=4)
    few = replace(few, path_steps=2, average_steps=2, network_steps=2)
    monkeypatch.setitem(EFFORTS, "tiny", few)
    config = run_config(
        partition="iid",
        gan__iterations=4,
        gan__k=2,
        release__min_class_images=2,
        release__max_membership=1.0,
        release__max_discarded=0.99,
        **changes,
    )
    hospital = open_hospital(context(0, 20, config, **{"store-dir": str(tmp_path)}))
    for _ in range(2):  # the second one comes from the store
        made = make_buffer(hospital, 20, time.monotonic() + 300)
        assert type(made.samples.images) is OnCuda


@pytest.mark.usefixtures("_cuda")
def test_the_discriminator_sees_both_kinds_of_images_in_32_bits(monkeypatch):
    """In 16 bits, the rounding of synthetic images alone would give them away."""
    preset = replace(PRESETS["tiny"], channels=(4, 3), latent=5, batch_size=4)
    images = torch.randint(256, (8, 1, 8, 8), dtype=torch.uint8, device="cuda")
    labels = torch.zeros(8, dtype=torch.int64, device="cuda")
    privacy = Privacy(0, "mean", torch.cdist)
    networks = Adversaries(Examples(images, labels, 1, ""), preset, privacy)
    assert networks.half._enabled
    networks.ada.p = 1.0
    seen, judge = [], networks.judge

    def noted(images, labels):
        seen.append(images)
        return judge(images, labels)

    monkeypatch.setattr(networks, "judge", noted)
    networks.step(0, private=False)
    assert len(seen) == 3  # real ones, synthetic ones, and those of the generator's step
    for each in seen:
        assert each.dtype == torch.float32
        assert not torch.equal(each, each.bfloat16().float())


FORKED = """
import socket, sys
from warm import process

def answer(connection, app):
    import torch
    connection.sendall(b"no" if torch.cuda._is_in_bad_fork() else b"yes")

process._answer = answer
process.main(socket.socket(fileno=int(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_forked_process_can_use_cuda(monkeypatch):
    """It can if the process that is forked has not even asked how many devices there are."""

    def launch(opened, variables, output):
        command = [sys.executable, "-c", FORKED, str(opened.fileno())]
        return subprocess.Popen(command, cwd=ROOT, pass_fds=[opened.fileno()])

    monkeypatch.setattr("warm.process.launch", launch)
    with closing(Stem({}, subprocess.DEVNULL)) as stem:
        _, connection = stem.fork()
        with connection:
            assert connection.recv(3) == b"yes"
