"""SER at the hospital, beside its equations (learning/learners/ser.py, models/saliency.py)."""

import copy
import math
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.nn import functional

from learning.errors import ModelError
from learning.export import save_model
from learning.learners.plain import Received
from learning.learners.ser import (
    SER,
    WRAPPED,
    Saliency,
    contrast,
    divergence,
    open_oracle,
    write_maps,
)
from learning.models import Architecture
from learning.models.pretrained import load_pretrained
from learning.models.taps import tap
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_export import manifest_of
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
    maps, features = model.look(data().images)
    with model.remember([*features, maps]):
        torch.testing.assert_close(model(data().images), expected)


def test_points_with_a_0_and_the_other_schemes_by_hand():
    """1110 leaves the last point alone. sim: x · p; sai: p is a channel; lsm: 1x1 of (c, s)."""
    for scheme in ("1110", "sim", "sai", "lsm"):
        model = network(f"ser-cnn-{scheme}").eval()
        maps, features = model.look(data().images)
        x, p = data().images / 255, maps[:, None]
        c = {"sim": x * p, "sai": torch.cat([x, p], dim=1)}.get(scheme, x)
        for point, s in enumerate(features):
            c = model.classifier[3 * point + 1](model.classifier[3 * point](c))
            if scheme == "lsm":
                weights = model.merge[point].weight[:, :, 0, 0]
                c = torch.einsum("oi,nihw->nohw", weights, torch.cat([c, s], dim=1))
                c = c + model.merge[point].bias[:, None, None]
            elif scheme == "1110" and point < 3:
                c = c * s
            c = c.relu()
        expected = model.classifier[-1](c.mean(dim=(2, 3)))
        torch.testing.assert_close(model(data().images), expected)
        owned = {id(each) for each in model.classifier_parameters()}
        saliency = [*model.encoder.parameters(), *model.decoder.parameters()]
        assert owned == {id(each) for each in model.parameters()} - {*map(id, saliency)}


@pytest.mark.parametrize("scheme", ["sim", "sai"])
def test_colours_may_have_the_scale_of_imagenet(scheme):
    network = Architecture(f"ser-cnn-{scheme}", 3, 8, 8, 2, pixels="imagenet").skeleton()
    assert network(torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="meta")).shape == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ser-cnn", "ser-resnet18"])
def test_no_gradient_of_the_logits_reaches_the_encoder(name):
    with torch.random.fork_rng():
        model: Any = Architecture(name, 1, 32, 32, 3).build()
    images = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    maps, features = model.look(images)
    assert maps.shape == (2, 32, 32)
    for known in ([*features, maps], []):
        model.zero_grad()
        with model.remember(known):
            logits = model(images)
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
    none = divergence(torch.cat([wanted, 0 * wanted]), torch.cat([seen, seen]))
    assert none.item() == pytest.approx(expected / 2)


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
    with before.remember([*features, maps]):
        logits = before(data().images)
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
    maps, features = other.look(batch.images)
    with other.remember([*features, maps]):
        expected = functional.cross_entropy(other(batch.images), batch.labels)
    after = copy.deepcopy(other.encoder.state_dict())
    other.encoder.eval()
    outputs = other(kept["images"])
    expected = expected + 0.5 * (outputs - 1).square().mean()
    expected = expected + 0.25 * functional.cross_entropy(outputs, kept["labels"])
    torch.testing.assert_close(learner.observe(batch, draws()), expected)
    torch.testing.assert_close(after, model.encoder.state_dict())
    assert model.encoder.training


def test_new_and_kept_images_of_one_pass_are_seen_in_their_own_modes():
    """ER: of the new images the features from above, of the kept ones those in eval mode."""
    model = network("ser-cnn")
    kept = {"images": data().images[10:], "labels": data().labels[10:], "seen": torch.tensor(10)}
    chosen = {"ser__learner": "er", "ser__learning_rate": 1e-30, "reservoir__batch_size": 10}
    learner = learner_of(SER, model, data(), Received(rehearsal=kept), **chosen)
    learner.begin_epoch(1)
    other = copy.deepcopy(model).train()
    batch, order = data()[torch.arange(10)], torch.randperm(10, generator=draws().generator)
    _, first = other.look(batch.images)
    other.encoder.eval()
    _, second = tap(other.encoder, kept["images"][order] / 255)
    both = [torch.cat(each) for each in zip(first, second, strict=True)]
    images = torch.cat([batch.images, kept["images"][order]])
    logits, _ = tap(other.classifier, images / 255, lambda point, c: c * both[point])
    labels = torch.cat([batch.labels, kept["labels"][order]])
    found = learner.observe(batch, draws())
    torch.testing.assert_close(found, functional.cross_entropy(logits, labels))


@pytest.mark.parametrize("name", WRAPPED)
def test_any_learner_can_be_wrapped(name):
    """Two tasks; a gradient reaches the classifier, and what a learner keeps is its own."""
    rehearsal: dict[str, Any] = {}
    for task in (1, 2):
        model = network("ser-cnn")
        received = Received(rehearsal=rehearsal, task=task)
        samples = data()
        samples.labels.fill_(task)
        learner = learner_of(SER, model, samples, received, ser__learner=name, lwf__warm_up=2)
        assert learner.warm_up == (2 if (name, task) == ("lwf", 2) else 0)
        for epoch in range(1 - learner.warm_up, 2):
            learner.begin_epoch(epoch)
            encoder = copy.deepcopy(model.encoder.state_dict())
            learner.observe(samples, draws()).backward()
            learner.before_step()
            after = model.encoder.state_dict()
            same = all(torch.equal(after[key], each) for key, each in encoder.items())
            assert same == (epoch < 1)
        assert all(each.grad is not None for each in learner.trained_parameters())
        rehearsal = dict(learner.rehearsal())
        assert rehearsal.keys() == learner.wrapped.rehearsal().keys()
        assert model.known is None  # the network serves other learners afterwards


