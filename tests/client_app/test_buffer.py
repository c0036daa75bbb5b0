"""Real GANs of a few steps: what they render is noise, and all around it is as in a real run."""

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from client_app.authority.policy import Policy
from client_app.errors import ReleaseError
from client_app.hospital import open_hospital
from client_app.release import buffer
from client_app.release.buffer import gan_sampler, make_buffer, stages
from client_app.release.buffer import job as job_module
from client_app.release.buffer.job import Job, Release
from gan import quality, schedule
from gan.networks import to_bytes
from gan.presets import PRESETS, PresetError
from gan.projection import measure_privacy
from learning.errors import DeadlineError, DivergedError
from learning.samples import Samples
from strategies.protocol import console
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import METRICS
from strategies.protocol.settings import SettingsError
from tests.fakes import context, run_config, settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch):
    """No test here looks at what they have learnt."""
    monkeypatch.setattr("gan.quality.STEPS", 10)
    small = replace(PRESETS["tiny"], channels=(8, 6, 4), batch_size=8, fid_images=32)
    monkeypatch.setitem(PRESETS, "tiny", small)


@pytest.fixture
def hospital(tmp_path):
    """One of 20 hospitals, with 72 digits to train on, and settings changed by keywords."""

    def opened(**overrides):
        config = run_config(
            **{
                "partition": "iid",
                "gan__iterations": 2,
                "release__min_class_images": 2,
                **overrides,
            }
        )
        return open_hospital(context(0, 20, config, **{"store-dir": str(tmp_path / "store")}))

    return opened


def soon():
    return time.monotonic() + 300


def test_a_run_that_leaves_out_classes_lets_no_gan_learn_from_few_patients(
    hospital, monkeypatch, caplog
):
    """There are 72 images, each of one patient; no class has more than 11, in fours 12."""
    monkeypatch.setattr(buffer, "make", lambda job: Release(job.learnt, {}))
    monkeypatch.setattr(buffer, "_distance", lambda *_: SimpleNamespace(name="x"))
    rules = Policy.read()
    lax = replace(rules.release, min_class_training_images=2)
    rules = replace(rules, release=lax, figures=replace(rules.figures, smallest_group=4))

    def learnt(fewest, **settings):
        place = hospital(release__min_class_images=fewest, **settings)
        return make_buffer(replace(place, policy=rules), 20, soon()).samples

    counts = torch.bincount(hospital().data.train.labels)
    assert len(learnt(2)) == counts.sum() == 72
    fewest = 12
    assert 0 < counts[counts >= 10].sum() < rules.images.min_train_patients
    with pytest.raises(ReleaseError, match=r"fewer patients than the policy \(\[images\]\) allows"):
        learnt(fewest)
    assert "images.min-train-patients allows 40 or more; the value is" in caplog.text
    assert len(learnt(fewest, gan__method="dp-mean-embedding")) < 40  # noise covers all images


def test_no_least_number_of_images_counts_those_of_a_class(hospital, monkeypatch):
    """Of 15 to 24 images, a run sees 20, whatever it asks for; the policy's own limit is exact."""
    monkeypatch.setattr(buffer, "make", lambda job: Release(job.learnt, {}))
    monkeypatch.setattr(buffer, "_distance", lambda *_: SimpleNamespace(name="x"))
    rules = Policy.read()

    def learnt(of_class, fewest, least=10):
        place = hospital(release__min_class_images=fewest)
        labels = torch.arange(2).repeat_interleave(torch.tensor([of_class, 60]))
        images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
        train = replace(place.data.train, pixels=images, labels=labels, rows=None, groups=None)
        strict = replace(rules.release, min_class_training_images=least)
        place = replace(place, data=replace(place.data, train=train, classes=("a", "b")))
        place = replace(place, policy=replace(rules, release=strict))
        return make_buffer(place, 20, soon()).samples.labels.unique().tolist()

    for fewest in range(10, 31):
        found = [learnt(of_class, fewest) for of_class in (15, 19, 24)]
        assert found == [[0, 1] if fewest <= 20 else [1]] * 3
    assert learnt(15, 20, least=16) == [1]
    assert learnt(16, 20, least=16) == [0, 1]


