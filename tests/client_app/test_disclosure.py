"""What a hospital says of its images, apart from who asks (tests/adversary/test_oracle.py)."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from audit.copies import HELD_OUT
from client_app.authority.identity import secret_of
from client_app.authority.policy import Policy
from client_app.datasets import LocalData
from client_app.datasets.pool import LocalSamples, large_class_rows, least_patients
from client_app.release.disclosure import WORST, Exact, Noised, open_disclosure
from client_app.release.noise import COARSEST, SEPARATION, Noise, effects, step_of
from client_app.store import Store
from learning.evaluation import count_right, score
from learning.models import Architecture
from strategies.protocol.order import Order
from tests.fakes import settings


def of(tmp_path, labels, groups=None, policy="", classes=3, **config) -> Noised:
    """The disclosure of a hospital with such test images; an empty policy has the defaults."""
    (tmp_path / "policy.toml").write_text(policy, "utf-8")
    labels = torch.tensor(labels)
    samples = LocalSamples(
        torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8),
        labels,
        groups=None if groups is None else np.array(groups),
    )
    data = LocalData(samples, samples, tuple(map(str, range(classes))))
    hospital = SimpleNamespace(
        data=data,
        policy=Policy.read(tmp_path / "policy.toml"),
        store=Store(tmp_path),
        settings=settings(**config),
    )
    order, run = Order(1, 1, "graz", [], "plain", "1"), Store(tmp_path / "runs/1")
    clock = SimpleNamespace(deadline=math.inf)
    request: Any = SimpleNamespace(hospital=hospital, seal=None, run=run, order=order, clock=clock)
    found = open_disclosure(request)
    assert isinstance(found, Noised)
    return found


def saying(labels, classes=3):
    """Scores [n, K] of a model that says these labels."""
    return torch.eye(classes)[torch.tensor(labels)]


def test_figures_are_about_classes_of_enough_patients(tmp_path):
    """Class 1 has 200 images of nine patients, class 2 nine images of as many."""
    labels = [0] * 400 + [1] * 200 + [2] * 9
    groups = [*range(400), *(400 + k % 9 for k in range(200)), *range(500, 509)]
    figures = of(tmp_path, labels, groups)
    assert len(figures.labels) == 400
    told = figures.test_figures("m", saying(labels), per_class=True)
    assert set(told) == {
        *("num-examples", "accuracy", "balanced-accuracy"),
        *("accuracy-noise", "balanced-accuracy-noise"),
        *("images-of-class-0", "right-of-class-0"),
    }
    wrong = [0] * 400 + [2] * 209
    assert figures.test_figures("m", saying(wrong), per_class=True) == told


def test_an_image_without_finite_scores_is_answered_wrongly(tmp_path):
    labels = [0] * 400 + [1] * 400
    told = of(tmp_path, labels).test_figures("m", torch.full((800, 3), math.nan), per_class=True)
    shares = [told[name] for name in ("accuracy", "balanced-accuracy", "auroc")]
    shares += [told[f"right-of-class-{k}"] / told[f"images-of-class-{k}"] for k in (0, 1)]
    assert max(shares) < 0.1  # each has noise


def test_of_too_few_patients_nothing_is_said(tmp_path):
    labels = [0] * 9 + [1] * 9
    figures = of(tmp_path, labels)
    assert len(figures.labels) == 0
    assert figures.test_figures("m", saying(labels), per_class=True) == {}


def test_a_patient_with_many_images_counts_once():
    labels, patients = np.array([0, 0, 0, 1, 1]), np.array([1, 1, 2, 1, 3])
    assert large_class_rows(patients, labels, 2).tolist() == [0, 1, 2, 3, 4]
    assert large_class_rows(patients, labels, 3).tolist() == []


def test_a_rule_on_chosen_classes_sees_whole_groups_and_never_more_patients():
    rng = np.random.default_rng(0)
    for _ in range(20):
        patients, strata = rng.integers(0, 90, 200), rng.integers(0, 4, 200)
        assert 0 < least_patients(patients, strata, 10) <= len(np.unique(patients))
    for sizes in ([20, 30], [24, 39], [29, 31]):
        strata = np.repeat([0, 1], sizes)
        assert least_patients(np.arange(len(strata)), strata, 10) == 50


def test_effects_are_those_of_the_worst_case():
    """A model is wrong about all images of one patient, or right: no figure changes by more.

    Of the AUROC the effect is a bound, since pairs of the patient's own images count twice in it.
    """
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([0, 1, 3], [12, 5, 7]))
    patients = rng.integers(0, 9, len(labels))
    truth, others = torch.from_numpy(labels), torch.from_numpy(rng.uniform(0.2, 0.8, (24, 4)))
    largest: dict[str, float] = {}
    for patient in range(9):
        own = torch.from_numpy(patients == patient)
        told = []
        for right in (0.0, 1.0):
            scores = others.clone()
            scores[own] = 1 - right
            scores[own, truth[own]] = right
            counts = count_right(scores, truth)
            shares = {f"right-of-class-{k}": counts[f"right-of-class-{k}"] for k in (0, 1, 3)}
            sizes = {f"right-of-class-{k}": counts[f"images-of-class-{k}"] for k in (0, 1, 3)}
            recalls = {name: right / sizes[name] for name, right in shares.items()}
            told.append(score(scores, truth) | recalls)
        changes = {name: abs(told[1][name] - told[0][name]) for name in told[0]}
        largest = {name: max(change, largest.get(name, 0)) for name, change in changes.items()}
    for name, effect in effects(patients, labels).items():
        least = 0.8 if name == "auroc" else 0.999
        assert least * effect <= largest[name] <= effect + 1e-9, name


def test_steps_follow_the_number_of_patients_and_of_models():
    assert step_of(1 / 64) == 1 / 16  # the standard error of a half of 64
    assert step_of(1 / 64, 256) == 1 / 16  # four models for each patient are free
    assert step_of(1 / 64, 1024) == 1 / 8
    assert step_of(1 / 90) == step_of(1 / 64)  # which of these it is, a step does not tell


FIGURES = {
    **{"release-median-rank": 0.12345, "held-out-refused": 0.0123, "release-nearer-p": 0.12345},
    **{"projection-plain-lpips-vgg": 0.5, "fid": 123.4, "release-nearer-to-training": 0.5},
    **{"release-passed": 1.0, "gan-iterations": 120.0, "release-refused": 0.0},
    **{"release-discarded": 0.01, "mml-lpips-vgg": 0.5, "diversity-real-lpips-vgg": 0.5},
}
ALWAYS = {"release-passed": 1.0, "gan-iterations": 120.0, "release-refused": 0.0}
MEDIAN = "release-median-rank"
SHOWN = torch.tensor([0, 1] * 256)  # the labels of a buffer
OVER_A_BUFFER = {"release-discarded", "mml-lpips-vgg", "diversity-real-lpips-vgg"}
OVER_A_BUFFER |= {"release-nearer-to-training", "release-nearer-p"}
OF_ALL = {"fid", "held-out-refused"} | OVER_A_BUFFER


# Patients to train on and to test on, and the figures that leave then.
@pytest.mark.parametrize(
    ("patients", "projections", "leave"),
    [
        (9, 50, set()),
        (10, 0, OF_ALL),
        (20, 9, OF_ALL | {MEDIAN}),
        (20, 10, {*FIGURES}),
        (500, 10**6, {*FIGURES}),
    ],
)
def test_a_buffer_s_figures_are_about_enough_patients(patients, projections, leave, tmp_path):
    """Of twenty patients ten are on either side of a median. No figure is exact, nor far off."""
    config = {"gan__projections": projections}
    labels, groups = [0, 1] * patients, [*range(patients)] * 2
    told = of(tmp_path, labels, groups, **config).buffer_figures(FIGURES, SHOWN)
    assert told.keys() == leave | ALWAYS.keys()
    assert {name: told[name] for name in ALWAYS} == ALWAYS
    step = step_of(1 / 500, 20)
    for name in told.keys() - ALWAYS.keys() if patients == 500 else ():
        least = 0.5 if name == "fid" else 0  # a distance: in proportion
        assert told[name] != FIGURES[name]
        assert least * FIGURES[name] <= told[name] <= FIGURES[name] * (1 + least) + 5 * step


@pytest.mark.parametrize(
    ("size", "stay"), [(9, OVER_A_BUFFER | {MEDIAN}), (10, {MEDIAN}), (20, set())]
)
def test_a_figure_of_a_small_buffer_is_about_as_many_patients(size, stay, tmp_path):
    """A run chooses the size: a mean over four images is about four of 500 patients."""
    figures = of(tmp_path, [0, 1] * 500, [*range(500)] * 2, gan__projections=100)
    assert figures.buffer_figures(FIGURES, SHOWN[:size]).keys() == FIGURES.keys() - stay


@pytest.mark.parametrize(("ill", "leave"), [(9, {"held-out-refused"}), (20, {*FIGURES})])
def test_a_buffer_of_one_class_is_about_the_patients_of_this_class(ill, leave, tmp_path):
    """A run leaves out classes (release.min-class-images): of 500 patients the buffer shows 9."""
    figures = of(tmp_path, [1] * ill + [0] * 500, gan__projections=100)
    told = figures.buffer_figures(FIGURES, torch.ones(512, dtype=torch.int64))
    assert told.keys() == leave | ALWAYS.keys()


@pytest.mark.parametrize(
    ("name", "patients", "scale"),
    [
        ("release-nearer-to-training", 500, float),
        ("held-out-refused", HELD_OUT, float),
        ("fid", 500, math.log),
    ],
)
def test_a_buffer_s_figures_have_noise_of_one_step(name, patients, scale, tmp_path):
    """Rounded to whole steps; the rounding adds a twelfth to the variance."""
    figures = of(tmp_path, [0, 1] * 500, [*range(500)] * 2, policy="figures.max-detailed = 100")
    figures.noise = Noise(b"secret")
    step = step_of(1 / patients, 100)
    asked = [{name: 0.5, "gan-iterations": float(k)} for k in range(100)]
    steps = np.array([scale(figures.buffer_figures(each, SHOWN)[name]) for each in asked]) / step
    assert steps == pytest.approx(np.round(steps))
    assert np.mean(steps) == pytest.approx(scale(0.5) / step, abs=0.3)
    assert np.std(steps) == pytest.approx(math.sqrt(13 / 12), rel=0.15)


def test_figures_leave_of_so_many_buffers_and_no_more(tmp_path):
    """A server can order one after the other; of one that it orders again the same is told."""
    figures = of(tmp_path, [0, 1] * 100, policy="figures.max-detailed = 2")
    told = [figures.buffer_figures({**FIGURES, "fid": float(k)}, SHOWN) for k in (1, 2, 3, 1)]
    assert ["fid" in each for each in told] == [True, True, False, True]
    assert told[2] == ALWAYS
    assert told[3] == told[0]


def test_a_guarantee_is_not_rounded_down(tmp_path):
    bounds = {"gan-epsilon": 1.2449, "gan-delta": 1.2449e-05}
    assert of(tmp_path, [0, 1] * 100).buffer_figures(bounds, SHOWN) == bounds


def test_one_owner_s_figures_of_a_buffer_are_exact(tmp_path):
    figures = of(tmp_path, [0, 1])
    assert Exact(figures.request).buffer_figures(FIGURES, SHOWN) == FIGURES


EMBEDDINGS = {
    **{"embedding-linked": 0.0612, "embedding-inverted": 0.0334},
    **{"embedding-bits-most": 33.3, "embedding-bits-median": 15.69},
}


@pytest.mark.parametrize(
    ("patients", "leave"),
    [
        (9, {}),
        (19, {"embedding-linked": 0.0, "embedding-inverted": 0.033}),
        (
            100,
            {
                "embedding-linked": 0.1,
                "embedding-inverted": 0.033,
                "embedding-bits-median": 16.0,
            },
        ),
    ],
)
def test_figures_of_embeddings_are_about_enough_patients(patients, leave, tmp_path):
    """Of each patient two embeddings leave; six of a hundred are linked, about one group."""
    groups = [*range(200)] * 2
    figures = of(tmp_path, [0, 1] * 200, groups)
    rows = np.array([*range(patients), *range(200, 200 + patients)])
    assert figures.embedding_figures(EMBEDDINGS, rows) == leave
    assert Exact(figures.request).embedding_figures(EMBEDDINGS, rows) == EMBEDDINGS


@pytest.mark.parametrize("linked", [0, 10, 20])
def test_linked_embeddings_tell_no_exact_number_of_patients(linked, tmp_path):
    """Of 48 patients and of 52 the same leaves: ten of fifty."""
    figures = of(tmp_path, [0, 1] * 200)
    told = [
        figures.embedding_figures({"embedding-linked": linked / count}, np.arange(count))
        for count in (46, 48, 52, 54)
    ]
    assert told == [{"embedding-linked": linked / 50}] * 4


def test_no_figure_of_embeddings_is_about_a_class_of_few_patients(tmp_path):
    """Class 1 has five patients."""
    labels, groups = [0] * 200 + [1] * 5, [*range(205)]
    figures = of(tmp_path, labels, groups)
    assert figures.embedding_figures(EMBEDDINGS, np.arange(200))
    assert figures.embedding_figures(EMBEDDINGS, np.arange(201)) == {}


def test_what_could_not_be_measured_of_embeddings_is_not_told(tmp_path):
    figures = of(tmp_path, [0, 1] * 200)
    unmeasured = {"embedding-linked": float("nan"), "embedding-inverted": float("nan")}
    assert figures.embedding_figures(unmeasured, np.arange(100)) == {}
    assert Exact(figures.request).embedding_figures(unmeasured, np.arange(100)) == {}


@pytest.mark.slow
def test_figures_are_right_on_the_average_in_whole_steps_and_the_same_again(tmp_path):
    labels = [0, 1] * 200
    figures = of(tmp_path, labels, classes=2)
    model = saying([0, 1] * 120 + [1, 0] * 80, 2)
    told = [figures.test_figures(str(k), model)["accuracy"] for k in range(4000)]
    step = step_of(1 / 400, 1000)
    multiples = np.array(told) / step
    assert np.allclose(multiples, np.round(multiples), atol=1e-9)
    assert np.mean(told) == pytest.approx(0.6, abs=4 * step / np.sqrt(4000))
    assert np.std(told) == pytest.approx(step, rel=0.1)
    assert [figures.test_figures(str(k), model)["accuracy"] for k in range(9)] == told[:9]


def test_figures_are_shares_where_noise_would_lead_out_of_them(tmp_path):
    labels = [0, 1] * 50
    figures = of(tmp_path, labels, classes=2)
    told = [figures.test_figures(str(k), saying(labels, 2))["accuracy"] for k in range(50)]
    assert max(told) == 1
    assert min(told) < 1


def test_what_would_be_too_coarse_is_not_said(tmp_path):
    """The area under the ROC curve of ten patients against a hundred."""
    labels = [0] * 100 + [1] * 10
    assert step_of(effects(np.arange(110), np.array(labels))["auroc"], 1000) > COARSEST
    told = of(tmp_path, labels).test_figures("m", saying(labels))
    assert set(told) == {"num-examples", "accuracy", "accuracy-noise"}
    few = of(tmp_path, labels, policy="figures.max-models = 50")
    assert "auroc" in few.test_figures("m", saying(labels))


def test_the_secret_is_the_hospital_s_own(tmp_path):
    first, second = (of(tmp_path, [0, 1] * 20) for _ in range(2))
    assert first.noise.secret == second.noise.secret
    path = tmp_path / "figures-secret"
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    assert secret_of(Store(tmp_path)) != first.noise.secret


class Looking(torch.nn.Module):
    """Gives images without a white first pixel the class 0, and is sure that others are of it."""

    def forward(self, images):
        sure = torch.where(images[:, 0, 0, 0] == 255, 1e6, 0.0)
        return torch.stack([sure, torch.zeros(len(images))], dim=1)


def test_what_one_image_loses_in_a_training_loss_is_cut(tmp_path):
    """All lose what guessing does, log 2, but one, which loses a million."""
    figures = of(tmp_path, [0, 1] * 200, policy="figures.max-models = 10\n", classes=2)
    before = figures.loss_figures("m", Looking())["train-loss"]
    figures.data.train.pixels[1, 0, 0, 0] = 255
    after = figures.loss_figures("m", Looking())["train-loss"]
    step = WORST * math.log(2) * step_of(1 / 400, 10)
    assert abs(after - before) < 1.01 * step
    assert before == pytest.approx(math.log(2), abs=4 * step)
    assert before != math.log(2)


def test_a_training_loss_is_about_classes_of_enough_patients(tmp_path):
    """Class 1 has 200 images of nine patients: what they are is in no loss."""
    labels, groups = [0] * 400 + [1] * 200, [*range(400), *(400 + k % 9 for k in range(200))]
    figures = of(tmp_path, labels, groups, classes=2)
    before = figures.loss_figures("m", Looking())
    figures.data.train.pixels[400:] = 255
    assert figures.loss_figures("m", Looking()) == before
    assert before
    assert of(tmp_path, labels[400:], groups[400:], classes=2).loss_figures("m", Looking()) == {}


def test_prototypes_are_of_classes_of_enough_patients(tmp_path):
    """Class 0 has 14 patients, class 1 nine with 40 images, class 2 none."""
    labels, groups = [0] * 14 + [1] * 40, [*range(14), *(100 + k % 9 for k in range(40))]
    few = "figures.max-models = 1\n"
    torch.manual_seed(0)
    network: Any = Architecture("rotation-mlp", 1, 2, 2, 3, (2,)).build()
    figures = of(tmp_path, labels, groups, few)
    figures.noise = Noise(b"secret")  # by chance noise may cancel a mean
    told = figures.prototypes("m", network)
    assert told["counts"].tolist() == [10, 0, 0]
    assert told["means"].any(dim=1).tolist() == [True, False, False]
    figures = of(tmp_path, labels, groups, few + "figures.smallest-group = 9\n")
    assert figures.prototypes("m", network)["counts"].tolist() == [18, 36, 0]
    assert of(tmp_path, labels[14:], groups[14:], few).prototypes("m", network) == {}
    # Noise for a thousand models would leave nothing of a mean of fourteen.
    assert of(tmp_path, labels, groups).prototypes("m", network) == {}


@pytest.mark.parametrize("bright", [1, 1000])
def test_one_patient_of_many_images_moves_a_mean_once_and_not_far(bright, tmp_path):
    """Of twenty patients one has a hundred white images, the others have a black one each.

    The mean of what models say of them, without noise, is 1 / 20 of one image, each pixel of which
    is half as long as the image is.
    """
    labels, groups = [0] * 120, [*range(20), *[0] * 100]
    figures = of(tmp_path, labels, groups, "figures.max-models = 1\n", classes=1)
    figures.noise = Noise(b"secret")
    figures.data.train.pixels[torch.tensor(groups) == 0] = 255
    network: Any = Architecture("rotation-mlp", 1, 2, 2, 1, (4,)).build()
    with torch.no_grad():
        network.get_parameter("body.1.weight").copy_(bright * torch.eye(4))
        network.get_parameter("body.1.bias").zero_()
    told = [figures.prototypes(str(k), network)["means"][0] for k in range(400)]
    longest, step = 2 * bright, step_of(2 / 20, 1)
    mean, spread = torch.stack(told).mean() / longest, torch.stack(told).std() / longest
    assert mean == pytest.approx(1 / 20 / 2, abs=0.01)
    assert spread == pytest.approx(step, rel=0.15)


@pytest.mark.parametrize("classes", [1, 2])
def test_no_patient_moves_the_radius_of_prototypes_far(tmp_path, monkeypatch, classes):
    """Neighbours are alike in pairs; without one patient the next pairs were all unlike.

    With two classes each patient has an image of each.
    """
    told: dict[str, tuple[float, float]] = {}

    def share(noise, name, model, value, step):
        told[name] = value, step
        return value

    monkeypatch.setattr(Noise, "share", share)
    network: Any = Architecture("rotation-mlp", 1, 2, 2, classes, (4,)).build()
    monkeypatch.setattr(network, "features", lambda pixels: pixels.flatten(1).double())
    patients, most = 100, 1000
    pixels = torch.zeros(patients, 1, 2, 2, dtype=torch.uint8)
    pixels[0::4, 0, 0, 0] = pixels[1::4, 0, 0, 0] = 255
    pixels[2::4, 0, 1, 1] = pixels[3::4, 0, 1, 1] = 255

    def release(kept):
        labels = [k for k in range(classes) for _ in kept]
        figures = of(tmp_path, labels, kept * classes, classes=classes)
        figures.data.train.pixels[:] = pixels[kept].repeat(classes, 1, 1, 1)
        assert figures.prototypes("m", network)
        return told["radius"]

    whole, step = release([*range(patients)])
    for gone in range(0, patients, 3):
        rest, _ = release([k for k in range(patients) if k != gone])
        assert abs(whole - rest) * math.sqrt(most) / SEPARATION <= step, gone
