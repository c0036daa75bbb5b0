"""Rings of sums of features at real hospitals: totals, classifiers, and what stays at home."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from audit.report import Report
from client_app.afterwards.past_run import PastRun
from client_app.afterwards.report.privacy import describe
from client_app.authority.privacy_account import noise_for, read_account
from client_app.datasets import open_data
from client_app.release.sums.ring import RingVisit
from client_app.store import Store
from gan.noised_moments import secure_normal
from learning.closed_form import RIDGES, solve
from learning.intervals import Figure
from learning.models import Architecture
from learning.suited import check_suited
from learning.sums import ALIKE, Images, Sums, compute_sums
from strategies.engine.admission import admit_trained
from strategies.engine.strategy import RunError
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, check_parcel, pack
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import Settings, SettingsError
from strategies.protocol.sums import ADD, CLOSE, HOME, check_sums, ring_of
from strategies.registry import strategy_of
from strategies.sums import RING
from strategies.sums import Sums as Rings
from tests import test_sealed_federation as sealing
from tests.fakes import context, deployment, failing, parcels_of, run_config
from tests.test_federation import figures, models

CHOSEN = {
    "strategy": "sums",
    "train__freeze": "body",
    "model": "mlp",
    "mlp__hidden": "16",
    "num_server_rounds": 1,
    "sums__ridge": 0.01,
    "sums__weights": "images",
    "feder__buffer_size": 0,
}
NAMES = [f"hospital-{k}" for k in range(3)]


def federate(tmp_path, failing_at=(), refusing=None, **changes):
    """Three simulated hospitals; those of `failing_at` fail at each visit.

    `refusing` is a hospital and a step of the run, in which it calls each model useless.
    """
    from client_app.app import app
    from tests.fakes import FakeGrid, Ledger, go

    config = run_config(**{**CHOSEN, **changes})

    def hospital(index):
        place = context(index, 3, config, **{"store-dir": str(tmp_path)})

        def answer(message):
            if message.metadata.message_type == "train" and index in failing_at:
                return failing(message)
            if (index, step_of(message)) == refusing:
                return failing(message, Failure.USELESS)
            return app(message, place)

        return answer

    ledger, grid = Ledger(), FakeGrid({100 + index: hospital(index) for index in range(3)})
    return go(Settings.parse(config), grid, ledger), ledger, grid


def step_of(message):
    """The round and the leg that a message orders; None if it is no visit."""
    if message.metadata.message_type != "train":
        return None
    order = Order.read(message.content)
    return order.round, order.leg


def total(state):
    (parcel,) = parcels_of(state).values()
    return Sums.from_arrays(
        {name: each.numpy() for name, each in parcel.array_records["sums"].items()}
    )


def own(tmp_path, index, **changes):
    """The sums of a hospital's images, from its data."""
    data = open_data(Settings.parse(run_config(**{**CHOSEN, **changes})), index, 3, store=tmp_path)
    return compute_sums(data.train.images.flatten(1), data.train.labels, len(data.classes))


def equal(one, other):
    return all(torch.equal(vars(one)[name], vars(other)[name]) for name in vars(one))


def test_a_ring_has_the_sums_of_all_hospitals_and_their_classifier(tmp_path):
    state, ledger, _ = federate(tmp_path)
    assert {event.outcome for event in ledger.events} == {"ok"}
    first, *others = (own(tmp_path, k) for k in range(3))
    assert equal(total(state), sum(others, first))
    ((lineage, arrays),) = models(state).items()
    assert lineage == "hospital-0"
    assert np.array_equal(arrays["1.weight"], solve(total(state), 0.01).weights.numpy())
    assert not arrays["1.bias"].any()
    (parcel,) = parcels_of(state).values()
    assert check_parcel(parcel).visited == [*NAMES, "hospital-0"]
    assert {e.metrics["accuracy"] > 0.5 for e in ledger.of("evaluate")} == {True}


