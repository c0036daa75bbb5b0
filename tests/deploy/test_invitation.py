"""Invitations: a key is registered once, for the hospital that was invited, and in time."""

import errno
import hashlib
import json
import os
import re
import ssl
import stat
import threading
import time
import tomllib

import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from client_app.authority.members import read_members
from deploy import invitation as module
from deploy import server
from deploy.credentials import end_of
from deploy.errors import DeployError
from deploy.invitation import accept, invite, read_invitation
from strategies.protocol.code import hash_of
from strategies.protocol.files import write_whole


@pytest.fixture
def registered(monkeypatch):
    """The keys that were registered, by hospital."""
    found: dict[str, str] = {}
    monkeypatch.setattr(
        module, "register", lambda _, key, name: found.update({name: key.read_text()})
    )
    return found


@pytest.fixture
def folder(call, tmp_path):
    """The server's folder, with an invitation of graz in the folder above."""
    assert call("server", "authority", "--name", "fl.example.org")[0] == 0
    assert call("server", "invite", "graz")[0] == 0
    return tmp_path / "fedhandoff" / "server"


def changed(file, **values):
    """The file with other values."""
    file.write_text(tomli_w.dumps({**tomllib.loads(file.read_text()), **values}))
    return file


def join(call, *more):
    return call("hospital", "join", "graz.invitation", "--data", "skin", "--yes", *more)


def test_a_hospital_joins_with_keys_that_stay(call, folder, registered, tmp_path):
    status, out, _ = join(call)
    assert status == 0
    graz = tmp_path / "fedhandoff" / "graz"
    own = tomllib.loads((graz / "hospital.toml").read_text())
    assert (own["name"], own["server"]) == ("graz", "fl.example.org:9092")
    assert (graz / "ca.crt").read_bytes() == (folder / "ca.crt").read_bytes()
    assert (graz / "approved" / "code").read_text().strip() == hash_of(server.APP)
    assert [*read_members(graz / "members")] == ["graz"]
    for said in (hash_of(server.APP), "The policy allows this run.", "fl.example.org:9092"):
        assert said in out
    answer = graz / "graz.answer"
    sent = answer.read_text()
    assert tomllib.loads((tmp_path / "graz.invitation").read_text())["token"] not in sent
    assert "PRIVATE" not in sent
    assert call("server", "accept", answer)[0] == 0
    assert registered == {"graz": (graz / "graz.pub").read_text()}


