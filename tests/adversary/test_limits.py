"""A server that decides on whom a model is trained, or that changes a run's terms on its way."""

import time
from dataclasses import replace
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from client_app import parcels
from client_app.app import app
from client_app.authority.limits import check_model
from client_app.authority.policy import Policy, PolicyError
from client_app.release import buffer
from client_app.release.buffer.job import Job, Release
from client_app.run import check_newest, count_model, count_visit
from client_app.store import Store, disk_used
from learning.augmentation import Draws
from learning.learners.plain import Learner
from learning.models import Architecture
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, bundle
from strategies.protocol.records import ParcelError, to_record
from tests.adversary.test_oracle import OPEN, Victim
from tests.fakes import deployed, run_config

SIZES = (60, 60, 60)


def visited(folder, policy=OPEN, task=0, sizes=SIZES, **config):
    """What a hospital of 180 patients answers when it is to join, and when it is to train."""
    victim = Victim(folder, sizes, policy)
    victim.place.run_config |= run_config(strategy="cwt", num_server_rounds=9, **config)
    code = {"code": code_hash(), "round": 0, "hop": 0}
    learner = config.get("learner", "plain")
    joins = victim.ask("query.enrol", {}, learner=learner, **code)
    model = victim.constant(0)
    return joins, victim.ask("train", model, learner=learner, epochs=1, task=task)


def test_a_usual_run_trains_on_them(tmp_path):
    assert not any(answer.has_error() for answer in visited(tmp_path))


@pytest.mark.parametrize(
    ("rule", "config"),
    [
        ("min-batch", {"train__batch_size": 2}),
        ("min-batch", {"reservoir__batch_size": 2, "learner": "er-ace"}),
        ("min-train-patients", {"reservoir__size": 2, "learner": "derpp"}),
    ],
)
def test_a_server_does_not_choose_to_train_on_few(rule, config, tmp_path, caplog):
    assert {answer.error.code for answer in visited(tmp_path, **config)} == {Failure.POLICY}
    assert rule in caplog.text


def test_a_share_of_a_task_is_never_a_few_images(tmp_path, monkeypatch):
    """A share of 1e-9 kept one image and replayed it at each step. The policy says 40 and 8."""
    drawn = []
    draw = Draws.draw

    def note(draws, samples, count):
        drawn.append((count, len(samples)))
        return draw(draws, samples, count)

    monkeypatch.setattr(Draws, "draw", note)
    victim = Victim(tmp_path, SIZES)
    config = {"learner": "rehearsal", "rehearsal__share": 1e-9, "tasks": 2, "task_cut": "permuted"}
    victim.place.run_config |= run_config(strategy="cwt", num_server_rounds=2, **config)
    for task in (1, 2):
        model = victim.constant(0)
        answer = victim.ask("train", model, learner="rehearsal", epochs=1, task=task)
        assert not answer.has_error(), answer.error
    counts, kept = zip(*drawn, strict=True)
    assert (min(counts), {*kept}) == (8, {40})


def test_a_server_does_not_choose_means_of_few_images(tmp_path, caplog):
    policy = f"{OPEN}[sums]\nmin-class-patients = 21\n"
    answers = visited(tmp_path, policy, learner="icarl", reservoir__size=62)
    assert {answer.error.code for answer in answers} == {Failure.POLICY}
    assert "sums.min-class-patients allows 21 or more; the value is 20" in caplog.text


def test_a_server_does_not_fill_the_memory_with_kept_images(tmp_path, caplog):
    """100,000 images of 16 bytes are 1.6 MB; the usual run takes 806.9 MB, by its tests."""
    policy = f"{OPEN}[machine]\nmax-memory-gb = 0.808\n"
    for folder in (tmp_path / "usual", tmp_path / "large"):
        folder.mkdir()
    usual = visited(tmp_path / "usual", policy, learner="er-ace")
    assert not any(answer.has_error() for answer in usual)
    joins, _ = visited(tmp_path / "large", policy, learner="er-ace", reservoir__size=100_000)
    assert joins.error.code == Failure.POLICY
    assert "machine.max-memory-gb" in caplog.text


def test_nor_with_masks_beside_the_images(tmp_path, caplog):
    """Without masks it would be 808.5 MB; the masks of an image are 18 times as large as it."""
    policy = f"{OPEN}[machine]\nmax-memory-gb = 0.82\n"
    config = {"learner": "twf", "model": "cnn", "reservoir__size": 100_000}
    joins, _ = visited(tmp_path, policy, **config)
    assert joins.error.code == Failure.POLICY
    assert "machine.max-memory-gb" in caplog.text