@pytest.mark.parametrize("name", WRAPPED)
def test_the_classifier_and_the_encoder_see_the_same_view(name):
    rehearsal: dict[str, Any] = {}
    for task in (1, 2):
        model, samples = network("ser-cnn"), data()
        samples.labels.fill_(task)
        received = Received(rehearsal=rehearsal, task=task)
        learner = learner_of(SER, model, samples, received, ser__learner=name)
        learner.begin_epoch(1)
        with (
            patch.object(model, "look", wraps=model.look) as look,
            patch.object(model.classifier, "forward", wraps=model.classifier.forward) as classify,
        ):
            learner.observe(samples, draws(augment="crop-flip"))
        rehearsal = dict(learner.rehearsal())
        looked, classified = (each.call_args_list[0].args[0] for each in (look, classify))
        torch.testing.assert_close(255 * classified[: len(samples)], looked.float())


def test_a_saliency_network_is_trained_alone_and_without_labels():
    model, other = network("ser-cnn"), network("ser-cnn")
    for each, label in ((model, 0), (other, 1)):
        samples = data()
        samples.labels.fill_(label)
        learner = learner_of(Saliency, each, samples)
        optimizer = torch.optim.SGD(learner.trained_parameters(), lr=0.1)
        learner.begin_epoch(1)
        learner.observe(samples, draws()).backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), other.state_dict())
    first = network("ser-cnn")
    torch.testing.assert_close(model.classifier.state_dict(), first.classifier.state_dict())
    assert not torch.equal(model.decoder.last.weight, first.decoder.last.weight)
    assert model(data().images[:7]).shape == (7, 3)  # with features of these images


@pytest.mark.parametrize("name", ["ser-cnn", "ser-cnn-sai", "cnn"])
def test_a_saliency_network_is_loaded_alone(name, tmp_path):
    """Into a network of its kind, or as the body of a classifier; nothing else changes."""
    path, trained = tmp_path / "saliency.safetensors", network("ser-cnn")
    for each in trained.parameters():
        each.data.add_(1)
    save_model(path, trained, manifest_of(Architecture("ser-cnn", 1, 16, 16, 3)))
    model, wanted = network(name), network(name).state_dict()
    load_pretrained(model, Architecture(name, 1, 8, 8, 3), str(path), ["a", "b", "c"])
    for key, each in trained.state_dict().items():
        if name == "cnn":
            key = key.removeprefix("encoder.") if key.startswith("encoder.") else "x"
        if not key.startswith(("x", "classifier.")):
            wanted[key] = each
    torch.testing.assert_close(model.state_dict(), wanted)


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


def archive(tmp_path, images=None, maps=None):
    images = data().images.numpy() if images is None else images
    maps = np.random.default_rng(0).random((len(images), 8, 8)) if maps is None else maps
    write_maps(tmp_path / "maps.npy", images, maps)
    return str(tmp_path / "maps.npy"), torch.from_numpy(maps).float()


def test_maps_of_a_file_are_found_by_the_images_bytes_and_changed_alike(tmp_path):
    path, maps = archive(tmp_path)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(open_oracle(path, data().shape)(data().images[order]), maps[order])
    learner = learner_of(SER, network("ser-cnn"), ser__oracle=path)
    view, seen = draws(augment="flip").view_alike(data().images, learner.oracle(data().images))
    flipped = (view != data().images).flatten(1).any(dim=1)
    assert 0 < flipped.sum() < 20
    assert torch.equal(seen[flipped], maps.flip(-1)[flipped])
    assert torch.equal(seen[~flipped], maps[~flipped])


@pytest.mark.parametrize(
    ("images", "maps", "words"),
    [
        (None, np.ones((20, 8, 7)), r"maps \[8, 8\], the size of the images"),
        (None, -np.ones((20, 8, 8)), "maps of numbers of 0 or more"),
        (None, np.zeros((20, 8, 8)), "maps of numbers of 0 or more"),
        (None, np.full((20, 8, 8), np.nan), "maps of numbers of 0 or more"),
        (data().images.numpy()[:10], np.ones((10, 8, 8)), "it lacks some"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, images, maps, words):
    path, _ = archive(tmp_path, images, maps)
    with pytest.raises(SettingsError, match=f"'ser.oracle' is '{path}'; it must be .*{words}"):
        open_oracle(path, data().shape)(data().images)
    np.save(path, np.ones(3))
    with pytest.raises(SettingsError, match="records of 'image' and 'map'"):
        open_oracle(path, data().shape)


def test_settings_and_networks_are_checked():
    with pytest.raises(SettingsError, match=r"'ser.oracle' is 'deepgaze'; it must be contrast, or"):
        SER.read_settings(settings(ser__oracle="deepgaze"))
    with pytest.raises(ModelError, match="set 'model' to ser-cnn or ser-resnet18"):
        learner_of(SER, network("cnn"))


def test_points_of_the_whole_are_those_of_its_parts():
    """The encoder has no head."""
    model = network("ser-cnn")
    assert model.encoder(data().images / 255).shape == (20, 128)
    _, features = tap(model.encoder, data().images / 255)
    assert [each.shape[1] for each in features] == [16, 32, 64, 128]
