#!/usr/bin/env -S python3 -I
"""Flower's SuperLink, which accepts commands only with a token.

Without the token anyone who reaches its port could start and stop runs and register hospitals.
Flower takes the class that checks accounts (`ControlAuthnPlugin`) from a package that is not
public. Here our class takes its place. This is no public interface, so tests/deploy/test_relay.py
tests it with a real SuperLink. `flwr` finds the token where `flwr login` would store it: in the
file `credentials.yaml` of FLWR_HOME, the server's folder, which only its user can read.

deploy/server_programs/flower-superlink is a link to this file.
"""

import hmac
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, AuthnType
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.supercore.credential_store import get_credential_store
from flwr.superlink import config_loader
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from flwr.superlink.cli import flower_superlink

Tokens = Sequence[tuple[str, str | bytes]]


class OperatorOnly(ControlAuthnPlugin):
    """Allows every command with the token, and no command without it."""

    token = ""

    def __init__(self) -> None:
        """Flower calls this without arguments."""
        if not self.token:
            raise ValueError("There is no token.")

    def validate_tokens_in_metadata(self, metadata: Tokens) -> tuple[bool, AccountInfo | None]:
        """Whether a command has the token; with it, also Flower's only account."""
        token = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        content = token if isinstance(token, bytes) else token.encode()
        if not hmac.compare_digest(content, self.token.encode()):
            return False, None
        return True, AccountInfo(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME)

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        """None: there is no login, because the token is in the server's folder."""
        return None

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        """None: there is no login."""
        return None

    def refresh_tokens(self, metadata: Tokens) -> tuple[Tokens | None, AccountInfo | None]:
        """None: the token is the same until the SuperLink ends."""
        return None, None


def main() -> None:
    """Run Flower's program with the token, which is derived from the SuperExec's secret."""
    option = sys.argv.index("--superexec-auth-secret-file")
    secret = Path(sys.argv[option + 1]).read_bytes()
    OperatorOnly.token = hmac.digest(secret, b"fedhandoff commands 1", "sha256").hex()
    address, store = os.environ["FEDHANDOFF_COMMANDS"], get_credential_store()
    store.set(AUTHN_TYPE_STORE_KEY % address, AuthnType.OIDC.encode())
    for key in (ACCESS_TOKEN_STORE_KEY, REFRESH_TOKEN_STORE_KEY):  # `flwr` wants both
        store.set(key % address, OperatorOnly.token.encode())
    os.environ["FLWR_OIDC_ENABLED"] = "1"
    plugins = {AuthnType.OIDC: OperatorOnly}
    config_loader.get_control_authn_ee_plugins = lambda: plugins  # type: ignore[attr-defined]
    flower_superlink()


if __name__ == "__main__":
    main()
