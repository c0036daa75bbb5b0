"""Buffers whose images are rendered from sets of codes, by real GANs of a few steps."""

import time
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch
from matplotlib.figure import Figure

from client_app.errors import ReleaseError
from client_app.hospital import open_hospital
from client_app.release.buffer import code_set, gan_sampler, make_buffer
from gan.code_sets import CODE_SETS
from gan.codes import EFFORTS, Source, render_codes
from gan.nearest import nearest
from gan.networks import to_bytes
from gan.presets import PRESETS
from learning.errors import DeadlineError
from strategies.protocol.settings import GANSettings, SettingsError
from tests.fakes import context, run_config

OF_SETS = {"set-distances.png", "set-nearest.png"}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("gan.quality.STEPS", 10)
    few = replace(PRESETS["tiny"], channels=(8, 6, 4), batch_size=8, fid_images=32)
    monkeypatch.setitem(PRESETS, "tiny", few)
    quick = replace(
        EFFORTS["tiny"],
        images=4,
        projection_steps=2,
        paths=1,
        points=4,
        path_steps=2,
        average_steps=2,
        network_steps=2,
    )
    monkeypatch.setitem(EFFORTS, "tiny", quick)


@pytest.fixture
def hospital(tmp_path):
    """One of 20 hospitals, with 72 digits to train on."""

    def opened(sampler, index=0, **overrides):
        own = {"gan__k": 2, "release__min_class_images": 2, **overrides}
        config = run_config(partition="iid", gan__iterations=2, gan__sampler=sampler, **own)
        return open_hospital(context(index, 20, config, **{"store-dir": str(tmp_path / "store")}))

    return opened


def soon():
    return time.monotonic() + 300


def test_an_average_of_more_images_than_are_projected_is_refused(hospital):
    with pytest.raises(SettingsError, match=r"'gan.k' is 5; it must be at most 4, the images"):
        make_buffer(hospital("k-salsa", gan__k=5), 20, soon())


@pytest.mark.slow
def test_linear_and_plan_write_a_curve_of_fig_3_6(hospital):
    """A path has four points here."""
    curves = []
    for name in ("linear", "plan"):
        make_buffer(hospital(name), 20, soon())
        (folder,) = (hospital(name).store.folder / "gan").iterdir()
        rows = (folder / name / "path-distances.csv").read_text("utf-8").splitlines()
        curves.append([float(row.split(",")[1]) for row in rows[1:]])
    assert [len(each) for each in curves] == [4, 4]
    assert all(distance > 0 for curve in curves for distance in curve)


