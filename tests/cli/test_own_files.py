"""hospital.toml and server.toml: their values are the defaults of options, and errors name all."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from client_app.authority.identity import Identity
from client_app.authority.members import member_line
from client_app.authority.policy import DEFAULTS
from deploy import hospital, own_file
from deploy.own_file import HospitalFile, read_own, write_own
from strategies.protocol import files
from strategies.protocol.code import hash_of
from strategies.protocol.declared import keys_of

ROOT = Path(__file__).parents[2]
GRAZ = {"name": "graz", "data": "images", "server": "localhost:9092", "members": "members"}


@pytest.fixture
def started(monkeypatch):
    """The hospitals that `hospital start` has started."""
    found: list[hospital.Hospital] = []
    monkeypatch.setattr(hospital, "start_supernode", found.append)
    return found


@pytest.fixture
def graz(tmp_path):
    return tmp_path / "fedhandoff" / "graz"


def test_init_makes_all_that_a_hospital_needs_and_says_who_gets_what(call, graz, tmp_path):
    options = ("--data", "skin", "--server", "fl.example.org:9092", "--model", "resnet18")
    status, out, _ = call("hospital", "init", "graz", *options)
    assert status == 0
    assert tomllib.loads((graz / "hospital.toml").read_text()) == {
        **{"name": "graz", "data": str(tmp_path / "skin"), "store": "store"},
        **{"server": "fl.example.org:9092", "members": "members", "policy": "policy.toml"},
        "model": "resnet18",
    }
    assert (graz / "policy.toml").read_bytes() == DEFAULTS.read_bytes()
    assert (graz / "approved" / "code").read_text().strip() == hash_of(ROOT)
    assert (graz / "graz.key").stat().st_mode & 0o777 == 0o600
    assert hash_of(ROOT) in out
    assert f"{graz}/graz.pub goes to the server's operator" in out
    line = call("hospital", "identity", "--hospital", "graz")[1]
    assert line in out
    assert (graz / "members").read_text() == line
    status, _, error = call("hospital", "init", "graz", *options)
    assert (status, "already exists" in error) == (2, True)


def test_after_a_failure_init_goes_on_with_the_keys_and_the_policy_that_are_there(call, graz):
    options = ("--data", "skin", "--server", "fl.example.org:9092")
    (graz / "members").mkdir(parents=True)  # it must be a file
    status, _, error = call("hospital", "init", "graz", *options)
    assert (status, "members" in error) == (2, True)
    assert not (graz / "hospital.toml").exists()
    (graz / "members").rmdir()
    kept = [
        (graz / name).read_bytes() for name in ("graz.key", "policy.toml", "store/graz/identity")
    ]
    assert call("hospital", "init", "graz", *options)[0] == 0
    assert kept == [
        (graz / name).read_bytes() for name in ("graz.key", "policy.toml", "store/graz/identity")
    ]


def test_hospital_toml_is_written_last_so_a_killed_command_can_be_repeated(call, graz, monkeypatch):
    def killed(folder, checkout):
        assert [*folder.glob("*.key")] == [graz / "graz.key"]
        assert not (folder / "hospital.toml").exists()
        raise OSError

    options = ("--data", "~/skin", "--server", "localhost:9092")
    with monkeypatch.context() as context:
        context.setattr("deploy.approved.approve", killed)
        assert call("hospital", "init", "graz", *options)[0] == 2
    key = (graz / "graz.key").read_bytes()
    assert call("hospital", "init", "graz", *options)[0] == 0
    assert (graz / "graz.key").read_bytes() == key


def test_in_a_terminal_init_asks_for_what_is_missing(call, graz, monkeypatch):
    answers = iter(["~/skin", "fl.example.org:9092"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda question: next(answers))
    assert call("hospital", "init", "graz")[0] == 0
    written = tomllib.loads((graz / "hospital.toml").read_text())
    assert written["data"] == str(Path.home() / "skin")
    assert written["server"] == "fl.example.org:9092"


def test_options_have_the_values_of_the_file_unless_they_are_given(call, graz, started):
    more = {"dataset": "folder", "runtime-port": 9095, "policy": "/rules.toml"}
    config = {"train.batch-size": 8, "resident": False, "keep": "none"}
    write_own(graz, "hospital.toml", {**GRAZ, **more, "node-config": config})
    assert call("hospital", "start", "--hospital", "graz")[0] == 0
    (found,) = started
    assert found == hospital.Hospital(
        folder=graz,
        server="localhost:9092",
        name="graz",
        data_dir=graz / "images",
        store_dir=graz / "store",
        members=str(graz / "members"),
        policy=Path("/rules.toml"),
        own_config=found.own_config,
        runtime_port=9095,
    )
    assert found.own_config == {**config, "dataset": "folder"}
    given = ("--server", "other:1", "--members", "first-use")
    assert call("hospital", "start", "--hospital", graz, *given)[0] == 0
    assert (started[1].server, started[1].members) == ("other:1", "first-use")


@pytest.mark.parametrize(
    "lines",
    ["train.batch-size = 8", '"train.batch-size" = 8', "[node-config.train]\nbatch-size = 8"],
)
def test_a_key_with_a_dot_needs_no_quotes(call, graz, started, lines):
    write_own(graz, "hospital.toml", GRAZ)
    file = graz / "hospital.toml"
    file.write_text(f"{file.read_text()}[node-config]\n{lines}\n")
    assert call("hospital", "start", "--hospital", "graz")[0] == 0
    assert started[0].own_config == {"train.batch-size": 8}


@pytest.mark.parametrize("value", [" ", "a\\u0000", "C:\\temp", "a\\nb"])
@pytest.mark.parametrize("key", ["store", "data", "policy", "members", "model", "identity"])
def test_a_text_with_control_characters_is_named_with_its_key(call, graz, started, key, value):
    r"""In TOML, \t is a tab."""
    write_own(graz, "hospital.toml", {"name": "graz"})
    file = graz / "hospital.toml"
    text, line = file.read_text(), f'{key} = "{value}"\n'
    text = f"{text}[node-config]\n{line}" if key == "identity" else f"{line}{text}"
    file.write_text(text)
    status, _, error = call("hospital", "start", "--hospital", "graz")
    assert (status, started) == (2, [])
    assert f"hospital.toml: The setting '{key}' is " in error
    assert len(error.strip().splitlines()) == 1


def test_a_path_of_the_file_that_cannot_be_read_is_not_named_as_an_option(
    call, graz, started, monkeypatch
):
    write_own(graz, "hospital.toml", {**GRAZ, "policy": "policy.toml"})
    (graz / "policy.toml").touch()
    monkeypatch.setattr("os.access", lambda *_, **__: False)  # root reads all files
    assert call("hospital", "start", "--hospital", "graz")[0] == 0
    assert started[0].policy == graz / "policy.toml"  # its reader refuses it


def test_neither_the_file_nor_an_option_makes_a_hospital_run_code_that_is_not_approved(
    call, graz, started
):
    write_own(graz, "hospital.toml", GRAZ)
    status, _, error = call("hospital", "start", "--hospital", "graz", "--any-code")
    assert (status, "No such option '--any-code'" in error) == (2, True)
    file = graz / "hospital.toml"
    file.write_text(f"any-code = true\n{file.read_text()}")
    status, _, error = call("hospital", "start", "--hospital", "graz")
    assert (status, started) == (2, [])
    assert "hospital.toml: There is no key 'any-code'" in error


def test_the_option_adds_to_the_node_config_of_the_file(call, graz, started):
    own = {"keep": "none", "identity": "keys"}
    more = {"members": "none", "model": "resnet18", "node-config": own}
    write_own(graz, "hospital.toml", {**GRAZ, **more})
    option = ("--node-config", "keep='visits' train.batch-size=8")
    assert call("hospital", "start", "--hospital", "graz", *option)[0] == 0
    config = hospital.node_config(started[0])
    assert [config[key] for key in ("model", "keep", "train.batch-size", "identity")] == [
        *("resnet18", "visits", 8, str(graz / "keys"))
    ]


@pytest.mark.parametrize("members", ["first-use", "none"])
def test_members_without_a_file_are_those_of_the_store(call, graz, started, members):
    write_own(graz, "hospital.toml", {**GRAZ, "members": members})
    assert call("hospital", "start", "--hospital", "graz")[0] == 0
    assert started[0].members == members
    (graz / "store" / "graz").mkdir(parents=True)
    for change in ((), ("list",), ("remove", "linz")):
        status, _, error = call("members", *change, "--hospital", "graz")
        assert (status, "writes it in its first run" in error) == (2, True)
    (graz / "store" / "graz" / "members").write_text("# none\n")
    assert call("members", "--hospital", "graz")[:2] == (0, "")


def test_a_hospital_is_that_of_the_folder_that_one_is_in(call, graz, monkeypatch):
    write_own(graz, "hospital.toml", GRAZ)
    monkeypatch.chdir(graz)
    status, out, _ = call("hospital", "identity")
    assert (status, out[:8]) == (0, 'graz = "')
    assert (graz / "store" / "graz" / "identity").exists()


@pytest.mark.parametrize(
    ("written", "place"),
    [
        *(("vienna", "fedhandoff/vienna"), ("./vienna", "a/b/vienna"), ("vienna/", "a/b/vienna")),
        *((".", "a/b"), ("./", "a/b"), ("..", "a")),
    ],
)
def test_a_path_is_no_name(written, place, call, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert call("server", "authority", "--server", written, "--name", "localhost")[0] == 0
    assert (tmp_path / place / "ca.crt").is_file()


def test_all_wrong_keys_are_named_at_once(call, graz):
    graz.mkdir(parents=True)
    (graz / "hospital.toml").write_text("nam = 1\nruntime-port = 70000\nserver = ''\nkeys = 2\n")
    status, _, error = call("ledger", "--hospital", "graz")
    assert status == 2
    assert error.startswith(f"fedhandoff ledger: {graz}/hospital.toml: ")
    for said in ("'nam'; did you mean 'name'?", "'runtime-port' is 70000", "'server'", "'keys'"):
        assert said in error
    assert "'name' is missing" in error
    (graz / "hospital.toml").write_text("name = ")
    assert "cannot be read" in call("ledger", "--hospital", "graz")[2]


@pytest.mark.parametrize(
    "written",
    [
        "\0",
        "name = " + "[" * 5000,
        "name = 'graz'\nstore = '~nobody2/store'",
        "name = 'graz'\nserver = '--insecure'",
        "name = 'graz'\nserver = 'fl.example.org'",
        "name = 'graz'\n[node-config]\nkeep = 2026-01-01",
        "name = 'graz'\n[node-config]\nkeep = ['final']",
        "name = 'graz'\n[node-config]\nkeep = nan",
        "name = 'graz'\n[node-config]\nkeep = 'a\"b'",
        "name = 'graz'\n[node-config]\n'ke ep' = 'final'",
    ],
)
def test_what_a_file_cannot_say_is_named_in_one_line(call, graz, written):
    graz.mkdir(parents=True)
    (graz / "hospital.toml").write_text(written)
    for command in (["hospital", "start"], ["hospital", "status"], ["ledger"], ["members"]):
        status, _, error = call(*command, "--hospital", "graz")
        assert (status, error.count("\n")) == (2, 1)
        assert "hospital.toml" in error or "'~nobody2/store'" in error


def test_a_further_key_that_has_its_own_place_is_refused(call, graz):
    graz.mkdir(parents=True)
    places = {
        **{"site": "name", "data-dir": "data", "store-dir": "store"},
        **{"policy": "policy", "members": "members"},
    }
    lines = [f"{key} = 'a'" for key in places]
    (graz / "hospital.toml").write_text("\n".join(["name = 'graz'", "[node-config]", *lines]))
    for command in (["hospital", "start"], ["ledger"]):
        status, _, error = call(*command, "--hospital", "graz")
        assert (status, error.count("\n")) == (2, 1)
        for key, place in places.items():
            assert f"'{key}' cannot be set here: use '{place}' of hospital.toml" in error


def test_all_commands_take_the_data_set_of_the_node_config(call, graz, monkeypatch):
    write_own(graz, "hospital.toml", {**GRAZ, "node-config": {"dataset": "folder"}})
    (graz / "images").mkdir()
    (graz / "images" / "manifest.csv").write_text("image,label\n")
    examined = []

    def examine(*given):
        examined.append(given)
        raise ZeroDivisionError

    monkeypatch.setattr("client_app.datasets.preflight.card.examine", examine)
    with pytest.raises(ZeroDivisionError):
        call("preflight", "--hospital", "graz")
    assert examined[0][1].dataset == f"folder:{graz / 'images'}"


@pytest.mark.parametrize(
    "words",
    [["hospital", "identity"], ["dossier"], ["open", "a.npz", "--run-config", "strategy='cwt'"]],
    ids=lambda words: words[-1],
)
def test_all_commands_take_the_keys_of_the_node_config(words, call, graz, monkeypatch):
    write_own(graz, "hospital.toml", {**GRAZ, "node-config": {"identity": "keys/graz"}})
    Identity.load("graz", graz / "keys" / "graz")
    (graz / "members").touch()
    loaded = []

    def load(name, path):
        loaded.append(path)
        raise ValueError

    monkeypatch.setattr(Identity, "load", load)
    assert call(*words, "--hospital", "graz")[0] == 2
    assert loaded == [graz / "keys" / "graz"]


def test_a_text_of_the_node_config_may_have_letters_of_all_languages(call, graz, started):
    graz.mkdir(parents=True)
    (graz / "hospital.toml").write_text(
        "name = 'graz'\nserver = 'localhost:9092'\ndata = 'skin'\nmembers = 'none'\n"
        "[node-config]\n'mah.auxiliary' = '/ö/\U0001f600'"
    )
    assert call("hospital", "start", "--hospital", "graz")[0] == 0
    assert started[0].own_config == {"mah.auxiliary": "/ö/\U0001f600"}


def test_the_file_of_the_page_can_be_read(tmp_path):
    page = (ROOT / "docs" / "deployment.md").read_text()
    (example,) = re.findall(r"```toml\n(name = .*?)```", page, re.DOTALL)
    (tmp_path / "hospital.toml").write_text(example)
    assert {*read_own(tmp_path, "hospital.toml")} == {*keys_of(HospitalFile), "node-config"}


def test_a_wrong_value_is_not_written(call, graz):
    given = ("--data", "skin", "--server", "fl.example.org:9092")
    status, _, error = call("hospital", "init", "a b", *given)
    assert (status, "'name' is 'a b'" in error) == (2, True)
    assert not (graz.parent / "a b").exists()


def test_of_two_that_make_a_hospital_at_once_one_does(call, graz, monkeypatch):
    make = files.make_private

    def meanwhile(folder):
        make(folder)
        (folder / "hospital.toml").write_text('name = "graz"')

    monkeypatch.setattr(own_file, "make_private", meanwhile)
    given = ("--data", "skin", "--server", "fl.example.org:9092")
    status, _, error = call("hospital", "init", "graz", *given)
    assert (status, "already exists" in error) == (2, True)
    assert (graz / "hospital.toml").read_text() == 'name = "graz"'


@pytest.mark.parametrize("path", ["~/members", "./members", "members"])
def test_a_file_of_members_is_that_of_the_present_folder(path, call, graz, tmp_path):
    linz = Identity.load("linz", tmp_path / "linz").member
    (tmp_path / "members").write_text(member_line("linz", linz))
    given = ("--data", "skin", "--server", "fl.example.org:9092", "--members", path)
    assert call("hospital", "init", "graz", *given)[0] == 0
    lines = call("members", "--hospital", "graz")[1]
    assert re.match(r'linz = ".*"\ngraz = ".*"\n$', lines)
    assert (tmp_path / "members").read_text() == lines


@pytest.mark.parametrize(
    ("name", "address", "fleet"),
    [("2001:db8::7", "[2001:db8::7]:9092", "[::]:9092"), ("*.example.org", None, "0.0.0.0:9092")],
)
def test_the_server_s_address_is_one_that_hospitals_can_use(call, tmp_path, name, address, fleet):
    """A server that listens on 0.0.0.0 cannot be reached by IPv6."""
    assert call("server", "authority", "--name", name)[0] == 0
    file = tmp_path / "fedhandoff" / "server" / "server.toml"
    own = tomllib.loads(file.read_text())
    assert (own.get("address"), own["fleet-address"]) == (address, fleet)
    status, _, errors = call("server", "invite", "graz")
    assert status == (0 if address else 2)
    assert address or "server.toml: write there the host:port" in errors


def test_the_server_listens_where_its_file_says(call, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr("deploy.server.start_superlink", lambda *given: found.append(given))
    folder = tmp_path / "fedhandoff" / "server"
    assert call("server", "authority", "--name", "fl.example.org")[0] == 0
    file = folder / "server.toml"
    assert tomllib.loads(file.read_text()) == {
        "address": "fl.example.org:9092",
        "fleet-address": "0.0.0.0:9092",
        "control-port": 8000,
    }
    file.write_text("control-port = 8001\n")
    assert call("server", "start", "--fleet-address", "127.0.0.1:9093")[0] == 0
    assert found == [(folder, "127.0.0.1:9093", 8001)]
    file.write_text("control-prt = 8001\n")
    assert "did you mean 'control-port'?" in call("server", "start")[2]


def test_the_port_for_commands_is_not_chosen_by_the_system(call, tmp_path):
    """Commands could not know it."""
    folder = tmp_path / "fedhandoff" / "server"
    status, _, error = call("server", "start", "--control-port", "0")
    assert (status, "Invalid value for '--control-port': 0" in error) == (2, True)
    folder.mkdir(parents=True)
    (folder / "server.toml").write_text("control-port = 0\n")
    status, _, error = call("server", "start")
    assert (status, f"{folder}/server.toml: The setting 'control-port' is 0" in error) == (2, True)
