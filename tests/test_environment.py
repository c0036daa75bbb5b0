"""Which environment variables a hospital's processes read: none of them may relax a rule."""

import ast
import re
from pathlib import Path

import pytest

from strategies.protocol.code import PACKAGES

ROOT = Path(__file__).parents[1]
# All that is read, by file. "*": handed on whole, to a process that is started.
READ = {
    # The hospital's own node-config, as `hospital start` has checked it; without it, Flower's.
    "client_app/authority/node_config.py": {"FEDHANDOFF_NODE_CONFIG"},
    # Whether `hospital start` has made the store.
    "client_app/authority/ledger.py": {"NODE_CONFIG"},
    # Where the folder of stores is, for who names none; `hospital start` names one.
    "strategies/protocol/files.py": {"XDG_DATA_HOME"},
    # What is logged; no proxy to the own SuperLink.
    "deploy/supervisor.py": {"FLWR_LOG_LEVEL", "NO_PROXY", "PATH", "no_proxy", "*"},
    "deploy/voice.py": {"FLWR_LOG_LEVEL"},
    "strategies/protocol/console.py": {"FLWR_LOG_LEVEL"},
    # The server's own address.
    "deploy/control.py": {"FEDHANDOFF_COMMANDS", "FLWR_OIDC_ENABLED"},
    # `hospital start` sets it: the approved code. A process without it does not start.
    "deploy/programs/flwr-clientapp": {"FEDHANDOFF_CODE"},
    "deploy/programs/flower-supernode": {"PATH", "*"},
    "warm/process.py": {"*"},
}


def variables_in(source):
    """The variables that a source reads or sets, by name; "*" for all of them at once."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def name_of(node):
        name = getattr(node, "id", "?")  # of a constant; one of another file keeps its own
        return getattr(node, "value", constants.get(name, name))

    def is_environment(node):
        return isinstance(node, ast.Attribute) and node.attr.startswith("environ")

    whole = {id(node) for node in ast.walk(tree) if is_environment(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="getenv" | "getenvb"), args=[key, *_]):
                yield name_of(key)
                continue
            case ast.Subscript(value=read, slice=key):
                pass
            case ast.Call(func=ast.Attribute(value=read), args=[key, *_]):
                pass
            case ast.Compare(left=key, comparators=[read]):
                pass
            case _:
                continue
        if is_environment(read):
            whole.discard(id(read))
            yield name_of(key)
    yield from ["*"] * bool(whole)


def sources():
    for package in (*PACKAGES, "deploy"):
        for path in sorted((ROOT / package).rglob("*")):
            script = path.is_file() and not path.suffix and b"python" in path.read_bytes()[:40]
            if path.suffix == ".py" or script:
                yield path


def test_no_variable_is_read_that_could_relax_a_rule():
    """Whoever adds one says here what it does."""
    found = {}
    for path in sources():
        if names := {*variables_in(path.read_text("utf-8"))}:
            found[path.relative_to(ROOT).as_posix()] = names
    servers = {
        name for name in found if name.startswith(("deploy/server", "deploy/server_programs"))
    }
    assert {name: found[name] for name in found.keys() - servers} == READ


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("os.environ.get(NAME)", {"X"}),
        ("'Y' in os.environ", {"Y"}),
        ("os.environ['Z']", {"Z"}),
        ("os.getenv('W')", {"W"}),
        ("{**os.environ}", {"*"}),
        ("os.environ.get(name)", {"name"}),
    ],
)
def test_each_way_to_read_one_is_seen(line, names):
    assert {*variables_in(f"import os\nNAME = 'X'\n{line}")} == names


def test_none_is_imported_under_another_name():
    for path in sources():
        text = path.read_text("utf-8")
        assert not re.search(r"from os import .*\b(environb?|getenvb?|putenv)\b", text), path
