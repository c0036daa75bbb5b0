import dataclasses
import json
import time
from itertools import count

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from gan import losses
from gan.adversaries import Examples, Privacy
from gan.augment import Controller
from gan.networks import Generator, from_bytes
from gan.presets import PRESETS
from gan.schedule import Check
from gan.synthesis import balanced_labels, render
from gan.training import train_gan

LABELS = torch.tensor([0, 2, 2, 0, 2, 0, 2])  # of three classes; nobody has the second


def pixel_distance(real, fake):
    return torch.cdist(real.flatten(1), fake.flatten(1))


class Scores:
    """Fréchet distances as told, the last one for ever."""

    def __init__(self, *scores):
        self.scores = list(scores)

    def __call__(self, parts):
        assert {part.dtype for part in parts} == {torch.uint8}
        return self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]


@pytest.fixture
def train(micro, tmp_path):
    """A training of 7 random images in tmp_path, or as the test changes it."""

    def trained(
        images=None,
        labels=LABELS,
        classes=3,
        *,
        preset=micro,
        privacy_weight=1.0,
        distance=pixel_distance,
        frechet=lambda parts: torch.cat([*parts]).float().mean().item(),
        folder=tmp_path / "gan",
        fingerprint="",
        seed=3,
        deadline=None,
        report=lambda standing, limit: None,
        judged_by="",
    ):
        if images is None:
            drawn = torch.Generator().manual_seed(0)
            images = torch.randint(256, (7, 1, 8, 8), generator=drawn, dtype=torch.uint8)
        deadline = time.monotonic() + 60 if deadline is None else deadline
        return train_gan(
            Examples(images, labels, classes, fingerprint),
            preset,
            Privacy(privacy_weight, "mean", distance),
            frechet,
            folder,
            seed=seed,
            deadline=deadline,
            report=report,
            judged_by=judged_by,
        )

    return trained


def weights(generator):
    return torch.cat([part.flatten() for part in generator.state_dict().values()])


def told(progress):
    """What of a check does not depend on the clock."""
    return dataclasses.replace(progress, seconds=0.0, iterations_per_second=0.0)


@pytest.mark.slow
def test_both_phases(train, tmp_path):
    steps = []

    def report(standing, limit):
        steps.append((standing.phase, standing.iteration, limit))

    trained = train(report=report, frechet=Scores(10.0))
    first = [p.iteration for p in trained.progress if p.phase == 1]
    second = [p.iteration for p in trained.progress if p.phase == 2]  # looked at more closely
    assert (first, second) == ([2, 4, 6], [1, 2, 3, 4])
    assert steps == [(1, k, 6) for k in range(6)] + [(2, k, 4) for k in range(4)]
    assert [p.privacy_distance is None for p in trained.progress] == [True] * 3 + [False] * 4
    assert not torch.equal(weights(trained.plain), weights(trained.private))
    lines = (tmp_path / "gan" / "progress.jsonl").read_text().splitlines()
    assert [Check(**json.loads(line)) for line in lines] == trained.progress
    assert len(list((tmp_path / "gan").glob("*.png"))) == 7


def test_no_second_phase_without_privacy(train):
    trained = train(privacy_weight=0.0)
    assert {p.phase for p in trained.progress} == {1}
    assert trained.private is None


@pytest.mark.slow
def test_phase_one_keeps_the_best(train, micro, tmp_path):
    """The second of three checks is the best: the same as a training that ends there."""
    best = train(privacy_weight=0.0, frechet=Scores(3.0, 1.0, 2.0)).plain
    short = dataclasses.replace(micro, iterations=4)
    last = train(
        preset=short, privacy_weight=0.0, frechet=Scores(2.0, 1.0), folder=tmp_path / "short"
    )
    assert torch.equal(weights(best), weights(last.plain))


