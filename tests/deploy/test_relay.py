"""What the server of a deployment has, and what goes to and from it: of sealed models nothing.

A dishonest operator first sends code of his own (tests/adversary/test_other_code.py has the rest).
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import tomllib
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import ArrayRecord, Message
from flwr.common.config import parse_config_args
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from PIL import Image

from cli import main
from client_app.authority.ledger import path_of, read
from client_app.authority.policy import Policy
from client_app.release.buffer import stages
from client_app.release.buffer.class_gaussians import class_gaussians
from deploy import demo
from deploy import server as server_commands
from deploy.demo import HOSPITALS, hospitals, run, server, write_images
from strategies.protocol.code import PACKAGES
from strategies.protocol.parcel import hash_arrays, load
from tests.deploy.capture import opened, tap
from tests.deploy.capture import read as read_capture
from tests.fakes import context, metrics_of, models_of, run_config, run_here

OPEN = (
    "strategy='cwt' model='mlp' num-server-rounds=1 train.epochs=1 min-hospitals=1 seed=1 "
    "hop-timeout=300 sealed=false"
)
FEDER = (
    "strategy='feder' train.freeze='body' model='cnn' gan.method='class-gaussians' "
    "feder.buffer-size=80 release.max-membership=1.0 num-server-rounds=2 train.epochs=2 "
    "train.learning-rate=0.05 min-hospitals=3 seed=1 hop-timeout=300"
)
ROOT = Path(__file__).parents[2]
PART = 65536  # bytes of a file that are searched again when some of them have changed
PATIENT = "Mustermann"  # in the name of every file of an image
# What hospitals tell of models in every round; the details of the last one are in their own tests.
OF_EVERY_ROUND = {
    *("num-train", "num-test", "num-quarantined", "num-examples", "train-loss"),
    *("accuracy", "balanced-accuracy", "auroc"),
}


def part_of(parcel):
    """Some bytes of the largest array of a model: few, as a data base cuts it into pages."""
    arrays = [array.numpy() for array in parcel.array_records["model"].values()]
    return max(arrays, key=lambda array: array.size).tobytes()[10_000:10_032]


def run_of(images, folder, hospitals, settings):
    """The same run with open parcels in this process: bytes of each model sent, and its result."""
    config = run_config() | parse_config_args([settings]) | {"output-dir": f"{folder}/runs"}
    config["sealed"] = False

    def place(node, name):
        folders = {"data-dir": str(images / name), "store-dir": f"{folder}/store"}
        return replace(context(0, 1, config, site=name, **folders), node_id=node)

    result, grid = run_here([place(node, name) for node, name in enumerate(hospitals, 100)])
    sent = {part_of(m.content) for m in grid.sent if m.metadata.message_type == "train"}
    return sent | {part_of(load(path)) for path in (result / "parcels").iterdir()}, result


def signs_of(images):
    """What would give images away: their names and folders, files and pixels."""
    files = sorted(images.rglob("*.png"))[::20]
    pixels = [Image.open(file).tobytes() for file in files]
    folders = [f"/images/{name}".encode() for name in HOSPITALS]
    return {PATIENT.encode(), *folders, *pixels, *(file.read_bytes() for file in files)}


def write_splits(images):
    """A manifest for each hospital that says what it tests on, in a simulation as for itself."""
    for hospital in images.iterdir():
        files = [f"{file.parent.name}/{file.name}" for file in sorted(hospital.rglob("*.png"))]
        rows = [
            f"{file},{file[0]},{'train' if number % 4 else 'test'}"
            for number, file in enumerate(files)
        ]
        (hospital / "manifest.csv").write_text("\n".join(["image,label,split", *rows, ""]))


class Spy(threading.Thread):
    """Looks for bytes in everything that the server writes, for as long as it is used as context.

    Attributes:
        found: Where which were found.
    """

    def __init__(self, folder, wanted):
        super().__init__()
        self.folder, self.wanted = folder, wanted
        self.found = set()
        self.longest = max(map(len, wanted))
        self.read = {}  # the state in which files were read last, and what was in them
        self.over = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()
        self.look()

    def run(self):
        while not self.over.wait(0.2):
            self.look()

    def look(self):
        for place in ("server", "runs", "superlink.log"):
            path = self.folder / place
            for file in [path, *path.rglob("*")]:
                with suppress(OSError):  # a folder, or it has gone meanwhile
                    state = file.stat().st_size, file.stat().st_mtime_ns
                    last, before = self.read.get(file, (None, b""))
                    if state != last:
                        content = file.read_bytes()
                        self.read[file] = state, content
                        for part in self.changed(before, content):
                            self.found |= {(place, each) for each in self.wanted if each in part}

    def changed(self, before, content):
        """Parts of a content, with all in it that may be wanted and was not there before."""
        for start in range(0, len(content), PART):
            part = slice(start, start + PART + self.longest)
            if content[part] != before[part]:
                yield content[part]


class Watched:
    """A deployment's server, with a spy on its files and a tap on its connections.

    Attributes:
        models: Bytes of each model of the run, as it is with open parcels in this process.
        here: The folder of that run's results.
        found: Where the spy found which of them, or of the signs of images.
    """

    def __init__(self, hospitals, settings):
        self.hospitals, self.settings = hospitals, settings
        self.streams: list[bytearray] = []
        self.sent: list[bytearray] = []

    @contextmanager
    def server(self, folder):
        """In the place of `deploy.demo.server`; its address is that of the tap."""
        images = folder / "images"
        for file in images.rglob("*.png"):
            file.rename(file.with_stem(f"{PATIENT}-{file.stem}"))
        write_splits(images)
        here = folder / "here"
        self.models, self.here = run_of(images, here, self.hospitals, self.settings)
        self.wanted = self.models | signs_of(images)
        with (
            Spy(folder, self.wanted) as spy,
            server(folder) as address,
            opened(address, folder / "server", self.sent) as near,
            tap(near, self.streams) as tapped,
        ):
            yield tapped
        self.found = spy.found

    def check_streams(self):
        assert sum(map(len, self.streams)) > 1_000_000  # the models went by here
        assert all(stream[:2] == b"\x16\x03" for stream in self.streams)  # TLS
        assert not any(each in stream for stream in self.streams for each in self.wanted)


def changed_app(folder):
    """A checkout whose app and whose `torch` leave a mark where they are imported."""
    for package in (*PACKAGES, "server_app"):
        shutil.copytree(ROOT / package, folder / package)
    shutil.copy(ROOT / "LICENSE", folder)
    project = (ROOT / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(
        project.replace("fab-include = [", 'fab-include = ["torch.py", ')
    )
    app, torch = folder / "client_app" / "app.py", folder / "torch.py"
    mark = "import os, pathlib; pathlib.Path(os.environ['FLWR_HOME'], {!r}).touch()\n"
    app.write_text(mark.format("app-was-here") + app.read_text())
    torch.write_text(mark.format("torch-was-here"))
    return folder


def take_a_message(hospital):
    """Ask a hospital's SuperNode for work, as any user of the machine can who has run `ps`."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "args="], check=True, capture_output=True)
    (line,) = (
        line.split()
        for line in listed.stdout.decode().splitlines()
        if "flower-supernode" in line and f"{hospital}/" in line
    )
    with RuntimeHttpClient.from_server_address(
        server_address=f"127.0.0.1:{line[line.index('--port') + 1]}",
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    ) as client:
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))


