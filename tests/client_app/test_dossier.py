"""Dossiers of releases, from a run of two deployed hospitals that make buffers."""

import hashlib
import hmac
import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from audit.buffer import ATTACKS as TRIED
from audit.buffer import SHADOWS
from audit.class_means import CLASS_MEANS
from cli import main
from client_app.app import app
from client_app.authority.identity import Identity
from client_app.release import buffer
from client_app.release.buffer.job import Release
from client_app.release.dossier.crate import write_dossier_crate
from client_app.release.dossier.files import Checked, check, newest_dossier, write
from client_app.release.dossier.law import answers
from client_app.release.dossier.page import ATTACKS, page
from client_app.run import dossiers, run_folder
from client_app.store import Store
from learning.samples import Samples
from pages.pictures import CLASSES, SHOWN, pngs_by_class
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from strategies.protocol.settings import Settings
from tests.client_app.test_own_report import text_of
from tests.fakes import FakeGrid, Ledger, context, deployed, go, run_config

SITES = ("graz", "wien")
SETTINGS = {"strategy": "feder", "num_server_rounds": 2, "model": "mlp", "image_size": 8}
SETTINGS |= {"mlp__hidden": "4", "train__epochs": 1, "feder__buffer_size": 8}


def federated(folder, **changes):
    """After a run of both sites; `changes` of the node-config."""
    settings = {**SETTINGS, "sealed": "members" in changes}
    places = {site: deployed(folder / site, site, **settings) for site in SITES}
    for place in places.values():
        place.node_config.update(changes)
    cards = {}

    def hospital(site):
        def answer(message):
            reply = app(message, places[site])
            if message.metadata.message_type == "query.prepare":
                cards[site] = dict(reply.content["card"])
            return reply

        return answer

    grid = FakeGrid({100 + k: hospital(site) for k, site in enumerate(SITES)})
    state = go(Settings.parse(run_config(**settings)), grid, Ledger())
    stores = {site: folder / site / "store" for site in SITES}
    return SimpleNamespace(cards=cards, stores=stores, run=state.run)