@pytest.mark.slow
def test_patience_ends_phase_one(train, micro):
    hasty = dataclasses.replace(micro, iterations=100, patience=4)
    trained = train(preset=hasty, privacy_weight=0.0, frechet=Scores(2.0, 1.0, 1.5, 1.0))
    assert [p.iteration for p in trained.progress] == [2, 4, 6, 8]


@pytest.mark.slow
def test_phase_two_ends_when_images_become_bad(train, tmp_path):
    """Phase 1's best two are 1.0, so 2.5 is good enough and 2.6 is not."""
    trained = train(frechet=Scores(1.0, 1.0, 2.0, 2.5, 2.6))
    assert [p.iteration for p in trained.progress if p.phase == 2] == [1, 2]
    assert not torch.equal(weights(trained.plain), weights(trained.private))
    at_once = train(frechet=Scores(1.0, 1.0, 2.0, 2.6), folder=tmp_path / "at once")
    assert [p.iteration for p in at_once.progress if p.phase == 2] == [1]
    assert at_once.private is None


@pytest.mark.slow
def test_phase_two_drives_images_away(train, micro):
    """With nothing but the privacy term to speak of, distances grow."""
    long = dataclasses.replace(micro, privacy_iterations=40, check_every=25)
    trained = train(preset=long, privacy_weight=1000.0, frechet=Scores(1.0))
    first, *_, last = [p.privacy_distance for p in trained.progress if p.phase == 2]
    assert last > first + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 5, 9])
def test_a_training_that_was_killed_goes_on_bit_for_bit(train, tmp_path, monkeypatch, stop):
    """Killed in the middle of an iteration: before the first checkpoint, in phase 1, in phase 2."""
    unbroken = train(folder=tmp_path / "unbroken")
    iterations = count(1)

    class Killed(Controller):
        def observe(self, logits):
            if next(iterations) > stop:
                raise KeyboardInterrupt
            super().observe(logits)

    with monkeypatch.context() as patch:
        patch.setattr("gan.adversaries.Controller", Killed)
        with pytest.raises(KeyboardInterrupt):
            train()
    resumed = train()
    assert torch.equal(weights(resumed.plain), weights(unbroken.plain))
    assert torch.equal(weights(resumed.private), weights(unbroken.private))
    assert [*map(told, resumed.progress)] == [*map(told, unbroken.progress)]


@pytest.mark.slow
def test_a_kill_after_the_deadline_loses_nothing(train, tmp_path, monkeypatch):
    """Stopped between two checks, and killed after the next one: no loss is counted twice."""
    unbroken = train(folder=tmp_path / "unbroken")
    late = time.monotonic() + 1000

    class Stopped(Controller):
        def observe(self, logits):
            super().observe(logits)
            monkeypatch.setattr("gan.training.time.monotonic", lambda: late)

    monkeypatch.setattr("gan.adversaries.Controller", Stopped)
    with pytest.raises(TimeoutError):
        train()
    monkeypatch.undo()

    def killed(standing, limit):
        if standing.progress:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(report=killed)
    assert [*map(told, train().progress)] == [*map(told, unbroken.progress)]


@pytest.mark.slow
def test_the_deadline_loses_nothing(train, tmp_path, monkeypatch):
    """Stopped again and again after a few looks at the clock: nothing is lost or done twice."""
    unbroken = train(folder=tmp_path / "unbroken")
    clock = count()
    monkeypatch.setattr("gan.training.time.monotonic", lambda: float(next(clock)))
    stops = 0
    while True:
        try:
            resumed = train(deadline=float(next(clock)) + 3)
        except TimeoutError:
            stops += 1
        else:
            break
    assert stops > 3
    assert torch.equal(weights(resumed.private), weights(unbroken.private))
    assert [*map(told, resumed.progress)] == [*map(told, unbroken.progress)]