def test_a_server_does_not_fill_the_disk_with_kept_images(tmp_path):
    """In this order of hops, the images of no visit are discarded."""
    policy = f"{OPEN}[machine]\nmax-disk-gb = 0.001\n"
    victim = Victim(tmp_path, SIZES, policy)
    config = {"learner": "er-ace", "reservoir__size": 100_000, "train__epochs": 50}
    victim.place.run_config |= run_config(strategy="cwt", num_server_rounds=9, **config)
    answers = [
        victim.ask("train", victim.constant(0), learner="er-ace", epochs=50, hop=hop)
        for hop in range(9, 0, -1)
    ]
    assert not answers[0].has_error()
    assert answers[-1].error.code in (Failure.POLICY, Failure.LEDGER)
    assert disk_used(tmp_path / "store") < 1.3e6


def test_kept_features_count_with_four_bytes_for_each_number():
    """A million vectors of 1,000 float32 take 4 GB more than none."""
    policy = Policy.read()
    policy = replace(policy, machine=replace(policy.machine, max_memory_gb=0.0))
    head = Architecture("mlp", 3, 8, 8, 2).head(1000).to_json()
    needed: list[Any] = []
    for kept in (0, 1_000_000):
        with pytest.raises(PolicyError) as refusal:
            check_model(policy, head, RecordDict(), kept=kept)
        needed.append(refusal.value.requested)
    assert needed[1] - needed[0] == pytest.approx(4.0)


@pytest.mark.parametrize("verb", ["query.prepare", "train", "evaluate"])
def test_an_order_without_classes_does_not_go_round_those_of_the_run(verb, tmp_path):
    """Neither as the first one, nor after one that named all classes."""
    victim = Victim(tmp_path, SIZES, config={"strategy": "cwt"})
    sent = bundle({"m": victim.constant(0)}) if verb == "evaluate" else victim.constant(0)
    codes = []
    for classes in ([], victim.classes, []):
        answer = victim.ask(verb, sent, classes=classes, epochs=int(verb == "train"))
        codes.append(answer.error.code if answer.has_error() else None)
    assert codes == [Failure.PARCEL, None, Failure.PARCEL]


def test_the_models_of_earlier_epochs_count_for_the_memory(tmp_path, monkeypatch):
    """The hospital keeps them until the visit ends."""
    counted = []
    monkeypatch.setattr(parcels, "check_model", lambda *given: counted.append(given[5]))
    victim = Victim(tmp_path, SIZES)
    victim.place.run_config |= run_config(strategy="cwt-serial", evaluate__epochs=True)
    for snapshots in (False, True):
        victim.ask("train", victim.constant(0), epochs=3, snapshots=snapshots)
    assert counted == [0, 3]


@pytest.mark.parametrize(("size", "outcome"), [(4, Failure.PARCEL), (100_000, Failure.POLICY)])
def test_a_server_does_not_fill_the_memory_with_buffers(size, outcome, tmp_path):
    """Black images travel in few bytes. Small buffers are only missed: the hospital has none."""
    policy = "[release]\nmax-images = 100_000\n[machine]\nmax-memory-gb = 0.12\n"
    victim = Victim(tmp_path, SIZES, OPEN + policy)
    victim.place.run_config |= run_config(
        strategy="feder", num_server_rounds=9, feder__buffer_size=size
    )
    replay = [f"{maker}={'0' * 64}" for maker in range(20)]
    order = {"learner": "feder", "epochs": 1, "buffer_size": size, "replay": replay}
    assert victim.ask("train", victim.constant(0), **order).error.code == outcome


@pytest.fixture
def made(monkeypatch):
    """The jobs of buffers that a hospital began to make."""
    jobs: list[Job] = []

    def make(job):
        jobs.append(job)
        return Release(job.learnt[: job.size], {"release-passed": 1.0})

    monkeypatch.setattr(buffer, "make", make)
    return jobs


def prepared(victim, run, **config):
    """What a hospital answers in a run that asks for its buffer."""
    asked = run_config(strategy="feder", feder__buffer_size=8, model="mlp")
    victim.place.run_config |= asked | run_config(**config)
    size = victim.place.run_config["feder.buffer-size"]
    return victim.ask("query.prepare", {}, learner="feder", buffer_size=size, run=run)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"feder__buffer_size": 9},
        {"gan__sampler": "linear"},
        {"gan__preset": "small"},
        {"gan__privacy_weight": 0.7},
        {"gan__method": "dp-mean-embedding"},
        {"release__quantile": 0.02},
        {"release__shadow_generators": 2},
    ],
    ids=str,
)
def test_no_setting_gets_more_buffers_of_the_same_patients(change, tmp_path, made, caplog):
    """With every run another one left, as many as a server asked for."""
    victim = Victim(tmp_path, SIZES, f"{OPEN}[release]\nmax-buffers = 1\n")
    assert not prepared(victim, "1").has_error()
    refused = prepared(victim, "2", **change)
    assert refused.error.code == Failure.RELEASE
    assert "Use the seed and the settings of an earlier run, or wait a day." in refused.error.reason
    assert "release.max-buffers allows 1 or fewer; the value is 2." in caplog.text
    assert len(made) == 1  # no GAN was trained