@pytest.mark.parametrize(
    ("many", "method", "left"),
    [
        (6, "class-gaussians", [0, 1]),
        (7, "class-gaussians", [1]),
        (7, "stylegan2-ada", [0, 1]),
    ],
)
def test_no_patient_decides_on_the_mean_of_a_class(hospital, monkeypatch, many, method, left):
    """One of 10 patients has k images: (k + 9)² / (k² + 9) is 5.0 if k is 6, and 4.4 if k is 7."""
    monkeypatch.setattr(buffer, "make", lambda job: Release(job.learnt, {}))
    monkeypatch.setattr(buffer, "_distance", lambda *_: SimpleNamespace(name="x"))
    rules = Policy.read()
    assert rules.release.min_averaged == 5
    frozen = {"train__freeze": "body", "model": "cnn"} if method == "class-gaussians" else {}
    place = hospital(gan__method=method, **frozen)
    owners = torch.tensor([*[0] * many, *range(1, 70)])
    labels = (owners >= 10).long()
    images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
    train = replace(
        place.data.train, pixels=images, labels=labels, rows=None, groups=owners.numpy()
    )
    place = replace(place, policy=rules, data=replace(place.data, train=train, classes=("a", "b")))
    assert make_buffer(place, 20, soon()).samples.labels.unique().tolist() == left


@pytest.mark.slow
def test_a_buffer_has_the_size_asked_for_and_all_classes(hospital):
    made = make_buffer(hospital(), 20, soon())
    assert made.samples.images.shape == (20, 1, 8, 8)
    assert made.samples.images.dtype == torch.uint8
    assert torch.bincount(made.samples.labels).tolist() == [2] * 10
    assert made.figures.keys() <= METRICS.keys()
    assert made.figures["release-passed"] == 1.0
    assert made.figures["release-refused"] == 0.0
    assert made.figures.keys() >= {
        *("gan-iterations", "frechet-classifier", "diversity-synthetic-untrained-squeeze"),
        *("release-median-rank", "held-out-refused", "release-nearer-p"),
    }


@pytest.mark.slow
def test_a_gan_is_trained_once_and_serves_later_runs(hospital, monkeypatch):
    first = make_buffer(hospital(), 20, soon())
    monkeypatch.setattr(
        "client_app.release.buffer.gan_sampler.train_gan", None
    )  # to call it would fail
    again = make_buffer(hospital(num_server_rounds=3, strategy="centralized"), 20, soon())
    assert torch.equal(first.samples.images, again.samples.images)
    assert first.figures == again.figures


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"gan__privacy_weight": 0.5}, {"gan__iterations": 3}]
)
def test_what_a_gan_depends_on_trains_another(hospital, change):
    make_buffer(hospital(), 20, soon())
    make_buffer(hospital(**change), 20, soon())
    assert len(list((hospital().store.folder / "gan").iterdir())) == 2


@pytest.mark.slow
def test_a_gan_learns_from_the_images_that_it_is_given(hospital):
    """Of one class fewer: neither the GAN nor its first phase may come from the other images."""
    place = hospital()
    labels = place.data.train.labels
    without_zeros = (labels != 0).nonzero().flatten().numpy()
    for large in (None, without_zeros, without_zeros[1:]):
        make_buffer(place, 20, soon(), large)
    folders = sorted((place.store.folder / "gan").iterdir())
    assert len(folders) == 3
    first_phases = {(each / "progress.jsonl").read_text() for each in folders}
    assert len(first_phases) == 3


@pytest.mark.slow
def test_another_image_of_a_rare_class_asks_for_another_audit(hospital):
    """The GAN does not learn from it, and yet no synthetic image may be near to it."""
    place = hospital(release__min_class_images=6)
    train = place.data.train
    make_buffer(place, 20, soon())
    rare = (torch.bincount(train.labels) < 6).nonzero()[0]
    more = replace(train, pixels=train.images.clone(), rows=None)
    more.pixels[(train.labels == rare).nonzero()[0]] = 0
    make_buffer(replace(place, data=replace(place.data, train=more)), 20, soon())
    assert len(list(place.store.folder.rglob("*.npz"))) == 2


@pytest.mark.slow
def test_classes_of_few_images_are_left_out(hospital):
    counts = torch.bincount(hospital().data.train.labels)
    fewest = int(counts.sort().values[5])
    made = make_buffer(hospital(release__min_class_images=fewest), 20, soon())
    frequent = (counts >= fewest).nonzero().flatten()
    assert len(frequent) < 10
    assert made.samples.labels.unique().tolist() == frequent.tolist()