@pytest.mark.slow
def test_regularisation_comes_with_some_steps_only(train, micro, tmp_path, monkeypatch):
    """Of six steps every second has a gradient penalty and every third a path length."""
    done, steps = [], 0

    def watch(name):
        original = getattr(losses, name)

        def watched(*given):
            done.append((name, steps))
            return original(*given)

        monkeypatch.setattr(losses, name, watched)

    watch("r1")
    watch("path_lengths")

    class Counted(Controller):
        def observe(self, logits):
            nonlocal steps
            super().observe(logits)
            steps += 1

    monkeypatch.setattr("gan.adversaries.Controller", Counted)
    made: dict[float, int] = {}  # steps of the optimizer with this β₂

    class Adam(torch.optim.Adam):
        def step(self, closure=None):
            beta = round(self.param_groups[0]["betas"][1], 6)
            made[beta] = made.get(beta, 0) + 1
            return super().step(closure)

    monkeypatch.setattr(torch.optim, "Adam", Adam)
    train(privacy_weight=0.0)
    # Regularisation has steps of its own: 6 + 3 of the discriminator, 6 + 2 of the generator.
    assert made == {round(0.99 ** (2 / 3), 6): 9, round(0.99 ** (3 / 4), 6): 8}
    # A path length follows the controller, a gradient penalty precedes it.
    assert [step for name, step in done if name == "r1"] == [0, 2, 4]
    assert [step - 1 for name, step in done if name == "path_lengths"] == [0, 3]
    done.clear()
    train(
        preset=dataclasses.replace(micro, path_every=0), privacy_weight=0.0, folder=tmp_path / "no"
    )
    assert {name for name, _ in done} == {"r1"}


@pytest.mark.slow
def test_a_finished_training_is_returned_at_once(train):
    def never(*_):
        pytest.fail("trained again")

    first = train()
    again = train(distance=never, frechet=never, report=never, deadline=0.0)
    assert torch.equal(weights(first.plain), weights(again.plain))
    assert torch.equal(weights(first.private), weights(again.private))
    assert first.progress == again.progress


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_another_privacy_term_begins_where_phase_one_has_ended(train, tmp_path, weight):
    """Bit for bit as from the beginning, which it is where phase 1 is not the same."""
    phases = []

    def report(standing, limit):
        phases.append(standing.phase)

    scores = (1.0, 3.0, 2.0, 1.0)
    train(frechet=Scores(*scores), judged_by="scores")
    whole = train(privacy_weight=weight, frechet=Scores(*scores), folder=tmp_path / "whole")
    again = train(
        privacy_weight=weight,
        frechet=Scores(1.0),
        folder=tmp_path / "again",
        judged_by="scores",
        report=report,
    )
    assert phases == ([2] * 4 if weight else [])
    assert torch.equal(weights(again.plain), weights(whole.plain))
    assert [*map(told, again.progress)] == [*map(told, whole.progress)]
    if weight:
        assert torch.equal(weights(again.private), weights(whole.private))
    for other in ({"judged_by": "others"}, {"seed": 4}, {"fingerprint": "other images"}):
        phases.clear()
        given = {"judged_by": "scores", "folder": tmp_path / str(other), "report": report, **other}
        train(privacy_weight=weight, **given)
        assert phases[0] == 1


@pytest.mark.slow
def test_a_training_of_an_older_version_is_no_obstacle(train, tmp_path):
    """Its checks may have other figures."""
    train(judged_by="scores", folder=tmp_path / "old")
    path = tmp_path / "old" / "checkpoint.pt"
    old = torch.load(path)
    old["first-phase"] = "version 0, of other figures"
    old["standing"]["progress"] = [{"iteration": 1, "loss": 2.0}]
    torch.save(old, path)
    trained = train(privacy_weight=5.0, folder=tmp_path / "new", judged_by="scores")
    assert {each.phase for each in trained.progress} == {1, 2}