def test_each_parcel_on_its_way_has_the_mask_of_the_first_hospital(tmp_path):
    _, _, grid = federate(tmp_path, sums__kappa=0)
    sent = [m.content for m in grid.sent if m.metadata.message_type == "train"]
    sums = [content.array_records.get("sums") for content in sent]
    assert [record is None for record in sums] == [True, False, False, False]
    for record in sums[1:]:
        top = (record["seconds"].numpy() < 0).mean()  # the highest bit
        assert 0.4 < top < 0.6


@pytest.mark.parametrize(("index", "leg"), [(0, CLOSE), (1, HOME), (2, ADD)])
def test_a_hospital_that_refuses_the_ring_gets_no_other_state_of_it(tmp_path, index, leg):
    """Two states of a ring differ by the sums of one hospital, or by the mask."""
    rounds = {"num_server_rounds": 2, "sums__kappa": 1}
    _, ledger, grid = federate(tmp_path, refusing=(index, (1, leg)), **rounds)
    sent = [step_of(m) for m in grid.sent if m.metadata.dst_node_id == 100 + index]
    assert sent.count((1, leg)) == 1
    assert [e.verb for e in ledger.events if e.outcome != "ok"] == ["undo", "train"]


def test_a_hospital_that_leaves_is_missing_from_the_next_totals_bit_for_bit(tmp_path):
    """Two runs: with and without the second hospital's visits."""
    everyone, _, _ = federate(tmp_path / "all")
    without, ledger, _ = federate(tmp_path / "two", failing_at={1})
    assert equal(total(without), total(everyone) - own(tmp_path / "all", 1))
    failed = {(e.hospital, e.verb) for e in ledger.events if e.outcome != "ok"}
    assert failed == {("hospital-1", "train")}


def test_a_ring_without_its_first_hospital_begins_at_the_next_one(tmp_path):
    state, _, _ = federate(tmp_path, failing_at={0})
    assert equal(total(state), own(tmp_path, 1) + own(tmp_path, 2))


def test_each_hospital_keeps_its_own_classifier_at_its_first_visit(tmp_path, monkeypatch):
    kept = {}

    def keep_own(_, network, label):
        assert label.lineage not in kept
        kept[label.lineage] = label.round, network.state_dict()["1.weight"].clone()

    monkeypatch.setattr("client_app.release.sums.ring.keep_own", keep_own)
    federate(tmp_path, refusing=(2, (1, ADD)), num_server_rounds=3)
    assert {name: round_ for name, (round_, _) in kept.items()} == dict(
        zip(NAMES, (1, 1, 2), strict=True)
    )
    for k, (_, head) in enumerate(kept.values()):
        assert torch.equal(head, solve(own(tmp_path, k), 0.01).weights)


def test_the_classifier_for_home_counts_own_sums_more_and_stays(tmp_path):
    kappa = 10
    state, ledger, _ = federate(tmp_path, sums__kappa=kappa)
    everywhere, _, _ = federate(tmp_path / "0", sums__kappa=0)
    assert np.array_equal(
        models(state)["hospital-0"]["1.weight"], models(everywhere)["hospital-0"]["1.weight"]
    )
    for k, name in enumerate(NAMES):
        (folder,) = (tmp_path / name / "runs").iterdir()
        (kept,) = (folder / "local").iterdir()
        head = Store(folder).load(f"local/{kept.stem}")["1.weight"]
        expected = solve(total(state) + own(tmp_path, k) * kappa, 0.01).weights
        assert np.array_equal(head, expected.numpy())
    # The figures are those of the classifiers for home.
    assert figures(ledger) != figures(federate(tmp_path / "1", sums__kappa=0)[1])


def test_lambda_and_kappa_are_chosen_at_the_hospital(tmp_path, monkeypatch):
    seen = []

    def choose(others, images, ridges, kappas, rng, *_):
        seen.append((images, tuple(ridges), tuple(kappas)))
        return ridges[0], kappas[-1]

    monkeypatch.setattr("client_app.release.sums.ring.choose", choose)
    federate(tmp_path, sums__ridge=0.0, sums__kappa=-1)
    assert {ridges for _, ridges, _ in seen} == {RIDGES}
    data = open_data(Settings.parse(run_config(**CHOSEN)), 0, 3, store=tmp_path)
    assert all(isinstance(images, Images) for images, *_ in seen)
    assert torch.equal(seen[0][0].labels, data.train.labels)  # training images alone