def test_without_any_frequent_class_nothing_leaves(hospital):
    with pytest.raises(ReleaseError, match=r"No class has release\.min-class-images images"):
        make_buffer(hospital(release__min_class_images=1000), 20, soon())


@pytest.mark.slow
def test_another_size_is_another_buffer_of_the_same_gan(hospital, monkeypatch):
    make_buffer(hospital(), 20, soon())
    assert len(make_buffer(hospital(), 10, soon()).samples) == 10
    assert len(list((hospital().store.folder / "gan").iterdir())) == 1


@pytest.mark.slow
def test_pictures_for_the_hospital_s_own_eyes_stay_in_its_store(hospital, monkeypatch):
    quick = partial(measure_privacy, steps=3)
    monkeypatch.setattr("client_app.release.buffer.gan_sampler.measure_privacy", quick)
    make_buffer(hospital(gan__projections=4), 20, soon())
    (folder,) = (hospital().store.folder / "gan").iterdir()
    assert {path.name for path in folder.glob("*.png")} >= {
        *("buffer.png", "privacy.png", "projections.png"),
    }


def test_measured_images_are_of_different_patients(monkeypatch):
    """One patient has nine of eleven images: a mean over four images could be about this one."""
    measured = []

    def note(images):
        measured.append(images.flatten().tolist())
        return {}

    monkeypatch.setattr(gan_sampler, "mean_w", lambda *args, **kept: None)
    monkeypatch.setattr(gan_sampler, "measure_privacy", lambda a, b, x, *_, **__: note(to_bytes(x)))
    monkeypatch.setattr(stages, "class_diversity", lambda images, *_: note(images))
    images = torch.arange(11, dtype=torch.uint8)[:, None, None, None]
    learnt = Samples(images, torch.zeros(11, dtype=torch.int64))
    patients = np.array([0] * 9 + [1, 2])
    asked = SimpleNamespace(settings=settings(gan__projections=4))
    rest = {"distance": None, "folder": None, "seed": 0, "deadline": 0.0}
    job: Any = SimpleNamespace(learnt=learnt, patients=patients, hospital=asked, **rest)
    trained: Any = SimpleNamespace(plain=None, private=None)
    gan_sampler._projections(job, learnt, trained)
    stages.diversity(job, learnt[torch.arange(4)])
    projected, real, _ = measured
    for chosen in (projected, real):
        assert sorted(patients[chosen]) == [0, 1, 2]


def copying(hospital, monkeypatch, share=1.0):
    """Make the generator render training images, as one that has learnt them by heart would."""
    train = hospital.data.train

    def render(generator, labels, seed):
        rng = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (len(labels), 1, 8, 8), dtype=torch.uint8, generator=rng)
        copied = torch.rand(len(labels), generator=rng) < share
        images[copied] = train.images[torch.randint(len(train), (len(labels),), generator=rng)][
            copied
        ]
        return images

    monkeypatch.setattr("client_app.release.buffer.gan_sampler.render", render)
    return hospital


@pytest.mark.slow
def test_a_buffer_of_copied_training_images_is_refused(hospital, monkeypatch, caplog):
    """The log names synthetic images and why, the error does not; nothing is kept as releasable."""
    with pytest.raises(ReleaseError, match="Too many of them are too near") as refusal:
        make_buffer(copying(hospital(), monkeypatch), 20, soon())
    assert not any(map(str.isdecimal, str(refusal.value).replace("hospital-00", "")))
    assert " 0 (a copy)" in caplog.text
    assert list(hospital().store.folder.rglob("*.npz")) == []


@pytest.mark.slow
def test_a_refusal_says_how_much_of_an_image_is_explained(hospital, monkeypatch, caplog):
    """Training images, one grey level lighter."""
    train = hospital().data.train.images.clamp(max=254) + 1
    monkeypatch.setattr(
        "client_app.release.buffer.gan_sampler.render",
        lambda generator, labels, seed: train[: len(labels)],
    )
    with pytest.raises(ReleaseError, match=r"release\.quantile"):
        make_buffer(hospital(), 20, soon())
    assert re.search(r"0 \(unexplained aligned 0\.0\d+, mixed 0\.\d+, ", caplog.text)