@pytest.mark.slow
def test_phase_one_is_not_taken_from_a_training_that_is_still_in_it(train, tmp_path):
    with pytest.raises(TimeoutError):
        train(judged_by="scores", deadline=0.0)
    trained = train(privacy_weight=5.0, folder=tmp_path / "again", judged_by="scores")
    assert {each.phase for each in trained.progress} == {1, 2}


@pytest.mark.slow
def test_global_generators_do_not_change(train):
    before = torch.get_rng_state()
    train()
    train()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_same_seed_same_images(train, tmp_path):
    one, two = train(folder=tmp_path / "1"), train(folder=tmp_path / "2")
    other = train(folder=tmp_path / "3", seed=4)
    assert torch.equal(weights(one.private), weights(two.private))
    assert not torch.equal(weights(one.private), weights(other.private))


@pytest.mark.slow
def test_missing_classes_are_never_drawn(train, monkeypatch):
    seen: set[int] = set()

    class Watched(Generator):
        def map(self, labels, z):
            seen.update(labels.tolist())
            return super().map(labels, z)

    monkeypatch.setattr("gan.adversaries.Generator", Watched)
    train()
    assert seen == {0, 2}


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_fewer_images_than_a_batch_and_colour(train, number):
    images = torch.randint(256, (number, 3, 8, 8), dtype=torch.uint8)
    trained = train(images, LABELS[:number])
    assert render(trained.private, torch.tensor([0, 2]), 0).shape == (2, 3, 8, 8)


def test_a_loss_that_is_not_finite_is_an_error(train, tmp_path):
    with pytest.raises(FloatingPointError, match="phase 2"):
        train(distance=lambda real, fake: pixel_distance(real, fake) * float("nan"))
    with pytest.raises(FloatingPointError, match="Fréchet distance nan"):
        train(frechet=Scores(float("nan")), folder=tmp_path / "other")


def flat(images):
    return from_bytes(images).flatten(1).double()


def gaussian_distance(one, other):
    """Fréchet distance of two sets of vectors [., D], taken for Gaussians."""
    gap = (one.mean(0) - other.mean(0)).square().sum()
    c, d = torch.cov(one.T), torch.cov(other.T)
    root = torch.linalg.eigvals(c @ d).real.clamp(min=0).sqrt().sum()
    return (gap + c.trace() + d.trace() - 2 * root).item()


def spread(images, labels):
    """Mean distance between images of the same class, averaged over classes."""
    groups = [flat(images[labels == k]) for k in labels.unique()]
    return torch.stack([torch.pdist(group).mean() for group in groups]).mean().item()


@pytest.mark.slow
def test_tiny_makes_digits_that_differ(train):
    """Half a minute on one core, at the digits' own 8 x 8 pixels, in fewer steps than the preset's.

    A classifier of real images recognises the synthetic ones, one of synthetic images recognises
    real ones, and images of a class differ nearly as much as real ones do.
    """
    digits, preset = load_digits(), PRESETS["tiny"].fit(8)
    preset = dataclasses.replace(preset, iterations=1000, privacy_iterations=50)
    images = (torch.from_numpy(digits.images) * 15.9375).to(torch.uint8)[:, None]
    labels = torch.from_numpy(digits.target).to(torch.int64)
    real, held_out, seen, wanted = images[:700], images[700:], labels[:700], labels[700:]
    trained = train(
        real,
        seen,
        classes=10,
        preset=preset,
        frechet=lambda made: gaussian_distance(flat(torch.cat([*made])), flat(real)),
        deadline=time.monotonic() + 600,
    )
    asked = balanced_labels(512, seen)
    made = render(trained.private, asked, 0)
    judge = SVC(C=10, gamma=0.01).fit(flat(real), seen)
    pupil = SVC(C=10, gamma=0.01).fit(flat(made), asked)
    assert judge.score(flat(made), asked) > 0.85
    assert pupil.score(flat(held_out), wanted) > 0.75
    assert spread(made, asked) > 0.65 * spread(real, seen)
