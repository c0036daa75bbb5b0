"""The package boundary is the trust boundary (who may import what)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"client_app", "gan", "learning", "server_app", "strategies"}
ALLOWED = {
    "gan": {
        *("torch", "torchvision", "torchmetrics", "torch_fidelity", "lpips"),
        *("numpy", "sklearn", "matplotlib"),
    },
    "strategies": {"flwr", "numpy"},
    "learning": {"torch", "torchvision", "numpy", "flwr", "PIL", "strategies.protocol"},
    "client_app": {
        *(
            "torch",
            "torchvision",
            "flwr",
            "numpy",
            "sklearn",
            "datasets",
            "flwr_datasets",
            "PIL",
            "pydicom",
            "nibabel",
            "filelock",
            "cryptography",
        ),
        *("gan", "learning", "strategies.protocol"),
    },
    "server_app": {"flwr", "numpy", "matplotlib", "tomli_w", "strategies"},
    # It starts Flower's programs and looks into none of them; the demo makes images.
    "deploy": {"cryptography", "sklearn", "PIL", "strategies.protocol.names"},
}
FILES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


def imports_of(path):
    """Every module that a file imports anywhere, with its full dotted name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path):
    package = path.relative_to(ROOT).parts[0]
    allowed = {package, *ALLOWED[package], *sys.stdlib_module_names}
    for name in imports_of(path):
        parts = name.split(".")
        prefixes = {".".join(parts[: k + 1]) for k in range(len(parts))}
        assert prefixes & allowed, f"{path.relative_to(ROOT)} may not import {name}"


def test_nothing_is_pickled():
    for path in FILES:
        forbidden = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
        assert not forbidden & set(imports_of(path)), path


@pytest.mark.parametrize("module", ["server_app.app", "client_app.app"])
def test_the_apps_load_without_torch(module):
    """Not even through somebody else: a server needs none, a hospital only when it works."""
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_hospital_works_without_torchvision_unless_it_must():
    """Its import takes seconds, for each message to a deployed hospital."""
    code = "import client_app.handlers, sys; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_top_level_folders_are_those_of_the_design():
    known = {*OURS, "tests", "docs", "benchmarks", "deploy"}
    tracked = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.glob("[!.]*/*.py")}
    assert tracked <= known
