"""Each command has an example that works, fails in one line, and starts without torch."""

import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import typer
from click import Argument, Context, FloatRange, Group, IntRange
from click import Path as ClickPath
from click.types import FloatParamType, IntParamType, StringParamType

from cli import main
from cli.entry import app
from deploy.errors import DeployError
from deploy.own_file import write_own

ROOT = Path(__file__).parents[2]


def commands_of(group, words=()):
    """All commands, each with its words."""
    for name, each in group.commands.items():
        if isinstance(each, Group):
            yield from commands_of(each, (*words, name))
        else:
            yield (*words, name), each


GRAZ = {"name": "graz", "data": "/skin", "server": "fl.example.org:9092", "members": "members"}
COMMANDS = dict(commands_of(typer.main.get_command(app)))


def failed(capsys, *arguments):
    """The status and the error output of a command."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code, capsys.readouterr().err


TEXTS = [
    pytest.param(words, each, id=" ".join([*words, str(each.name)]))
    for words, command in COMMANDS.items()
    for each in command.params
    if isinstance(each.type, ClickPath | StringParamType)
]


@pytest.mark.parametrize(("words", "each"), TEXTS)
def test_a_value_that_is_empty_is_refused(words, each, capsys):
    """It comes from a variable that is not set. As a path it would be the current folder."""
    option = [] if isinstance(each, Argument) else [each.opts[0]]
    for blank in ("", " "):
        status, error = failed(capsys, *words, *option, blank)
        said = f"{each.opts[0]} is empty: give a value, or leave it out."
        assert (status, error) == (2, f"fedhandoff {' '.join(words)}: {said}\n")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_has_an_example_that_it_accepts(
    words, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_own(tmp_path / "fedhandoff" / "graz", "hospital.toml", GRAZ)
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    *_, example = shown.splitlines()
    given = shlex.split(example)
    assert tuple(given[: 1 + len(words)]) == ("fedhandoff", *words)
    command = COMMANDS[words]
    helps = [each.help for each in command.params if isinstance(each, Argument)]
    assert all(each and each in " ".join(shown.split()) for each in helps)
    command.make_context(words[-1], given[1 + len(words) :], parent=Context(command))


def test_a_number_has_bounds_on_both_sides():
    """Of 10^9 hospitals the list of them alone takes 32 GB; -1 processes answer never."""
    numbers = [
        option
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option.type, IntParamType | FloatParamType)
    ]
    assert len(numbers) >= 7
    for each in numbers:
        assert isinstance(each.type, IntRange | FloatRange), each
        assert None not in (each.type.min, each.type.max), each


def test_without_a_command_all_are_listed(capsys):
    with pytest.raises(SystemExit):
        main([])
    shown = capsys.readouterr().out
    assert all(f"  {words[0]} " in shown for words in COMMANDS)
    assert "..." not in shown.partition("Commands:")[2]  # no sentence is cut


def test_the_version_is_printed(capsys, monkeypatch):
    """Also where packages were installed without the project, as on a machine without internet."""

    def installed(name):
        if name == "fedhandoff":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("cli.entry.version", installed)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    flower = version("flwr")
    assert capsys.readouterr().out == f"fedhandoff {version('fedhandoff')}, flwr {flower}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum"], "fedhandoff: No such command 'rum'. Did you mean 'run'?\n"),
        (
            ["ledger", "--store-dir", "/no"],
            "fedhandoff ledger: There is no ledger at /no/hospital/ledger.jsonl. Name a hospital",
        ),
        (
            ["export", "A", "--to", "a.safetensors", "--result", "/no"],
            "fedhandoff export: /no is not the result",
        ),
        (["check", "--hospital", "2"], "fedhandoff check: No such option"),
        (["check", "--hospitals", "two"], "fedhandoff check: Invalid value for '--hospitals'"),
        (["check", "--run-config", "colour=1"], "fedhandoff check: There is no setting 'colour'"),
        (["hospital", "start"], "fedhandoff hospital start: There is no hospital.toml: "),
        (["hospital", "init", "graz"], "fedhandoff hospital init: Missing option '--data'"),
        (["members", "--site", "a/b"], "fedhandoff members: Invalid value for '--site'"),
        (["run", "--hospitals", "1000000000"], "fedhandoff run: Invalid value for '--hospitals'"),
        (["check", "--hospitals", "0"], "fedhandoff check: Invalid value for '--hospitals'"),
        (
            ["policy", str(ROOT)],
            f"fedhandoff policy: The hospital's policy cannot be used: {ROOT} ",
        ),
        (["dossier", "--identity", "/no/a"], "fedhandoff dossier: There is no file '/no/a'"),
        (
            ["dossier", "/no/a", "--run", "1"],
            "fedhandoff dossier: /no/a is one dossier: leave out --run",
        ),
        (["dossier", "--members", "/no/a"], "fedhandoff dossier: There is no file '/no/a'"),
        (["crate", "~nobody2/a"], "fedhandoff crate: The home folder in '~nobody2/a' is unknown"),
        (
            ["check", "--run-config", "dataset='folder:~nobody2'"],
            "fedhandoff check: The home folder in '~nobody2' is unknown",
        ),
        (
            ["check", "--run-config", "resume='~nobody2/a'"],
            "fedhandoff check: The home folder in '~nobody2/a' is unknown",
        ),
        (["check", "--run-config", f"a={'[' * 5000}"], "fedhandoff check: --run-config cannot be"),
        (["reproduce", "--seeds", "x"], "fedhandoff reproduce: --seeds is 'x': give whole numbers"),
        (["reproduce", "--vary", "seed="], "fedhandoff reproduce: --vary is 'seed=': write a"),
    ],
)
def test_a_wrong_word_is_named_in_one_line(arguments, said, capsys):
    status, error = failed(capsys, *arguments)
    assert status == 2
    assert error.startswith(said)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "suffix"),
    [
        ("predict --data a --output", ".csv"),
        ("compare a --csv", ".csv"),
        ("compare a --html", ".html"),
        ("ledger --html", ".html"),
        ("report --to", ".html"),
        ("export A --to", ".safetensors or .onnx"),
        ("server invite graz --to", ".invitation"),
    ],
)
def test_no_output_replaces_a_file_of_another_kind(words, suffix, capsys, tmp_path):
    key = tmp_path / "ca.key"
    key.write_text("secret")
    status, error = failed(capsys, *words.split(), key)
    assert (status, key.read_text()) == (2, "secret")
    assert f"'{words.split()[-1]}': '{key}' does not end in {suffix}: name such a file." in error


def test_the_cause_of_a_failed_deployment_is_one_line(monkeypatch, capsys, tmp_path):
    def fails(*_):
        raise DeployError("The port is in use.")

    monkeypatch.setattr("deploy.server.start_superlink", fails)
    status, error = failed(capsys, "server", "start", "--server", tmp_path)
    assert (status, error) == (2, "fedhandoff server start: The port is in use.\n")


def test_a_crash_prints_no_values_of_variables():
    code = (
        "from cli import entry, main\n"
        "@entry.app.command()\n"
        "def crash(): token = 'se' + 'cret'; raise AssertionError('it crashed')\n"
        "main(['crash'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("AssertionError: it crashed\n")
    assert "secret" not in done.stderr


LINE = "fedhandoff: interrupted by Ctrl-C.\n"


def test_ctrl_c_ends_with_its_own_status(monkeypatch, capsys, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("deploy.server.start_superlink", interrupted)
    status, error = failed(capsys, "server", "start", "--server", tmp_path)
    assert (status, error.strip()) == (130, LINE.strip())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["run", "--run-config", "strategy='cwt' num-server-rounds=99"], ["watch", "."]]
)
def test_ctrl_c_is_one_line_at_any_time(words, tmp_path):
    """At first modules are imported: of the command, of torch, and in the process of hospitals."""
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    # A shell may start the tests with SIGINT ignored, which processes inherit.
    began = (
        "import sys; from signal import *; signal(SIGINT, default_int_handler)\n"
        "from cli import main; print('began', flush=True); main(sys.argv[1:])"
    )
    for wait in (0, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4):
        process = subprocess.Popen(
            [sys.executable, "-c", began, *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with process:
            assert process.stdout
            assert process.stdout.readline() == "began\n"
            time.sleep(max(wait, 0.02))  # `main` is called
            os.killpg(process.pid, signal.SIGINT)
            said, _ = process.communicate(timeout=300)
        assert process.returncode == 130
        assert said.endswith(LINE)
        assert "Traceback" not in said


def test_ctrl_c_in_a_command_of_the_demo_is_one_line(tmp_path):
    code = (
        "from signal import *; signal(SIGINT, default_int_handler)\n"
        "from cli import main; from deploy import demo\n"
        "demo.demonstrate = lambda _: demo._do(('watch', '.'))\n"
        "main(['demo'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout
        assert "Waiting for one." in process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=300)[0] == LINE
    assert process.returncode == 130


def test_ctrl_c_waits_for_the_end_of_an_import(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import signal, time; signal.raise_signal(signal.SIGINT); time.sleep(0.2); print('whole')"
    )
    (tmp_path / "command.py").write_text(
        "import sys, time, types; from signal import *; import cli\n"
        "def run(words): import slow; time.sleep(600)\n"
        "sys.modules['cli.entry'] = types.SimpleNamespace(run=run)\n"
        "signal(SIGINT, default_int_handler)\n"
        "cli.main([])"
    )
    ended = subprocess.run(
        [sys.executable, tmp_path / "command.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "whole\n", LINE)


def test_the_home_folder_of_a_path_is_found(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["policy", "~/graz/policy.toml"])
    assert (tmp_path / "graz" / "policy.toml").exists()


@pytest.mark.parametrize("output", ["read", "closed"])
def test_output_that_nobody_reads_ends_no_command(output, tmp_path):
    """As with `| head`, and with `>&-`."""
    code = (
        "import os, sys; from pathlib import Path; from strategies.protocol.text import Screen\n"
        "Screen.install()\n"
        "for part in range(3): print('line', flush=True)\n"
        f"Path({str(tmp_path / 'done')!r}).touch()"
    )
    shell = [sys.executable, "-c", code]
    if output == "closed":
        shell = ["sh", "-c", 'exec "$@" >&-', "sh", *shell]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        shell, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", ["--help", "", "--version", "hospital", "hospital --help", "policy policy.toml"]
)
def test_output_that_cannot_be_written_is_named_in_one_line(words, unbuffered, tmp_path):
    """With a buffer Python writes it only as the process ends."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cli", *words.split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in done.stderr


