"""Texts of others on a screen, on a page, in a table: they control nothing, and hide nothing."""

import io
import logging
import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict

from learning.model_card import _plain
from strategies.protocol.console import Console
from strategies.protocol.files import parse_toml
from strategies.protocol.text import Screen, inert, printable, setting_line
from tests.fakes import context, run_config, run_here, write_archive
from tests.pages.macros import call

# What a terminal obeys, what turns letters around, what nobody sees, and half a character.
HIDDEN = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\u202e",
    "\u2066",
    "\u200b",
    "\x7f",
    "\ud800",
]


def on_page(text):
    return call("listing", [text]).strip().removeprefix("<ul>\n<li>").removesuffix("</li>\n</ul>")


@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_controls_or_hides_is_shown_as_python_writes_it(hidden, capsys):
    text = f"graz{hidden}linz"
    screen = io.StringIO()
    Screen(screen).write(text + "\n")
    console = Console(clock="", width=200)
    console.emit(logging.LogRecord("flwr", logging.INFO, "", 1, text, (), None))
    shown = [
        printable(text),
        screen.getvalue().removesuffix("\n"),
        capsys.readouterr().out.removesuffix("\n"),
        on_page(text),
        inert(text),
        _plain(text).replace("\\\\", "\\").replace("\\[", "[").replace("\\]", "]"),
    ]
    for each in shown:
        assert each.isprintable()
        assert each.startswith("graz\\")
        assert each.endswith("linz")
        each.encode()


@pytest.mark.parametrize("value", [True, False, 0, 1e-9, "", "a 'b' \"c\" \\d", "\x1b\nGrüße 😀"])
def test_a_setting_on_a_page_can_be_given_to_a_run(value):
    assert flatten_dict(parse_toml(setting_line("train.key", value))) == {"train.key": value}


def test_what_people_write_stays_as_it_is():
    for text in ("Grüße, 腫瘍 ≥ 3 µm – “a” 😀", "cafe\u0301", ""):
        assert printable(text) == text
        assert on_page(text) == escape(text)
    lines = "a = 1\n\tb = 2"
    assert on_page(lines) == lines


@pytest.mark.parametrize(
    "formula",
    [
        "=1+1",
        "+1+1",
        "-1+1",
        "@SUM(A1)",
        " =1",
        "\t=1",
        "\r=1",
        "\n=1",
        "\uff1d1+1",
        "\uff20x",
        "\u200b=1",
    ],
)
def test_a_text_is_no_formula(formula):
    told = str(inert(formula))
    assert told[0] in "'\\"
    assert told.isprintable()


@pytest.mark.parametrize("value", [-0.25, -1, "-0.25", "-1e-3", "+2", 0, "", None, "a=b", "x-y"])
def test_a_number_stays_one(value):
    assert inert(value) == value


def test_a_command_writes_over_its_own_line_alone():
    output = io.StringIO()
    print("1 of 2", end="\r", file=Screen(output))
    print("other\rline", file=Screen(output))
    assert output.getvalue() == "1 of 2\rother\\rline\n"


def test_a_character_that_the_locale_lacks_ends_no_command():
    code = (
        "from strategies.protocol.text import Screen; Screen.install(); print('Grüße \U0001f600')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("Grüße \\U0001f600\n".encode("latin-1"), b"")


def test_a_command_can_print_to_a_stream_of_another_kind(monkeypatch):
    """A notebook has such streams."""
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setattr("sys.stderr", output)
    Screen.install()
    print("line")
    assert output.getvalue() == "line\n"


def test_a_password_of_others_texts_is_not_printed():
    output = io.StringIO()
    print("http://me:hunter2@host is away", file=Screen(output))
    assert "hunter2" not in output.getvalue()


def test_one_thing_is_singular_in_the_log_and_on_the_page(tmp_path, caplog, capsys):
    """One hospital, one round, and a test image of each of two classes."""
    caplog.set_level(logging.INFO, "flwr")
    write_archive(tmp_path / "two.npz", 20)
    config = run_config(
        strategy="standalone",
        dataset=f"npz:{tmp_path / 'two.npz'}",
        partition="iid",
        model="mlp",
        num_server_rounds=1,
        min_hospitals=1,
        test_per_class="1",
        output_dir=str(tmp_path / "runs"),
    )
    result, _ = run_here([context(0, 1, config, **{"store-dir": str(tmp_path / "store")})])
    page = re.sub("<[^>]*>", " ", (result / "report.html").read_text("utf-8"))
    said = "\n".join([*caplog.messages, capsys.readouterr().out, page])
    assert "Models are prepared at 1 hospital" in said
    assert "1 round at hospital-0" in said
    nouns = "hospital|model|round|image|visit|patient|classe|step|method|answer|minute|second"
    assert re.findall(rf"(?<![\d.,])1\s+(?:\w+ )?(?:{nouns})s\b.*", said) == []