class Dishonest(Watched):
    """A deployment whose operator first ships code of his own, and where a stranger gives commands.

    Attributes:
        commands: What the server answered to the stranger, by command and token.
    """

    @contextmanager
    def start_hospitals(self, folder, address, own):
        """In the place of `deploy.demo.hospitals`."""
        given = {name: ("--members", "first-use", *own.get(name, ())) for name in HOSPITALS}
        with hospitals(folder, address, own=given):
            yield

    def do_runs(self, folder, settings):
        """In the place of `deploy.demo.run`."""
        self.commands = dict(stranger_s_commands(folder / "server"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server_commands, "APP", changed_app(folder / "changed"))
            assert not server_commands.run(
                folder / "server", f"{settings} output-dir='{folder}/no'"
            )
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            take_a_message(folder / "graz")
        return run(folder, settings)


def stranger_s_commands(folder):
    """What the server answers to who does not know its token, by command and token."""
    connection = tomllib.loads((folder / "config.toml").read_text())["superlink"]["fedhandoff"]
    with httpx.Client(verify=ssl.create_default_context(cafile=folder / "ca.crt")) as client:
        for command in ("start-run", "stop-run", "register-node", "list-runs", "stream-logs"):
            for token in ("", "x", "oidc"):
                address = f"https://{connection['address']}/v1/control/{command}"
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                answer = client.post(address, headers=headers)
                yield (command, token), answer.status_code


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """The demo with its server watched, and the folder of its results."""
    watched, printed = Dishonest(HOSPITALS, demo.SETTINGS), StringIO()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("demo")))
        patch.setattr(demo, "server", watched.server)
        patch.setattr(demo, "hospitals", watched.start_hospitals)
        patch.setattr(demo, "run", watched.do_runs)
        demo.demonstrate()
    signal.signal(signal.SIGTERM, before)
    return watched, Path(printed.getvalue().splitlines()[-1])


