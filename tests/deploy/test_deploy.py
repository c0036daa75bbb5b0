"""What a consortium starts: files of the right kind, command lines, and programs that stay up."""

import ipaddress
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.common.config import get_project_dir
from requests.utils import should_bypass_proxies

from deploy import credentials, hospital, running, server, supervisor, transport, watch
from deploy.approved import approve, approved_code
from deploy.credentials import end_of, make_authority, make_key
from deploy.errors import DeployError
from deploy.hospital import PROGRAMS, Hospital, check_server, node_config, start_supernode
from deploy.voice import SuperLinkVoice, Voice
from strategies.protocol.settings import SettingsError

ROOT = Path(__file__).parents[2]


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def folder(tmp_path):
    make_authority(tmp_path / "server", ["fl.example.org", "192.0.2.7", "::1"])
    return tmp_path / "server"


def test_the_server_has_a_certificate_of_the_authority_for_its_names(folder):
    authority, own = certificate(folder / "ca.crt"), certificate(folder / "server.crt")
    own.verify_directly_issued_by(authority)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    addresses = ["192.0.2.7", "::1", "127.0.0.1"]
    assert names.get_values_for_type(x509.IPAddress) == list(map(ipaddress.ip_address, addresses))
    constraints = [
        file.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        for file in (authority, own)
    ]
    assert constraints == [True, False]


@pytest.mark.parametrize("whose", ["hospital", "server"])
def test_a_service_outlives_a_process_that_runs_out_of_memory(whose):
    """By default systemd then ends all processes of the service."""
    unit = (ROOT / "deploy" / f"fedhandoff-{whose}.service").read_text("utf-8")
    assert "OOMPolicy=continue" in unit.splitlines()


def test_private_keys_are_private(folder):
    make_key(folder, "graz")
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        **dict.fromkeys(["ca.crt", "server.crt", "graz.pub", ".gitignore"], 0o644),
        **dict.fromkeys(["ca.key", "server.key", "graz.key"], 0o600),
    }


def test_nothing_is_overwritten(folder):
    make_key(folder, "graz")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DeployError, match=r"server\.crt already exists"):
        make_authority(folder, ["other.example.org"])
    make_key(folder, "graz")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_half_an_authority_is_not_replaced(folder):
    """Its key is kept offline: another authority would turn all hospitals away."""
    for name in ("server.crt", "server.key", "ca.key"):
        (folder / name).unlink()
    with pytest.raises(DeployError, match=r"ca\.key cannot be read .*: get a backup of it, or"):
        make_authority(folder, ["fl.example.org"])
    assert [path.name for path in folder.glob("*.*t")] == ["ca.crt"]


@pytest.mark.parametrize("last", ["ca.key", "ca.crt", "server.key"])
def test_an_authority_that_was_killed_goes_on_with_the_keys_that_are_there(last, folder):
    """The files in the order in which they are written."""
    files = ["ca.key", "ca.crt", "server.key", "server.crt"]
    there = files[: files.index(last) + 1]
    for name in files[len(there) :]:
        (folder / name).unlink()
    before = {name: (folder / name).read_bytes() for name in there}
    make_authority(folder, ["fl.example.org"])
    assert {name: (folder / name).read_bytes() for name in there} == before
    certificate(folder / "server.crt").verify_directly_issued_by(certificate(folder / "ca.crt"))
    credentials.check_server_files(folder, "localhost")


def test_a_server_gets_a_new_certificate_of_the_same_authority(folder):
    authority = (folder / "ca.crt").read_bytes()
    (folder / "server.crt").unlink()
    (folder / "server.key").unlink()
    make_authority(folder, ["new.example.org"])
    assert (folder / "ca.crt").read_bytes() == authority
    certificate(folder / "server.crt").verify_directly_issued_by(certificate(folder / "ca.crt"))


def test_a_server_s_certificate_ends_with_that_of_its_authority(folder, monkeypatch):
    (folder / "server.crt").unlink()
    (folder / "server.key").unlink()
    monkeypatch.setattr(credentials, "YEARS", 20)
    make_authority(folder, ["fl.example.org"])
    assert end_of(folder / "server.crt") == end_of(folder / "ca.crt")


@pytest.mark.parametrize("kind", ["damaged", "RSA", "password", "other"])
def test_an_authority_that_cannot_sign_is_named(folder, kind):
    """A consortium may bring its own authority; its key may be of any kind."""
    for name in ("server.crt", "server.key"):
        (folder / name).unlink()
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP384R1())
    hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if kind == "RSA":
        key = rsa.generate_private_key(65537, 2048)
    if kind == "password":
        hidden = serialization.BestAvailableEncryption(b"secret")
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    text = b"no key" if kind == "damaged" else key.private_bytes(encoding, form, hidden)
    (folder / "ca.key").write_bytes(text)
    with pytest.raises(
        DeployError, match=r"ca\.key (cannot be read|is a key of)|ca\.crt is not the"
    ):
        make_authority(folder, ["fl.example.org"])
    assert not (folder / "server.key").exists()


