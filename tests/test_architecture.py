"""The package boundary is the trust boundary (who may import what)."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"audit", "client_app", "gan", "learning", "pages", "server_app", "strategies", "warm"}
ALLOWED = {
    "audit": {
        *("torch", "numpy", "scipy", "sklearn", "gan"),
        *("learning.errors", "learning.intervals", "learning.randomness", "learning.samples"),
    },
    "gan": {
        *("torch", "torchvision", "torchmetrics", "torch_fidelity", "lpips"),
        *("numpy", "scipy", "sklearn", "matplotlib"),
    },
    "pages": {
        *("jinja2", "markupsafe", "numpy", "PIL", "rocrate", "learning.intervals"),
        *("strategies.protocol.extras", "strategies.protocol.files"),
        *("strategies.protocol.names", "strategies.protocol.tested", "strategies.protocol.text"),
    },
    "strategies": {"flwr", "numpy"},  # the methods, which may import both folders below
    # The one method whose server trains imports what it takes when it does (tests below).
    "strategies/fil_ver.py": {"flwr", "strategies", "learning.errors", "learning.server_training"},
    "strategies/engine": {"flwr", "numpy", "strategies.protocol"},
    "strategies/protocol": {"flwr", "numpy", "cryptography", "pydantic"},
    "warm": {"flwr", "strategies.protocol"},
    "learning": {
        "torch",
        "torchvision",
        "timm",
        "safetensors",
        *("numpy", "scipy"),
        "opacus",
        "flwr",
        "PIL",
        "strategies.protocol",
    },
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
            "dp_accounting",
        ),
        *("audit", "gan", "learning", "pages", "strategies.protocol", "warm"),
        # What a run's method may order.
        *("strategies.registry", "strategies.engine.orders", "strategies.engine.strategy"),
    },
    # Not part of a run: what is done with the models of an open one.
    "server_app/export.py": {"flwr", "torch", "learning", "strategies"},
    "server_app/environment.py": {"packaging"},
    "server_app/tables.py": {
        "pandas",
        "server_app",
        "strategies.engine.events",
        "strategies.protocol",
    },
    "server_app/tracking": {"flwr", "tensorboard", "mlflow", "server_app", "strategies"},
    # Nor is this: it asks before one what every hospital asks of its settings when it enrols.
    "server_app/check.py": {
        *("server_app", "strategies", "learning.errors", "learning.models", "learning.suited"),
    },
    # A table of presets, without torch.
    "server_app": {
        *("flwr", "numpy", "pydantic_core", "scipy", "tomli_w", "rich"),
        *("learning.intervals", "pages", "strategies", "warm"),
        "gan.presets",
    },
    # It reads arguments, calls functions of all packages by their public names, and prints.
    "cli": {
        *("click", "typer"),
        *("benchmarks.reproduce", "client_app", "deploy", "server_app"),
        *("strategies.protocol", "strategies.registry"),
    },
    # Runs inside of Flower's SuperLink.
    "deploy/control.py": {"flwr"},
    # It starts Flower's programs and looks into no other; the demo makes images.
    "deploy": {
        *("cryptography", "sklearn", "PIL", "tomli_w", "server_app.check"),
        *("client_app.authority.node_config", "client_app.authority.start"),
        *("strategies.protocol.code", "strategies.protocol.declared", "strategies.protocol.files"),
        *("strategies.protocol.names", "strategies.protocol.text"),
        *("strategies.protocol.run_config", "strategies.protocol.settings"),
    },
}
PACKAGES = [package for package in ALLOWED if "/" not in package]
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def nodes_of(path):
    """All nodes of the parsed code of a file."""
    return [*ast.walk(ast.parse(path.read_text("utf-8")))]


def imports_of(path):
    """Every module that a file imports anywhere, with its full dotted name."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path):
    place = path.relative_to(ROOT).as_posix()
    package = max((each for each in ALLOWED if f"{place}/".startswith(f"{each}/")), key=len)
    allowed = {package.replace("/", "."), *ALLOWED[package], *sys.stdlib_module_names}
    for name in imports_of(path):
        parts = name.split(".")
        prefixes = {".".join(parts[: k + 1]) for k in range(len(parts))}
        assert prefixes & allowed, f"{path.relative_to(ROOT)} may not import {name}"


# Files that are written in place, besides logs: in a folder that is a draft itself, or temporary;
# the helpers; a pipe; and figures of a GAN, which its next check writes anew.
IN_PLACE = {
    *("deploy/demo.py", "deploy/server.py", "gan/projection.py"),
    *("strategies/protocol/files.py", "gan/checkpoint.py", "warm/wire.py"),
}