@pytest.mark.slow
def test_a_hospital_imports_only_what_it_has_approved(demonstration, tmp_path):
    """The bundle that Flower unpacked there does what it wants where it is not confined."""
    folder = demonstration[1].parents[1]
    (summary,) = (folder / "no").glob("*/summary.json")
    failed = {each["hospital"]: each for each in json.loads(summary.read_text())["failures"]}
    for name in HOSPITALS:
        assert failed[name]["reason"].startswith("The hospital runs other code than the server")
        assert not [*(folder / name).rglob("*-was-here")]
        (torch,) = (folder / name / "flwr" / "apps").rglob("torch.py")
        (tmp_path / name).mkdir()
        subprocess.run(
            [sys.executable, "-c", "import client_app.app, torch"],
            check=False,
            capture_output=True,
            cwd=torch.parent,
            env={**os.environ, "FLWR_HOME": str(tmp_path / name)},
        )
        marks = {path.name for path in (tmp_path / name).iterdir()}
        assert marks == {"app-was-here", "torch-was-here"}


@pytest.mark.slow
def test_who_does_not_know_the_server_s_token_gives_it_no_command(demonstration):
    assert len(demonstration[0].commands) == 15
    assert {*demonstration[0].commands.values()} == {401}


@pytest.mark.slow
def test_the_ledgers_have_a_line_for_all_that_was_sent(demonstration):
    """Each answer on the wire, opened, is laid beside the hospitals' ledgers, in its order.

    Of a day's `query.live` the first has a line. No other request of Flower's is longer than 500
    bytes. TLS adds no more than a tenth.
    """
    watched, result = demonstration
    sent, ledgers = read_capture(watched.sent), {}
    for name in HOSPITALS:
        path = path_of(name, result.parents[1] / name / "store")
        ledgers[name] = [line.entry for line in read(path)]
    by_node: dict[int, list[Message]] = {}
    for answer in sent.answers:
        by_node.setdefault(answer.metadata.src_node_id, []).append(answer)
    names = []
    for answers in by_node.values():
        (card, *_) = (
            each.content.config_records["card"]
            for each in answers
            if each.has_content() and "card" in each.content
        )
        names.append(str(card["hospital"]))
        lines = [line for line in ledgers[names[-1]] if line["verb"] != "query.live"]
        asked = [each for each in answers if each.metadata.message_type != "query.live"]
        live = [each for each in answers if each.metadata.message_type == "query.live"]
        assert live
        assert not any(map(len, (each.content for each in live)))
        assert [line["verb"] for line in lines] == [each.metadata.message_type for each in asked]
        assert {"query.enrol", "query.prepare", "train", "evaluate"} == {e["verb"] for e in lines}
        for line, each in zip(lines, asked, strict=True):
            check_line(line, each)
    assert sorted(names) == sorted(HOSPITALS)
    assert max(map(len, sent.others)) < 500
    sizes = [sum(map(len, streams)) for streams in (watched.streams[::2], watched.sent)]
    listed = sum(
        record.get("bytes", 0)
        for lines in ledgers.values()
        for line in lines
        for record in line.get("left", ())
    )
    assert listed <= sent.size <= sizes[1] <= sizes[0] <= 1.1 * sizes[1]


def check_line(line, answer):
    """Whether a line of a ledger says what was in an answer."""
    if answer.has_error():
        assert line["failure"]["reason"] == answer.error.reason
        return
    left = {record["name"]: record for record in line["left"]}
    assert left.keys() == answer.content.keys()
    for name, record in answer.content.items():
        if isinstance(record, ArrayRecord):
            assert left[name]["sha256"] == hash_arrays(record)
            assert left[name]["bytes"] == sum(len(array.data) for array in record.values())
        else:
            assert left[name]["values"] == dict(record)


@pytest.mark.slow
def test_a_server_that_relays_sealed_parcels_has_no_model(demonstration):
    watched, result = demonstration
    assert len(watched.models) == 1 + 2 * len(HOSPITALS)
    assert models_of(result, result.parents[1]) == models_of(watched.here)
    assert watched.found == set()
    watched.check_streams()