@pytest.mark.parametrize(
    "name",
    ["a.org:9092", "https://a.org", "", "a b", "a" * 64, "-a.org", "192.0.2.700", "127.1", "12"],
)
def test_what_is_no_name_of_a_server(name, tmp_path):
    with pytest.raises(DeployError, match="neither a host name nor an IP address"):
        make_authority(tmp_path, [name])
    assert not list(tmp_path.iterdir())


def test_the_public_half_of_a_key_is_made_again(tmp_path):
    """A command may be killed before it writes it."""
    make_key(tmp_path, "graz")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "graz.pub").unlink()
    make_key(tmp_path, "graz")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("kind", ["alone", "empty", "another's"])
def test_a_public_key_without_its_private_one_is_refused(kind, tmp_path):
    make_key(tmp_path, "graz")
    make_key(tmp_path / "other", "graz")
    private, public = tmp_path / "graz.key", tmp_path / "graz.pub"
    if kind == "alone":
        private.unlink()
    elif kind == "empty":
        public.write_text("")
    else:
        public.write_bytes((tmp_path / "other" / "graz.pub").read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.glob("graz.*")}
    said = (
        "cannot be read as a key .*: get a backup" if kind == "alone" else "is not the public key"
    )
    with pytest.raises(DeployError, match=said):
        make_key(tmp_path, "graz")
    assert {path: path.read_bytes() for path in tmp_path.glob("graz.*")} == before


def test_a_key_is_what_ssh_keygen_writes(tmp_path):
    make_key(tmp_path, "graz")
    private = load_ssh_private_key((tmp_path / "graz.key").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "graz.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert private.curve.name == "secp384r1"
    kind, _, comment = (tmp_path / "graz.pub").read_text().split()
    assert (kind, comment) == ("ecdsa-sha2-nistp384", "graz")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "global", "ensemble", "../x"])
def test_what_no_hospital_is_called(name, tmp_path):
    with pytest.raises(ValueError, match="cannot be called"):
        make_key(tmp_path, name)


@pytest.mark.parametrize(
    ("one_port", "given", "listens", "commands"),
    [
        (
            False,
            "0.0.0.0:9092",
            "--host 127.0.0.1 --port 8000 --fleet-api-address 0.0.0.0:9092",
            "127.0.0.1:8000",
        ),
        (True, "0.0.0.0:9092", "--host 0.0.0.0 --port 9092", "127.0.0.1:9092"),
        (True, "[::]:9092", "--host :: --port 9092", "127.0.0.1:9092"),
        (True, "192.0.2.7:9092", "--host 192.0.2.7 --port 9092", "192.0.2.7:9092"),
    ],
)
def test_the_server_listens_for_hospitals_alone_and_knows_them_by_their_keys(
    one_port, given, listens, commands, folder, monkeypatch
):
    """With gRPC commands have a port of their own, with HTTP they come where hospitals come."""
    monkeypatch.setattr(transport, "ONE_PORT", one_port)
    superlink, superexec = server.commands(folder, given, 8000, Path("/s/secret"))
    assert shlex.join(superlink) == (
        "flower-superlink --enable-supernode-auth --isolation process "
        f"--disable-runtime-dependency-installation --ssl-ca-certfile {folder}/ca.crt "
        f"--ssl-certfile {folder}/server.crt --ssl-keyfile {folder}/server.key "
        f"--database {folder}/state.db {listens} --superexec-auth-secret-file /s/secret"
    )
    assert shlex.join(superexec) == (
        f"flower-superexec --root-certificates {folder}/ca.crt "
        f"--runtime-api-address {commands} --superexec-auth-secret-file /s/secret"
    )


def of(folder, **given):
    """A hospital called graz."""
    return Hospital(folder, "localhost:9092", "graz", **{"data_dir": folder, **given})


def test_a_node_config_is_what_the_hospital_says_of_itself(tmp_path):
    given = "model='a cnn' train.batch-size=8 train.learning-rate=0.5"
    paths = {"data_dir": Path("/o'neill/my skin"), "store_dir": Path("/s")}
    config = node_config(of(tmp_path, **paths, members="first-use", node_config=given))
    assert config == {
        "site": "graz",
        "data-dir": "/o'neill/my skin",
        "store-dir": "/s",
        "members": "first-use",
        "resident": True,
        "model": "a cnn",
        "train.batch-size": 8,
        "train.learning-rate": 0.5,
    }
    assert node_config(of(tmp_path, node_config="resident=false"))["resident"] is False
    assert "members" not in node_config(of(tmp_path))
    with pytest.raises(DeployError, match="--members is /gone, which is not a file: give a file"):
        node_config(of(tmp_path, members="/gone"))


