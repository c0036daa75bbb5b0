"""What `check` says of a learner and a network is what a hospital meets when it trains."""

import copy
from itertools import product
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from torchvision.models import resnet

from learning.augmentation import AUGMENTATIONS, Draws
from learning.errors import ModelError
from learning.learners import LEARNERS
from learning.learners.plain import Received
from learning.models import MODELS, Architecture
from learning.samples import Samples
from server_app.check import check
from strategies.protocol.settings import Settings, SettingsError
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import run_config

CHOSEN = get_args(get_type_hints(Settings)["learner"])
CLASSES = 4


def images_of(classes, side):
    labels = torch.arange(4) % len(classes) + min(classes)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 1, side, side), dtype=np.uint8)
    return Samples(torch.from_numpy(pixels), labels)


def visit_twice(name, network, settings):
    """A step in the first task, and one in the second, which may be the same images."""
    rehearsal: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    for task in (1, 2):
        classes = range(CLASSES) if settings.tasks == 1 else range(2 * task - 2, 2 * task)
        received = Received(memory=memory, rehearsal=rehearsal, task=task * (settings.tasks > 1))
        images = images_of(classes, settings.image_size)
        learner = LEARNERS[name](network, images, settings, received)
        learner.begin_epoch(learner.warm_up and 0)
        draws = Draws(torch.Generator().manual_seed(0), AUGMENTATIONS["none"])
        learner.observe(learner.samples, draws).backward()
        rehearsal, memory = dict(learner.rehearsal()), dict(learner.memory(np.random.default_rng()))


def works(action, *arguments):
    try:
        action(*arguments)
    except (SettingsError, ModelError):
        return False
    return True


@pytest.fixture
def _shallow(monkeypatch):
    """A block for each stage of ResNet-18, in the place of two: all kinds of layers are there."""
    build = resnet._resnet
    monkeypatch.setattr(
        resnet, "_resnet", lambda block, _, *rest, **k: build(block, [1] * 4, *rest, **k)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("_shallow")
@pytest.mark.parametrize("model", [*MODELS, "resnet18", "squeezenet1_1"])
@pytest.mark.parametrize("tasks", [1, 2])
def test_check_and_hospitals_agree(model, tasks):
    happens = {}
    side = 32 if model == "squeezenet1_1" else 16  # each is the least with which networks work
    new = Architecture(model, 1, side, side, CLASSES, (8,)).build()
    # Nobody trains with sums, and a head takes the place of the network.
    for strategy, learner in product([s for s in STRATEGIES if s != "sums"], CHOSEN):
        chosen = run_config(
            strategy=strategy,
            learner=learner,
            model=model,
            tasks=tasks,
            image_size=side,
            partition="iid",
        )
        settings = Settings.parse(chosen)
        try:
            name = strategy_of(settings).learner
        except SettingsError:
            continue
        if name not in happens:
            network = copy.deepcopy(new)
            happens[name] = works(visit_twice, name, network, settings)
            if name == "fedbn":  # nothing fails at a hospital, and nothing would stay there
                happens[name] = bool(LEARNERS[name].local(network, settings))
            assert works(check, chosen) == happens[name], (strategy, learner)
    assert any(happens.values())
