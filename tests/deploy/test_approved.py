"""The code that a hospital has approved: what is installed, and that a change of it is noticed."""

import resource
import shlex
import shutil
from unittest.mock import Mock

import pytest

from cli.places import HOSPITAL
from deploy.approved import approve, approved_code
from deploy.errors import DeployError
from deploy.own_file import write_own
from deploy.status import status
from strategies.protocol.code import files_of, hash_of

CODE = (
    "client_app/__init__.py",
    "client_app/authority/policy.toml",
    "gan/a/b.py",
    "pages/templates/c.html.md",
    "strategies/c.py",
)


def write(root, content="", *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.fixture
def checkout(tmp_path):
    other = ("README.md", "tests/x.py", "gan/a.so", "gan/__pycache__/a.pyc", "torch.py")
    write(tmp_path / "checkout", "pass", *CODE, *other)
    return tmp_path / "checkout"


def installed(place):
    return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}


def test_approved_is_what_the_hash_is_of_and_nobody_writes_to_it(checkout, tmp_path):
    code = approve(tmp_path, checkout)
    place = approved_code(tmp_path)
    assert code == hash_of(checkout) == hash_of(place)
    assert place == tmp_path / "approved" / code[:16]
    assert installed(place) == {*CODE}
    for path in (place, *place.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o555 if path.is_dir() else 0o444)


def test_a_hospital_can_go_back_to_what_it_approved_before(checkout, tmp_path):
    first, old = approve(tmp_path, checkout), approved_code(tmp_path)
    write(checkout, "raise", "strategies/c.py")
    second = approve(tmp_path, checkout)
    assert first != second
    assert approved_code(tmp_path).name == second[:16]
    assert hash_of(old) == first
    write(checkout, "pass", "strategies/c.py")
    assert approve(tmp_path, checkout) == first
    assert approved_code(tmp_path) == old
    assert len([*(tmp_path / "approved").iterdir()]) == 3  # and the file that says which


@pytest.mark.parametrize("name", ["gan/d.py", "torch.py", "gan/d.so", "gan/a/link"])
def test_what_was_added_is_not_run(name, checkout, tmp_path):
    approve(tmp_path, checkout)
    place = approved_code(tmp_path)
    (place / name).parent.chmod(0o755)
    if name.endswith("link"):
        (place / name).symlink_to(checkout)
    else:
        write(place, "", name)
    with pytest.raises(DeployError, match="it was changed"):
        approved_code(tmp_path)
    with pytest.raises(DeployError, match="it was changed"):
        approve(tmp_path, checkout)


def test_what_was_changed_or_removed_is_not_run(checkout, tmp_path):
    approve(tmp_path, checkout)
    file = approved_code(tmp_path) / "gan" / "a" / "b.py"
    file.chmod(0o644)
    file.write_text("raise")
    with pytest.raises(DeployError, match="it was changed"):
        approved_code(tmp_path)
    file.parent.chmod(0o755)
    file.unlink()
    with pytest.raises(DeployError, match="it was changed"):
        approved_code(tmp_path)
    shutil.rmtree(tmp_path / "approved" / hash_of(checkout)[:16])
    with pytest.raises(DeployError, match="it was changed"):
        approved_code(tmp_path)
    approve(tmp_path, checkout)
    assert approved_code(tmp_path).exists()


def test_bytecode_is_not_run_in_place_of_what_was_approved(checkout, tmp_path):
    approve(tmp_path, checkout)
    place = approved_code(tmp_path)
    (place / "gan").chmod(0o755)
    write(place, "", "gan/__pycache__/b.pyc")
    approved_code(tmp_path)
    assert installed(place) == {*CODE}


@pytest.mark.parametrize("killed", ["deploy.approved.hash_of", "pathlib.Path.rename"])
def test_the_draft_of_a_process_that_was_killed_is_removed(killed, checkout, tmp_path, monkeypatch):
    """A kill after the copy, or after its hash, leaves what this error leaves."""
    with monkeypatch.context() as context:
        context.setattr(killed, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            approve(tmp_path, checkout)
    (draft,) = (tmp_path / "approved").glob(".draft-*")
    folders = (draft, *draft.rglob("*/"))
    assert all(folder.stat().st_mode & 0o200 for folder in folders)  # a user may remove it
    approve(tmp_path, checkout)
    assert not [*(tmp_path / "approved").glob(".draft-*")]


def test_on_a_full_disk_the_error_names_the_file(checkout, tmp_path):
    write(checkout, "x" * 2000, "strategies/c.py")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"/approved/\.draft-.*/strategies/c\.py"):
            approve(tmp_path / "graz", checkout)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_another_hash_is_not_that_of_the_code(checkout, tmp_path):
    code = approve(tmp_path, checkout)
    (tmp_path / "approved" / "code").write_text(code[:16] + "0" * 48)
    with pytest.raises(DeployError, match="it was changed"):
        approved_code(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe", b"0" * 63, None])
def test_a_hash_that_cannot_be_read_is_named_at_the_start_and_by_status(
    content, checkout, tmp_path, capsys
):
    approve(tmp_path, checkout)
    write_own(tmp_path, "hospital.toml", {"name": "graz"})
    chosen = tmp_path / "approved" / "code"
    chosen.unlink()
    if content is None:
        chosen.mkdir()
    else:
        chosen.write_bytes(content)
    with pytest.raises(DeployError) as refusal:
        approved_code(tmp_path)
    why = str(refusal.value)
    assert str(chosen) in why
    assert "fedhandoff hospital approve --hospital" in why
    status(tmp_path)
    assert f"  code         {why}\n" in capsys.readouterr().out


def test_a_hospital_is_told_to_approve_code(tmp_path, call):
    hospital = tmp_path / "a hospital"
    hospital.mkdir()
    with pytest.raises(DeployError, match="has no approved code") as error:
        approved_code(hospital)
    write_own(hospital, HOSPITAL, {"name": "graz"})
    command = str(error.value).split("`")[1]
    assert call(*shlex.split(command)[1:])[0] == 0
    assert approved_code(hospital)


def test_a_folder_without_code_is_not_approved(tmp_path):
    with pytest.raises(DeployError, match="has no code: give a checkout of this repository"):
        approve(tmp_path, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_code_cannot_move_to_another_file_under_the_same_hash(tmp_path):
    """A file's name and content, and the next file's, are told apart."""
    write(tmp_path / "one", "x = 1 #", "gan/a.py")
    write(tmp_path / "one", "y = 2", "gan/b.py")
    write(tmp_path / "two", "x = 1 #gan/b.pyy = 2", "gan/a.py")
    assert [path.name for path in files_of(tmp_path / "one")] == ["a.py", "b.py"]
    assert hash_of(tmp_path / "one") != hash_of(tmp_path / "two")
