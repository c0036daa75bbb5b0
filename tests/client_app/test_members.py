"""Whom a hospital trusts: its file of members, and what may change it."""

import re
import threading
import time
from dataclasses import replace

import pytest

from cli import main
from client_app.authority import members as module
from client_app.authority.identity import Identity
from client_app.authority.members import (
    FIRST_USE,
    add_member,
    announced_members,
    member_line,
    members_of,
    read_members,
    remove_member,
)
from client_app.authority.node_config import OwnError
from client_app.store import Store
from strategies.protocol.files import write_whole
from strategies.protocol.order import Order, hash_members
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import SettingsError


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    names = ("graz", "linz", "wien", "st.anna")
    return {name: Identity.load(name, folder / name) for name in names}


def test_a_list_of_members_that_came_is_found_by_its_hash_and_no_other_is(tmp_path):
    def asked(members, named):
        order = Order(1, 1, "graz", [], "plain", "1", members=members)
        return announced_members(Store(tmp_path), replace(order, members_hash=hash_members(named)))

    first, second = ["graz a", "linz b"], ["graz a", "linz b", "wien c"]
    with pytest.raises(ParcelError, match="a list of members that has not come"):
        asked([], first)
    assert asked(first, first) == asked([], first) == first
    with pytest.raises(ParcelError, match="a list of members that has not come"):
        asked([], second)
    assert asked(second, second) == asked([], second) == second
    assert announced_members(Store(tmp_path), Order(0, 0, "graz", [], "plain", "1")) == []


@pytest.fixture(scope="module")
def keys(identities):
    return {name: str(identity.member) for name, identity in identities.items()}


def trusted(path):
    return {name: str(member) for name, member in read_members(path).items()}


def command(monkeypatch, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, arguments)])
    return exit_.value.code


@pytest.mark.parametrize("site", ["graz", "st.anna"])
def test_a_hospital_prints_the_line_that_others_paste(site, tmp_path, monkeypatch, capsys):
    for _ in range(2):
        assert (
            command(monkeypatch, "hospital", "identity", "--site", site, "--store-dir", tmp_path)
            == 0
        )
    (line,) = set(capsys.readouterr().out.splitlines())
    (tmp_path / "members").write_text(f"# ours\n\n{line}\n")
    own = Identity.load(site, tmp_path / site / "identity")
    assert trusted(tmp_path / "members") == {site: str(own.member)}


def test_a_site_is_a_name(tmp_path, monkeypatch, capsys):
    assert (
        command(monkeypatch, "hospital", "identity", "--site", "../x", "--store-dir", tmp_path) == 2
    )
    assert "A hospital cannot be called '../x'" in capsys.readouterr().err
    assert not list(tmp_path.parent.glob("x"))