def test_lambda_and_kappa_are_chosen_with_the_sums_of_earlier_tasks(tmp_path, monkeypatch):
    """In the ring of the second task, each choice is of all sums: the others' and the own ones."""
    seen = []

    def choose(others, images, ridges, kappas, rng, *_):
        seen.append(others + images.sums())
        return ridges[0], kappas[0]

    monkeypatch.setattr("client_app.release.sums.ring.choose", choose)
    state, _, _ = federate(tmp_path, tasks=2, num_server_rounds=2, partition="iid")
    assert len(seen) >= 6
    assert all(equal(each, total(state)) for each in seen[-3:])


@pytest.mark.parametrize("weights", ["images", "equal"])
def test_nothing_is_forgotten_over_tasks(tmp_path, weights):
    """After the second task the totals are those of all images at once."""
    tasks = {"tasks": 2, "num_server_rounds": 4, "sums__kappa": 0, "partition": "iid"}
    tasks["sums__weights"] = weights
    state, ledger, _ = federate(tmp_path / "tasks", **tasks)
    assert {event.outcome for event in ledger.events} == {"ok"}
    once, _, _ = federate(tmp_path / "once", **{**tasks, "tasks": 1, "num_server_rounds": 1})
    assert equal(total(state), total(once))


def test_hospitals_that_weigh_equally_have_equal_masses_in_the_totals(tmp_path):
    state, _, _ = federate(tmp_path, sums__weights="equal")
    sizes = [own(tmp_path, k).counts.sum().item() >> 24 for k in range(3)]
    expected = [own(tmp_path, k) * round(ALIKE / sizes[k]) for k in range(3)]
    assert equal(total(state), expected[0] + expected[1] + expected[2])


def test_fewer_dimensions_make_smaller_sums_and_a_classifier_of_all_features(tmp_path):
    state, ledger, _ = federate(tmp_path, sums__dimensions=8)
    assert {event.outcome for event in ledger.events} == {"ok"}
    assert total(state).seconds.shape == (10, 8 * 9 // 2)
    head = models(state)["hospital-0"]["1.weight"]
    assert head.shape == (10, 16)
    assert np.linalg.matrix_rank(head) <= 8


def test_noise_is_drawn_once_in_a_run_and_counted(tmp_path):
    noised = {"sums__epsilon": 1.0, "num_server_rounds": 2, "sums__kappa": 0}
    state, ledger, _ = federate(tmp_path, **noised)
    again, _, _ = federate(tmp_path / "again", **{**noised, "num_server_rounds": 1})
    assert equal(total(state), total(again))  # the second ring has the noise of the first
    spent = [e.metrics.get("epsilon-spent") for e in ledger.of("train")]
    # At the second ring, too: a server that was killed may have lost the first answer.
    assert [each for each in spent if each] == [pytest.approx(1.0, abs=1e-3)] * 6
    exact, _, _ = federate(tmp_path / "exact", sums__kappa=0)
    off = (total(state).seconds - total(exact).seconds).double().std() / 2**24
    assert off > 5  # three hospitals' noise of 3.7 sensitivities each, over 0.56


@pytest.mark.parametrize(("place", "refused"), [(0, False), (3, True), (4, False)])
@pytest.mark.parametrize("weight", [-1e9, math.nan])
def test_a_visit_refuses_only_useless_totals(tmp_path, monkeypatch, place, refused, weight):
    """Classifiers of a run: three of own sums, of the totals, and three for home.

    A refusal of exact sums that stay would reveal a patient, also in a run with noise.
    """
    solved = []

    def solve_badly(total, ridge, noise=0.0):
        solved.append(solve(total, ridge, noise))
        if len(solved) == place + 1:
            solved[-1].weights[0, 0] = weight
        return solved[-1]

    monkeypatch.setattr("client_app.release.sums.ring.solve", solve_badly)
    _, ledger, _ = federate(tmp_path, num_server_rounds=2)
    failed = [(e.outcome, e.reason) for e in ledger.of("train") if e.outcome != "ok"]
    reason = "The classifier of the totals is beyond 1,000,000: raise sums.ridge."
    assert failed == [("diverged", reason)] * refused


def test_noise_is_not_drawn_for_a_delta_that_is_too_large_for_the_patients(tmp_path, monkeypatch):
    reasons = []
    monkeypatch.setattr("tests.fakes.Ledger.record", lambda _, event: reasons.append(event.reason))
    with pytest.raises(RunError):
        federate(tmp_path, sums__epsilon=1.0, sums__delta=0.01)
    assert ["'sums.delta' is 0.01" in reason for reason in reasons if reason] == [True] * 3
    assert not [*tmp_path.rglob("noise")]


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_a_classifier_knows_the_noise_of_its_totals(tmp_path, monkeypatch, epsilon):
    """The noise of three hospitals; none in the sums that a hospital solves alone."""
    seen = []

    def solve_spied(total, ridge, noise=0.0):
        seen.append(noise)
        return solve(total, ridge, noise)

    def choose(others, images, ridges, kappas, rng, noise, deadline):
        assert deadline < math.inf
        seen.append(noise)
        return ridges[0], kappas[0]

    monkeypatch.setattr("client_app.release.sums.ring.solve", solve_spied)
    monkeypatch.setattr("client_app.release.sums.ring.choose", choose)
    federate(tmp_path, sums__epsilon=epsilon)
    expected = noise_for(1.0, 1e-5) * 3**0.5 if epsilon else 0
    assert sorted(seen) == [0] * 6 + [pytest.approx(expected)] * 8


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("train.freeze", {"train__freeze": "none"}),
        ("sums.ridge", {"sums__epsilon": 1.0, "sums__ridge": 0.0}),
        ("sums.weights", {"sums__epsilon": 1.0, "sums__weights": "equal"}),
        ("sums.epsilon", {"sums__epsilon": 1e-30, "sums__delta": 1e-30}),  # noise of no 64 bits
        ("learner", {"learner": "derpp"}),
    ],
)
def test_settings_that_do_not_fit_are_refused(key, changes):
    with pytest.raises(SettingsError, match=f"'{key}'"):
        strategy_of(Settings.parse(run_config(**{**CHOSEN, **changes})))