@pytest.mark.parametrize("file", ["ca.crt", "graz.answer"])
def test_a_hospital_whose_answer_was_not_written_joins_again(
    call, folder, tmp_path, monkeypatch, file
):
    def full(path, content, **options):
        if path.name == file:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_whole(path, content, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_whole", full)
        status, _, error = join(call)
    assert (status, "No space left" in error) == (2, True)
    graz = tmp_path / "fedhandoff" / "graz"
    key = (graz / "graz.pub").read_bytes()
    status, _, error = join(call)
    assert (status, error) == (0, "")
    assert (graz / "graz.pub").read_bytes() == key
    assert (graz / "graz.answer").exists()


def test_a_hospital_whose_join_was_killed_before_its_public_key_joins_again(call, folder, tmp_path):
    assert join(call)[0] == 0
    graz = tmp_path / "fedhandoff" / "graz"
    key = (graz / "graz.pub").read_bytes()
    for name in ("graz.pub", "graz.answer", "hospital.toml"):
        (graz / name).unlink()
    status, _, error = join(call)
    assert (status, error) == (0, "")
    assert (graz / "graz.pub").read_bytes() == key


@pytest.mark.parametrize("command", ["join", "init"])
def test_a_hospital_does_not_join_with_a_public_key_that_is_not_its_own(
    command, call, folder, tmp_path
):
    graz = tmp_path / "fedhandoff" / "graz"
    graz.mkdir()
    (graz / "graz.pub").write_text("")
    if command == "join":
        status, _, error = join(call)
    else:
        given = ("--data", "skin", "--server", "fl.example.org:9092")
        status, _, error = call("hospital", "init", "graz", *given)
    assert (status, error.count("\n")) == (2, 1)
    assert f"{graz}/graz.key cannot be read as a key (No such file" in error
    assert not {"graz.answer", "hospital.toml", "graz.key"} & {*os.listdir(graz)}


def test_only_its_owner_reads_an_invitation_and_the_server_keeps_no_token(folder, tmp_path):
    file = tmp_path / "graz.invitation"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = tomllib.loads(file.read_text())["token"]
    kept = folder / "invitations.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert token not in kept.read_text()


@pytest.mark.parametrize(
    "values",
    [
        {"key": "ecdsa-sha2-nistp384 AAAA"},
        {"mac": hashlib.sha256(b"guess").hexdigest()},
    ],
)
def test_another_key_is_not_registered(call, folder, registered, tmp_path, values):
    join(call)
    answer = changed(tmp_path / "fedhandoff" / "graz" / "graz.answer", **values)
    with pytest.raises(DeployError, match="does not answer the newest invitation of graz"):
        accept(folder, answer)
    assert not registered


def test_an_answer_counts_for_the_invited_name_alone(call, folder, registered, tmp_path):
    join(call)
    invite(folder, "linz", tmp_path / "linz.invitation", 1)
    answer = changed(tmp_path / "fedhandoff" / "graz" / "graz.answer", hospital="linz")
    with pytest.raises(DeployError, match="does not answer"):
        accept(folder, answer)
    with pytest.raises(DeployError, match="wien has no invitation"):
        accept(folder, changed(answer, hospital="wien"))
    assert not registered


def test_an_earlier_invitation_and_one_that_has_ended_are_refused(
    call, folder, registered, tmp_path
):
    join(call)
    answer = tmp_path / "fedhandoff" / "graz" / "graz.answer"
    invite(folder, "graz", tmp_path / "second.invitation", 1)
    with pytest.raises(DeployError, match="the newest invitation"):
        accept(folder, answer)
    invite(folder, "graz", tmp_path / "ended.invitation", -1)
    with pytest.raises(DeployError, match=r"has ended at .*, and this machine's clock shows 20"):
        read_invitation(tmp_path / "ended.invitation")
    with pytest.raises(DeployError, match="has ended"):
        accept(folder, answer)
    assert not registered


def test_a_key_that_cannot_be_registered_can_be_accepted_later(
    call, folder, registered, tmp_path, monkeypatch
):
    join(call)
    answer = tmp_path / "fedhandoff" / "graz" / "graz.answer"
    with monkeypatch.context() as patch:
        patch.setattr(module, "register", server.register)
        with pytest.raises(DeployError, match="start this folder's SuperLink first"):
            accept(folder, answer)
    assert accept(folder, answer) == "graz"
    assert [*registered] == ["graz"]


def answer_of(token, key):
    """The answer of a person who has the invitation of graz."""
    mac = module._mac(module._secret(token), "graz", key)
    return tomli_w.dumps({"hospital": "graz", "key": key, "mac": mac})


@pytest.mark.parametrize("fails", ["", "before", "after"])
def test_a_second_key_is_refused_also_after_an_interruption(
    call, folder, registered, tmp_path, monkeypatch, fails
):
    """Before or after Flower has registered the first key."""

    class Killed(BaseException):
        pass

    def register(folder, public_key, name):
        if fails == "after":
            registered[name] = public_key.read_text()
        raise Killed

    join(call)
    answer = tmp_path / "fedhandoff" / "graz" / "graz.answer"
    if fails:
        with monkeypatch.context() as patch:
            patch.setattr(module, "register", register)
            with pytest.raises(Killed):
                accept(folder, answer)
    else:
        accept(folder, answer)
    token = tomllib.loads((tmp_path / "graz.invitation").read_text())["token"]
    stolen = tmp_path / "stolen.answer"
    stolen.write_text(answer_of(token, "ecdsa-sha2-nistp384 AAAA"))
    with pytest.raises(DeployError, match=r"was accepted at .*, with another key\. .* a thief"):
        accept(folder, stolen)
    assert accept(folder, answer) == "graz"
    assert [key.split()[1] for key in registered.values()] != ["AAAA"]


def test_of_two_keys_at_once_one_is_registered(call, folder, registered, tmp_path, monkeypatch):
    token = tomllib.loads((tmp_path / "graz.invitation").read_text())["token"]
    answers = [tmp_path / f"{each}.answer" for each in "AB"]
    for answer in answers:
        answer.write_text(answer_of(token, f"ecdsa-sha2-nistp384 {answer.stem * 4}"))

    def slow(path, content, **options):
        time.sleep(0.2)
        write_whole(path, content, **options)

    monkeypatch.setattr(module, "write_whole", slow)
    refused = []

    def accept_one(answer):
        try:
            accept(folder, answer)
        except DeployError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=accept_one, args=(answer,)) for answer in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == len(registered) == 1
    assert "with another key" in refused[0]


