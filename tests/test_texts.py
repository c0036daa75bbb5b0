"""What texts name is there: files, modules and what they define, settings and rules, commands.

Texts are the pages in Markdown, docstrings, comments, and messages.
"""

import ast
import io
import re
import tokenize
import tomllib
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.main import get_group

from cli.entry import app
from client_app.authority.node_config import NodeConfig
from client_app.authority.policy import DEFAULTS
from gan.code_sets import CODE_SETS
from strategies.protocol.code import PACKAGES
from strategies.protocol.declared import keys_of
from strategies.protocol.may_leave import ANSWERS
from strategies.protocol.settings import Settings, defaults
from strategies.registry import STRATEGIES

ROOT = Path(__file__).parents[1]
FOLDERS = (*PACKAGES, "benchmarks", "cli", "deploy", "server_app", "tests")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
RESULTS = ROOT / "benchmarks" / "results"
CODE = [path for package in FOLDERS for path in sorted((ROOT / package).rglob("*.py"))]
ANY = "|".join(FOLDERS)
FILE = re.compile(rf"(?<![\w/.:-])(?:{ANY}|docs)(?:/[\w-]+)+\.(?:py|html\.md|md|toml|css|js)\b")
MODULE = re.compile(rf"(?<![\w/.-])(?:{ANY})(?:\.[A-Za-z_]\w*)+(?![\w-])")
COMMAND = re.compile(r"(?:`|uv run )fedhandoff ([a-z]+)(?: ([a-z]+))?|python -m ([\w.]+)")
DOTTED = re.compile(r"`([a-z]+(?:\.[a-z0-9-]+)+)(?:=[^`]*)?`")
# What a reader of docs/adding-a-method.md adds, and the mistake that docs/tutorial.md shows.
EXAMPLES = {"learning/learners/smoothed.py", "strategies/patient.py", "train.epoch"}
SUFFIXES = (".py", ".md", ".toml", ".jsonl", ".png", ".txt")  # of files
# Code, rows of tables, titles and pictures of a page.
BESIDE_PROSE = re.compile(r"^```.*?^```$|^(?:\||#|!\[).*?$", re.DOTALL | re.MULTILINE)


