import pytest


@pytest.fixture
def known_secret(monkeypatch):
    """The same split of a hospital, and the same noise, in every test run."""
    for module in ("release.disclosure", "hospital"):
        monkeypatch.setattr(f"client_app.{module}.secret_of", lambda store: b"secret")