def random_images(hospital, size, *_):
    """In the place of a generator's."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, *hospital.data.train.shape), generator=rng)
    labels = torch.arange(size) % len(hospital.data.classes)
    return Release(Samples(images.to(torch.uint8), labels), {"release-passed": 1.0})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer, "make_buffer", random_images)
        return federated(tmp_path_factory.mktemp("sealed"), members="first-use")


@pytest.fixture
def sealed(finished, tmp_path):
    """The same, to be changed."""
    stores = {
        site: shutil.copytree(store, tmp_path / site) for site, store in finished.stores.items()
    }
    return SimpleNamespace(cards=finished.cards, stores=stores, run=finished.run)


@pytest.fixture
def command(monkeypatch, capsys):
    """`fedhandoff dossier` with arguments: exit status, and what it says."""

    def dossier(store, site, *more):
        given = ["dossier", "--site", site, "--store-dir", store, *more]
        with pytest.raises(SystemExit) as ended:
            main([*map(str, given)])
        told = capsys.readouterr()
        return ended.value.code, told.out + told.err

    return dossier


def file_of(done, site) -> Path:
    (path,) = (done.stores[site] / site).glob("dossiers/*/dossier.json")
    assert isinstance(path, Path)
    return path


@pytest.mark.slow
def test_its_hash_is_on_the_card_and_comes_with_the_buffer(sealed):
    for site, other in (SITES, SITES[::-1]):
        digest = hashlib.sha256(file_of(sealed, site).read_bytes()).hexdigest()
        assert sealed.cards[site]["dossier"] == digest
        came = dossiers(run_folder(Store(sealed.stores[other] / other), sealed.run))
        assert came == {site: digest}


def test_it_says_what_leaves_under_which_rules_and_by_which_code(sealed):
    told = json.loads(file_of(sealed, "graz").read_bytes())
    leaves = {"images": 8, "shape": [1, 8, 8], "classes": {"a": 4, "b": 4}, "left-out": []}
    assert {key: told["leaves"][key] for key in leaves} == leaves
    assert told["policy"]["release"]["max-membership-leak"] == 0.05
    assert told["settings"]["release"]["min-class-images"] == 10
    assert len(told["salt"]) == len(told["fingerprints"]["code"]) == 64
    card = sealed.cards["graz"]
    assert told["fingerprints"]["train-images"] == card["train-images"]


def test_a_run_called_split_does_not_get_the_seed_of_the_folds_as_its_salt(sealed):
    """The secret gives that seed for the text "split"; no text that a server chooses equals it."""
    path = file_of(sealed, "graz")
    secret = path.parents[2].joinpath("figures-secret").read_bytes()
    digest = hmac.digest(secret, f"dossier {sealed.run}".encode(), "sha256").hex()
    assert json.loads(path.read_bytes())["salt"] == digest


def test_the_hospital_checks_its_own(sealed, command):
    code, said = command(sealed.stores["graz"], "graz")
    assert code == 0, said
    assert "Signed by the known key of 'graz'." in said
    assert command(sealed.stores["graz"], "graz", file_of(sealed, "graz")) == (0, said)


def test_another_hospital_checks_it_against_the_buffer_that_it_got(sealed, command, tmp_path):
    given = shutil.copytree(file_of(sealed, "wien").parent, tmp_path / "given") / "dossier.json"
    code, said = command(sealed.stores["graz"], "graz", given)
    assert code == 0, said
    assert "This is the dossier that the received buffer names." in said
    given.with_name("dossier.sig").unlink()
    code, said = command(sealed.stores["graz"], "graz", given)
    assert code == 1
    assert "NOT signed" in said


def test_its_crate_has_its_facts(sealed, command):
    rocrate = pytest.importorskip("rocrate.rocrate")
    path = file_of(sealed, "graz")
    told, others = json.loads(path.read_bytes()), {*path.parent.iterdir()}
    for _ in range(2):  # the second time it is checked
        code, said = command(sealed.stores["graz"], "graz", "--crate")
        assert code == 0, said
        assert said.endswith(f"{path.with_name('ro-crate-metadata.json')}\n")
    crate = rocrate.ROCrate(path.parent)
    assert crate.get("#app")["identifier"] == f"urn:sha256:{told['fingerprints']['code']}"
    assert crate.get("#action")["endTime"] == told["written"]
    assert {each.id for each in crate.get("#action")["result"]} == {each.name for each in others}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert crate.get("dossier.json")["sha256"] == digest == sealed.cards["graz"]["dossier"]
    checks = [crate.get(f"#check-{number}") for number in range(1, 5)]
    status = [each["actionStatus"].rpartition("/")[2] for each in checks]
    assert status == [*["CompletedActionStatus"] * 3, "PotentialActionStatus"]
    assert checks[3]["name"].endswith(told["attacked"].get("verdict", "not attacked"))
    rules = json.dumps(told["policy"], sort_keys=True).encode()
    assert checks[1]["instrument"]["sha256"] == hashlib.sha256(rules).hexdigest()
    text = path.with_name("ro-crate-metadata.json").read_text()
    assert told["salt"] not in text
    path.with_name("more").write_text("new")
    code, said = command(sealed.stores["graz"], "graz", "--crate")
    assert code == 2
    assert "is not the file that ro-crate-metadata.json names" in said


def crate_of(folder, verdict="passed", freeze="none"):
    """The crate of a dossier with this verdict of the attacks, of images or frozen features."""
    rocrate = pytest.importorskip("rocrate.rocrate")
    told = {
        "written": "2026-11-22T12:04:25+00:00",
        "policy": {},
        "attacked": {"verdict": verdict},
        "leaves": {"images": 8},
        "learnt-from": {"training-images": 30, "test-images": 10},
        "fingerprints": {"code": "0" * 64, "train-images": "keyed-" + "0" * 16},
        "settings": {"strategy": "feder", "train": {"freeze": freeze}},
    }
    path = folder / "dossier.json"
    path.write_text(json.dumps(told))
    path.with_suffix(".sig").write_bytes(bytes(64))
    return rocrate.ROCrate(write_dossier_crate(path, Checked("", "graz", "7", True, True)).parent)


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ("passed", "Completed"),
        ("too small to tell", "Potential"),
        ("not attacked", "Potential"),
        ("refused", "Failed"),
    ],
)
def test_attacks_without_a_decision_neither_pass_nor_fail_in_its_crate(verdict, status, tmp_path):
    check = crate_of(tmp_path, verdict).get("#check-4")
    assert check["name"].endswith(verdict)
    assert check["actionStatus"] == f"http://schema.org/{status}ActionStatus"


@pytest.mark.parametrize(("freeze", "noun"), [("none", "image"), ("body", "vector")])
def test_its_crate_calls_synthetic_features_vectors(freeze, noun, tmp_path):
    crate = crate_of(tmp_path, freeze=freeze)
    texts = [crate.root_dataset["description"], crate.get("#action")["name"]]
    texts += [crate.get(f"#check-{number}")["name"] for number in (3, 4)]
    assert [f"{noun}s" in text for text in texts] == [True] * 4
    assert ("image" in "".join(texts)) == (noun == "image")


def test_its_crate_has_no_wrong_format_for_the_signature(tmp_path):
    """It is 64 bytes of Ed25519; Python takes *.sig for a signature of PGP."""
    assert crate_of(tmp_path).get("dossier.sig")["encodingFormat"] == "application/octet-stream"


def test_one_that_does_not_hold_gets_no_crate(sealed, command):
    path = file_of(sealed, "graz")
    path.with_name("dossier.sig").unlink()
    assert command(sealed.stores["graz"], "graz", "--crate")[0] == 1
    assert not path.with_name("ro-crate-metadata.json").exists()


@pytest.mark.parametrize("changed", ["dossier.json", "dossier.html", "dossier.sig"])
def test_what_was_changed_does_not_hold(sealed, command, changed):
    path = file_of(sealed, "graz").with_name(changed)
    text = path.read_bytes()
    path.write_bytes(text.replace(b"graz", b"graz ", 1) if b"graz" in text else b"0" * 64)
    code, said = command(sealed.stores["graz"], "graz")
    assert code == 1
    assert "is NOT valid" in said


@pytest.mark.parametrize("signed", ["not", "as before", "anew", "by another"])
def test_one_that_was_edited_with_its_page_does_not_hold(sealed, command, signed):
    """Whoever can write the files can make the page again, and may have the hospital's key."""
    path = file_of(sealed, "graz")
    signature, told = path.with_name("dossier.sig").read_bytes(), json.loads(path.read_bytes())
    store = sealed.stores["graz"] / "graz"
    keys = {
        "anew": store / "identity",
        "by another": store / "other",
        "as before": store / "identity",
    }
    identity = Identity.load("graz", keys[signed]) if signed in keys else None
    told["checked"]["release-median-rank"] = 0.5
    write(path.parent, told, identity)
    if signed == "as before":
        path.with_name("dossier.sig").write_bytes(signature)
    code, said = command(sealed.stores["graz"], "graz")
    assert code == 1
    assert "NOT the dossier that the ledger names" in said
    assert "The dossier is NOT valid." in said