def texts_of(path):
    """The words for people in a file of Python: docstrings, and runs of comments."""
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@cache
def is_there(name):
    """Whether a dotted name of ours is a module, or something that a module defines or imports."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                rest = rf"\b{parts[length]}\b" if parts[length:] else ""
                return re.search(rest, file.read_text("utf-8")) is not None
    return ROOT.joinpath(*parts).is_dir()


@cache
def keys():
    """Settings, rules of the policy, their tables, keys of a node-config, and messages."""
    rules = tomllib.loads(DEFAULTS.read_text("utf-8"))
    named = {*defaults(), *keys_of(NodeConfig), *ANSWERS, "train.rewind"}
    named |= {f"{table}.{rule}" for table, of in rules.items() for rule in of}
    return named | {key.rpartition(".")[0] for key in named} - {""}


@cache
def is_command(name, of_group):
    """Whether there is such a command, or group of commands."""
    known = get_group(app).commands
    below = getattr(known.get(name), "commands", None)  # of a group
    return name in known and (below is None or of_group in (*below, None))


def missing_commands(text):
    """The commands that a text names, and that are not there."""
    for name, of_group, module in COMMAND.findall(text):
        if name and not is_command(name, of_group or None):
            yield f"fedhandoff {name} {of_group}".strip()
        if module.partition(".")[0] in FOLDERS:
            place = ROOT.joinpath(*module.split("."))
            if not (place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()):
                yield f"python -m {module}"


def missing_from(text):
    """What a text names, and is not there."""
    yield from missing_commands(text)
    for match in FILE.finditer(text):
        if not (ROOT / match[0]).is_file():
            yield match[0]
    tables = {key.partition(".")[0] for key in keys()}
    dotted = {match[1] for match in DOTTED.finditer(text)}
    of_ours = {name for name in dotted if name.partition(".")[0] in tables}
    for name in of_ours | {match[0] for match in MODULE.finditer(text)}:
        if not (name in keys() or name.endswith(SUFFIXES) or is_there(name)):
            yield name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_names_what_is_there(path):
    text = path.read_text("utf-8")
    assert {*missing_from(text)} <= EXAMPLES


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_of_results_names_what_is_there_or_in_the_history(path):
    text = path.read_text("utf-8")
    history = re.findall(r"`git show [0-9a-f]+:(benchmarks/\w+)\.py`", text)
    assert {*missing_from(text)} <= {name.replace("/", ".") for name in history}
    for name in re.findall(r"fedhandoff reproduce (\w+)", text):
        assert (ROOT / "benchmarks" / f"{name}.toml").is_file(), name


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_of_results_has_a_command_or_its_program_in_the_history(path):
    assert re.search(r"uv run |git show [0-9a-f]{7,}:", path.read_text("utf-8"))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("[!R]*.md")), ids=lambda path: path.stem)
def test_a_page_of_results_has_at_most_ten_sentences(path):
    prose = BESIDE_PROSE.sub("", path.read_text("utf-8"))
    rows = re.findall(r"^- ", prose, re.MULTILINE)  # a row of a list may have a fact
    assert len(re.findall(r"[.?!][*)\"]*\s", prose)) - len(rows) <= 10


def test_the_index_of_results_names_each_page_and_each_table_that_was_not_run():
    index = (RESULTS / "README.md").read_text("utf-8")
    pages = {path.stem for path in RESULTS.glob("*.md")} - {"README"}
    assert {*re.findall(r"\]\(([\w-]+)\.md\)", index)} == pages
    tables = {path.stem for path in (ROOT / "benchmarks").glob("*.toml")}
    not_run = {*re.findall(r"`(\w+)`", index.partition("## Not run")[2])}
    assert not_run == {name for name in tables if name.replace("_", "-") not in pages}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_the_defaults_of_settings(path):
    rows = re.findall(r"^\| `([\w.-]+)` \| `([^`]*)` \|", path.read_text("utf-8"), re.MULTILINE)
    printed = {
        key: tomllib.loads(f"value = {value}")["value"] for key, value in rows if key in defaults()
    }
    assert printed == {key: defaults()[key] for key in printed}


def test_the_index_of_methods_names_every_strategy_learner_and_code_set():
    index = (ROOT / "docs" / "methods" / "index.md").read_text("utf-8")
    samplers = (ROOT / "docs" / "methods" / "samplers.md").read_text("utf-8")
    learners = {*get_args(get_type_hints(Settings)["learner"])} - {""}
    rows = {*re.findall(r"^\| `([\w-]+)` \|", index, re.MULTILINE)}
    assert not ({*STRATEGIES} | learners) - rows, "docs/methods/index.md has no row for these"
    named = {*re.findall(r"`([\w-]+)`", samplers)}
    assert not {*CODE_SETS} - named, "docs/methods/samplers.md does not name these"


def test_a_claim_has_figures_of_its_page():
    number = re.compile(r"\d[\d,.]*\d|\d")
    claims = re.findall(
        r"^\| (.+?) \| (.+?) \| .*\]\(([\w-]+)\.md\) \|$",
        (RESULTS / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    for claim, figure, page in claims:
        figures = number.findall((RESULTS / f"{page}.md").read_text("utf-8"))
        assert {*number.findall(figure)} <= {*figures}, claim


def test_the_page_of_failures_names_tests_that_are_there():
    text = (ROOT / "docs" / "failures.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) == text.count("::") - 1  # the page explains how tests are named
    for file, name in named:
        assert f"def test_{name}(" in (ROOT / file).read_text("utf-8"), name


@pytest.mark.slow
def test_docstrings_and_comments_name_what_is_there():
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in CODE
        for text in texts_of(path)
        for name in missing_from(text)
    }
    assert not missing


@pytest.mark.slow
def test_messages_name_commands_that_are_there():
    assert [*missing_commands("a new one (`python -m deploy authority`)")] == ["python -m deploy"]
    assert [*missing_commands("`fedhandoff server keys`")] == ["fedhandoff server keys"]
    missing = set()
    for path in (each for each in CODE if ROOT / "tests" not in each.parents):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                text = "".join(str(each.value) for each in parts if isinstance(each, ast.Constant))
                missing |= {f"{path.relative_to(ROOT)}: {name}" for name in missing_commands(text)}
    assert not missing
