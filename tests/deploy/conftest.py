import pytest


@pytest.fixture(autouse=True, scope="module")
def _seldom_asked():
    """For minutes most processes of a deployment only wait: they look for messages less often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "1")
        yield