def writes_of(path):
    """The lines of a file that write another file in place, and no draft."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            target, _, name = ast.unparse(node.func).rpartition(".")
            words = [ast.unparse(each) for each in (*node.args, *node.keywords)]
            opens = name == "open" and any(word.strip("'")[:1] in ("w", "x") for word in words)
            writes = opens or name in ("write_text", "write_bytes")
            copies = target == "shutil" and name.startswith("copy") and "draft" not in words
            if copies or (writes and target != "draft"):
                yield node.lineno


def test_files_are_written_whole_or_not_at_all():
    """A full disk, a kill or a reader at the same time would else find a part of a file."""
    found = {str(path.relative_to(ROOT)) for path in FILES if [*writes_of(path)]}
    assert found == IN_PLACE


def test_no_secret_seeds_a_generator_whose_state_can_be_found():
    """learning/randomness.py has a generator for secrets."""
    fixed = re.compile(r"default_rng\((?!0\))")
    assert not [
        path for path in FILES if "client_app" in path.parts and fixed.search(path.read_text())
    ]


# Files of the package, and a secret that its own parent process has written.
OWN_FILES = {
    *("client_app/authority/policy.py", "deploy/approved.py", "deploy/control.py"),
    *("deploy/server.py", "server_app/environment.py", "strategies/protocol/code.py"),
    *("strategies/protocol/settings.py", "client_app/datasets/library.py"),
    "client_app/datasets/features.py",
}


def test_files_of_others_are_read_with_care():
    """`Path.read_bytes` waits for ever at a pipe, and fills the memory from a device."""
    reads = re.compile(r"\.read_(bytes|text)\(")
    found = {str(path.relative_to(ROOT)) for path in FILES if reads.search(path.read_text())}
    assert found == OWN_FILES


# Of Flower: what any release may move.
PRIVATE = {
    *("flwr.cli", "flwr.client", "flwr.proto", "flwr.server", "flwr.simulation"),
    *("flwr.supercore", "flwr.superexec", "flwr.superlink", "flwr.supernode"),
}
AT_FLOWER_S = [ROOT / "strategies/engine/flower.py", ROOT / "deploy/control.py"]


def _is_within(name, modules):
    return any(f"{name}.".startswith(f"{each}.") for each in modules)


def private_in(path):
    """The names that a file takes of Flower's private modules, with their modules."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and _is_within(node.module, PRIVATE):
            yield from ((node.module, alias.name) for alias in node.names)


def test_what_flower_keeps_to_itself_is_named_in_one_file_of_each_side():
    assert {path for path in FILES if [*private_in(path)]} == {*AT_FLOWER_S}


@pytest.mark.parametrize(
    ("module", "name"), [each for path in AT_FLOWER_S for each in private_in(path)]
)
def test_this_release_of_flower_has_what_is_taken_of_it(module, name):
    given = importlib.import_module(module)
    assert hasattr(given, name) or importlib.util.find_spec(f"{module}.{name}")


def test_texts_and_paths_of_people_are_read_in_one_place():
    """`parse_toml` refuses TOML without end, `expand` an unknown home; Python raises other errors.

    Modules that read this project's own pyproject.toml, or what the run itself wrote, need neither.
    """
    own = {
        *("strategies/protocol/files.py", "strategies/protocol/code.py"),
        *("strategies/protocol/settings.py", "server_app/environment.py"),
        "server_app/report/__init__.py",
    }
    for path in (p for room in (*OURS, "cli", "deploy") for p in (ROOT / room).rglob("*.py")):
        text = path.read_text("utf-8")
        if path.relative_to(ROOT).as_posix() not in own:
            assert "tomllib.load" not in text, path
            assert "expanduser()" not in text, path


