"""What Flower's Hub asks of an app, and what travels from there."""

import subprocess
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import filter_paths_for_publish, validate_project_name
from flwr.supercore.constant import (
    APP_PUBLISH_ALLOWED_LICENSE_FILES,
    MAX_DIR_DEPTH,
    MAX_FILE_BYTES,
    MAX_FILE_COUNT,
    MAX_TOTAL_BYTES,
)
from packaging.version import Version

from deploy.server import bare_app
from strategies.protocol.code import files_of

# Flower 1.39 reads .gitignore by a name that pathspec is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tracked():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    paths = {name: ROOT / name for name in listed.stdout.split("\0") if name}
    return {name: path for name, path in paths.items() if path.is_file()}


def test_a_bundle_is_what_a_run_needs_and_no_more(tracked):
    """At a hospital no file of it runs, nor is a template of it written, that is not approved."""
    bundle, metadata = build_fab_from_files(tracked)
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_min == metadata.flwr_version_target == "1.39.0"
    with zipfile.ZipFile(BytesIO(bundle)) as archive:
        names = set(archive.namelist())
    code = [*files_of(ROOT), *(ROOT / "server_app").rglob("*.py")]
    others = {".info/CONTENT", "pyproject.toml", "LICENSE"}
    assert names == {path.relative_to(ROOT).as_posix() for path in code} | others
    assert "pages/templates/dossier.html.md" in names


def test_a_run_is_started_with_the_bundle_of_the_whole_checkout(tracked):
    with bare_app() as app:
        assert build_fab_from_disk(app) == build_fab_from_files(tracked)[0]
    assert not app.exists()


def test_what_is_published_is_within_the_limits_of_the_hub(tracked):
    """And is what docs/hub.md says: programs without a suffix do not travel."""
    published = filter_paths_for_publish(tracked)
    sizes = [path.stat().st_size for path in published.values() if isinstance(path, Path)]
    assert len(published) == len(sizes) <= MAX_FILE_COUNT
    assert max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) <= MAX_TOTAL_BYTES
    for path in published.values():
        assert isinstance(path, Path)
        path.read_text(encoding="utf-8")
    assert {"deploy/server.py", "docs/hub.md", "README.md", "LICENSE"} <= published.keys()
    assert "deploy/programs/flwr-clientapp" not in published
    assert max(len(Path(name).parts) for name in published) <= MAX_DIR_DEPTH


def test_the_app_is_complete_by_flower_s_own_rules():
    """Publisher, components that can be loaded, and a licence that travels; no warning is left."""
    config, warnings = load_and_validate(ROOT / "pyproject.toml")
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["publisher"] == config["project"]["name"]
    assert config["project"]["license"]["file"] in APP_PUBLISH_ALLOWED_LICENSE_FILES


def test_what_is_secret_is_not_published(tmp_path):
    """A clone may be where keys and runs are; Flower leaves out what .gitignore names."""
    secret = ["server/ca.key", "graz.key", "runs/2026-11-26-cwt/summary.json", "approved/a.py"]
    files = dict.fromkeys([*secret, "server_app/app.py"], b"{}")
    files[".gitignore"] = (ROOT / ".gitignore").read_bytes()
    assert {*filter_paths_for_publish(files)} == {"server_app/app.py", ".gitignore"}


def test_the_hub_can_show_the_app():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    validate_project_name(project["name"], "name")
    assert 0 < len(project["description"]) <= 200
    assert Version(project["version"])
    front = (ROOT / "README.md").read_text("utf-8").split("---\n")[1]
    assert [line.partition(":")[0] for line in front.splitlines()] == [
        "tags",
        "dataset",
        "framework",
    ]
