"""A run's folder as an RO-Crate, opened with the library."""

import fcntl
import hashlib
import json
import os
import re
import shutil
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from benchmarks.reproduce import read_summary
from cli import main
from server_app.crate import write_run_crate
from server_app.results import Results
from server_app.runs import find
from server_app.summary import Summary
from server_app.tables import rounds
from server_app.watch import Followed
from strategies.engine.events import Event
from strategies.engine.state import Model
from strategies.protocol import files, shapes
from strategies.protocol.code import app_version, code_hash
from strategies.protocol.parcel import Manifest, load, pack, save
from tests.fakes import settings
from tests.server_app.test_results import at, run

rocrate = pytest.importorskip("rocrate.rocrate")
KEYED = {
    "data": "manifest",
    "train-images": "keyed-" + "0" * 16,
    "test-images": "keyed-" + "1" * 16,
}

DONE = "CompletedActionStatus"


@pytest.fixture
def folder(tmp_path, events):
    """A run of a real hospital A and a simulated B; A's synthetic images may leave, B's may not."""
    results = Results.open(settings(output_dir=str(tmp_path / "runs"), strategy="rwt"))[0]
    first = [Event("query.enrol", 0, 0, name) for name in "AB"]
    facts = {"A": KEYED, "B": {"data": "manifest", "train-images": "2" * 16}}
    known = [
        replace(each, facts=facts[each.hospital], metrics={**each.metrics, "release-passed": 1.0})
        if each.verb == "query.prepare"
        else each
        for each in events
    ]
    kept = Event("query.prepare", 1, 0, "B", outcome="release", reason="The check refused them.")
    run(results, [*first, *known[:2], kept, *known[2:]])
    state = at(results, "A", "B")
    label = Manifest("A", "net", ["a", "b"], visited=["B", "A", "B"])
    parcel = pack({"model": ArrayRecord({"weight": Array(np.ones(2, "f4"))})}, label)
    state.models["A"] = Model("A", "A", state.shelf.put(parcel))
    results.finish(state)
    # The server, which is this process, has locked its own folder.
    return shutil.copytree(results.path, tmp_path / results.path.name)


def one(crate, at):
    entity = crate.get(at)
    assert entity is not None, at
    return entity