def test_an_earlier_one_of_a_run_holds(sealed, command):
    path, store = file_of(sealed, "graz"), sealed.stores["graz"]
    identity, text = Identity.load("graz", store / "graz" / "identity"), path.read_bytes()
    write(path.parent, json.loads(text) | {"policy": None}, identity)
    earlier = path.parent / hashlib.sha256(text).hexdigest() / path.name
    code, said = command(store, "graz", earlier)
    assert code == 0, said


def test_one_without_a_signature_or_a_ledger_does_not_hold(sealed, command):
    path = file_of(sealed, "graz")
    ledger = sealed.stores["graz"] / "graz" / "ledger.jsonl"
    ledger.rename(ledger.with_name("away"))
    code, said = command(sealed.stores["graz"], "graz")
    assert code == 1
    assert "For this run, the ledger names no dossier." in said
    ledger.with_name("away").rename(ledger)
    assert command(sealed.stores["graz"], "graz")[0] == 0
    path.with_name("dossier.sig").unlink()
    code, said = command(sealed.stores["graz"], "graz")
    assert code == 1
    assert "NOT signed" in said


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--run", "9"], "no dossier of the run 9"), (["/no/such.json"], "There is no dossier /no")],
)
def test_a_dossier_that_is_not_there(sealed, command, more, words):
    code, said = command(sealed.stores["graz"], "graz", *more)
    assert code == 2
    assert words in said


