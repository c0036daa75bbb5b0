"""What an operator reads: what runs from which folder, what it says, what is wrong at the start."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cli import main
from deploy import credentials, hospital, server, status
from deploy.approved import approve
from deploy.credentials import end_of, make_authority, make_key
from deploy.errors import DeployError
from deploy.hospital import Hospital, check_writable, start_supernode
from deploy.own_file import write_own
from deploy.running import is_running, lock, read_facts
from deploy.voice import MISSED, SuperLinkVoice, SuperNodeVoice
from tests.deploy.test_deploy import ROOT

INFO = "\033[92mINFO \033[0m:      "


def heard(voice, capsys, *lines):
    """What is printed when a program prints these lines, without the time."""
    capsys.readouterr()
    for line in lines:
        voice.hear(f"{INFO}{line}\n".encode())
    return [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]


def test_a_supernode_says_when_it_is_connected_what_it_does_and_what_it_waits_for(capsys):
    voice = SuperNodeVoice("graz", "fl.example.org:9092")
    lines = heard(
        voice,
        capsys,
        *("Starting Flower SuperNode", "", "SuperNode ID: 539163", "", "[RUN 107474]"),
        *("Receiving: query.live message (ID: 3c0a)", "Received successfully", "Sent successfully"),
        *("Receiving: train message (ID: 3c0b)", "Received successfully"),
        *("Start `flwr-clientapp` process", "graz trains: 50 of 100 images, 9.0/s, 6 s left"),
        *("", "Sending: train message (ID: 9686)", "Sent successfully"),
    )
    assert lines == [
        "graz is connected to fl.example.org:9092 and waits for a run.",
        "train: at work",
        "graz trains: 50 of 100 images, 9.0/s, 6 s left",
        "train: answered after 0 s; waits for the next message",
    ]


def test_a_server_that_is_away_is_named_once_until_it_answers_again(capsys):
    voice = SuperNodeVoice("graz", "fl.example.org:9092")
    failed = ["Connection attempt failed, retrying in 0.74 seconds"]
    # Its own parts find each other after one or two attempts.
    assert heard(voice, capsys, *failed, "Connection successful after 0.75 seconds") == []
    away = "fl.example.org:9092 cannot be reached; graz tries again and again."
    assert heard(voice, capsys, *failed * (2 * MISSED)) == [away]
    back = "Connection successful after 81.3 seconds and 12 tries."
    assert heard(voice, capsys, back, back) == ["fl.example.org:9092 can be reached again."]


def test_a_server_that_refuses_is_not_said_to_be_away(capsys):
    voice = SuperNodeVoice("graz", "fl.example.org:9092")
    failed = ["Connection attempt failed, retrying in 0.74 seconds"]
    refusal = [
        *("ERROR :   Exit Code: 305", "Failed to initialize the connection to the SuperLink."),
        *("[code: 2004] Failed to activate SuperNode.", "For more information, visit: <https://x>"),
        "The SuperNode could not establish a connection to the SuperLink.",
    ]
    for _ in range(3):
        (line,) = heard(voice, capsys, *failed * MISSED, *refusal, *failed * MISSED)[-1:]
        assert "fl.example.org:9092 refuses graz" in line
        assert "register graz.pub" in line


def test_a_server_s_log_has_who_comes_and_goes_and_no_line_for_each_look(capsys, tmp_path):
    voice = SuperLinkVoice(lambda: {"17": "graz"})
    access = '10.0.0.7:49594 - "POST /v1/runtime/pull-messages HTTP/1.1" {}'
    lines = [
        *("[Fleet.ActivateNode] Activated node_id=17", "ControlServicer.StartRun", ""),
        *("[Fleet.ActivateNode] Activated node_id=18", "Created run 5 in federation @none/default"),
        *("Finished task 3 of run 5", "[Fleet.DeactivateNode] Deactivated node_id=17"),
    ]
    assert heard(voice, capsys, *lines) == [
        *("graz is connected", "node 18 is connected"),
        *("run 5 begins", "run 5 has ended", "graz has disconnected"),
    ]
    voice.names = lambda: server.names_of(tmp_path)
    (tmp_path / "hospitals.json").write_text("damaged")  # a reader that ends stops the SuperLink
    assert heard(voice, capsys, lines[0]) == ["node 17 is connected"]
    voice.hear(f"2026-11-22T14:23:30.016Z INFO [uvicorn.access] {access.format(200)}\n".encode())
    assert capsys.readouterr().out == ""
    voice.hear(f"2026-11-22T14:23:30.016Z INFO [uvicorn.access] {access.format(503)}\n".encode())
    assert capsys.readouterr().out.endswith(access.format(503) + "\n")


@pytest.fixture
def graz(tmp_path, monkeypatch):
    """A hospital that could be started, were it not for what a test does to it."""
    make_authority(tmp_path / "server", ["localhost"])
    make_key(tmp_path / "graz", "graz")
    (tmp_path / "graz" / "ca.crt").write_bytes((tmp_path / "server" / "ca.crt").read_bytes())
    monkeypatch.setattr(hospital, "keep_running", lambda *_: None)
    monkeypatch.setattr(hospital, "check_server", lambda *_: None)
    folder = tmp_path / "graz"
    approve(folder, ROOT)
    return Hospital(folder, "localhost:9", "graz", tmp_path, store_dir=folder / "store")


def test_a_supernode_is_started_once(graz):
    with lock(graz.folder, "graz's SuperNode"):
        assert is_running(graz.folder)
        with pytest.raises(
            DeployError, match=rf"graz's SuperNode already runs .* process {os.getpid()}:"
        ):
            start_supernode(graz)
    assert not is_running(graz.folder)
    start_supernode(graz)


def test_a_lock_ends_with_its_process_however_that_ends(graz):
    code = (
        "import os, sys; from pathlib import Path; from deploy.running import lock\n"
        f"with lock(Path({str(graz.folder)!r}), 'it', name='graz'):\n"
        "    print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert is_running(graz.folder)
        assert read_facts(graz.folder) == {"name": "graz", "pid": str(process.pid)}
        process.kill()
    assert not is_running(graz.folder)


def test_a_store_that_cannot_be_written_to_is_named_with_hospital_and_path(graz):
    (graz.folder / "store").touch()
    with pytest.raises(DeployError, match=rf"graz's store {graz.folder}/store/graz cannot be writ"):
        start_supernode(graz)


def test_a_store_whose_disk_is_not_mounted_is_not_begun_again(graz, monkeypatch):
    """A new store would have a new ledger and a new privacy account."""
    monkeypatch.setattr(hospital, "check_server", lambda *_: None)
    monkeypatch.setattr(hospital, "keep_running", lambda *_: None)
    start_supernode(graz)
    store = graz.store_dir / "graz"
    mistyped = replace(graz, store_dir=graz.folder / "stroe")
    with pytest.raises(
        DeployError, match=rf"stroe/graz is missing, .* a store in {graz.store_dir}:"
    ):
        start_supernode(mistyped)
    assert not mistyped.store_dir.exists()
    store.rename(graz.folder / "elsewhere")
    with pytest.raises(DeployError, match=rf"{store} is missing, and the last start was with a"):
        start_supernode(graz)
    (graz.folder / "hospital.toml").write_text("name = 'graz'\n")
    with pytest.raises(SystemExit, match="2"):
        main(["hospital", "identity", "--hospital", str(graz.folder)])
    (graz.folder / "hospital.toml").unlink()
    again = ("--folder", str(graz.folder), "--data", "skin", "--server", "localhost:9")
    with pytest.raises(SystemExit, match="2"):
        main(["hospital", "init", "graz", *again])
    assert not store.exists()
    (graz.folder / "running.json").unlink()  # as the message says
    start_supernode(graz)
    assert store.is_dir()


def test_on_a_full_disk_the_facts_of_the_last_start_stay(tmp_path):
    """Without them a mistyped store would begin a new ledger."""
    with lock(tmp_path, "it", store="here"):
        pass
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"), lock(tmp_path, "it", store="there"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_facts(tmp_path)["store"] == "here"


def test_a_full_disk_is_named(tmp_path):
    class Full:
        def __enter__(self):
            raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hospital, "TemporaryFile", lambda **_: Full())
        patch.setattr(Full, "__exit__", lambda *_: None, raising=False)
        with pytest.raises(
            DeployError, match=r"\(No space left on device\): .*as store in hospital\.toml"
        ):
            check_writable("graz", tmp_path)


@pytest.mark.parametrize(
    ("days", "words"), [(-5000, "has expired; it is valid until"), (5000, "is not valid before 20")]
)
def test_a_certificate_out_of_its_time_is_named_with_its_path_and_the_clock(
    days, words, tmp_path, monkeypatch, graz
):
    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=days)

    for name in ("ca.crt", "ca.key", "server.crt", "server.key"):
        (tmp_path / "server" / name).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(credentials, "datetime", Clock)
        make_authority(tmp_path / "server", ["localhost"])
    bad = (tmp_path / "server" / "ca.crt").read_bytes()
    (graz.folder / "ca.crt").write_bytes(bad)
    now = f"{datetime.now(UTC):%Y-%m-%d}"
    with pytest.raises(DeployError, match=rf"{graz.folder}/ca\.crt {words}.*clock shows {now}"):
        start_supernode(graz)
    with pytest.raises(DeployError, match=rf"{tmp_path}/server/ca\.crt {words}"):
        server.start_superlink(tmp_path / "server", "127.0.0.1:1", 2)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("a key of another certificate", "mismatch"),
        ("what is no key", "PEM"),
        ("another authority's certificate", "local issuer"),
        ("another name's certificate", "IP address mismatch"),
        ("a missing key", "No such file"),
    ],
)
def test_a_certificate_that_the_server_s_own_commands_refuse_is_refused_at_the_start(
    broken, reason, tmp_path, monkeypatch
):
    folder, other = tmp_path / "server", tmp_path / "other"
    make_authority(folder, ["localhost"])
    if "name" in broken:
        monkeypatch.setattr(credentials, "HERE", ())
        for file in ("server.crt", "server.key"):
            (folder / file).unlink()
        make_authority(folder, ["fl.example.org"])
    else:
        make_authority(other, ["localhost"])
        (folder / "server.key").write_bytes((other / "server.key").read_bytes())
    if "authority" in broken:
        (folder / "server.crt").write_bytes((other / "server.crt").read_bytes())
    if "no key" in broken:
        (folder / "server.key").write_text("hello")
    if "missing" in broken:
        (folder / "server.key").unlink()
    with pytest.raises(DeployError, match=rf"cannot be used \(.*{reason}.*\): server\.key must"):
        server.start_superlink(folder, "127.0.0.1:1", 2)


@pytest.mark.parametrize("kind", ["text", "cut off", "a second one"])
def test_what_is_no_certificate_is_named(graz, kind):
    """OpenSSL names neither file nor cure of a second certificate that is damaged."""
    make_authority(graz.folder / "server", ["localhost"])
    right = (graz.folder / "server" / "ca.crt").read_text()
    begin, *_, end = right.splitlines(keepends=True)
    second = f"{right}{begin}AAAA\n{end}"
    wrong = {"text": "hello", "cut off": right[:-60], "a second one": second}
    (graz.folder / "ca.crt").write_text(wrong[kind])
    with pytest.raises(DeployError, match=r"ca\.crt cannot be read as a certificate"):
        end_of(graz.folder / "ca.crt")


def test_the_status_of_a_hospital_that_runs_and_of_one_that_does_not(graz, capsys):
    facts = {"name": "graz", "server": "localhost:9", "store": str(graz.folder / "store")}
    with lock(graz.folder, "it", **facts):
        assert status.status(graz.folder)
    lines = dict(line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines()[1:])
    assert lines["process"].strip() == f"runs, process {os.getpid()}"
    assert lines["server"].strip() == "localhost:9"
    assert lines["ca.crt"].strip().startswith("valid until 20")
    assert lines["disk"].endswith(f"GB left for {graz.folder}/store")
    assert not status.status(graz.folder)
    assert "process      does not run\n" in capsys.readouterr().out


def test_the_status_of_a_hospital_before_its_first_start_is_that_of_its_file(graz, capsys):
    write_own(graz.folder, "hospital.toml", {"name": "graz", "server": "localhost:7"})
    assert not status.status(graz.folder)
    out = capsys.readouterr().out
    assert out.startswith(f"graz, {graz.folder}\n")
    assert "server       localhost:7\n" in out


def test_the_status_of_a_hospital_that_does_not_run_is_that_of_its_file(graz, capsys):
    """The facts of a hospital that runs are those of its start."""
    with lock(graz.folder, "it", name="graz", server="localhost:9", store="old"):
        write_own(graz.folder, "hospital.toml", {"name": "graz", "server": "a:7", "store": "new"})
        status.status(graz.folder)
        out = capsys.readouterr().out
        assert ("localhost:9\n" in out, f"GB left for {graz.folder}/old\n" in out) == (True, True)
    status.status(graz.folder)
    out = capsys.readouterr().out
    assert ("a:7\n" in out, f"GB left for {graz.folder}/new\n" in out) == (True, True)


def test_the_status_of_a_server_has_its_hospitals_by_name(graz, tmp_path, monkeypatch, capsys):
    """Flower lists nodes; the names are those that were registered here."""
    folder = tmp_path / "server"
    (folder / "hospitals.json").write_text(json.dumps({"17": "graz"}))
    node = {"status": "online", "online-at": "2026-11-22 14:49:19Z", "offline-at": "N/A"}
    away = {"status": "registered", "online-at": "N/A", "offline-at": "N/A"}
    answers = {
        "supernode": {"nodes": [{"node-id": "17", **node}, {"node-id": "18", **away}]},
        "ls": {"runs": [{"run-id": "5", "status": "finished:completed"}]},
    }
    monkeypatch.setattr(server, "_flwr", lambda folder, command, *_: answers[command])
    with lock(folder, "it", fleet="0.0.0.0:9092", control="127.0.0.1:8000"):
        assert status.status(folder)
    out = capsys.readouterr().out
    assert "hospital     graz: connected since 2026-11-22 14:49:19Z\n" in out
    assert "hospital     node 18: registered, never connected\n" in out
    assert "last run     5: finished:completed\n" in out
    assert "listens      0.0.0.0:9092 for hospitals, 127.0.0.1:8000 for you\n" in out


def test_a_server_without_its_certificate_is_a_server(tmp_path, capsys):
    """Its operator has moved the certificate away to make another."""
    make_authority(tmp_path, ["localhost"])
    write_own(tmp_path, "server.toml", {"address": "localhost:9092"})
    (tmp_path / "server.crt").unlink()
    assert not status.status(tmp_path)
    out = capsys.readouterr().out
    assert out.startswith(f"server, {tmp_path}\n")
    assert "server.crt cannot be read as a certificate" in out


def test_what_is_no_folder_is_named(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DeployError, match=f"{folder} is not a folder of a server"):
            status.status(folder)


def test_keys_are_out_of_git_s_reach_where_their_folder_is_new(tmp_path):
    """The documentation has them in ~/fedhandoff, where somebody may have cloned this to."""
    clone = tmp_path / "fedhandoff"
    subprocess.run(["git", "init", "-q", clone], check=True)
    make_authority(clone / "centre", ["localhost"])
    make_key(clone / "graz", "graz")
    make_key(clone / "graz", "linz")
    command = ["git", "-C", clone, "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == ""
    make_key(tmp_path, "wien")
    assert not (tmp_path / ".gitignore").exists()