def test_every_reader_has_room_for_each_pair_of_hospitals(folder, monkeypatch):
    path = folder / "summary.json"
    text = path.read_text()
    monkeypatch.setattr(files, "MOST", len(text) // 10)
    monkeypatch.setattr(shapes, "MOST_VALUES", sum(map(text.count, ",[{")) // 10)
    with pytest.raises(OSError, match=r"This has .* bytes"):
        files.read_json(path, Summary)
    write_run_crate(folder)
    assert len(rounds(folder)) == 2
    (compared,), left_out = find([folder])
    assert (compared.path, left_out) == (folder, {})
    (watched := Followed(folder)).look()
    assert watched.summary is not None
    assert read_summary(folder)["status"] == "completed with failures"


def test_a_program_reads_who_trained_what_on_what(folder):
    crate = rocrate.ROCrate(write_run_crate(folder).parent)
    told = json.loads((folder / "summary.json").read_text())
    action, app = one(crate, "#action"), one(crate, "#app")
    assert action["instrument"] is app is crate.mainEntity
    assert (app["version"], app["identifier"]) == (app_version(), f"urn:sha256:{code_hash()}")
    assert app["license"].id == "https://spdx.org/licenses/Apache-2.0"
    assert (action["startTime"], action["endTime"]) == (told["began"], told["ended"])
    assert action["actionStatus"] == f"http://schema.org/{DONE}"
    assert {each.id for each in action["object"]} == {"#images-A", "#images-B", "config.toml"}
    assert {each["name"] for each in one(crate, "#consortium")["member"]} == {*told["hospitals"]}
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    del files["ro-crate-metadata.json"]
    assert {each.id for each in action["result"]} == files.keys() - {"config.toml"}
    for name, path in files.items():
        assert one(crate, name)["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "keyed-0000000000000000" in one(crate, "#images-A")["description"]
    assert "the hospital's store (membership.jsonl)" in crate.root_dataset["description"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([Event("query.enrol", 0, 0, "A", outcome="policy", reason="No.")], "by its own policy"),
        ([Event("query.enrol", 0, 0, "A")], "Whether the hospitals were real is not recorded"),
        ([Event("query.prepare", 0, 0, "A")], "The hospitals were simulated"),
    ],
)
def test_a_run_without_images_is_not_called_a_simulation(events, words, tmp_path):
    results = Results.open(settings(output_dir=str(tmp_path / "runs"), strategy="rwt"))[0]
    run(results, events)
    results.fail(RuntimeError("Nobody takes part."), at(results))
    copy = shutil.copytree(results.path, tmp_path / results.path.name)
    crate = rocrate.ROCrate(write_run_crate(copy).parent)
    assert words in crate.root_dataset["description"]


def test_a_check_in_virtual_time_has_no_time_of_the_clock(tmp_path):
    """There an answer that took an hour ends at 0 seconds, as it began."""
    results = Results.open(settings(output_dir=str(tmp_path / "runs"), strategy="rwt"))[0]
    passed = Event("query.prepare", 0, 0, "A", metrics={"release-passed": 1.0}, seconds=3600.0)
    run(results, [replace(passed, began=0.0, time=0.0), replace(passed, began=1.0, time=3601.0)])
    results.finish(at(results))
    copy = shutil.copytree(results.path, tmp_path / results.path.name)
    graph = json.loads(write_run_crate(copy).read_text())["@graph"]
    checks = [each for each in graph if "endTime" in each and "searched" in each["name"]]
    assert len(checks) == 1


def test_unknown_facts_about_images_are_called_unknown(folder):
    """B reports no number of images, and no hash of its test images."""
    crate = rocrate.ROCrate(write_run_crate(folder).parent)
    assert one(crate, "#images-B")["description"] == (
        "Kind: manifest; an unknown number of images to train (hash 2222222222222222); an unknown "
        "number of images to test (hash not recorded)."
    )


def test_a_model_names_the_hospitals_that_trained_it(folder):
    crate = rocrate.ROCrate(write_run_crate(folder).parent)
    makers = one(crate, "parcels/A.npz")["creator"]
    assert [each["name"] for each in makers] == ["A", "B"]
    assert one(crate, "parcels/B.npz").get("creator") is None


def test_a_failed_run_has_a_crate_with_its_checkpoint(tmp_path, events):
    """A checkpoint has parcels without a model, such as the synthetic images of a hospital."""
    results = Results.open(settings(output_dir=str(tmp_path / "runs"), strategy="feder"))[0]
    run(results, events)
    state = at(results, "A")
    label = Manifest("B", "net", ["a", "b"])
    images = {"buffer": ArrayRecord({"images": Array(np.ones(2, "f4"))})}
    state.buffers["B"] = state.shelf.put(pack(images, label))
    results.keep(state)
    results.fail(RuntimeError("The power went."), state)
    copy = shutil.copytree(results.path, tmp_path / results.path.name)
    crate = rocrate.ROCrate(write_run_crate(copy).parent)
    kept = one(crate, f"checkpoint/{state.buffers['B']}.npz")
    assert kept["description"] == "A part of the state with which the run can be resumed."
    assert one(crate, "#check-1")["name"] == "Hashes of 1 model, by their labels: OK"


def test_checks_are_those_that_somebody_made(folder):
    """A hospital's sign-off is known if it is real; no person has checked the folder."""
    crate = rocrate.ROCrate(write_run_crate(folder).parent)
    checks = [each for each in crate.root_dataset["mentions"] if each.type == "AssessAction"]
    found = {
        (str(each["additionalType"])[21:], each["agent"].id, each["name"].split(":")[0]): each[
            "actionStatus"
        ][18:]
        for each in checks
    }
    passed = "searched its synthetic images for copies of real ones"
    took_part = "A judged the settings by its policy, and took part"
    assert found == {
        ("CheckValue", "#app", "Hashes of 2 models, by their labels"): DONE,
        ("SignOff", "#hospital-A", took_part): DONE,
        ("DisclosureCheck", "#hospital-A", f"A {passed}"): DONE,
        ("DisclosureCheck", "#hospital-B", f"B {passed}"): DONE,
        ("DisclosureCheck", "#hospital-B", "B kept its synthetic images"): "FailedActionStatus",
        ("DisclosureCheck", "#app", "Check by a person"): "PotentialActionStatus",
    }
    assert one(crate, "#requester")["name"] == "not recorded"


def test_checks_of_synthetic_features_are_not_those_of_images(folder):
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('freeze = "none"', 'freeze = "body"'))
    graph = json.loads(write_run_crate(folder).read_text())["@graph"]
    names = [each["name"] for each in graph if "synthetic" in each.get("name", "")]
    assert names == [
        "A searched its synthetic vectors for copies of real ones: passed",
        "B searched its synthetic vectors for copies of real ones: passed",
        "B kept its synthetic vectors: The check refused them.",
    ]


def test_what_the_five_safes_profile_demands_is_there(folder):
    """The profile's MUSTs (0.4): mainEntity, instrument, agent, project, mentions, RO-Crate 1.2.

    Hospital C refused the run by its policy.
    """
    line = {"time": 0.0, "verb": "query.enrol", "round": 0, "hop": 0, "hospital": "C"}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**line, "outcome": "policy", "reason": "No."}) + "\n")
    crate = rocrate.ROCrate(write_run_crate(folder).parent)
    assert crate.version == "1.2"
    root, action = crate.root_dataset, one(crate, "#action")
    assert "https://w3id.org/5s-crate/0.4" in {each.id for each in root["conformsTo"]}
    assert "Dataset" in root["mainEntity"].type
    assert "workflow-ro-crate" in str(root["mainEntity"]["conformsTo"])
    assert (action["agent"].type, root["sourceOrganization"].type) == ("Person", "Project")
    assert action in root["mentions"]
    known = {each.id for each in crate.get_entities()}
    for entity in json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]:
        for value in entity.values():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict) and not each["@id"].startswith("http"):
                    assert each["@id"] in known, each