def test_a_key_is_not_registered_if_nothing_can_be_noted(
    call, folder, registered, tmp_path, monkeypatch
):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    join(call)
    answer = tmp_path / "fedhandoff" / "graz" / "graz.answer"
    with monkeypatch.context() as patch:
        patch.setattr(module, "_keep", fail)
        with pytest.raises(OSError, match="No space left"):
            accept(folder, answer)
    assert not registered
    assert accept(folder, answer) == "graz"


def test_a_hospital_joins_again_with_a_newer_invitation_and_keeps_its_keys(
    call, folder, registered, tmp_path
):
    join(call)
    graz = tmp_path / "fedhandoff" / "graz"
    invite(folder, "graz", tmp_path / "graz.invitation", 1)
    with pytest.raises(DeployError, match=r"moves its hospital\.toml away, and joins again"):
        accept(folder, graz / "graz.answer")
    key = (graz / "graz.key").read_bytes()
    (graz / "hospital.toml").rename(graz / "old")
    join(call)
    assert accept(folder, graz / "graz.answer") == "graz"
    assert (graz / "graz.key").read_bytes() == key


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("invitations.json", ""),
        ("invitations.json", "[]"),
        ("invitations.json", '{"graz": 5}'),
        ("invitations.json", '{"graz": {}}'),
        ("invitations.json", '{"graz": {"secret": "zz", "ends": "2099-01-01T00:00:00+00:00"}}'),
        ("invitations.json", '{"graz": {"secret": "00", "ends": "soon"}}'),
        ("invitations.json", '{"graz": {"secret": "00", "ends": "2099-01-01"}}'),
        ("invitations.json", "[" * 100_000),
        ("hospitals.json", "{"),
        ("hospitals.json", '{"1": 2}'),
    ],
)
def test_a_damaged_file_of_the_server_is_named_and_stays(call, folder, tmp_path, file, content):
    join(call)
    (folder / file).write_text(content)
    status, _, error = call("server", "accept", tmp_path / "fedhandoff" / "graz" / "graz.answer")
    assert (status, error.count("\n")) == (2, 1)
    assert f"{folder / file} is damaged" in error
    assert "Restore it from a backup." in error or "invite graz again." in error
    assert (folder / file).read_text() == content


def test_two_invitations_at_once_are_both_kept(folder, tmp_path, monkeypatch):
    began: list[threading.Thread] = []

    def slow(path, content, **options):
        if path.name == "invitations.json" and not began:
            began.append(threading.Thread(target=invite, args=(folder, "linz", linz, 1)))
            began[0].start()
            time.sleep(0.5)
        write_whole(path, content, **options)

    linz = tmp_path / "linz.invitation"
    monkeypatch.setattr(module, "write_whole", slow)
    invite(folder, "wien", tmp_path / "wien.invitation", 1)
    began[0].join()
    assert {*json.loads((folder / "invitations.json").read_text())} == {"graz", "linz", "wien"}


@pytest.mark.parametrize("options", [["--days", "999999999"], ["--to", "/no/such/a.invitation"]])
def test_an_invitation_that_is_not_written_replaces_none(
    call, folder, registered, tmp_path, options
):
    join(call)
    status, _, error = call("server", "invite", "graz", *options)
    assert (status, error.count("\n")) == (2, 1)
    assert accept(folder, tmp_path / "fedhandoff" / "graz" / "graz.answer") == "graz"