def test_a_buffer_that_left_leaves_again_and_others_on_another_day(tmp_path, made, monkeypatch):
    victim = Victim(tmp_path, SIZES, f"{OPEN}[release]\nmax-buffers = 2\n")
    seeds = [0, 1, 0, 2, 1]  # the fourth is refused
    answers = [prepared(victim, f"{k}", seed=seed) for k, seed in enumerate(seeds)]
    assert [answer.has_error() for answer in answers] == [False, False, False, True, False]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    assert not prepared(victim, "again", seed=2).has_error()
    assert len(made) == 3


def test_a_buffer_that_was_begun_counts_once_until_it_is_made(tmp_path, monkeypatch):
    """A GAN goes on at the next request, in this run or in another one."""
    victim = Victim(tmp_path, SIZES, f"{OPEN}[release]\nmax-buffers = 1\n")

    def late(job):
        raise TimeoutError

    monkeypatch.setattr(buffer, "make", late)
    codes = [prepared(victim, run).error.code for run in "112"]
    assert codes == [Failure.TIMEOUT] * 3
    assert prepared(victim, "3", seed=1).error.code == Failure.RELEASE


@pytest.mark.parametrize(
    "config",
    [
        {"test_fraction": 0.985},
        {"test_per_class": "59"},
        {"test_balanced": True},
        {"test_fraction": 0.985, "seed": 3},
    ],
)
def test_whatever_a_server_chooses_as_many_are_trained_on(config, tmp_path):
    """The images of a hospital are split once."""
    trained = []
    for number, chosen in enumerate(({}, config)):
        (folder := tmp_path / str(number)).mkdir()
        joins, visit = visited(folder, **chosen)
        assert not joins.has_error()
        trained.append(visit.content["metrics"]["num-examples"])
    assert trained[0] == trained[1] > 100


def test_of_a_hospital_with_few_patients_nothing_is_trained(tmp_path, caplog):
    """Of 48 patients 39 would be trained on. It holds also where nothing arrives in tasks."""
    answers = visited(tmp_path, sizes=(16, 16, 16))
    assert {answer.error.code for answer in answers} == {Failure.POLICY}
    assert caplog.text.count("images.min-train-patients allows 40 or more") >= 2


@pytest.mark.parametrize("left", [1, 2, 7])
def test_no_step_learns_from_few(left, tmp_path, monkeypatch):
    """The last one gave two images: a first step can open what the second one alone learns from."""
    sizes, observe = [], Learner.observe

    def counted(self, batch, draws):
        sizes.append(len(batch))
        return observe(self, batch, draws)

    monkeypatch.setattr(Learner, "observe", counted)
    _, visit = visited(tmp_path, train__batch_size=144 - left)
    assert not visit.has_error()
    assert sum(sizes) == 144
    assert min(sizes) >= 8


def test_no_refusal_tells_how_many_images_there_are(tmp_path):
    """A server chose networks, batches, and the share of images that may be unusable."""
    answers = set()
    for rare in (3, 9):
        (folder := tmp_path / str(rare)).mkdir()
        victim = Victim(folder, (80, 80, rare), f"{OPEN}[machine]\nmax-memory-gb = 0.01\n")
        chosen = {"strategy": "cwt", "model": "mlp", "mlp__hidden": "7250"}
        victim.place.run_config |= run_config(**chosen, train__batch_size=10**6)
        answers.add(victim.ask("query.enrol", {}, code=code_hash()).has_error())
    assert len(answers) == 1
    place = deployed(tmp_path, strategy="cwt", model="mlp")
    (tmp_path / "images" / "a" / "x.png").write_bytes(b"damaged")
    for run, share in enumerate((0.0, 0.03, 0.2)):
        assert not ask(place, run=str(run), **{"max-quarantined": share}).has_error()


def test_each_task_is_of_enough_patients(tmp_path):
    """Each of three tasks has a third of the images."""
    for size, fits in ((60, True), (45, False)):
        (folder := tmp_path / str(size)).mkdir()
        joins, visit = visited(folder, task=2, tasks=3, sizes=(size,) * 3)
        assert not joins.has_error()
        assert visit.has_error() != fits