@pytest.fixture
def _spoilt(monkeypatch):
    """The first check of phase 2 already finds images that are too far away."""

    def judged(standing, preset):
        return (False, True) if standing.private else schedule.judge(standing, preset)

    monkeypatch.setattr("gan.training.judge", judged)


@pytest.mark.slow
@pytest.mark.usefixtures("_spoilt")
def test_a_buffer_in_which_the_privacy_loss_had_no_part_stays(hospital, caplog):
    with pytest.raises(ReleaseError, match="The privacy loss had no part in its GAN") as error:
        make_buffer(hospital(), 20, soon())
    assert not re.search(r"\d\.\d|iterations", str(error.value))
    allowed = make_buffer(hospital(release__without_privacy=True), 20, soon())
    assert allowed.figures["gan-private"] == 0
    assert "hospital-00: The privacy loss had no part in its GAN" in caplog.text


def test_figures_of_a_gan_that_diverged_stay_in_the_hospital_s_log(hospital, monkeypatch, caplog):
    def diverge(job):
        raise FloatingPointError("losses nan and 3.21")

    monkeypatch.setattr(buffer, "make", diverge)
    with pytest.raises(DivergedError, match=r"diverged. Choose another gan.preset") as error:
        make_buffer(hospital(), 20, soon())
    assert "3.21" not in str(error.value)
    assert "3.21" in caplog.text


@pytest.mark.slow
def test_the_privacy_loss_has_a_part_unless_it_is_switched_off(hospital, monkeypatch, caplog):
    monkeypatch.setattr(console, "PAUSE", 0.0)
    caplog.set_level("INFO")
    assert make_buffer(hospital(), 20, soon()).figures["gan-private"] == 1
    without = make_buffer(hospital(gan__privacy_weight=0.0), 20, soon())
    assert without.figures["gan-private"] == 0
    told = r"hospital-00 trains its GAN, step 2 of 2: \d+ of \d+, [\d.]+/s, at most \d+ \w+ left, "
    told += r"distance to real images \d+"
    assert re.search(told, caplog.text)