def test_the_commands_change_lines_and_keep_comments(tmp_path, monkeypatch, capsys, keys):
    path = tmp_path / "members"
    path.write_text(f'# Ours.\ngraz = "{keys["graz"]}"  # Dr. A, by telephone')

    def members(*change):
        return command(monkeypatch, "members", "--members", path, *change)

    assert members("add", "st.anna", keys["st.anna"]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert trusted(path) == {name: keys[name] for name in ("graz", "st.anna")}
    assert path.read_text().startswith("# Ours.\ngraz = ")
    assert "# Dr. A, by telephone\n" in path.read_text()
    assert members("remove", "graz") == 0
    assert path.read_text() == f'# Ours.\n"st.anna" = "{keys["st.anna"]}"\n'
    capsys.readouterr()
    assert members() == members("list") == 0
    assert capsys.readouterr().out == f'"st.anna" = "{keys["st.anna"]}"\n' * 2

    before = path.read_text()
    assert members("add", "st.anna", keys["st.anna"]) == 0  # it has this key
    for refused, why in (
        (("add", "st.anna", keys["graz"]), "is a member: remove it before"),
        (("add", "gr\naz", keys["graz"]), "cannot be called"),
        (("add", "graz", "AAAA"), "a key has 88 characters of base64, as `fedhandoff hospital"),
        (("add", "graz", "="), "a key has 88 characters of base64, as `fedhandoff hospital"),
        (("remove", "graz"), "'graz' is not a member"),
        (("remove",), "Say list, add NAME KEY, or remove NAME"),
    ):
        assert members(*refused) == 2
        assert why in capsys.readouterr().err
    assert path.read_text() == before


def test_the_command_knows_the_file_of_first_use(tmp_path, monkeypatch, keys):
    where = ["--site", "graz", "--store-dir", tmp_path]
    assert command(monkeypatch, "members", *where, "add", "linz", "=", keys["linz"]) == 0
    assert trusted(tmp_path / "graz" / "members") == {"linz": keys["linz"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("graz", "at line 2"),
        ('graz = "AAAA"', "'graz' is not a name, or has no usable key"),
        ("graz = 7", "'graz' is not a name, or has no usable key"),
        (f'graz = "{"A" * 88}"', "'graz' is not a name, or has no usable key"),
        ('st.anna = "x"', "prints it. A name with a dot in it has quotes, too"),
        ('"../graz" = "x"', "cannot be called '../graz'"),
        (f"graz {'A' * 86}==", "at line 2"),
        ("graz = [\n'x'\n]", "members: 'graz' is not a name"),  # on no line of its own
    ],
)
def test_a_line_that_names_no_member_is_refused(text, why, tmp_path, keys):
    path = tmp_path / "members"
    path.write_text(f'linz = "{keys["linz"]}"\n{text}\n')
    with pytest.raises(OwnError) as refusal:
        read_members(path)
    assert re.search(why, refusal.value.explain())
    assert "graz" not in str(refusal.value)  # which goes to the server
    with pytest.raises(OwnError):
        read_members(tmp_path / "nothing")


def test_a_file_that_is_not_one_line_each_is_left_to_people(tmp_path, keys):
    path = tmp_path / "members"
    path.write_text(f'graz = """\\\n{keys["graz"]}"""\nlinz = "{keys["linz"]}"\n')
    remove_member(path, "linz")
    with pytest.raises(SettingsError, match="must be changed by hand"):
        remove_member(path, "graz")
    assert trusted(path) == {"graz": keys["graz"]}
    add_member(path, "wien", keys["wien"])
    assert trusted(path) == {name: keys[name] for name in ("graz", "wien")}


def test_two_members_that_are_added_at_once_are_both_kept(tmp_path, keys, monkeypatch):
    began: list[threading.Thread] = []

    def slow(path, content, **options):
        if not began:
            began.append(threading.Thread(target=add_member, args=(path, "wien", keys["wien"])))
            began[0].start()
            time.sleep(0.3)
        write_whole(path, content, **options)

    monkeypatch.setattr(module, "write_whole", slow)
    add_member(path := tmp_path / "members", "linz", keys["linz"])
    began[0].join()
    assert trusted(path) == {name: keys[name] for name in ("linz", "wien")}


def test_first_use_is_one_event(tmp_path, identities, keys):
    """Nobody is trusted before the server has named this hospital and another one together."""
    path, own = tmp_path / "store" / "members", identities["graz"]

    def of(*announced):
        names = members_of(FIRST_USE, path, own, {name: keys[name] for name in announced})
        return set(names)

    assert of() == of("linz") == of("linz", "wien") == of("graz") == {"graz"}
    assert not path.exists()
    assert of("graz", "linz") == {"graz", "linz"}
    assert of("graz", "linz", "wien") == of("wien") == of() == {"graz", "linz"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    add_member(path, "wien", keys["wien"])
    assert of("graz", "linz", "wien") == {"graz", "linz", "wien"}


def test_another_key_of_the_hospital_itself_is_refused(tmp_path, identities, keys):
    own, false = identities["graz"], {"graz": keys["linz"], "wien": keys["wien"]}
    with pytest.raises(ParcelError, match="announces a wrong key for this hospital, 'graz'"):
        members_of(FIRST_USE, tmp_path / "pins", own, false)
    assert not (tmp_path / "pins").exists()
    (tmp_path / "file").write_text(member_line("graz", identities["linz"].member))
    with pytest.raises(SettingsError, match="wrong key for this hospital, 'graz'"):
        members_of(str(tmp_path / "file"), tmp_path / "pins", own, {})