def command(folder, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["crate", str(folder)])
    told = capsys.readouterr()
    return ended.value.code, told.out + told.err


def under_way(folder):
    locked = os.open(folder, os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)


def unfinished(folder):
    (folder / "summary.json").unlink()


def other_events(folder):
    (folder / "metrics.jsonl").write_text("")


def cut_events(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().rpartition('{"verb":"train"')[0])


def other_model(folder):
    """Its label has the hash of the model before."""
    path = folder / "parcels" / "A.npz"
    changed = RecordDict({**load(path), "model": ArrayRecord({"weight": Array(np.zeros(2, "f4"))})})
    save(changed, path)


def no_model(folder):
    (folder / "parcels" / "A.npz").write_bytes(b"PK")


def a_link(folder):
    (folder / "more.txt").symlink_to("/etc/passwd")


def a_name_of_bytes(folder):
    (folder / os.fsdecode(b"\xff.txt")).touch()


def endless(folder):
    path = folder / "metrics.jsonl"
    path.write_text(re.sub('"time":[0-9.]+', '"time":1e300', path.read_text()))


def unknown_images(folder):
    path = folder / "summary.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "data": {**told["data"], "A": {"kind": "folder"}}}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (a_name_of_bytes, "ff.txt is not in UTF-8: rename it."),
        (endless, "is damaged, or of another version: "),
        (unknown_images, "is damaged, or of another version: 'train'."),
        (shutil.rmtree, "There is no folder"),
        (under_way, "is under way: wait for its end."),
        (unfinished, "has no summary.json: it is not a result directory, or its run has not ended"),
        (other_events, "are not of one run"),
        (cut_events, "are not of one run, or one was cut."),
        (other_model, "A.npz is not the model that the run left"),
        (no_model, "A.npz is not the model that the run left"),
        (a_link, "more.txt is not an ordinary file: remove it."),
    ],
)
def test_a_folder_that_is_no_such_run_is_refused_in_one_line(folder, capsys, change, words):
    change(folder)
    status, said = command(folder, capsys)
    assert status == 2
    assert words in said
    assert said.count("\n") == 1
    assert not (folder / "ro-crate-metadata.json").exists()


def test_a_crate_has_the_name_of_the_folder_that_one_is_in(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert command(".", capsys) == (0, "ro-crate-metadata.json\n")
    crate = rocrate.ROCrate(folder)
    assert crate.root_dataset["name"] == folder.name
    assert one(crate, "#action")["name"].startswith(f"Run {folder.name}: ")


@pytest.mark.parametrize(
    "name", ["a\nb.txt", "<script>", "%2e%2e", "#app", "\x1b[31m", "http:", "ü", "x" * 250]
)
def test_the_name_of_a_file_adds_no_other_entity(folder, capsys, name):
    (folder / name).touch()
    assert command(folder, capsys)[0] == 0
    crate = rocrate.ROCrate(folder)
    assert one(crate, quote(name))["name"] == name
    assert one(crate, "#app")["name"] == "fedhandoff"
    assert command(folder, capsys)[0] == 0  # it is found again
    (folder / "ro-crate-metadata.json").write_text("[" * 100_000)
    status, said = command(folder, capsys)
    assert (status, said.count("\n"), "is damaged: remove it" in said) == (2, 1, True)


@pytest.mark.parametrize("name", ["report.html", "parcels/B.npz", "new ü.txt"])
def test_a_file_that_was_changed_after_its_crate_is_named(folder, capsys, name):
    assert command(folder, capsys) == (0, f"{folder}/ro-crate-metadata.json\n")
    assert command(folder, capsys)[0] == 0
    (folder / name).unlink(missing_ok=True)
    if name != "parcels/B.npz":
        (folder / name).write_text("other")
    status, said = command(folder, capsys)
    assert (status, said.count("\n")) == (2, 1)
    assert f"{folder}/{name} is not the file that ro-crate-metadata.json names" in said