def ask(place, run="1", verb="query.prepare", order=("a", "b"), **changes):
    place.run_config.update(changes)
    code = code_hash() if verb == "query.enrol" else ""
    order = Order(0, 0, "graz", [*order], "plain", run, code=code)
    return app(Message(RecordDict({"order": to_record(order)}), 100, verb, ttl=600.0), place)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"train.dp.noise-multiplier": 0.0},
        {"train.dp.noise-multiplier": 2.0},
        {"train.dp.clipping-norm": 100.0},
        {"train.learning-rate": 1e-12},
        {"test-fraction": 0.5},
        {"num-server-rounds": 200},
        {"seed": 1},
        {"a.new": "setting"},
    ],
)
@pytest.mark.parametrize("first", ["query.enrol", "query.prepare"])
def test_the_terms_of_a_run_do_not_change_within_it(first, change, tmp_path):
    place = deployed(tmp_path, strategy="cwt", model="mlp", train__dp__noise_multiplier=1.0)
    assert not ask(place, verb=first).has_error()
    usual = dict(place.run_config)
    answer = ask(place, **change)
    assert answer.error.code == Failure.SETTINGS
    assert next(iter(change)) in answer.error.reason
    place.run_config.clear()
    assert not ask(place, **usual).has_error()
    assert not ask(place, **{"hop-timeout": 60.0, "resume": "/x"}).has_error()
    assert not ask(place, run="2", seed=5).has_error()


@pytest.mark.parametrize("classes", [("b", "a"), ("a", "b", "c")])
def test_the_classes_of_a_run_do_not_change_within_it(classes, tmp_path):
    place = deployed(tmp_path, strategy="cwt", model="mlp")
    assert not ask(place, verb="query.enrol", order=()).has_error()
    assert not ask(place).has_error()
    answer = ask(place, order=classes)
    assert answer.error.code == Failure.PARCEL
    assert "classes differ from those of the run's start" in answer.error.reason
    assert not ask(place).has_error()
    assert not ask(place, run="2", order=classes).has_error()


@pytest.mark.parametrize("damaged", [b"\0\0", b"\xff", "1\u2003".encode()])
def test_a_damaged_line_of_a_count_still_counts(damaged, tmp_path):
    run = Store(tmp_path / "runs" / "1")
    count_visit(run, 2)
    (run.folder / "visits").write_bytes(damaged + b"\n")
    count_visit(run, 2)
    with pytest.raises(PolicyError):
        count_visit(run, 2)


@pytest.mark.parametrize(
    "count",
    [
        lambda store, run: count_visit(Store(store / run), 1),
        lambda store, run: count_model(Store(store / run), "tested", "a rule", run, 1),
    ],
    ids=["visits", "models"],
)
def test_what_is_counted_counts_for_a_day(count, tmp_path, monkeypatch):
    count(tmp_path, "1")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 23 * 3600)
    with pytest.raises(PolicyError):
        count(tmp_path, "2")
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    count(tmp_path, "2")


def test_of_one_round_an_earlier_hop_is_older(tmp_path):
    label = Manifest("wien", "mlp", ["a", "b"], round=2, hop=3)
    for same in (label, label):
        check_newest(Store(tmp_path), same)
    with pytest.raises(ParcelError, match="round 2, hop 2, but a model from round 2, hop 3"):
        check_newest(Store(tmp_path), replace(label, hop=2))
    check_newest(Store(tmp_path), replace(label, round=3, hop=1))


def test_no_guarantee_has_a_delta_that_gives_one_of_its_patients_away(tmp_path):
    """Here of 144 patients, with one of 100; 1e-4 would do."""
    noise = {"train__dp__noise_multiplier": 1.0, "train__dp__delta": 0.01}
    policy = OPEN + "[privacy]\nmax-delta = 0.01\n"
    joins, trains = visited(tmp_path, policy, model="mlp", **noise)
    assert not joins.has_error()
    assert trains.error.code == Failure.SETTINGS
    assert "'train.dp.delta' is 0.01" in trains.error.reason


def test_a_hospital_can_demand_noise(tmp_path, caplog):
    place = deployed(tmp_path, strategy="cwt", model="mlp")
    with (tmp_path / "policy.toml").open("a") as file:
        file.write('\nprivacy.require = ["training"]')
    assert ask(place).error.code == Failure.POLICY
    assert "privacy.require allows training with train.dp" in caplog.text
    assert not ask(place, **{"train.dp.noise-multiplier": 1.0}).has_error()
