"""No password or token in a setting, or of the environment, is written or told."""

import json
import logging
import sys
import time

import pytest
from flwr.app import Message, RecordDict

from cli import main
from client_app.app import app as hospital_app
from server_app.app import app as server_app
from strategies.protocol.console import Console
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from strategies.protocol.redaction import redact
from strategies.protocol.settings import Settings, SettingsError, defaults
from tests.fakes import FakeGrid, context, deployed, run_config

SECRET = "hunter2"
URLS = (
    f"https://me:{SECRET}@host/x",
    f"https://{SECRET}@host",
    f"mlflow:http://me:a/b@{SECRET}@host",
    f"hf:https://host/x?revision=1&access_token={SECRET}",
)
TEXTS = [key for key, value in defaults().items() if isinstance(value, str)]


@pytest.mark.parametrize("text", [*URLS, f"http://h/?api_key={SECRET}", f"u://h#jwt={SECRET}&x=1"])
def test_a_text_is_shown_without_its_secret(text):
    shown = redact(f"The server at {text} is away.")
    assert SECRET not in shown
    assert shown.startswith("The server at ")
    assert shown.endswith(" is away.")
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("/data/me@corp/x.npz", "sqlite:////home/me@corp/mlflow.db", "hf:ylecun/mnist@main"),
        *("http://127.0.0.1:5000", "databricks://profile", "https://h/x?revision=2#part"),
        *("public:/a?b", "file:///home/me@corp/runs", "1,20"),
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text):
    assert redact(text) == text
    assert Settings.parse(run_config(tracking=text)).tracking == text


@pytest.mark.parametrize("text", ["://a" * 64_000, "a@" + "://a" * 64_000, f"#{'key' * 64_000}="])
def test_a_long_text_of_a_server_is_read_in_a_moment(text):
    """It was read once for each of its URLs, a quarter of a megabyte in half a minute."""
    begun = time.monotonic()
    assert redact(text) == text
    assert time.monotonic() - begun < 2


def every_text(folder):
    """All texts in all files below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(f"{path}\n{path.read_bytes().decode('latin-1')}" for path in files)


@pytest.mark.parametrize("key", TEXTS)
def test_a_run_with_a_secret_in_a_setting_is_refused_and_tells_it_nowhere(
    key, tmp_path, monkeypatch, capfd, caplog
):
    """At the server, by `check`, at a hospital that is asked all the same, and in its ledger."""
    url = URLS[TEXTS.index(key) % len(URLS)]
    config = run_config(**{"output_dir": str(tmp_path / "runs"), key: url})
    told = []
    with pytest.raises(SettingsError, match=key) as caught:
        server_app(FakeGrid({}), context(0, 1, config))
    told.append(str(caught.value))

    with pytest.raises(SystemExit):
        main(["check", "--run-config", f"{key}='{url}'"])
    told.append(capfd.readouterr().err)
    assert key in told[-1]

    place = deployed(tmp_path / "graz")
    place.run_config.update(config)
    order = Order(0, 0, "graz", ["a", "b"], "plain", "1")
    answer = hospital_app(
        Message(RecordDict({"order": to_record(order)}), 100, "query.prepare"), place
    )
    assert answer.has_error()
    told.append(str(answer.error.reason))
    assert key in told[-1]
    lines = (tmp_path / "graz" / "store" / "graz" / "ledger.jsonl").read_text().splitlines()
    assert "***" in json.loads(lines[-1])["settings"][key]

    told += [*capfd.readouterr(), caplog.text, every_text(tmp_path)]
    assert SECRET not in "".join(told)


@pytest.mark.parametrize("written", ["tracking='{}", "tracking={}", "trackin='{}'", "{}"])
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", ["check", "policy"])
def test_settings_that_cannot_be_read_are_named_without_it(written, url, command, tmp_path, capfd):
    given = [str(tmp_path / "policy.toml")] if command == "policy" else []
    with pytest.raises(SystemExit) as ended:
        main([command, *given, "--run-config", written.format(url)])
    assert ended.value.code
    assert SECRET not in f"{ended.value.code}{capfd.readouterr()}"


def test_a_log_of_an_error_that_quotes_one_is_printed_without_it(capfd):
    console = Console()
    try:
        raise OSError(f"no answer from {URLS[0]}")
    except OSError:
        record = logging.LogRecord("flwr", 40, "", 0, "at %s", (URLS[1],), sys.exc_info(), "main")
    console.emit(record)
    console.last = URLS[3]
    console.emit(logging.LogRecord("flwr", 20, "", 0, "x", (), None, "flwr_exit"))
    printed = capfd.readouterr().out
    assert printed.count("***") == 3
    assert SECRET not in printed