def test_projections_are_not_more_than_the_features():
    head = Architecture("cnn", 1, 8, 8, 3).head(16)
    for dimensions, fits in ((0, True), (16, True), (17, False)):
        chosen = Settings.parse(run_config(**{**CHOSEN, "sums__dimensions": dimensions}))
        with nullcontext() if fits else pytest.raises(SettingsError, match="16 or less"):
            check_suited("sums", head, chosen)


@pytest.mark.slow
def test_sealed_rings_have_the_totals_of_open_ones(tmp_path):
    chosen = {**CHOSEN, "num_server_rounds": 2}
    del chosen["strategy"]
    heads = []
    for sealed, members in ((True, None), (False, [""] * 3)):
        state, ledger, _ = sealing.federate(
            tmp_path, "sums", members=members, sealed=sealed, **chosen
        )
        assert {event.outcome for event in ledger.events} == {"ok"}
        (parcel,) = sealing.opened(state, tmp_path, sealed).values()
        heads.append({n: a.numpy() for r in ("model", "sums") for n, a in parcel[r].items()})
    assert all(np.array_equal(heads[0][name], heads[1][name]) for name in heads[1])


def test_a_record_of_sums_is_checked():
    good = compute_sums(torch.ones(2, 3), torch.tensor([0, 1]), 2).arrays()
    check_sums(record(good), 2)
    for changed in (
        {**good, "counts": good["counts"].astype("f4")},
        {**good, "seconds": good["seconds"][:, 1:]},
        {**good, "more": good["counts"]},
        {name: each for name, each in good.items() if name != "firsts"},
        {**good, "firsts": np.array(1)},
    ):
        with pytest.raises(ParcelError, match="must be int64"):
            check_sums(record(changed), 2)
    with pytest.raises(ParcelError):
        check_sums(record(good), 3)