@pytest.mark.parametrize("key", ["site", "data-dir", "store-dir", "members", "policy"])
def test_a_key_with_an_option_of_its_own_is_refused_in_the_option_of_further_keys(key, tmp_path):
    with pytest.raises(DeployError, match=rf"--node-config: .*'{key}'.* or the option --{key}\."):
        node_config(of(tmp_path, node_config=f"{key}='linz'"))


@pytest.mark.parametrize(
    "text", ["model", "model=cnn", "a=1 b", "a=1979-05-27", "a=[1]", "a=1 a=2"]
)
def test_what_is_no_node_config(text, tmp_path):
    with pytest.raises(DeployError, match=r"--node-config is .* which cannot be read"):
        node_config(of(tmp_path, node_config=text))


def test_files_of_the_hospital_are_named_with_their_whole_path(tmp_path, monkeypatch):
    (tmp_path / "members").write_text("graz key\n")
    monkeypatch.chdir(tmp_path)
    config = node_config(of(Path(), members="members", node_config="identity='keys'"))
    for key, name in {"members": "members", "identity": "keys"}.items():
        assert config[key] == str(tmp_path / name)


def test_a_hospital_s_policy_is_in_its_folder_or_where_it_says(tmp_path):
    assert "policy" not in node_config(of(tmp_path))
    (tmp_path / "policy.toml").touch()
    assert node_config(of(tmp_path))["policy"] == str(tmp_path / "policy.toml")
    (tmp_path / "other").touch()
    named = node_config(of(tmp_path, policy=tmp_path / "other"))
    assert named["policy"] == str(tmp_path / "other")
    with pytest.raises(DeployError, match=r"The policy .*gone is not a file"):
        node_config(of(tmp_path, policy=tmp_path / "gone"))


def test_what_a_supernode_is_started_with(folder, monkeypatch):
    """Nothing of the hospital's is on a command line; other users cannot read an environment."""
    make_key(folder, "graz")
    started = []
    monkeypatch.setattr(hospital, "check_server", lambda *_: None)
    monkeypatch.setattr(hospital, "keep_running", lambda *_: None)
    monkeypatch.setattr(hospital, "Program", lambda *given, **_: started.append(given))
    port = transport.free_port()
    given = of(folder, runtime_port=port)
    with pytest.raises(DeployError, match="has no approved code"):
        start_supernode(given)
    assert not started
    approve(folder, ROOT)
    start_supernode(given)
    ((command, _, environment, *_),) = started
    secret = command[command.index("--superexec-auth-secret-file") + 1]
    assert shlex.join(command) == (
        f"flower-supernode --superlink localhost:9092 --root-certificates {folder}/ca.crt "
        f"--auth-supernode-private-key {folder}/graz.key --superexec-auth-secret-file {secret} "
        f"--isolation process --host 127.0.0.1 --port {port}"
    )
    assert Path(secret) == folder / "secret"  # a file in /tmp would be removed after ten days
    assert environment["FEDHANDOFF_CODE"] == str(approved_code(folder))
    assert json.loads(environment["FEDHANDOFF_NODE_CONFIG"])["data-dir"] == str(folder)
    found = shutil.which("flwr-clientapp", path=environment["PATH"])
    assert found == str(PROGRAMS / "flwr-clientapp")


@pytest.mark.parametrize("file", ["ca.crt", "graz.key", "approved/code"])
@pytest.mark.parametrize(
    "content",
    ["folder", "pipe", "device", b"", b"\xff\xfe\x00", b"-----BEGIN OPENSSH PRIVATE KEY-----"],
)
def test_a_damaged_file_of_the_hospital_is_named_before_it_connects(file, content, folder):
    make_key(folder, "graz")
    approve(folder, ROOT)
    (folder / file).unlink()
    if content == "folder":
        (folder / file).mkdir()
    elif content == "pipe":  # reading it would wait for ever
        os.mkfifo(folder / file)
    elif content == "device":  # it has no end
        (folder / file).symlink_to("/dev/zero")
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(DeployError, match=str(folder)) as refusal:
        start_supernode(of(folder))
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("file", ["ca.crt", "graz.key", "approved/code", "skin"])
def test_a_file_without_the_right_to_read_it_is_named_with_this_cure(file, folder, monkeypatch):
    """Not by its mode: root, who may run this test, reads all files."""
    make_key(folder, "graz")
    approve(folder, ROOT)
    (folder / "skin").mkdir()

    def denied(path, *_):
        if Path(path) == folder / file:
            raise PermissionError(13, "Permission denied", path)
        return os.open(path, os.O_RDONLY)

    monkeypatch.setattr("strategies.protocol.files.open_at_once", denied)
    monkeypatch.setattr("os.access", lambda path, _: path != folder / file)
    with pytest.raises(DeployError, match=rf"{file} .*: give this user the right to read it\.$"):
        start_supernode(of(folder, data_dir=folder / "skin"))


