"""SER at the hospital, beside its equations (learning/learners/ser.py, models/saliency.py)."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from learning.errors import ModelError
from learning.learners.plain import Received
from learning.learners.ser import SER, contrast, divergence, read_maps
from learning.models import Architecture
from learning.models.taps import tap
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_training import data, draws, learner_of, network


def test_features_of_both_are_multiplied_before_each_relu():
    """z = ReLU(c · s) layer by layer, with s of the encoder alone."""
    model = network("ser-cnn").eval()
    c = s = data().images / 255
    for layer in range(0, 12, 3):
        s = model.encoder[layer + 1](model.encoder[layer](s))
        c = (model.classifier[layer + 1](model.classifier[layer](c)) * s).relu()
        s = s.relu()
    expected = model.classifier[-1](c.mean(dim=(2, 3)))
    torch.testing.assert_close(model(data().images), expected)
    _, features = model.look(data().images)
    torch.testing.assert_close(model.classify(data().images, features), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ser-cnn", "ser-resnet18"])
def test_no_gradient_of_the_logits_reaches_the_encoder(name):
    with torch.random.fork_rng():
        model: Any = Architecture(name, 1, 32, 32, 3).build()
    images = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    maps, features = model.look(images)
    assert maps.shape == (2, 32, 32)
    for logits in (model(images), model.classify(images, features)):
        model.zero_grad()
        functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
        saliency = [*model.encoder.parameters(), *model.decoder.parameters()]
        assert all(each.grad is None for each in saliency)
        assert all(each.grad is not None for each in model.classifier.parameters())


def test_the_divergence_by_hand():
    """s = (1, 3) / 4 and p = (1, 1) / 2: ¼ log ½ + ¾ log 3/2. The scale of either is nothing."""
    wanted, seen = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[0.2, 0.2]]])
    expected = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert divergence(wanted, seen).item() == pytest.approx(expected)
    both = divergence(torch.cat([wanted, seen]), torch.cat([seen, seen]))
    assert both.item() == pytest.approx(expected / 2)
    nothing = torch.tensor([[[0.0, 1.0]]])
    assert divergence(nothing, seen).item() == pytest.approx(math.log(2))


def test_the_saliency_network_makes_its_step_first_and_the_classifier_sees_features_from_before():
    """SGD: p − η (∂L_s/∂p + decay p), at a tenth of both for the encoder; no momentum yet."""
    model = network("ser-cnn")
    before = copy.deepcopy(model)
    learner = learner_of(SER, model, ser__learning_rate=0.5)
    learner.begin_epoch(1)
    loss = learner.observe(data(), draws())
    maps, features = before.train().look(data().images)
    saliency = divergence(contrast(data().images), maps)
    for part, rate, decay in ((before.encoder, 0.05, 1e-5), (before.decoder, 0.5, 1e-4)):
        named = dict(part.named_parameters())
        gradients = torch.autograd.grad(saliency, list(named.values()), retain_graph=True)
        after = getattr(model, "encoder" if part is before.encoder else "decoder")
        for (name, old), gradient in zip(named.items(), gradients, strict=True):
            wanted = old.detach() - rate * (gradient + decay * old.detach())
            torch.testing.assert_close(after.get_parameter(name).detach(), wanted)
    logits = before.classify(data().images, features)
    torch.testing.assert_close(loss, functional.cross_entropy(logits, data().labels))
    torch.testing.assert_close(learner.rehearsal()["logits"], logits.detach())
    assert {id(each) for each in learner.trained_parameters()} == {
        id(each) for each in model.classifier.parameters()
    }


def test_kept_images_are_seen_in_eval_mode_and_teach_no_saliency():
    """Eq. 6 of DER++; the encoder's statistics are those of the batch alone."""
    model = network("ser-cnn")
    kept = {
        "images": data().images[10:],
        "labels": data().labels[10:],
        "logits": torch.ones(10, 3),
        "seen": torch.tensor(10),
    }
    received = Received(rehearsal=kept)
    chosen = {"derpp__alpha": 0.5, "derpp__beta": 0.25, "ser__learning_rate": 1e-30}
    learner = learner_of(SER, model, data(), received, **chosen)
    learner.begin_epoch(1)
    other = copy.deepcopy(model).train()
    batch = data()[torch.arange(10)]
    _, features = other.look(batch.images)
    expected = functional.cross_entropy(other.classify(batch.images, features), batch.labels)
    after = copy.deepcopy(other.encoder.state_dict())
    other.encoder.eval()
    outputs = other(kept["images"])
    expected = expected + 0.5 * (outputs - 1).square().mean()
    expected = expected + 0.25 * functional.cross_entropy(outputs, kept["labels"])
    torch.testing.assert_close(learner.observe(batch, draws()), expected)
    torch.testing.assert_close(after, model.encoder.state_dict())
    assert model.encoder.training