@pytest.mark.slow
def test_a_few_copies_are_discarded_and_drawn_anew(hospital, monkeypatch):
    made = make_buffer(copying(hospital(release__quantile=0.0), monkeypatch, 0.3), 20, soon())
    assert 0 < made.figures["release-discarded"] <= 0.5
    train = {image.numpy().tobytes() for image in hospital().data.train.images}
    assert not train & {image.numpy().tobytes() for image in made.samples.images}


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_same_images_of_other_patients_are_checked_anew(hospital, monkeypatch, part):
    """The search for copies, and the halves of the attacks, depend on the patients."""
    jobs: list[Job] = []

    def make(job):
        jobs.append(job)
        return Release(job.train, {})

    monkeypatch.setattr(buffer, "make", make)
    place = hospital()
    made = [make_buffer(place, 20, soon())]
    with monkeypatch.context() as newer:
        newer.setattr(job_module, "code_hash", lambda: "of an update")
        made.append(make_buffer(place, 20, soon()))
    assert {each.code for each in made} == {code_hash()}  # of the code that checked it
    assert len(jobs) == 1
    images = getattr(place.data, part)
    corrected = replace(images, groups=np.arange(len(images)) // 2)
    make_buffer(replace(place, data=replace(place.data, **{part: corrected})), 20, soon())
    assert len(jobs) == 2
    assert jobs[0].folder == jobs[1].folder  # the GAN is not trained again


@pytest.mark.parametrize("pretrained", [False, True])
@pytest.mark.parametrize("key", ["gan__lpips_weights", "gan__inception_weights"])
def test_another_file_of_weights_is_another_gan(key, pretrained, hospital, monkeypatch):
    """The distance has one name for all files; without pretrained networks no file is read."""
    folders = []

    def make(job):
        folders.append(job.folder)
        return Release(job.learnt, {})

    monkeypatch.setattr(buffer, "make", make)
    monkeypatch.setattr(buffer, "_distance", lambda *_: SimpleNamespace(name="lpips-vgg"))
    monkeypatch.setattr(quality, "weights_file", lambda url: None)
    monkeypatch.setitem(PRESETS, "tiny", replace(PRESETS["tiny"], pretrained=pretrained))
    for file in ("", "/a.pth", "/b.pth", "/a.pth"):
        make_buffer(hospital(**{key: file}), 20, soon())
    assert len({*folders}) == (3 if pretrained else 1)


def test_a_deployment_sends_no_buffer_of_a_simulation(hospital, monkeypatch):
    """Its random numbers follow from the public seed, and would reveal the means of classes."""
    folders = []

    def make(job):
        folders.append(job.folder)
        return Release(job.learnt, {})

    monkeypatch.setattr(buffer, "make", make)
    place = hospital(gan__method="class-gaussians", model="cnn", train__freeze="body")
    lax = replace(Policy.read().release, min_class_training_images=2, min_averaged=1)
    policy = replace(Policy.read(), release=lax)
    policy = replace(policy, figures=replace(policy.figures, smallest_group=1))
    for rules in (None, policy, policy):
        make_buffer(replace(place, policy=rules), 20, soon())
    assert len(folders) == len({*folders}) == 2


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_gan_is_judged_by_one_frechet_distance(pretrained, hospital, monkeypatch):
    """If the file of the FID's network comes later, the earlier distances cannot be compared."""
    folders = []

    def make(job):
        folders.append((job.folder, job.inception))
        return Release(job.learnt, {})

    monkeypatch.setattr(buffer, "make", make)
    monkeypatch.setattr(buffer, "_distance", lambda *_: SimpleNamespace(name="lpips-vgg"))
    monkeypatch.setitem(PRESETS, "tiny", replace(PRESETS["tiny"], pretrained=pretrained))
    place, cached = hospital(), Path("/cache/inception.pth")
    for file in (None, cached, None):
        monkeypatch.setattr(quality, "weights_file", lambda url, file=file: file)
        make_buffer(place, 20, soon())
    assert [inception for _, inception in folders] == ([None, cached] if pretrained else [None])
    assert len({folder for folder, _ in folders}) == len(folders)


def test_a_preset_is_checked_without_torch():
    code = "import gan.presets, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"gan__preset": "tinny"}, "'tinny'; it must be one of tiny, "),
        ({"image_size": 64}, "'tiny', for images of 16 pixels, and the hospital's images have 64"),
        (
            {"gan__preset": "xray-256", "gan__lpips_weights": "/no/such.pth", "image_size": 256},
            "'gan.lpips-weights' cannot be used",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_any_training(hospital, overrides, words):
    with pytest.raises((PresetError, SettingsError), match=words):
        make_buffer(hospital(**overrides), 20, soon())


@pytest.mark.slow
def test_a_deadline_is_kept_and_the_gan_goes_on_afterwards(hospital):
    with pytest.raises(DeadlineError, match="prepare-timeout"):
        make_buffer(hospital(), 20, time.monotonic() - 1)
    assert len(make_buffer(hospital(), 20, soon()).samples) == 20


@pytest.mark.slow
def test_images_come_in_the_size_of_the_hospital_s(hospital, tmp_path):
    held = hospital().data
    wide, tested = (
        replace(part, pixels=part.images.repeat(1, 1, 2, 3), rows=None)
        for part in (held.train, held.test)
    )
    place = replace(hospital(), data=replace(held, train=wide, test=tested))
    assert make_buffer(place, 20, soon()).samples.images.shape == (20, 1, 16, 24)


def test_of_two_runs_on_one_store_the_second_waits_for_the_buffer(hospital, monkeypatch):
    """Otherwise both would train one GAN, or draw the noise of one statistic twice."""
    place, begun, go_on = hospital(), [], Event()

    def make(job):
        begun.append(job)
        assert go_on.wait(60)
        return Release(job.train[:4], {"release-passed": 1.0})

    monkeypatch.setattr("client_app.release.buffer.make", make)
    with ThreadPoolExecutor(2) as runs:
        both = [runs.submit(make_buffer, place, 4, soon()) for _ in range(2)]
        while not begun:
            time.sleep(0.01)
        with pytest.raises(DeadlineError, match="It continues at the next request"):
            make_buffer(place, 4, time.monotonic() + 0.1)
        go_on.set()
        images = [each.result().samples.images for each in both]
    assert len(begun) == 1
    assert torch.equal(*images)
