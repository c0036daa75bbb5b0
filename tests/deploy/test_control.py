"""Who may give the server commands (deploy/control.py); test_relay.py asks a real SuperLink."""

import subprocess
import sys

import pytest
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.superlink import config_loader

from deploy import control, server
from deploy.control import OperatorOnly


@pytest.fixture
def _started(tmp_path, monkeypatch):
    """As Flower's program is started with a secret, up to where it would begin."""
    (tmp_path / "secret").write_bytes(b"secret")
    option = ("--superexec-auth-secret-file", str(tmp_path / "secret"))
    monkeypatch.setattr(sys, "argv", ["flower-superlink", *option])
    monkeypatch.setenv(server.COMMANDS, "127.0.0.1:8000")
    monkeypatch.setattr(control, "get_credential_store", Store)
    monkeypatch.setattr(control, "flower_superlink", lambda: None)
    monkeypatch.setattr(OperatorOnly, "token", "")
    monkeypatch.setattr(config_loader, "get_control_authn_ee_plugins", dict)
    monkeypatch.setenv("FLWR_OIDC_ENABLED", "0")
    control.main()


class Store:
    def set(self, key, value):
        pass


@pytest.mark.usefixtures("_started")
@pytest.mark.parametrize("token", [None, "", "x", "secret", "é"])
def test_a_command_without_the_token_is_refused(token):
    plugin = config_loader.load_control_authn_plugin()
    metadata = [] if token is None else [(ACCESS_TOKEN_KEY, token)]
    assert plugin.validate_tokens_in_metadata(metadata) == (False, None)
    assert plugin.get_login_details() is None
    assert plugin.get_auth_tokens("") is None
    assert plugin.refresh_tokens([(ACCESS_TOKEN_KEY, OperatorOnly.token)]) == (None, None)


@pytest.mark.usefixtures("_started")
def test_who_has_the_token_is_flower_s_one_account():
    """It follows from the secret, so that it is the same after a restart, and is long."""
    plugin, token = config_loader.load_control_authn_plugin(), OperatorOnly.token
    accepted, account = plugin.validate_tokens_in_metadata([(ACCESS_TOKEN_KEY, token)])
    assert accepted
    assert account is not None
    assert account.flwr_aid == "<id:none>"
    assert len(token) == 64


def test_without_a_token_nothing_is_checked_and_nothing_starts():
    with pytest.raises(ValueError, match="no token"):
        OperatorOnly()


@pytest.mark.slow
def test_flower_s_program_is_the_one_that_checks(tmp_path):
    """Where Flower looks for it; it ends because there is no secret."""
    found = server.PROGRAMS / "flower-superlink"
    assert found.resolve() == server.PROGRAMS.with_name("control.py")
    done = subprocess.run([found], capture_output=True, text=True, check=False)
    assert "'--superexec-auth-secret-file' is not in list" in done.stderr