@pytest.mark.parametrize(("learner", "come"), [("plain", ["sums"]), ("sums", [])])
def test_sums_come_only_if_they_were_ordered(learner, come):
    order = Order(1, 1, "graz", ["a", "b"], learner, "1", epochs=1)
    sums = compute_sums(torch.ones(2, 3), torch.tensor([0, 1]), 2).arrays()
    records = {"model": record({"w": np.ones(2, "f4")}), "sums": record(sums)}
    sent = pack({"model": records["model"]}, Manifest("graz", "mlp", ["a", "b"]))
    label = check_parcel(sent).advance(order)
    answer = pack({name: records[name] for name in ("model", *come)}, label)
    with pytest.raises(ParcelError, match="sums that were not ordered, or lacks ordered ones"):
        admit_trained(answer, order, sent, {}, lambda *_: None)


def record(arrays):
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(each) for name, each in arrays.items()})


def test_the_open_ring_is_read_from_the_visits():
    assert ring_of(["a", "b", "a", "b", "c"]) == ["b", "c"]
    assert ring_of(["a", "b", "c", "b"]) == ["a", "b", "c", "b"]  # b's sums are in it twice
    assert ring_of(["a", "b", "a"]) == ring_of([]) == []


@pytest.fixture
def hostile_server(monkeypatch):
    """A server that sends the ring to the second hospital twice."""
    plan = Rings.plan

    def plan_again(self, state):
        if state.hop == 2:
            return [self.visit(NAMES[1], RING, epochs=1, leg=ADD)]
        return plan(self, replace(state, hop=state.hop - (state.hop > 2)))

    monkeypatch.setattr(Rings, "plan", plan_again)


@pytest.mark.usefixtures("hostile_server")
def test_a_hospital_adds_its_sums_to_a_ring_once(tmp_path):
    state, ledger, _ = federate(tmp_path, num_server_rounds=2)
    first, *others = (own(tmp_path, k) for k in range(3))
    assert equal(total(state), sum(others, first))
    failed = [(e.hospital, e.reason) for e in ledger.events if e.outcome != "ok"]
    assert failed == [(NAMES[1], "This hospital's sums are in this ring already.")] * 2


def test_a_hospital_adds_its_sums_to_no_closed_ring(tmp_path, monkeypatch):
    """Its totals have no mask: whoever knows them would get the hospital's sums."""
    plan = Rings.plan

    def plan_more(self, state):
        if state.hop == 4:
            return [self.visit(NAMES[1], RING, epochs=1, leg=ADD)]
        return plan(self, state)

    monkeypatch.setattr(Rings, "plan", plan_more)
    _, ledger, _ = federate(tmp_path, sums__kappa=0)
    (failed,) = (e.reason for e in ledger.events if e.outcome != "ok")
    assert failed == "This ring of sums is closed."


@pytest.mark.parametrize("lost", [True, False])
def test_a_ring_without_its_mask_says_why(tmp_path, monkeypatch, lost):
    """In round 1 the mask is deleted before the ring is closed; or the server closes it early."""
    plan = Rings.plan

    def plan_close(self, state):
        if state.round > 1:
            return plan(self, state)
        if state.hop == 2 and lost:
            (mask,) = (tmp_path / NAMES[0]).glob("runs/*/masks/1.npz")
            mask.unlink()
        elif state.hop == 2:
            state.models["copy"] = state.models[RING]
            return [self.visit(NAMES[0], RING, epochs=1, leg=CLOSE)]
        elif "copy" in state.models:
            state.models[RING] = state.models.pop("copy")
        return plan(self, replace(state, hop=state.hop - (state.hop > 2 and not lost)))

    monkeypatch.setattr(Rings, "plan", plan_close)
    _, ledger, _ = federate(tmp_path, num_server_rounds=2)
    (failed,) = (e.reason for e in ledger.events if e.outcome != "ok")
    assert ("it was lost" if lost else "came off another parcel") in failed


RULES = "images.min-train-patients = 20\nsums.allow = true\n"