@pytest.mark.slow
def test_the_same_search_finds_all_models_and_no_image_where_parcels_are_open(tmp_path):
    """One hospital is enough."""
    watched = Watched(HOSPITALS[:1], OPEN)
    write_images(tmp_path / "images")
    with (
        watched.server(tmp_path) as address,
        hospitals(tmp_path, address, False, names=HOSPITALS[:1]),
    ):
        run(tmp_path, OPEN)
    assert len(watched.models) == 2
    assert watched.found == {
        (place, each) for place in ("server", "runs") for each in watched.models
    }
    watched.check_streams()


@pytest.mark.slow
def test_a_deployment_measures_what_a_simulation_measures(demonstration, tmp_path):
    """The demo, then the same folders and settings at simulated hospitals.

    The models are the same. Figures are rounded, with noise of a step (release/disclosure.py): that
    of a share of 110 images or more is below 0.1, and of an AUROC below 0.2. Numbers of images are
    rounded to tens.
    """
    _, deployed = demonstration
    folders = ",".join(str(deployed.parents[1] / "images" / name) for name in HOSPITALS)
    config = run_config(output_dir=f"{tmp_path}/runs", dataset=f"manifest:{folders}")
    config |= {"partition": "site", **parse_config_args([demo.SETTINGS])}
    store = {"store-dir": f"{tmp_path}/store"}
    count = len(HOSPITALS)
    simulated, _ = run_here([context(index, count, config, **store) for index in range(count)])
    assert models_of(deployed, deployed.parents[1]) == models_of(simulated)
    told, exact = (
        {line[:-1]: line[-1] for line in metrics_of(run) if line[-2] in OF_EVERY_ROUND}
        for run in (deployed, simulated)
    )
    # Beside the shares of the last round, an AUROC with so much noise says nothing more.
    assert {(line[1], line[-1]) for line in exact.keys() - told.keys()} <= {(2, "auroc")}
    assert told.keys() <= exact.keys()
    assert {line[-1] for line in told} == OF_EVERY_ROUND
    errors: dict[str, list[float]] = {}
    for line, value in told.items():
        errors.setdefault(line[-1], []).append(value - exact[line])
    for name, each in errors.items():
        if name.startswith("num-"):
            assert max(map(abs, each)) <= 5
        else:
            assert any(each)
            wide = name in ("auroc", "train-loss")
            assert max(map(abs, each)) < (1.0 if wide else 0.5)
            # Between hospitals a training loss is that of the model after the visit.
            assert abs(fmean(each)) < (0.5 if name == "train-loss" else 0.2)
    summary = json.loads((deployed / "summary.json").read_text())
    assert summary["hospitals"] == sorted(HOSPITALS)


@pytest.mark.slow
def test_sealed_feder_on_features_has_the_models_of_its_simulation(tmp_path, monkeypatch):
    """The simulation draws the buffers with the secrets of the hospitals, which decide on them."""
    write_images(tmp_path / "images")
    write_splits(tmp_path / "images")
    (tmp_path / "policy.toml").write_text(
        "[release]\nallow-without-privacy = true\nmax-membership-leak = 1.0\n"
    )
    own = dict.fromkeys(HOSPITALS, ("--policy", str(tmp_path / "policy.toml")))
    with server(tmp_path) as address, hospitals(tmp_path, address, own=own):
        result = run(tmp_path, FEDER)
    stores = {name: tmp_path / name / "store" for name in HOSPITALS}

    def deployed(job):
        name, data = job.hospital.name, job.hospital.whole or job.hospital.data
        secret = (stores[name] / name / "figures-secret").read_bytes()
        policy = Policy.read(tmp_path / "policy.toml")
        hospital = SimpleNamespace(policy=policy, secret=secret, whole=None, data=data)
        given: Any = SimpleNamespace(hospital=hospital, learnt=job.learnt)
        return class_gaussians(given)

    monkeypatch.setitem(stages.SAMPLERS, "class-gaussians", deployed)
    _, here = run_of(tmp_path / "images", tmp_path / "here", HOSPITALS, FEDER)
    assert models_of(result, tmp_path) == models_of(here)
    summary = json.loads((result / "summary.json").read_text())
    assert (sorted(summary["synthetic"]), summary["failures"]) == (sorted(HOSPITALS), [])
    for name, store in stores.items():
        given = ["report", "--site", name, "--store-dir", store, "--to", tmp_path / f"{name}.html"]
        with pytest.raises(SystemExit) as ended:
            main([*map(str, given)])
        assert ended.value.code == 0
        pages = [*(store / name / "dossiers").rglob("dossier.html"), tmp_path / f"{name}.html"]
        assert "The figures of the check are exact" in pages[-1].read_text()
        for page in (*pages, result / "report.html"):
            text = page.read_text()
            assert "synthetic vectors" in text
            assert "synthetic image" not in text.lower()
