"""Every file that people write, as editors and spreadsheets of any machine save it."""

import codecs
import re
from pathlib import Path

import pytest
import tomli_w

from benchmarks.reproduce import TableError, read_table
from client_app.authority.identity import Identity
from client_app.authority.members import add_member, member_line, read_members
from client_app.authority.policy import Policy
from client_app.datasets.listing import list_manifest
from client_app.errors import DataError, line_of
from deploy import invitation
from deploy.errors import DeployError
from deploy.invitation import Answer, read_invitation
from deploy.own_file import read_own
from strategies.engine import presence
from strategies.protocol.code import hash_of
from strategies.protocol.run_config import changes_of
from strategies.protocol.settings import SettingsError
from tests.fakes import settings

ROOT = Path(__file__).parents[1]


def plan(path):
    presence._read.cache_clear()
    return presence.plan_table(
        settings(strategy="fedavg", tasks=2, enrolment=str(path), num_server_rounds=2),
        ["graz", "linz"],
    )


def listed(path):
    (path.parent / "ä.png").touch()
    return list_manifest(str(path)).entries


INVITATION = {
    **{"hospital": "graz", "server": "fl.example.org:9092", "code": hash_of(ROOT)},
    **{"ends": "2099-01-01T00:00:00+00:00", "token": "a" * 43, "pem": "a"},
}
ANSWER = {"hospital": "graz", "key": "ecdsa-sha2-nistp384 AAAA", "mac": "0" * 64}
TABLE = "title = 'ä'\nsettings = {}\nrows = [{ name = 'a' }]\n"
FILES = {
    "hospital.toml": (
        'name = "graz"\ndata = "/ä"\n',
        lambda path: read_own(path.parent, path.name),
    ),
    "graz.invitation": (tomli_w.dumps(INVITATION) + "# ä\n", read_invitation),
    "graz.answer": (tomli_w.dumps(ANSWER) + "# ä\n", lambda path: invitation._read(path, Answer)),
    "policy.toml": ("# ä\n[runs]\nmax-rounds = 7\n", Policy.read),
    "members": ("# ä\n", read_members),
    "enrolment.csv": ("graz,active,active\nlinz,active,left\n", plan),
    "table.toml": (TABLE, lambda path: read_table(str(path))),
    "run.toml": ("seed = 7\noutput-dir = '/ä'\n", lambda path: changes_of([str(path)])),
    "manifest.csv": ("image,label\nä.png,ä\n", listed),
}


@pytest.fixture(params=FILES)
def written(request, tmp_path):
    """A file, its text, and what reads it."""
    text, reads = FILES[request.param]
    if request.param == "members":
        text += member_line("graz", Identity.load("graz", tmp_path / "identity").member)
    return tmp_path / request.param, text, reads


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_file_says_the_same_with_a_mark_and_with_the_lines_of_windows(written, mark, end):
    path, text, reads = written
    path.write_text(text)
    expected = reads(path)
    path.write_bytes(mark + (text.replace("\n", end)).encode())
    if mark and path.name == "run.toml":  # Flower reads this one itself, and fails
        with pytest.raises(SettingsError, match=r"byte order mark \(BOM\).*save it as"):
            reads(path)
    elif path.name == "manifest.csv":
        assert [entry.label for entry in reads(path)] == [entry.label for entry in expected]
    else:
        assert reads(path) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "cp1252"])
def test_another_encoding_is_named_with_its_cure(written, encoding):
    path, text, reads = written
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    path.write_bytes(mark + (text + "# ä\n").encode(encoding))
    name = "not in UTF-8" if encoding == "cp1252" else "in UTF-16"
    with pytest.raises((SettingsError, DataError, TableError, DeployError)) as caught:
        reads(path)
    # Of a hospital's own files the error tells the server nothing; the hospital reads more.
    error = caught.value
    said = line_of(error)
    assert re.search(f"{name}.*save it as UTF-8", said)


def test_a_line_can_be_added_to_members_that_a_mark_begins(tmp_path):
    path, (graz, linz) = (
        tmp_path / "members",
        (Identity.load(name, tmp_path / name).member for name in ("graz", "linz")),
    )
    path.write_bytes(codecs.BOM_UTF8 + member_line("graz", graz).encode())
    add_member(path, "linz", str(linz))
    assert read_members(path) == {"graz": graz, "linz": linz}


@pytest.mark.parametrize("first", ["", "\n", "sep=;\n", '"sep=;"\n'])
@pytest.mark.parametrize("last", ["", ";;\n", "\n\n"])
def test_tables_of_a_german_excel(first, last, tmp_path):
    path = tmp_path / "enrolment.csv"
    path.write_text(first + '"graz";active;active\nlinz;"active";left\n' + last, "utf-8-sig")
    assert plan(path)["linz"] == ["active", "left"]
    path = tmp_path / "manifest.csv"
    (tmp_path / "0,5 mm.png").touch()
    path.write_text(first + 'image;label\n"0,5 mm.png";"a; b"\n' + last.replace(";;", ";"))
    (entry,) = list_manifest(str(path)).entries
    assert (entry.file.name, entry.label) == ("0,5 mm.png", "a; b")


def test_a_line_that_is_no_csv_is_named_and_not_quoted(tmp_path):
    path = tmp_path / "manifest.csv"
    path.write_text('image,label\n0.png,a\nmeier.png,"x" y\n')
    with pytest.raises(DataError, match=r"manifest cannot be read\.$") as caught:
        list_manifest(str(path))
    assert "line 3 is not that of a CSV file" in caught.value.explain()
    assert "meier" not in caught.value.explain()