def deploy(tmp_path, rules=RULES, count=3, every=2, **changes):
    """A sealed ring of hospitals with policies; each has 60 images, one in `every` of class 1."""
    from client_app.app import app
    from tests.fakes import FakeGrid, Ledger, go

    config = run_config(**{**CHOSEN, "sealed": True, **changes})

    def hospital(index):
        folder = tmp_path / NAMES[index]
        folder.mkdir(parents=True)
        rng = np.random.default_rng(index)
        labels = (np.arange(60) % every == 1).astype(np.uint8)
        images = rng.integers(0, 200, (60, 8, 8), dtype=np.uint8) + 50 * labels[:, None, None]
        parts = {"train": slice(-1), "test": slice(-1, None)}  # the hospital itself splits them
        arrays = {f"x_{part}": images[rows] for part, rows in parts.items()}
        arrays |= {f"y_{part}": labels[rows] for part, rows in parts.items()}
        np.savez(folder / "a.npz", allow_pickle=False, **arrays)
        (folder / "policy.toml").write_text(rules, "utf-8")
        own = {"site": NAMES[index], "store-dir": folder / "store", "members": "first-use"}
        own |= {"dataset": f"npz:{folder}/a.npz", "policy": folder / "policy.toml"}
        place = deployment(config, **own)
        place.node_id = 100 + index
        return lambda message: app(message, place)

    ledger, grid = Ledger(), FakeGrid({100 + index: hospital(index) for index in range(count)})
    return go(Settings.parse(config), grid, ledger), ledger


def run_of(tmp_path, name):
    (folder,) = (tmp_path / name / "store" / name / "runs").glob("[!.]*")
    return Store(folder)


@pytest.mark.slow
def test_deployed_hospitals_attack_their_sums(tmp_path):
    _, ledger = deploy(tmp_path)
    assert {(e.verb, e.outcome) for e in ledger.events if e.outcome != "ok"} == set()
    for name in NAMES:
        run = run_of(tmp_path, name)
        closed = [str(run.load(f"masks/{mask}")["closed"]) for mask in run.names("masks")]
        assert len(closed) == (name == NAMES[0])  # the mask came off one parcel
        (line,) = (run.folder / "sums.jsonl").read_text().splitlines()
        noted = json.loads(line)
        assert noted["difference"]["attack"]["auc"]["value"] == 1  # without noise
        assert (noted["classes"], noted["features"], noted["epsilon"]) == (2, 16, 0)
        past = PastRun.find(name, tmp_path / name / "store", None)
        ((left, noise, difference, *_),) = describe(past, None)["sums"]
        assert (left, noise) == ("2 classes, 16 features", "none")
        assert difference.startswith("1.000 (")
        sent = run.load("sums/0")
        assert np.array_equal(sent["seconds"], sent["exact-seconds"])


@pytest.mark.slow
def test_a_ring_of_two_does_not_close(tmp_path, caplog):
    with pytest.raises(RunError):
        deploy(tmp_path, count=2)
    assert "Refused by the policy: sums.min-hospitals" in caplog.text
    assert run_of(tmp_path, NAMES[0]).names("masks") == ["1"]


@pytest.mark.slow
@pytest.mark.usefixtures("hostile_server")
def test_two_hospitals_are_two_however_often_they_add(tmp_path, caplog, monkeypatch):
    """The second hospital is hostile, too, and adds twice."""
    add = RingVisit.add

    def add_in_any_case(self):
        self.visited = []
        return add(self)

    monkeypatch.setattr(RingVisit, "add", add_in_any_case)
    with pytest.raises(RunError):
        deploy(tmp_path, count=2)
    assert "Refused by the policy: sums.min-hospitals" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "value", "changes"),
    [
        ("sums.allow", "false", {}),
        ("privacy.require", "['sums']", {}),
        ("privacy.max-epsilon", "0.5", {"sums__epsilon": 1.0}),
        ("sums.max-membership", "0.5", {}),
        # 2 classes and 2001000 numbers: a second moment takes 32 MB
        ("machine.max-memory-gb", "0.5", {"mlp__hidden": "2000"}),
        ("machine.max-disk-gb", "0.002", {"mlp__hidden": "400"}),
    ],
)
def test_a_policy_refuses_sums(tmp_path, caplog, rule, value, changes):
    allowed = "" if rule == "sums.allow" else RULES
    rules = f"images.min-train-patients = 20\n{rule} = {value}\n"
    with pytest.raises(RunError):
        deploy(tmp_path, rules + allowed.partition("\n")[2], **changes)
    assert f"Refused by the policy: {rule} " in caplog.text


