"""Attacks on buffers before they leave. No GAN is trained: samplers here are made by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from audit.buffer import Attacked, attack_buffer, draw_copies, mix_copies
from client_app.errors import ReleaseError
from client_app.hospital import open_hospital
from client_app.release.buffer.attack import attack, held_out_halves, shadow_attack
from client_app.release.buffer.job import Job, fingerprint, frequent_rows
from client_app.release.buffer.stages import uphold
from gan.presets import PRESETS
from learning.intervals import Figure
from learning.samples import Samples, concatenate
from tests.fakes import context, run_config


def job_of(tmp_path, hospitals=5, **settings) -> Job:
    """A job at one of so many hospitals, which share 1797 digits."""
    config = run_config(partition="iid", **settings)
    hospital = open_hospital(
        context(0, hospitals, config, **{"store-dir": str(tmp_path / "store")})
    )
    train = Samples(hospital.data.train.images, hospital.data.train.labels)
    rows = frequent_rows(train.labels, hospital.settings.release.min_class_images)
    distance: Any = SimpleNamespace(name="untrained-squeeze")
    return Job(
        hospital=hospital,
        size=64,
        train=train,
        learnt=train[rows],
        patients=hospital.data.train.patients[rows.numpy()],
        preset=PRESETS["tiny"],
        distance=distance,
        inception=None,
        seed=0,
        folder=tmp_path,
        deadline=0.0,
    )


def no_shadows(job):
    raise AssertionError("Nobody asked for a shadow.")


def strangers(tmp_path, count, hospitals=5):
    """Images of another hospital: what a generator without a memory would render."""
    config = run_config(partition="iid")
    train = open_hospital(
        context(1, hospitals, config, **{"store-dir": str(tmp_path / "store")})
    ).data.train
    return train[torch.arange(count)]


def copies(job, count):
    """Mirrored training images with noise of 20 grey levels."""
    chosen = job.learnt[torch.arange(count)]
    return Samples(draw_copies(chosen.images, 1), chosen.labels)


def test_a_buffer_without_a_memory_passes_a_test_that_can_tell(tmp_path):
    job = job_of(tmp_path, hospitals=2)
    report = attack(job, strangers(tmp_path, 256, hospitals=2), {}, no_shadows)
    found = report.evidence
    assert report.passed
    assert found["verdict"] == "passed"
    assert found["leak"]["high"] == report.leaks[0]["high"] <= 0.05
    assert (found["members"], found["synthetic"]) == (len(job.learnt), 256)
    assert found["references"] * 2 <= found["others"] == len(job.hospital.data.test)
    assert found["noticed"] is not None
    assert found["noticed"] <= 0.5
    for trial in found["trials"]:
        assert trial["worth"]["excess_auc"]["low"] < 0 < trial["worth"]["excess_auc"]["high"]


def test_a_leaky_generator_is_refused(tmp_path, caplog):
    job = job_of(tmp_path)
    leaked = copies(job, 256)
    caplog.set_level("INFO")
    with pytest.raises(ReleaseError, match=r"release\.max-membership") as refusal:
        uphold(job, attack(job, leaked, {}, no_shadows))
    assert "attacks on its synthetic images reveal training members" in caplog.text
    assert not any(map(str.isdecimal, str(refusal.value).replace("hospital-0", "")))


def test_a_generator_that_has_learnt_fifty_images_by_heart_is_refused(tmp_path):
    job = job_of(tmp_path)
    images = job.learnt.images[:50].repeat(6, 1, 1, 1)[:256]
    noise = 10 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    known = (images + noise).round().clamp(0, 255).to(torch.uint8)
    first, second = held_out_halves(job)
    halves = (first.images, second.images)
    asked = torch.arange(len(job.learnt))
    found = attack_buffer(job.learnt.images, asked, halves, known, 0.05, seed=0)
    assert found.verdict == "refused"


def test_a_limit_of_one_attacks_nothing(tmp_path):
    job = job_of(tmp_path, release__max_membership=1.0)
    report = attack(job, copies(job, 64), {}, no_shadows)
    assert report.passed
    assert report.evidence["verdict"] == "not attacked"


TOLD = {
    "nothing": ((0.0, -0.03, 0.03), "passed"),
    "something, less than the limit": ((0.02, 0.01, 0.04), "passed"),
    "something, perhaps more than the limit": ((0.07, 0.03, 0.10), "refused"),
    "more than the limit": ((0.2, 0.1, 0.3), "refused"),
    "perhaps nothing, perhaps much": ((0.03, -0.04, 0.10), "too small to tell"),
}


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("measure", ["leak_tpr", "leak_auc"])
def test_doubt_is_against_release_where_a_leak_is_sure(measure, told):
    """The AUC, whose interval is wide, lets nothing pass: the true positive rate has to."""
    (value, low, high), verdict = TOLD[told]
    leak, none = Figure(value=value, low=low, high=high), Figure(value=0, low=-0.01, high=0.01)
    measures = {"leak_tpr": none, "leak_auc": none}
    trials = [SimpleNamespace(**measures), SimpleNamespace(**measures | {measure: leak})]
    found: Any = Attacked(0.05, 800, 200, 100, 512, tuple(trials), 0.25)  # type: ignore[arg-type]
    if (measure, verdict) == ("leak_auc", "too small to tell"):
        verdict = "passed"
    assert found.verdict == verdict


@pytest.mark.parametrize("hospitals", [5, 60, 150])
def test_a_small_hospital_says_that_it_cannot_tell(tmp_path, hospitals):
    """Of 288, 30 and 12 images to learn from; of the last two no copies would be noticed."""
    job = job_of(tmp_path, hospitals, release__min_class_images=1)
    buffer = strangers(tmp_path, 64)
    assert attack(job, buffer, {}, no_shadows).evidence["verdict"] == "too small to tell"
    release = replace(job.hospital.settings.release, untested=False)
    settings = replace(job.hospital.settings, release=release)
    job = replace(job, hospital=replace(job.hospital, settings=settings))
    with pytest.raises(ReleaseError, match="too weak here to exclude a leak"):
        uphold(job, attack(job, buffer, {}, no_shadows))


def test_of_each_member_one_image_is_scored(tmp_path):
    job = job_of(tmp_path, hospitals=2)
    job = replace(job, patients=job.patients // 10)
    found = attack(job, strangers(tmp_path, 64, hospitals=2), {}, no_shadows).evidence
    assert found["members"] == len({*job.patients.tolist()}) < len(job.learnt) / 5


def test_a_shadow_is_trained_on_all_images_of_a_patient_or_on_none(tmp_path):
    job = job_of(tmp_path, release__shadow_generators=2, gan__projections=50)
    owners = job.patients // 10
    of_image = {
        image.numpy().tobytes(): owner
        for image, owner in zip(job.learnt.images, owners, strict=True)
    }
    learnt = []

    def sampler(shadow):
        assert not shadow.hospital.settings.gan.projections  # of shadows nothing is measured
        found = (of_image.get(image.numpy().tobytes()) for image in shadow.learnt.images)
        learnt.append({owner for owner in found if owner is not None})
        return SimpleNamespace(
            figures={}, render=lambda labels, seed: strangers(tmp_path, 64).images
        )

    test = job.hospital.data.test
    others = Samples(test.images, test.labels)
    trial = shadow_attack(replace(job, patients=owners), strangers(tmp_path, 64), others, sampler)
    assert not learnt[0] & learnt[1]
    assert trial.worth.attack.members == len({*owners.tolist()})


def test_references_and_others_are_of_other_patients_and_of_learnt_classes(tmp_path):
    job = job_of(tmp_path)
    data = job.hospital.data
    owners = torch.arange(len(data.test)) // 5
    job = replace(job, learnt=job.learnt[job.learnt.labels < 4])
    images = data.test.images.clone()
    test = replace(data.test, pixels=images, rows=None, groups=owners.numpy())
    test.pixels[:3] = job.train.images[:3]
    copied = {each.numpy().tobytes() for each in job.train.images[:3]}
    data = replace(data, test=test)
    job = replace(job, hospital=replace(job.hospital, data=data))
    of_image = {image.numpy().tobytes(): k for k, image in enumerate(test.images)}
    halves = [{each.numpy().tobytes() for each in half.images} for half in held_out_halves(job)]
    assert not copied & (halves[0] | halves[1])
    rows = [[of_image[each] for each in half] for half in halves]
    patients = owners[rows[0] + rows[1]].tolist()
    assert len(patients) == len({*patients}) > 10
    assert int(test.labels[rows[0] + rows[1]].max()) == 3


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_positive_control_has_as_many_copies_as_it_says(share):
    synthetic = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    members = torch.full((10, 1, 8, 8), 200, dtype=torch.uint8)
    mixed = mix_copies(synthetic, members, share, seed=0)
    assert mixed.shape == synthetic.shape
    assert int((mixed.flatten(1).float().mean(1) > 100).sum()) == 40 * share


@pytest.mark.slow
def test_an_attack_that_proves_more_than_the_guarantee_is_a_refusal(tmp_path):
    job = job_of(tmp_path)
    claimed = {"gan-epsilon": 0.5, "gan-delta": 1e-5}
    kept = attack(job, strangers(tmp_path, 256), claimed, no_shadows).evidence["bound"]
    assert (kept["epsilon"], kept["delta"]) == (0.5, 1e-5)
    assert kept["audited"] <= 0.5
    release = replace(job.hospital.settings.release, max_membership=0.99)
    settings = replace(job.hospital.settings, release=release)
    job = replace(job, hospital=replace(job.hospital, settings=settings))
    mixed = concatenate((copies(job, 128), strangers(tmp_path, 128)))
    with pytest.raises(ReleaseError, match="than their guarantee"):
        uphold(job, attack(job, mixed, claimed, no_shadows))


@pytest.mark.parametrize("remembers", [True, False])
def test_shadows_tell_what_a_generator_remembers(tmp_path, remembers):
    """Samplers that render near-copies of what they have learnt, or images of somebody else."""
    job = job_of(tmp_path, release__shadow_generators=4, release__max_membership=0.3)
    learnt = []

    def sampler(shadow):
        learnt.append(shadow)
        own = copies(shadow, 64).images if remembers else strangers(tmp_path, 64).images

        def render(labels, seed):
            return own[torch.randperm(64)]

        return SimpleNamespace(figures={}, render=render)

    buffer = copies(job, 64) if remembers else strangers(tmp_path, 64)
    others = Samples(job.hospital.data.test.images, job.hospital.data.test.labels)
    trial = shadow_attack(job, buffer, others, sampler)
    assert (trial.leak_tpr["low"] > 0.3) == remembers
    for kinds in ({each.folder for each in learnt}, {fingerprint(each.learnt) for each in learnt}):
        assert len(kinds) == 4
    assert not job.hospital.settings.release.without_privacy
    assert all(each.hospital.settings.release.without_privacy for each in learnt)
    everyone = len(job.learnt) + len(others)
    assert [len(each.learnt) for each in learnt[:2]] == [-(-everyone // 2), everyone // 2]


def test_a_shadow_of_other_images_is_trained_again(tmp_path):
    job = job_of(tmp_path, release__shadow_generators=2)
    folders = []

    def sampler(shadow):
        folders.append(shadow.folder)
        return SimpleNamespace(
            figures={}, render=lambda labels, seed: strangers(tmp_path, 64).images
        )

    test = job.hospital.data.test
    for first in (0, 1):  # another patient is tested on
        others = Samples(test.images[first:], test.labels[first:])
        shadow_attack(job, strangers(tmp_path, 64), others, sampler)
    assert len({*folders}) == 4