def test_a_server_s_key_without_the_right_to_read_it_is_named(folder, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ssl.SSLContext.load_cert_chain", denied)
    with pytest.raises(DeployError, match=r"give this user the right to read server\.key\.$"):
        server.start_superlink(folder, "127.0.0.1:9092", 8000)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_a_key_with_a_password_is_refused(folder):
    line = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "secret"]
    subprocess.run([*line, "-f", str(folder / "graz.key")], check=True)
    with pytest.raises(DeployError, match="password-protected"):
        start_supernode(of(folder))


def test_a_key_of_another_kind_is_refused(folder):
    key = ed25519.Ed25519PrivateKey.generate()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    (folder / "graz.key").write_bytes(
        key.private_bytes(encoding, form, serialization.NoEncryption())
    )
    (folder / "graz.key").chmod(0o600)
    with pytest.raises(DeployError, match="is a key of another kind"):
        start_supernode(of(folder))


def test_the_key_of_another_hospital_is_refused_at_the_start(folder):
    """The server would take this hospital for the other one."""
    make_key(folder, "graz")
    make_key(folder, "linz")
    (folder / "graz.key").write_bytes((folder / "linz.key").read_bytes())
    with pytest.raises(DeployError, match=r"graz\.pub is not the public key of .*/graz\.key\. "):
        start_supernode(of(folder))


@pytest.mark.parametrize(
    "expose",
    [
        lambda path: path.chmod(0o640),
        lambda path: path.chmod(0o602),
        pytest.param(
            lambda path: os.chown(path, 1234, -1),
            marks=pytest.mark.skipif("os.geteuid() != 0", reason="only root can give a file away"),
        ),
    ],
)
def test_a_key_that_others_can_read_or_write_is_refused(folder, expose):
    make_key(folder, "graz")
    expose(folder / "graz.key")
    with pytest.raises(
        DeployError, match=r"^Others can read or write .*/graz\.key: .* mode 0600\."
    ):
        start_supernode(of(folder))


def test_a_secret_is_new_and_private(tmp_path):
    path = supervisor.write_secret(tmp_path)
    assert mode(path) == 0o600
    before = path.read_bytes()
    assert supervisor.write_secret(tmp_path) == path
    assert path.read_bytes() != before