@pytest.mark.slow
def test_refused_sums_keep_their_noise_and_cost_their_epsilon_once(tmp_path, monkeypatch):
    attacked, drawn = [], []

    def draw(count):
        drawn.append(count)
        return secure_normal(count)

    def refuse(sent, *_):
        attacked.append(sent.counts.tolist())
        return Report(evidence={"limit": 0.5}, leaks=(Figure(value=1.0, low=1.0, high=1.0),))

    monkeypatch.setattr("client_app.release.sums.own.audit_sums", refuse)
    monkeypatch.setattr("client_app.release.sums.own.secure_normal", draw)
    rules = RULES + "sums.max-membership = 0.5\n"
    with pytest.raises(RunError):
        deploy(tmp_path, rules, sums__epsilon=0.5, num_server_rounds=2)
    assert len(drawn) == 9  # counts, firsts and seconds at each hospital
    assert len(attacked) == 6
    assert sorted(attacked[:3]) == sorted(attacked[3:])
    for name in NAMES:
        store = tmp_path / name / "store" / name
        assert len(read_account(store)) == 1
        assert not run_of(tmp_path, name).names("sums")
        assert not PastRun.find(name, tmp_path / name / "store", None).sent_sums()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "value"), [("sums.max-membership", 0.5), ("sums.min-class-patients", 25)]
)
def test_kept_sums_do_not_leave_under_a_stricter_policy(tmp_path, monkeypatch, caplog, rule, value):
    add = RingVisit.add

    def add_and_tighten(self):
        name = self.request.hospital.name
        (tmp_path / name / "policy.toml").write_text(RULES + f"{rule} = {value}\n", "utf-8")
        return add(self)

    monkeypatch.setattr(RingVisit, "add", add_and_tighten)
    _, ledger = deploy(tmp_path, num_server_rounds=2)
    failed = [event for event in ledger.of("train") if event.outcome != "ok"]
    assert {(event.hospital, event.round, event.outcome) for event in failed} == {
        (name, 2, "policy") for name in NAMES
    }
    assert caplog.text.count(f"Refused by the policy: {rule} ") == len(NAMES)


@pytest.mark.slow
def test_a_class_of_few_patients_adds_nothing(tmp_path):
    deploy(tmp_path, RULES + "sums.min-class-patients = 25\n")
    sent = run_of(tmp_path, NAMES[1]).load("sums/0")
    few = sent["exact-counts"] >> 24 < 25
    assert few.any()
    assert not sent["counts"][few].any()
    assert not sent["seconds"][few].any()
    assert np.array_equal(sent["firsts"][~few], sent["exact-firsts"][~few])


@pytest.mark.slow
@pytest.mark.parametrize(("fewest", "classes"), [(10, 2), (25, 1), (60, 0)])
def test_equal_weights_tell_of_no_image_of_a_small_class(tmp_path, monkeypatch, fewest, classes):
    """What leaves has the whole number 2^24 / images as a factor: of those that it adds."""
    left, add = {}, RingVisit.add

    def add_spied(self):
        figures = add(self)
        left[self.request.hospital.name] = self.own.load_kept()
        return figures

    monkeypatch.setattr(RingVisit, "add", add_spied)
    rules = RULES + f"sums.min-class-patients = {fewest}\n"
    deploy(tmp_path, rules, every=3, sums__weights="equal")
    for name in NAMES:
        images = run_of(tmp_path, name).load("sums/0")["exact-counts"] >> 24
        added = images * (images >= fewest)
        assert np.count_nonzero(added) == classes
        factor = round(ALIKE / (added.sum() or images.sum()))
        sent, exact = left[name]
        assert (sent.counts >> 24).tolist() == (added * factor).tolist()
        assert (exact.counts >> 24).tolist() == (images * factor).tolist()