def test_a_file_that_is_no_dossier(sealed, command, tmp_path):
    (tmp_path / "x.json").write_text('{"hospital": "graz", "run": "1"}')
    assert (
        "not a dossier of this version"
        in command(sealed.stores["graz"], "graz", tmp_path / "x.json")[1]
    )
    (tmp_path / "x.json").write_text("[]")
    assert "is not a dossier" in command(sealed.stores["graz"], "graz", tmp_path / "x.json")[1]


def test_a_simulation_has_no_keys_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(buffer, "make_buffer", random_images)
    order = Order(0, 0, "hospital-0", [*"0123456789"], "plain", "1", buffer_size=8)
    place = context(0, 2, run_config(model="mlp"), **{"store-dir": str(tmp_path)})
    asked = Message(RecordDict({"order": to_record(order)}), 100, "query.prepare")
    assert not app(asked, place).has_error()
    (path,) = tmp_path.glob("hospital-0/dossiers/*/dossier.json")
    assert not check(path, {}).holds
    assert "Not signed: a simulation has no keys." in path.with_name("dossier.html").read_text()


def interval(value: float, width: float = 0.1) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def written(**changes: Any) -> dict[str, Any]:
    """A dossier as a real release has it."""
    worth = {name: interval(0.5) for name in ("auc", "tpr", "fpr")}
    contrast: dict[str, Any] = {"attack": {"members": 360, "others": 90, **worth}}
    contrast |= {
        f"{kind}_{name}": interval(0.5) for kind in ("control", "excess") for name in worth
    }
    trials = [{"attack": name, "worth": contrast} for name in ATTACKS]
    attacked = {
        **{"limit": 0.05, "members": 360, "others": 90, "references": 45, "synthetic": 64},
        **{"trials": trials, "leak": interval(0.01), "noticed": 0.25, "bound": None},
        "verdict": "passed",
    }
    return {
        **{"format": 1, "hospital": "graz", "run": "7", "written": "2026-01-02T03:04:05+00:00"},
        **{"simulated": False, "salt": "00", "policy": {"release": {"buffers": True}}},
        "leaves": {
            **{"images": 64, "shape": [1, 8, 8], "classes": {"a": 64}, "left-out": ["b"]},
            "pictures": {"a": "iVBORw=="},
        },
        "learnt-from": {"training-images": 360, "test-images": 90, "patients-known": True},
        "generator": {"gan-private": 1.0},
        "checked": {"release-passed": 1.0, "release-refused": 0.0},
        "attacked": attacked | changes.pop("attacked", {}),
        "settings": {
            "strategy": "feder",
            "release": {"max-discarded": 0.5, "without-privacy": False},
            "gan": {},
        },
        "fingerprints": dict.fromkeys(("code", "buffer", "train-images", "test-images"), "0" * 16),
        **changes,
    }


def verdicts() -> Iterator[tuple[dict[str, Any], str]]:
    yield {}, "They notice if 25% of the images are near-copies"
    few = {"verdict": "too small to tell", "leak": None, "noticed": None}
    yield few, "did not notice near-copies that were mixed in on purpose. So their failure proves"
    yield {**few, "noticed": 0.25}, "There are too few images to exclude a leak above the limit."
    yield few, "The settings and the policy allow such a release"
    yield {**few, "trials": ()}, "no attack could be tried"
    yield {**few, "leak": interval(0.1)}, "not even half of the images"
    yield {"verdict": "not attacked"}, "No attack was tried"
    bound = {"epsilon": 1.0, "delta": 1e-5, "audited": 0.25}
    yield (
        {"bound": bound},
        "The claim is ε = 1 at δ = 1e-05. The attacks prove that ε is at least 0.25",
    )
    yield {}, "No attack could test the claim."


@pytest.mark.parametrize(("attacked", "words"), [*verdicts()])
def test_the_page_says_what_came_of_the_attacks(attacked, words):
    claimed = {"gan-private": 1.0, "gan-epsilon": 1.0, "gan-delta": 1e-5}
    assert words in text_of(page(written(attacked=attacked, generator=claimed), "0" * 64, "key="))