@pytest.mark.slow
def test_samplers_share_a_gan_and_have_buffers_and_pictures_of_their_own(hospital):
    random, made = (make_buffer(hospital(name), 20, soon()) for name in ("random", "lci"))
    (folder,) = (hospital("random").store.folder / "gan").iterdir()
    assert not torch.equal(random.samples.images, made.samples.images)
    assert torch.bincount(made.samples.labels).tolist() == [2] * 10
    assert made.figures["mml-untrained-squeeze"] > 0
    assert made.figures["frechet-classifier"] != random.figures["frechet-classifier"]
    assert {path.name for path in (folder / "lci").iterdir()} == {"buffer.png"} | OF_SETS
    assert not OF_SETS & {path.name for path in folder.iterdir()}
    assert len(list(folder.glob("*.npz"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("sampler", CODE_SETS)
def test_every_sampler_makes_a_buffer_that_leaves(sampler, hospital):
    made = make_buffer(hospital(sampler), 20, soon())
    assert made.figures["release-passed"] == 1
    assert torch.bincount(made.samples.labels).tolist() == [2] * 10


@pytest.mark.slow
def test_a_deadline_is_kept_and_codes_that_were_found_are_not_looked_for_again(
    hospital, monkeypatch
):
    """The deadline passes after the first piece."""
    place, once = hospital("lci"), Source.make_once
    looked_for = []

    def piece(source, name, make, *given):
        def made():
            looked_for.append(name)
            if len(looked_for) == 2:
                raise TimeoutError
            return make(*given)

        return once(source, name, made)

    monkeypatch.setattr(Source, "make_once", piece)
    with pytest.raises(DeadlineError, match="continues at the next request"):
        make_buffer(place, 20, soon())
    assert len(make_buffer(place, 20, soon()).samples) == 20
    assert looked_for[1] == looked_for[2]  # the one that was not finished
    assert len(set(looked_for)) == len(looked_for) - 1


@pytest.mark.slow
def test_a_code_that_was_refused_is_not_drawn_again(hospital, monkeypatch):
    """Two of a class are wanted of three codes; the audit refuses the first image of each class."""
    drawn = []

    def render(generator, codes, seed):
        drawn.append(codes[:, 0].tolist())
        rng = torch.Generator().manual_seed(seed)
        return torch.randint(256, (len(codes), 1, 8, 8), dtype=torch.uint8, generator=rng)

    place = hospital("lci", release__max_discarded=0.9)
    codes = {k: torch.arange(3.0)[:, None] + 10 * k for k in range(10)}
    monkeypatch.setattr(gan_sampler, "code_set", lambda *_: codes)
    monkeypatch.setattr(gan_sampler, "render_codes", render)
    sampler = gan_sampler.GANSampler(_job(place, monkeypatch))
    drawn.clear()  # what was judged
    labels = torch.arange(10).repeat(2)
    sampler.render(labels, 1)
    sampler.render(labels[:10], 2)
    assert len({code for call in drawn for code in call}) == 30


@pytest.mark.slow
def test_the_picture_of_a_set_is_made_of_parts_and_is_that_of_the_whole(hospital, monkeypatch):
    """A set of LCI may be too large for the memory."""
    given, rows, curves, sizes = [], [], [], []

    def compare(real, made, distance):
        sizes.append(len(made))
        return nearest(real, made, distance)

    def plot(name, distances):
        curves.append(distances)
        return Figure()

    with monkeypatch.context() as patch:
        patch.setattr(code_set, "_draw", lambda *arguments: given.append(arguments))
        make_buffer(hospital("lci"), 20, soon())
    job, source, codes = given[0]
    monkeypatch.setattr("gan.codes.BLOCK", 8)
    monkeypatch.setattr("gan.codes.PART", 16)
    monkeypatch.setattr(code_set, "nearest", compare)
    monkeypatch.setattr(code_set, "save_grid", lambda path, images, *_: rows.append(images))
    monkeypatch.setattr(code_set, "histogram", plot)
    code_set._draw(job, source, codes)
    everything = render_codes(source.generator, torch.cat([*codes.values()]), job.seed)
    assert len(sizes) > 1
    assert sizes == list(map(len, everything.split(16)))
    far, which = nearest(to_bytes(source.images), everything, job.distance)
    assert curves[0]["nearest"] == pytest.approx(far.tolist(), rel=1e-5)
    examples = torch.linspace(0, len(far) - 1, 8).long()
    assert torch.equal(rows[0][-8:], everything[which[examples]])


def _job(place, monkeypatch):
    """The job that a buffer of the hospital is made in."""
    jobs = []

    def stop(job):
        jobs.append(job)
        raise ReleaseError

    with monkeypatch.context() as patch:
        patch.setattr("client_app.release.buffer.make", stop)
        with pytest.raises(ReleaseError):
            make_buffer(place, 20, soon())
    return jobs[0]


def test_every_sampler_is_a_setting_and_every_preset_says_how_to_search():
    choices = get_args(get_type_hints(GANSettings)["sampler"])
    assert choices == ("random", *CODE_SETS)
    assert EFFORTS.keys() == PRESETS.keys()


def test_clusters_are_dealt_out_to_simulated_hospitals(hospital):
    dealt = [hospital("lci", index, gan__clusters="10,20") for index in range(3)]
    assert [each.settings.gan.clusters for each in dealt] == ["10", "20", "10"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"gan__sampler": "lcy"}, "'gan.sampler' is 'lcy'; it must be one of random, linear, plan"),
        ({"gan__k": 1}, "'gan.k' is 1; it must be 2 or more"),
        ({"gan__clusters": "1"}, "'gan.clusters' is '1'; it must be numbers of 2 or more"),
        ({"gan__kl": "both"}, "'gan.kl' is 'both'; it must be one of uniform, printed"),
    ],
)
def test_what_cannot_be_is_refused(overrides, words):
    with pytest.raises(SettingsError, match=words):
        open_hospital(context(0, 20, run_config(**overrides)))