@pytest.mark.parametrize("fails", ["damaged", "graz.invitation", "invitations.json"])
def test_after_a_failure_the_earlier_invitation_is_as_before(
    call, folder, registered, tmp_path, monkeypatch, fails
):
    """The list is damaged, or the disk is full when one of the two files is written."""
    earlier = (tmp_path / "graz.invitation").read_bytes()
    kept = (folder / "invitations.json").read_bytes()

    def full(path, content, **options):
        if fails in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_whole(path, content, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_whole", full)
        if fails == "damaged":
            (folder / "invitations.json").write_text("{")
        status, _, error = call("server", "invite", "graz")
    assert (status, error.count("\n")) == (2, 1)
    assert str(folder / "invitations.json" if fails == "damaged" else fails) in error
    (folder / "invitations.json").write_bytes(kept)
    assert [path.name for path in tmp_path.glob("*graz.inv*")] == ["graz.invitation"]
    assert (tmp_path / "graz.invitation").read_bytes() == earlier
    assert join(call)[0] == 0
    assert accept(folder, tmp_path / "fedhandoff" / "graz" / "graz.answer") == "graz"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"code": "0" * 64}, "is for the code 0000.*: use a clone of the consortium's version"),
        ({"hospital": "../x"}, "'hospital' is '../x'"),
        ({"token": "short"}, "'token' is 'short'"),
        ({"pem": "no certificate"}, "has no certificate"),
        ({"more": 1}, "is not an invitation: see its keys 'more'"),
        ({"ends": "tomorrow"}, "'ends' is 'tomorrow'"),
        ({"ends": "2027-13-01T00:00:00+00:00"}, "'ends' is '2027-13-01"),
        ({"server": "--insecure"}, "'server' is '--insecure'"),
        ({"server": "a:1\nThe code is right."}, "'server' is 'a:1.nThe code"),
        ({"server": "\x1b[2Ja:1"}, "'server' is '.x1b"),
    ],
)
def test_an_invitation_that_cannot_be_used_makes_nothing(call, folder, tmp_path, values, said):
    changed(tmp_path / "graz.invitation", **values)
    status, _, error = join(call)
    assert status == 2
    assert re.search(said, error)
    assert not (tmp_path / "fedhandoff" / "graz").exists()


def test_a_certificate_of_no_version_is_named(call, folder, tmp_path):
    content = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()).public_bytes(
        Encoding.DER
    )
    odd = content.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05", 1)
    file = tmp_path / "odd.crt"
    file.write_text(ssl.DER_cert_to_PEM_cert(odd))
    changed(tmp_path / "graz.invitation", pem=file.read_text())
    status, _, error = join(call)
    assert (status, error.count("\n")) == (2, 1)
    with pytest.raises(
        DeployError, match=r"odd\.crt cannot be read .* \(5 is not a valid X509 ver"
    ):
        end_of(file)


def test_a_damaged_certificate_is_not_sent(call, folder, tmp_path):
    (folder / "ca.crt").write_text("hello")
    status, _, error = call("server", "invite", "linz")
    assert (status, f"{folder / 'ca.crt'} cannot be read as a certificate" in error) == (2, True)
    assert not (tmp_path / "linz.invitation").exists()


def test_only_one_certificate_is_trusted(call, folder, tmp_path):
    own = (folder / "ca.crt").read_text()
    other = (folder / "server.crt").read_text()
    changed(tmp_path / "graz.invitation", pem=own + other)
    assert join(call)[0] == 0
    assert (tmp_path / "fedhandoff" / "graz" / "ca.crt").read_text() == own


def test_a_hospital_is_asked_before_it_approves(call, folder, tmp_path, monkeypatch):
    status, _, error = call("hospital", "join", "graz.invitation", "--data", "skin")
    assert (status, error) == (2, "fedhandoff hospital join: Missing option '--yes'.\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda question: "y")
    status, printed, _ = call("hospital", "join", "graz.invitation", "--data", "skin")
    assert (status, printed.splitlines()[-1]) == (
        1,
        "You have not joined: the answer was not 'yes'.",
    )
    assert not (tmp_path / "fedhandoff" / "graz").exists()