def test_the_dossier_of_a_simulation_names_no_policy():
    few = {"verdict": "too small to tell", "leak": None, "noticed": None}
    text = text_of(page(written(attacked=few, policy=None), "0" * 64, ""))
    assert "The settings allow such a release" in text
    assert "without-privacy | false" in text


@pytest.mark.parametrize(
    ("attacked", "tried"),
    [
        ({"verdict": "not attacked", "trials": []}, "No attack was tried"),
        ({"verdict": "too small to tell", "trials": []}, "could not be tried"),
    ],
)
def test_without_attacks_no_answer_has_them_as_evidence(attacked, tried):
    found = {each.question: each.speaks for each in answers(written(attacked=attacked))}
    assert not [told for told in found.values() if "section 3 (" in told or "attacker" in told]
    assert sum(tried in told for told in found.values()) == 3


def test_every_answer_says_what_is_not_shown():
    told = list(answers(written()))
    assert len(told) >= 8
    assert all(each.silent for each in told)
    (legal,) = [each for each in told if each.question.startswith("Legal basis")]
    assert legal.speaks == ""


def test_a_page_runs_nothing_that_a_name_says():
    leaves = {"images": 1, "shape": [1, 8, 8], "classes": {"<script>": 1}, "left-out": ["<script>"]}
    leaves["pictures"] = {"<script>": "iVBORw=="}
    assert "<script" not in page(written(hospital="<script>", leaves=leaves), "0", "<script>")


def test_the_same_release_of_a_run_has_one_dossier(tmp_path):
    first = write(tmp_path, written(), None)
    assert write(tmp_path, written(written="2027-01-01T00:00:00+00:00"), None) == first
    assert write(tmp_path, written(policy=None), None) != first


def test_a_dossier_stays_if_the_policy_changes_during_a_run(tmp_path):
    """Others have a buffer that names it, and its hash is in the ledger."""
    identity = Identity.load("graz", tmp_path / "identity")
    first = write(tmp_path / "run", written(), identity)
    second = write(tmp_path / "run", written(policy=None), identity)
    keys = {"graz": identity.member}
    for digest, folder in ((first, tmp_path / "run" / first), (second, tmp_path / "run")):
        checked = check(folder / "dossier.json", keys)
        assert checked.hash == digest
        assert checked.holds
    assert newest_dossier(tmp_path, "run") == tmp_path / "run" / "dossier.json"


def test_a_dossier_with_pictures_of_many_classes_can_be_checked(tmp_path):
    """Up to 24 classes have 8 pictures, each of 90 x 86 pixels, with 3 random bytes each: 4.5 MB.

    Base64 makes 6 MB of them.
    """
    names = [f"class {number}" for number in range(CLASSES)]
    rng, labels = np.random.default_rng(0), np.arange(CLASSES).repeat(SHOWN)
    pictures = pngs_by_class(
        rng.integers(0, 256, (len(labels), 3, 86, 86), np.uint8), labels, names
    )
    leaves = written()["leaves"]
    leaves["pictures"] = {name: b64encode(png).decode() for name, png in pictures.items()}
    digest = write(tmp_path, written(leaves=leaves), Identity.load("graz", tmp_path / "identity"))
    path = tmp_path / "dossier.json"
    assert path.stat().st_size > 6e6
    checked = check(path, {"graz": Identity.load("graz", tmp_path / "identity").member})
    assert checked.hash == digest
    assert checked.holds


def test_nobody_else_reads_it(tmp_path):
    write(tmp_path / "run", written(), Identity.load("graz", tmp_path / "identity"))
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "run").iterdir()} == {0}


def test_the_page_knows_each_attack_and_what_left_nothing():
    assert ATTACKS.keys() == {*TRIED, CLASS_MEANS, SHADOWS}, "dossier/page.py has their sentences"
    dossier = written()
    assert "too few training images or patients: b." in text_of(page(dossier, "0" * 64, ""))
    dossier["generator"] |= {"gan-epsilon": 1.0, "gan-delta": 1e-5}
    text = text_of(page(dossier, "0" * 64, ""))
    assert "too few training images or patients, by their noised numbers: b." in text