def test_help_and_completion_import_no_other_package():
    """They answer at once: torch alone takes seconds."""
    code = (
        "import sys; from cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit(bool({'torch', 'numpy', 'flwr', 'pydantic'} & {*sys.modules}))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    words = {"COMP_WORDS": "fedhandoff hos", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "cli"],
        cwd=ROOT,
        env={**os.environ, **words, "_FEDHANDOFF_COMPLETE": "complete_bash"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["hospital"]


@pytest.mark.parametrize("module", ["server_app.check", "flwr.app"])
def test_a_command_prints_warnings_as_plain_lines(module):
    """Flower adds a handler of its own, of one level or another."""
    code = (
        "import logging; from importlib import import_module; from cli import entry, main\n"
        "@entry.app.command()\n"
        f"def warn(): import_module({module!r}); logging.getLogger('flwr').warning('large')\n"
        "main(['warn'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.stdout[len("20:31:04") :] == "  warning: large\n"
    assert not done.stderr


@pytest.mark.parametrize("words", [["compare"], ["reproduce", "--data"], ["reproduce", "--output"]])
def test_links_in_a_ring_end_no_command_with_a_traceback(words, capsys, tmp_path):
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    with pytest.raises(SystemExit) as ended:
        main(
            [*words, str(tmp_path / "ring"), *["--vary", "train.epochs=1"] * ("--output" in words)]
        )
    assert ended.value.code in (1, 2)
    assert "ring" in "".join(capsys.readouterr()) or "--data" in words


@pytest.mark.parametrize(
    "words",
    [
        ["preflight", "--data-dir", "."],
        ["policy", "policy.toml"],
        ["alone", "--data-dir", "."],
        ["open", "a.npz"],
        ["check"],
        ["run"],
    ],
    ids=lambda words: words[0],
)
def test_a_run_config_names_a_method_that_exists(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("client_app.afterwards.past_run.PastRun.find", lambda *_: None)
    for keys in ("identity", "members"):
        path = tmp_path / "hospital" / keys
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o600)
    monkeypatch.setattr("client_app.authority.identity.Identity.load", lambda *_: None)
    own = ["--store-dir", tmp_path] if words[0] not in ("policy", "check", "run") else []
    status, error = failed(capsys, *words, *own, "--run-config", "strategy='nothing'")
    assert status == 2
    assert "The setting 'strategy' is 'nothing'; it must be one of centralized, cwc" in error


def test_a_name_that_is_not_utf_8_is_refused_by_its_name(capsys, tmp_path):
    """In the locale C, each name with other letters than English ones is such a name."""
    folder, data = tmp_path / "graz", f"{tmp_path}/gr\udcfcn"
    words = ("hospital", "init", "graz", "--server", "a:1", "--folder", folder)
    status, error = failed(capsys, *words, "--data", data)
    assert status == 2
    assert f"{data!a} is not UTF-8: rename the file or folder." in error
    assert not (folder / "hospital.toml").exists()