def test_there_are_no_circles():
    """A file can be understood before those that import it; types alone may point back."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}
    modules = {name.removesuffix(".__init__") for name in names.values()}
    graph = {}
    for path, name in names.items():
        types = {
            each
            for node in nodes_of(path)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for each in ast.walk(node)
        }
        found: set[str] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module and node not in types:
                each_of = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (each_of & modules) or ({node.module} & modules)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & modules
        graph[name.removesuffix(".__init__")] = found
    TopologicalSorter(graph).prepare()


# Each of these reads objects that run code as they are read.
PICKLES = {
    *("pickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"),
    *("multiprocessing", "torch.multiprocessing", "concurrent.futures.ProcessPoolExecutor"),
    *("torch.package", "torch.jit"),
}
# These do unless an argument says otherwise.
SAFE_WITH = {
    "torch.load": ("weights_only", True),
    "torch.hub.load_state_dict_from_url": ("weights_only", True),
    "numpy.load": ("allow_pickle", False),
}


def pickling_in(nodes):
    """Every name in parsed code that can unpickle, under whatever alias; without the safe calls."""
    aliases, safe = {}, set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                full = prefix + alias.name
                # `import a.b` binds a; `import a.b as c` binds c, which is a.b.
                local = alias.asname or (alias.name if prefix else alias.name.partition(".")[0])
                aliases[local] = full if alias.asname or prefix else local
                if _is_within(full, PICKLES):
                    yield full

    def name_of(node):
        if isinstance(node, ast.Attribute):
            return f"{name_of(node.value)}.{node.attr}"
        return aliases.get(node.id, "") if isinstance(node, ast.Name) else ""

    for node in nodes:
        if isinstance(node, ast.Call) and (rule := SAFE_WITH.get(name_of(node.func))):
            given = {each.arg: each.value for each in node.keywords}
            value = given.get(rule[0])
            if isinstance(value, ast.Constant) and value.value is rule[1]:
                safe.add(node.func)
    for node in nodes:
        if node not in safe and _is_within(name_of(node), PICKLES | SAFE_WITH.keys()):
            yield name_of(node)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_pickled(path):
    assert not [*pickling_in(nodes_of(path))]


def test_a_hospital_reads_what_it_says_of_itself_in_one_place():
    """Flower's own copy of the node-config can come from any user of the machine."""
    reading = {
        path.name
        for path in sorted((ROOT / "client_app").rglob("*.py"))
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "node_config"
    }
    assert reading == {"node_config.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from multiprocessing.connection import Connection",
        "from multiprocessing import connection",
        "import multiprocessing as m",
        "from concurrent.futures import ProcessPoolExecutor",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "from torch import multiprocessing",
        "import torch\ntorch.multiprocessing.Queue()",
        "import torch\ntorch.load(file)",
        "import torch\ntorch.load(file, weights_only=False)",
        "import torch as t\nread = t.load",
        "from torch import load as read\nread(file)",
        "from torch.hub import load_state_dict_from_url as fetch\nfetch(url)",
        "import numpy as np\nnp.load(file)",
        "import numpy as np\nnp.load(file, allow_pickle=True)",
        "import numpy as np\nnp.load(file, allow_pickle=trusted)",
    ],
)
def test_pickling_is_found(source):
    assert [*pickling_in([*ast.walk(ast.parse(source))])]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(file, weights_only=True)",
        "from numpy import load\nload(file, allow_pickle=False)",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor()",
        "import json\njson.load(file)",
    ],
)
def test_what_does_not_pickle_is_let_through(source):
    assert not [*pickling_in([*ast.walk(ast.parse(source))])]


@pytest.mark.parametrize("module", ["server_app.app", "client_app.app"])
def test_the_apps_load_without_torch_a_tracker_or_flower_s_server(module):
    """Not even through somebody else: a server needs none, a hospital only when it works."""
    code = (
        f"import {module}, sys; "
        "slow = {'torch', 'tensorboard', 'mlflow', 'pandas', 'sqlalchemy', 'fastapi'}; "
        "sys.exit(bool(slow & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.slow
def test_a_hospital_works_without_slow_libraries_unless_it_must():
    """Their imports take seconds in each process of a hospital."""
    code = (
        "import client_app.handlers, client_app.visit, sys; "
        "slow = {'torchvision', 'sklearn', 'scipy', 'pandas', 'matplotlib', 'opacus'}; "
        "sys.exit(bool(slow & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_top_level_folders_are_those_of_the_design():
    known = {*OURS, "cli", "tests", "docs", "benchmarks", "deploy"}
    tracked = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.glob("[!.]*/*.py")}
    assert tracked <= known


# Their keys are types and files of the app, or the plan of a server.
WITHOUT_LIMIT = {"_fields_of", "_read_defaults", "_read"}


def test_what_a_process_remembers_has_a_limit():
    """A server chooses settings and texts, and a hospital's resident process stays for days."""
    nodes = (node for path in FILES for node in nodes_of(path))
    found = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.args.args
        if {"cache", "lru_cache(maxsize=None)"} & {*map(ast.unparse, node.decorator_list)}
    }
    assert found == WITHOUT_LIMIT


def test_no_file_is_named_by_the_number_of_its_process():
    """In containers most processes have the number 1, and they may share a volume.

    deploy/running.py shows the number to people. The lock of the file decides.
    """
    named = {f"{path.relative_to(ROOT)}" for path in FILES if "getpid" in path.read_text("utf-8")}
    assert named == {"deploy/running.py"}
