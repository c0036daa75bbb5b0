"""Attacks on models before they leave a hospital."""

import json
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audit.report import Report
from client_app.authority.policy import Policy, PolicyError
from client_app.datasets.local import LocalData
from client_app.datasets.pool import LocalSamples
from client_app.release.model_attack import FILE, attack_model
from client_app.request import Clock
from client_app.store import Store
from client_app.visit import Visit
from learning.intervals import Figure
from strategies.protocol.parcel import Manifest


class Memorising(nn.Module):
    """Sure of the images that it knows, and of no other."""

    def __init__(self, known):
        super().__init__()
        self.known = {tuple(each.flatten().tolist()) for each in known}

    def forward(self, images):
        sure = [tuple(each.flatten().tolist()) in self.known for each in images]
        return torch.tensor(sure)[:, None] * torch.tensor([6.0, 0.0])


def samples(count, seed):
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 1, 2, 2), dtype=torch.uint8, generator=rng)
    return LocalSamples(images, torch.zeros(count, dtype=torch.int64))


def asked(tmp_path, members=80, others=40, last=True) -> Any:
    data = LocalData(samples(members, 0), samples(others, 1), ("a", "b"))
    return SimpleNamespace(
        hospital=SimpleNamespace(
            name="graz", data=data, settings=SimpleNamespace(num_server_rounds=2)
        ),
        order=SimpleNamespace(round=2 if last else 1, images="own"),
        clock=Clock(60.0),
        run=Store(tmp_path),
    )


def rules(limit):
    return replace(Policy.read().models, max_membership=limit)


LABEL = Manifest("wien", "", ["a", "b"], round=2, hop=1)


def noted(tmp_path):
    return [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]


def test_of_each_patient_one_image_is_attacked(tmp_path):
    request = asked(tmp_path)
    owners = np.arange(80) // 4
    data = request.hospital.data
    request.hospital.data = replace(data, train=replace(data.train, groups=owners))
    attack_model(request, Memorising([]), LABEL, rules(1.0))
    (noted_here,) = noted(tmp_path)
    assert noted_here["by-loss"]["attack"]["members"] == 20
    assert noted_here["by-loss"]["attack"]["others"] == 40


@pytest.mark.slow
def test_what_was_found_is_noted_and_a_model_that_tells_too_much_stays(tmp_path):
    request = asked(tmp_path)
    network = Memorising(request.hospital.data.train.images)
    attack_model(request, network, LABEL, rules(1.0))
    with pytest.raises(PolicyError) as refusal:
        attack_model(request, network, LABEL, rules(0.5))
    assert refusal.value.rule == "models.max-membership"
    found = noted(tmp_path)
    assert len(found) == 2  # also of the one that stays
    assert found[0]["leak"]["value"] == pytest.approx(1.0, abs=0.02)
    assert found[0]["by-network"]["accuracy"]["value"] == 1.0
    assert found[0]["able"]


def test_a_model_that_knows_nobody_may_leave(tmp_path):
    attack_model(asked(tmp_path, last=False), Memorising([]), LABEL, rules(0.05))
    (found,) = noted(tmp_path)
    assert found["leak"]["low"] <= 0
    assert "by-network" not in found


def test_few_images_cannot_tell(tmp_path):
    request = asked(tmp_path, members=8, others=2)
    attack_model(request, Memorising(request.hospital.data.train.images), LABEL, rules(0.5))
    assert not noted(tmp_path)[0]["able"]


@pytest.mark.parametrize("at", [0, 1])
def test_either_leak_keeps_a_model_here_by_the_upper_end_of_its_interval(tmp_path, monkeypatch, at):
    """The limit of 0.05 is between the estimate and the upper end."""
    leak = Figure(value=0.04, low=0.01, high=0.06)
    leaks = [Figure(value=0.0, low=0.0, high=0.0)]
    leaks.insert(at, leak)
    report = Report(leaks=tuple(leaks), evidence={"leak": leak, "able": True})
    monkeypatch.setattr("client_app.release.model_attack.audit_model", lambda *_: report)
    with pytest.raises(PolicyError):
        attack_model(asked(tmp_path), Memorising([]), LABEL, rules(0.05))


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("memorised", [False, True])
def test_earlier_tasks_neither_make_a_leak_nor_hide_one(tmp_path, remembers, memorised):
    """A model that knows all test images of the first task, or none; it trained on the second."""
    request = asked(tmp_path, last=False)
    data = request.hospital.data
    train = replace(data.train, tasks=np.full(80, 2))
    test = replace(data.test, tasks=np.repeat((1, 2), 20))
    request.hospital.data = replace(data, train=train, test=test)
    sure = [*test.images[:20]] if remembers else []
    sure += [*train.images] if memorised else [*test.images[20:], *train.images]
    refused = pytest.raises(PolicyError) if memorised else nullcontext()
    with refused:
        attack_model(request, Memorising(sure), LABEL, rules(0.2))
    assert noted(tmp_path)[0]["by-loss"]["attack"]["others"] == 20


def test_a_model_that_cannot_be_attacked_meets_no_limit(tmp_path, caplog):
    request = asked(tmp_path)
    data = request.hospital.data
    parts = {"train": replace(data.train, tasks=np.full(80, 2))}
    parts["test"] = replace(data.test, tasks=np.ones(40))
    request.hospital.data = replace(data, **parts)
    attack_model(request, Memorising([]), LABEL, rules(1.0))
    with pytest.raises(PolicyError):
        attack_model(request, Memorising([]), LABEL, rules(0.2))
    assert not (tmp_path / FILE).exists()
    assert "needs 2 training patients and 1 test image" in caplog.text


@pytest.mark.parametrize(
    ("last", "limit", "images", "attacked"),
    [
        (True, 1.0, "own", True),
        (False, 1.0, "own", False),
        (False, 0.5, "own", True),
        (True, 0.5, "public", False),
    ],
)
def test_when_models_are_attacked(tmp_path, last, limit, images, attacked):
    request = asked(tmp_path, last=last)
    request.order.images = images
    request.hospital.policy = SimpleNamespace(models=rules(limit))
    visit: Any = SimpleNamespace(request=request, network=Memorising([]), label=LABEL)
    Visit.attack(visit)
    assert (tmp_path / FILE).exists() == attacked
    (tmp_path / FILE).unlink(missing_ok=True)
    request.hospital.policy = None  # a simulation
    Visit.attack(visit)
    assert not (tmp_path / FILE).exists()


def test_a_deadline_is_kept(tmp_path):
    request = asked(tmp_path)
    request.clock.deadline = time.monotonic() - 1
    with pytest.raises(TimeoutError):
        attack_model(request, Memorising([]), LABEL, rules(0.5))
