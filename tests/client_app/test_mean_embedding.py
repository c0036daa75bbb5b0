import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from audit.report import Report
from client_app.authority.policy import Policy, PolicyError, PrivacyRules
from client_app.authority.privacy_account import read_account
from client_app.errors import ReleaseError
from client_app.hospital import open_hospital
from client_app.release.buffer import make_buffer, stages
from client_app.release.buffer.attack import attack
from gan import noised_features
from learning.samples import Samples
from strategies.protocol.may_leave import METRICS
from strategies.protocol.settings import SettingsError
from tests.client_app.test_attack import job_of, no_shadows
from tests.fakes import context, run_config

FEATURES = {"train__freeze": "body", "model": "cnn"}


@pytest.fixture
def hospital(tmp_path):
    """One of 2 hospitals, with about 70 digits of each class to train on."""

    def opened(*, limit=None, **overrides):
        config = run_config(
            partition="iid",
            gan__method="dp-mean-embedding",
            **{"gan__epsilon": 20.0, "gan__delta": 1e-4, **overrides},
        )
        place = open_hospital(context(0, 2, config, **{"store-dir": str(tmp_path / "store")}))
        if limit is None:
            return place
        policy = replace(Policy.read(), privacy=PrivacyRules([], limit, 1e-4))
        return replace(place, policy=policy)

    return opened


class Passes:
    """A search for copies that takes no time."""

    def __init__(self, job):
        self.job = job

    def refuses(self, images, labels):
        return torch.zeros(len(labels), dtype=torch.bool)

    def check(self, images, labels):
        return Report()

    def draw(self, path, images):
        pass


@pytest.fixture
def _quick_gate(monkeypatch):
    monkeypatch.setattr(stages, "copy_audit", Passes)


@pytest.fixture
def _not_attacked(monkeypatch, _quick_gate):
    monkeypatch.setattr(stages, "attack", lambda *_: Report())


def made(place, size=40):
    return make_buffer(place, size, time.monotonic() + 300)


@pytest.mark.usefixtures("_not_attacked")
def test_images_of_any_size_need_no_preset(hospital):
    """It is the GAN's: the default one refuses images of 33 pixels. An unknown one is not read."""
    release = made(hospital(image_size=33, gan__preset="huge"), size=10)
    assert release.samples.images.shape == (10, 1, 33, 33)
    assert "mml-untrained-squeeze" in release.figures


@pytest.mark.slow
def test_a_buffer_passes_the_gate_with_its_epsilon(hospital):
    release = made(hospital())
    assert release.samples.images.shape == (40, 1, 8, 8)
    assert torch.bincount(release.samples.labels).tolist() == [4] * 10
    assert release.figures.keys() <= METRICS.keys()
    assert release.figures["gan-epsilon"] == 20.0
    assert release.figures["gan-delta"] == 1e-4
    assert release.figures["release-passed"] == 1.0
    assert not {"gan-private", "gan-iterations"} & release.figures.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("_not_attacked")
@pytest.mark.parametrize("form", [{}, FEATURES])
def test_in_a_simulation_the_seed_decides_on_the_noise(hospital, form):
    images = [made(hospital(seed=seed, **form)).samples.images for seed in (0, 1)]
    assert not torch.equal(*images)
    store = hospital(**form).store.folder
    assert len(list(store.glob("gan/*/statistic.npz"))) == 2
    for path in store.rglob("*.npz"):
        path.unlink()
    assert torch.equal(made(hospital(**form)).samples.images, images[0])
    assert not (store / "privacy.jsonl").exists()


@pytest.mark.slow
def test_a_buffer_of_features_passes_the_gate_with_its_epsilon(hospital):
    release = made(hospital(**FEATURES))
    assert release.samples.images.shape == (40, 128, 1, 1)
    torch.testing.assert_close(release.samples.images.norm(dim=1).flatten(), torch.ones(40))
    assert (release.figures["gan-epsilon"], release.figures["gan-delta"]) == (20.0, 1e-4)
    assert release.figures["release-passed"] == 1.0
    assert "class means" in {each["attack"] for each in release.attacked["trials"]}


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_gate")
@pytest.mark.parametrize("form", [{}, FEATURES])
def test_a_hospital_releases_once_and_counts_it(hospital, monkeypatch, form):
    # Noise is secret here, and by chance attacks on one buffer in many find a leak.
    place = hospital(limit=20.0, release__max_membership=1.0, **form)
    first = made(place)
    assert len(read_account(place.store.folder)) == 1
    for name in ("release", "release_features"):  # to call them would fail
        monkeypatch.setattr(f"client_app.release.buffer.mean_embedding.{name}", None)
    # Another seed, with the same images: other draws of the same statistic.
    again = made(replace(place, settings=replace(place.settings, seed=1)), 30)
    assert len(read_account(place.store.folder)) == 1
    assert not torch.equal(first.samples.images[:30], again.samples.images)
    with pytest.raises(PolicyError) as refusal:
        made(hospital(limit=20.0, gan__epsilon=1.0, **form))
    assert refusal.value.rule == "privacy.max-epsilon"
    assert len(read_account(place.store.folder)) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_not_attacked")
@pytest.mark.parametrize("form", [{}, FEATURES])
def test_a_hospital_s_noise_cannot_be_drawn_from_the_run_s_seed(hospital, form):
    """Whoever knows the seed would subtract the noise."""
    place = hospital(limit=20.0, **form)
    made(place)
    (of_policy,) = place.store.folder.glob("gan/*/statistic.npz")
    noised = np.load(of_policy)["sums"]
    made(hospital(**form))
    (of_seed,) = {*place.store.folder.glob("gan/*/statistic.npz")} - {of_policy}
    assert not np.array_equal(np.load(of_seed)["sums"], noised)


@pytest.mark.parametrize("form", [{}, FEATURES])
def test_too_few_images_for_the_noise_are_refused(hospital, form):
    with pytest.raises(ReleaseError, match="noised number"):
        made(hospital(gan__epsilon=0.1, release__min_class_images=500, **form))


@pytest.mark.usefixtures("_not_attacked")
def test_a_buffer_that_is_too_small_for_its_classes_is_refused(hospital):
    with pytest.raises(
        ReleaseError, match=r"Each class needs one, and feder\.buffer-size is 9: set"
    ):
        made(hospital(), size=9)
    assert len(made(hospital(), size=10).samples) == 10


def test_a_delta_that_would_allow_to_tell_a_patient_is_refused(hospital):
    with pytest.raises(SettingsError, match=r"gan\.delta"):
        made(hospital(gan__delta=0.01))


def test_copies_of_features_are_found_in_their_subspace(tmp_path):
    """Of 256 features, a copy has half of its original, and differs from all other halves."""
    form = {"train__freeze": "body", "model": "mlp", "gan__method": "dp-mean-embedding"}
    job = job_of(tmp_path, hospitals=2, **form)
    learnt = job.learnt[torch.arange(256)]
    copies = Samples(noised_features.project(learnt.images), learnt.labels)
    assert stages.copy_audit(job).refuses(copies.images, copies.labels).float().mean() > 0.9
    evidence = attack(job, copies, {}, no_shadows).evidence
    assert evidence["verdict"] == "refused"
    assert evidence["noticed"] == 0.1