def test_flower_is_told_to_keep_to_itself(tmp_path):
    environment = supervisor.flower_environment(tmp_path)
    assert environment["FLWR_HOME"] == str(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_how_often_messages_are_looked_for_may_be_said_by_a_user_s_shell(tmp_path, monkeypatch):
    name = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
    monkeypatch.delenv(name, raising=False)
    assert supervisor.flower_environment(tmp_path)[name] == "0.2"
    monkeypatch.setenv(name, "1")
    assert supervisor.flower_environment(tmp_path)[name] == "1"


@pytest.mark.parametrize(
    ("given", "level", "told"),
    [("ERROR", "INFO", "INFO"), ("", "WARNING", "WARNING"), ("debug", "WARNING", "DEBUG")],
)
def test_flower_logs_what_the_supervisor_needs_whatever_a_user_s_shell_says(
    given, level, told, tmp_path, monkeypatch
):
    monkeypatch.setenv("FLWR_LOG_LEVEL", given)
    assert supervisor.flower_environment(tmp_path, level)["FLWR_LOG_LEVEL"] == told


def test_apps_are_unpacked_anew_and_other_folders_stay(tmp_path, monkeypatch):
    """Flower has them beside the server's files, where its operator may have a folder `apps`."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    unpacked = get_project_dir("fedhandoff/fedhandoff", "0.1.0", "5f" * 32)
    own = tmp_path / "apps" / "viewer-1.0.2"
    for folder in (unpacked, own):
        (folder / "gan").mkdir(parents=True)
    supervisor.forget_apps(tmp_path)
    supervisor.forget_apps(tmp_path)
    assert [*unpacked.parent.iterdir()] == [own]
    assert (own / "gan").exists()


def test_a_hospital_is_told_what_is_missing(folder, monkeypatch):
    with pytest.raises(
        DeployError, match=r"graz\.key cannot be read as a key \(No such file .* make a"
    ):
        start_supernode(of(folder))
    make_key(folder, "graz")
    with pytest.raises(DeployError, match=r"gone does not exist: give --data-dir"):
        start_supernode(of(folder, data_dir=folder / "gone"))
    approve(folder, ROOT)
    with pytest.raises(DeployError, match="--server is 'localhost': give host:port"):
        start_supernode(Hospital(folder, "localhost", "graz", folder))
    with monkeypatch.context() as patch:
        patch.setattr(hospital, "PROGRAMS", folder)  # as in a download from Flower's Hub
        with pytest.raises(DeployError, match="a clone of the repo"):
            start_supernode(of(folder))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeployError, match="The command ps is missing"):
        start_supernode(of(folder))


@pytest.fixture
def listening(folder):
    """The port of a server that shows the certificate in `folder`."""
    code = (
        "import socket, ssl\n"
        "context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        f"context.load_cert_chain({str(folder / 'server.crt')!r}, {str(folder / 'server.key')!r})\n"
        "listener = socket.create_server(('', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "while True:\n"
        "    connection, _ = listener.accept()\n"
        "    try:\n"
        "        context.wrap_socket(connection, server_side=True).close()\n"
        "    except OSError:\n"
        "        pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield int(process.stdout.readline())
        process.kill()


def test_a_server_is_known_by_its_authority_and_its_name(folder, listening, tmp_path, capsys):
    check_server(f"127.0.0.1:{listening}", folder / "ca.crt")
    assert capsys.readouterr().out == ""
    make_authority(tmp_path / "other", ["127.0.0.1"])
    with pytest.raises(
        DeployError, match=r"cannot be verified with .* \(unable to get .* clock shows"
    ):
        check_server(f"127.0.0.1:{listening}", tmp_path / "other" / "ca.crt")
    with pytest.raises(DeployError, match=r"not valid for '127.0.0.2'"):
        check_server(f"127.0.0.2:{listening}", folder / "ca.crt")


def test_a_server_that_does_not_answer_is_waited_for(folder, capsys):
    check_server("127.0.0.1:1", folder / "ca.crt")
    assert "cannot be reached now" in capsys.readouterr().out


@pytest.mark.parametrize("reads", [0, 10_000])
def test_a_proxy_whose_server_restarts_is_waited_for(reads, folder, capsys):
    """It accepts the connection, and closes it: before or after it has read."""

    def close_one():
        connection, _ = proxy.accept()
        with connection:
            connection.recv(reads)

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        thread = threading.Thread(target=close_one)
        thread.start()
        check_server(f"127.0.0.1:{proxy.getsockname()[1]}", folder / "ca.crt")
        thread.join()
    assert "cannot be reached now (" in capsys.readouterr().out


def test_a_key_that_is_no_file_or_no_key_is_not_registered(folder):
    with pytest.raises(DeployError, match=r"\.pub is not a file with a hospital's"):
        server.register(folder, folder / "graz.pub", "graz")
    with pytest.raises(DeployError, match=r"ca\.crt is not a file with a hospital's"):
        server.register(folder, folder / "ca.crt", "graz")
    make_key(folder, "graz")
    with pytest.raises(DeployError, match=r"config\.toml does not exist: start this folder's"):
        server.register(folder, folder / "graz.pub", "graz")


@pytest.fixture
def flwr(folder, monkeypatch):
    """Let `flwr` answer these texts one after the other; the commands that were given."""
    commands = []

    def answers(*texts):
        following = iter(texts)

        def run(command, **_):
            commands.append(command[1])
            text = "" if command[1] == "log" else next(following)
            return subprocess.CompletedProcess(command, 0, text, "")

        (folder / "config.toml").touch()
        monkeypatch.setattr("subprocess.run", run)
        monkeypatch.setattr("time.sleep", lambda _: None)
        return commands

    return answers


@pytest.mark.slow
@pytest.mark.parametrize(
    "shell",
    [
        {"FORCE_COLOR": "1"},
        {"TTY_COMPATIBLE": "1"},
        {"NO_COLOR": "1", "FORCE_COLOR": "3"},
        {"CLICOLOR_FORCE": "1", "PY_COLORS": "1", "COLUMNS": "20", "TERM": "xterm-256color"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=str,
)
def test_what_flower_answers_can_be_read_in_any_shell(shell, tmp_path, monkeypatch):
    """A notebook sets FORCE_COLOR."""
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    asked = {"runs": [{"status": "finished:completed", "details": "Universitätsklinik " * 9}]}
    code = f"from flwr.cli.utils import print_json_to_stdout; print_json_to_stdout({asked})"
    environment = supervisor.flower_environment(tmp_path)
    told = subprocess.check_output([sys.executable, "-c", code], env=environment)
    assert json.loads(told.decode()) == asked


def test_hospitals_that_are_registered_at_once_all_have_names(folder, flwr):
    make_key(folder, "graz")
    flwr(json.dumps({"success": True, "node-id": 7}))
    other, ask = '{"8": "linz"}', server.ask_flower

    def meanwhile(*given):
        (folder / "hospitals.json").write_text(other)
        return ask(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "ask_flower", meanwhile)
        server.register(folder, folder / "graz.pub", "graz")
    assert server.names_of(folder) == {"7": "graz", "8": "linz"}


def test_a_name_is_registered_again_only_after_its_node_was_unregistered(folder, flwr):
    """A hospital that has lost its key comes with another one."""
    make_key(folder, "graz")
    (folder / "hospitals.json").write_text('{"6": "graz", "7": "graz", "8": "linz"}')
    nodes = [{"node-id": "6", "status": "unregistered"}, {"node-id": "7", "status": "offline"}]
    commands = flwr(json.dumps({"success": True, "nodes": nodes}))
    with pytest.raises(DeployError, match=r"flwr supernode unregister 7 fedhandoff`"):
        server.register(folder, folder / "graz.pub", "graz")
    assert len(commands) == 1  # the list
    nodes[1]["status"] = "unregistered"
    flwr(*[json.dumps({"success": True, "nodes": nodes, "node-id": "9"})] * 2)
    server.register(folder, folder / "graz.pub", "graz")
    assert server.names_of(folder)["9"] == "graz"


@pytest.mark.parametrize("name", ["server 😀", "ser'ver", 'ser"ver'])
def test_flower_can_read_the_address_of_a_server_in_any_folder(name, tmp_path, monkeypatch):
    make_authority(tmp_path / name, ["localhost"])
    monkeypatch.setattr(server, "keep_running", lambda *_: None)
    address, control = f"127.0.0.1:{transport.free_port()}", transport.free_port()
    server.start_superlink(tmp_path / name, address, control)
    own = tomllib.loads((tmp_path / name / "config.toml").read_text())["superlink"]["fedhandoff"]
    assert own == {
        "address": transport.command_address(address, control),
        "root-certificates": str(tmp_path / name / "ca.crt"),
    }


def failing(message):
    return json.dumps({"success": False, "error-message": message})


GONE = failing("Connection to the SuperLink is unavailable. Please check")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (failing("Public key already in use."), "is already registered"),
        (GONE, "No SuperLink answers"),
        (failing("something else"), "^something else$"),
        ("no JSON", "^no JSON$"),
    ],
)
def test_what_flower_says_is_said_clearly(answer, message, folder, flwr):
    """It ends with status 0 all the same."""
    make_key(folder, "graz")
    flwr(answer)
    with pytest.raises(DeployError, match=message):
        server.register(folder, folder / "graz.pub", "graz")


def test_a_superlink_that_has_just_been_started_is_asked_again(folder, flwr, monkeypatch):
    make_key(folder, "graz")
    monkeypatch.setattr("time.sleep", lambda _: None)
    flwr(GONE, json.dumps({"success": True, "node-id": "1"}))
    with running.lock(folder, "server"):
        server.register(folder, folder / "graz.pub", "graz")
    assert server.names_of(folder) == {"1": "graz"}


def of_run(status):
    run = {"status": status, "status-details": "boom"}
    nodes = [{"node-id": n, "status": "online", "online-at": "2026-11-22"} for n in "12"]
    return json.dumps({"success": True, "run-id": "7", "runs": [run], "nodes": nodes})


def test_a_run_ends_as_flower_says_even_if_the_superlink_was_away(folder, flwr):
    answers = [GONE, of_run("running"), of_run("finished:completed")]
    commands = flwr(*[of_run("pending")] * 2, *answers)
    assert server.run(folder, None)
    assert commands == ["supernode", "run", "log", "ls", "log", "ls", "log", "ls"]


def test_a_superlink_that_dies_late_in_a_run_is_waited_for(folder, flwr, monkeypatch):
    """The log of the run has been followed for an hour when the SuperLink dies."""
    flwr(*[of_run("pending")] * 2, GONE, of_run("finished:completed"))
    clock, answer = [0.0], subprocess.run

    def after_an_hour(command, **options):
        clock[0] += 3600.0 if command[1] == "log" and clock[0] == 0.0 else 1.0
        return answer(command, **options)

    monkeypatch.setattr("subprocess.run", after_an_hour)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    assert server.run(folder, None)


def test_a_run_that_failed_is_named(folder, flwr, capsys):
    flwr(*[of_run("pending")] * 2, of_run("finished:failed"))
    assert not server.run(folder, None)
    assert capsys.readouterr().err == "Run 7 is finished:failed: boom\n"


def test_a_run_is_not_waited_for_if_the_superlink_stays_away(folder, flwr, monkeypatch):
    monkeypatch.setattr(server, "PATIENCE", 0)
    flwr(*[of_run("pending")] * 2, GONE)
    with pytest.raises(DeployError, match="No SuperLink answers"):
        server.run(folder, None)


def test_a_setting_that_cannot_be_used_is_named_before_flower_is_asked(folder, flwr):
    commands = flwr()
    with pytest.raises(SettingsError, match=r"'train\.epoch'.*did you mean 'train\.epochs'"):
        server.run(folder, "train.epoch=5")
    with pytest.raises(SettingsError, match="'sealed' is true; it must be false"):
        server.run(folder, "strategy='fedavg'")
    assert commands == []


@pytest.fixture
def quick(monkeypatch):
    """A supervisor that restarts after a tenth of a second."""
    monkeypatch.setattr(supervisor, "PAUSE", 0.1)


@pytest.fixture
def script(tmp_path):
    """A program that writes a line when it starts, and then does what `body` says."""
    programs = []

    def write(body, hint="", watched=False):
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/starts\n{body}\n")
        path.chmod(0o755)
        program = supervisor.Program(
            [str(path)], tmp_path / "work", dict(os.environ), Voice(), hint, watched=watched
        )
        programs.append(program)
        return program

    yield write
    for program in programs:
        program.end()
        program.wait()


def wait_until(done, meanwhile=lambda: None):
    """Wait until there is something: ten minutes at most, since other tests keep the cores busy."""
    deadline = time.monotonic() + 600
    while not done():
        assert time.monotonic() < deadline
        meanwhile()
        time.sleep(0.02)


def starts(folder):
    file = folder / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def alive(process):
    """Whether a process runs; one that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_program_that_ends_is_started_again_with_a_hint_for_people(
    quick, script, tmp_path, capsys
):
    program = script("exit 3", "Look at the key.")
    wait_until(lambda: len(starts(tmp_path)) == 3, program.look_after)
    line = "(status 3); it is restarted in 0 s. Look at the key.\n"
    assert capsys.readouterr().out.count(line) == 2


def test_a_superlink_that_ends_at_its_start_is_not_started_again(script, tmp_path):
    """Without its line "Starting Fleet API": its database is damaged, for example."""
    program = script("exit 3", "Look at the database.")
    program.voice = SuperLinkVoice(dict)
    with pytest.raises(DeployError, match=r"\(status 3\) at its start. Look at the database\."):
        wait_until(lambda: len(starts(tmp_path)) == 2, program.look_after)


def test_a_pause_is_kept_before_a_restart(script, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "PAUSE", 60.0)
    program = script("exit 3")
    program.look_after()
    wait_until(lambda: program._watch is None, program.look_after)
    program.look_after()
    assert len(starts(tmp_path)) == 1


def test_what_a_dead_program_leaves_behind_is_ended(script, tmp_path):
    program = script(
        f"sleep 60 & echo $! > {tmp_path}/child.new\n"
        f"mv {tmp_path}/child.new {tmp_path}/child; kill -9 $$"
    )
    program.look_after()
    wait_until((tmp_path / "child").exists)
    child = int((tmp_path / "child").read_text())
    assert alive(child)
    wait_until(lambda: not alive(child), program.look_after)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_programs_in_their_own_way(number, script, tmp_path):
    """It waits for the end of the program, and ends what the program leaves behind."""
    script(
        f"trap 'sleep 0.5; echo bye > {tmp_path}/bye; exit' TERM\n"
        f"sleep 60 & echo $! > {tmp_path}/child\necho > {tmp_path}/ready; wait"
    )
    code = (
        "import os, signal; from pathlib import Path; "
        "from deploy import supervisor as s, voice as v; "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # these tests may run under nohup
        f"program = s.Program(['{tmp_path}/program'], Path('{tmp_path}'), os.environ, v.Voice()); "
        "s.keep_running(program)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_until((tmp_path / "ready").exists)
    process.send_signal(number)
    process.send_signal(number)  # a second one changes nothing
    assert process.wait(timeout=300) == 0
    assert (tmp_path / "bye").exists()
    assert len(starts(tmp_path)) == 1
    wait_until(lambda: not alive(int((tmp_path / "child").read_text())))


@pytest.mark.parametrize("way", ["", pytest.param("trap '' TERM", marks=pytest.mark.slow)])
def test_a_wedged_supernode_is_ended_and_started_again(
    way, quick, script, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(supervisor, "GRACE", 0.5)
    monkeypatch.setattr(watch, "LOOK", 0.1)
    monkeypatch.setitem(watch.PATIENCE, b"Received successfully", 0.5)
    program = script(f"{way}\necho 'INFO: Received successfully'; sleep 60", watched=True)
    wait_until(lambda: len(starts(tmp_path)) == 3, program.look_after)
    assert capsys.readouterr().out.count("waits for an answer that no process works on") == 2
    assert not any(map(alive, starts(tmp_path)[:2]))


def test_what_holds_its_output_open_does_not_hold_up_the_supervisor(script, tmp_path):
    script(f"setsid sleep 60 & echo $! > {tmp_path}/child; echo hello; wait")
    code = (
        "import os; from pathlib import Path; from deploy import supervisor as s, voice as v; "
        f"program = s.Program(['{tmp_path}/program'], Path('{tmp_path}'), os.environ, v.Voice(), "
        "watched=True); s.keep_running(program)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline().endswith(b"] hello\n")
        process.terminate()
        assert process.wait(timeout=300) == 0
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    "address",
    [
        *("https://fl.example.org:9092", "fl.example.org", "fl.example.org:", ":9092", "fl:0"),
        *("fl.example.org:9092/path", "me@fl.example.org:9092", "fl.example.org:65536"),
        "fl:\N{FULLWIDTH DIGIT NINE}",
        *("fl example.org:9092", "fl.example.org:9092 ", "2001:db8::7:9092", "[fl]:9092", "-fl:9"),
        *("fl..example.org:9092", "[::1:9092", "grpc://[::1]:9092", "fl.example.org:+9092", ""),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_at_the_start(folder, address):
    with pytest.raises(DeployError, match=r"--server is .*: give host:port alone"):
        check_server(address, folder / "ca.crt")
    with pytest.raises(DeployError, match=r"--fleet-address is .*: give host:port alone"):
        server.start_superlink(folder, address, 8000)


@pytest.mark.parametrize("one_port", [False, True])
def test_an_address_on_which_a_program_listens_is_refused_at_the_start(
    one_port, folder, tmp_path, monkeypatch
):
    """Otherwise Flower's programs start again and again, each time with a traceback."""
    monkeypatch.setattr(transport, "ONE_PORT", one_port)
    monkeypatch.setattr(hospital, "check_server", lambda *_: None)
    make_key(folder, "graz")
    approve(folder, ROOT)
    free = transport.free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        used = listener.getsockname()[1]
        cases = [(f"127.0.0.1:{used}", free), (f"0.0.0.0:{used}", free)]
        cases += [] if one_port else [(f"127.0.0.1:{free}", used), (f"127.0.0.1:{free}", free)]
        for fleet, control in cases:
            with pytest.raises(DeployError, match=r"cannot be used: Address already in use\. If"):
                server.start_superlink(tmp_path / "server", fleet, control)
        with pytest.raises(DeployError, match=rf"127\.0\.0\.1:{used} \(runtime-port\) cannot be"):
            start_supernode(of(folder, runtime_port=used))
    with pytest.raises(DeployError, match=r"192\.0\.2\.7:9092 \(--fleet-address\) cannot be used"):
        server.start_superlink(tmp_path / "server", "192.0.2.7:9092", free)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("fl.example.org:9092", ("fl.example.org", 9092)),
        ("192.0.2.7:1", ("192.0.2.7", 1)),
        ("[2001:db8::7]:65535", ("2001:db8::7", 65535)),
        ("[::]:9092", ("::", 9092)),
        ("fl_1.example.org.:9092", ("fl_1.example.org.", 9092)),
    ],
)
def test_an_address_has_a_host_and_a_port(address, parts):
    assert transport.split_address(address, "--server") == parts


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_programs_of_one_machine_talk_past_a_proxy(monkeypatch, name):
    for each in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv(name, "intranet.example.org")
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.example.org:1080")
    monkeypatch.delenv("PATH")
    environment = supervisor.flower_environment(ROOT)
    assert "ALL_PROXY" not in environment  # Flower's HTTP client ends with an error
    assert environment["PATH"].endswith(os.defpath)
    for each in ("no_proxy", "NO_PROXY"):
        assert environment[each].split(",") == [
            *("intranet.example.org", "127.0.0.1", "localhost", "::1")
        ]
    for url in ("http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9"):
        assert should_bypass_proxies(url, environment["no_proxy"])
    assert environment["http_proxy"] == "http://proxy.example.org:3128"  # for other machines


def test_a_run_that_waits_for_more_hospitals_than_are_registered_does_not_begin(
    folder, monkeypatch
):
    nodes = [("graz", "online", "2026-11-22"), ("linz", "offline", "2026-11-22")]
    monkeypatch.setattr(server, "hospitals_of", lambda _: nodes)
    with pytest.raises(DeployError, match=r"hospitals: 2 of 3 \(min-hospitals\), graz, linz"):
        server.run(folder, "min-hospitals=3 strategy='cwt'")