@pytest.mark.slow
def test_saliency_is_learned():
    """After 50 steps it is nearer to the oracle's."""
    model = network("ser-cnn")
    learner = learner_of(SER, model, ser__learning_rate=0.5)
    wanted = contrast(data().images)
    before = divergence(wanted, model.look(data().images)[0])
    for _ in range(50):
        learner.observe(data(), draws())
    assert divergence(wanted, model.look(data().images)[0]) < 0.5 * before


def test_the_stand_in_is_contrast_near_the_centre():
    """One white square in black is where it is; without any contrast there is the prior alone."""
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    images[1, :, 4:6, 9:11] = 255
    maps = contrast(images)
    torch.testing.assert_close(maps.sum(dim=(1, 2)), torch.ones(2))
    assert divmod(int(maps[0].argmax()), 16) in {(7, 7), (7, 8), (8, 7), (8, 8)}
    rows, columns = maps[1].sum(dim=1), maps[1].sum(dim=0)
    assert int(rows.argmax()) in (4, 5)
    assert int(columns.argmax()) in (9, 10)
    torch.testing.assert_close(maps[0], maps[0].flip(0))


def archive(tmp_path, **changes):
    images = data().images.numpy()
    maps = np.random.default_rng(0).random((20, 8, 8))
    np.savez(tmp_path / "maps.npz", **{"images": images, "maps": maps, **changes})
    return str(tmp_path / "maps.npz"), torch.from_numpy(maps).float()


def test_maps_of_a_file_are_found_by_the_images_bytes_and_changed_alike(tmp_path):
    path, maps = archive(tmp_path)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(read_maps(path, data())(data().images[order]), maps[order])
    learner = learner_of(SER, network("ser-cnn"), ser__oracle=path)
    view, seen = draws(augment="flip").view_alike(data().images, learner.oracle(data().images))
    flipped = (view != data().images).flatten(1).any(dim=1)
    assert 0 < flipped.sum() < 20
    assert torch.equal(seen[flipped], maps.flip(-1)[flipped])
    assert torch.equal(seen[~flipped], maps[~flipped])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"maps": np.ones((20, 8, 7))}, r"maps \[20, 8, 8\], of 0 or more"),
        ({"maps": -np.ones((20, 8, 8))}, "of 0 or more"),
        ({"maps": np.zeros((20, 8, 8))}, "of 0 or more"),
        ({"images": data().images.numpy()[:10], "maps": np.ones((10, 8, 8))}, "it lacks some"),
        ({"maps": np.array(["x"])}, "the arrays images and maps"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, changes, words):
    path, _ = archive(tmp_path, **changes)
    with pytest.raises(SettingsError, match=f"'ser.oracle' is '{path}'; it must be .*{words}"):
        learner_of(SER, network("ser-cnn"), ser__oracle=path)


def test_settings_and_networks_are_checked():
    with pytest.raises(SettingsError, match=r"'ser.oracle' is 'deepgaze'; it must be contrast, or"):
        SER.check(settings(ser__oracle="deepgaze"))
    with pytest.raises(ModelError, match="set 'model' to ser-cnn or ser-resnet18"):
        learner_of(SER, network("cnn"))


def test_points_of_the_whole_are_those_of_its_parts():
    """The encoder has no head."""
    model = network("ser-cnn")
    assert model.encoder(data().images / 255).shape == (20, 128)
    _, features = tap(model.encoder, data().images / 255)
    assert [each.shape[1] for each in features] == [16, 32, 64, 128]
