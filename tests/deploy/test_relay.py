"""What the server of a deployment has, and what goes to and from it: of sealed models nothing."""

import json
import signal
import socket
import threading
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean

import pytest
from flwr.common.config import parse_config_args
from PIL import Image

from benchmarks.simulation import run as simulate
from benchmarks.simulation import superlink
from deploy import demo
from deploy.demo import HOSPITALS, hospitals, run, server, write_images
from strategies.protocol.parcel import load
from tests.fakes import context, metrics_of, models_of, run_config, run_here

OPEN = (
    "strategy='cwt' model='mlp' num-server-rounds=1 train.epochs=1 min-hospitals=1 seed=1 "
    "hop-timeout=300 sealed=false"
)
PART = 65536  # bytes of a file that are searched again when some of them have changed
PATIENT = "Mustermann"  # in the name of every file of an image


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


@contextmanager
def tap(address, streams):
    """A way to an address that notes all that goes by, one stream for each direction."""
    host, port = address.split(":")

    def carry(source, target, stream):
        with suppress(OSError), source, target:
            while content := source.recv(65536):
                stream += content
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def accept():
        with suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection((host, int(port)))
                for ends in ((near, far), (far, near)):
                    streams.append(stream := bytearray())
                    threading.Thread(target=carry, args=(*ends, stream), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


class Watched:
    """A deployment's server, with a spy on its files and a tap on its connections.

    Attributes:
        models: Bytes of each model of the run, as it is with open parcels in this process.
        here: The folder of that run's results.
        found: Where the spy found which of them, or of the signs of images.
    """

    def __init__(self, hospitals, settings):
        self.hospitals, self.settings = hospitals, settings
        self.streams = []

    @contextmanager
    def server(self, folder):
        """In the place of `deploy.demo.server`; its address is that of the tap."""
        images = folder / "images"
        for file in images.rglob("*.png"):
            file.rename(file.with_stem(f"{PATIENT}-{file.stem}"))
        here = folder / "here"
        self.models, self.here = run_of(images, here, self.hospitals, self.settings)
        self.wanted = self.models | signs_of(images)
        with (
            Spy(folder, self.wanted) as spy,
            server(folder) as address,
            tap(address, self.streams) as tapped,
        ):
            yield tapped
        self.found = spy.found

    def check_streams(self):
        assert sum(map(len, self.streams)) > 1_000_000  # the models went by here
        assert all(stream[:2] == b"\x16\x03" for stream in self.streams)  # TLS
        assert not any(each in stream for stream in self.streams for each in self.wanted)


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """The demo with its server watched, and the folder of its results."""
    watched, printed = Watched(HOSPITALS, demo.SETTINGS), StringIO()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("demo")))
        patch.setattr(demo, "server", watched.server)
        demo.main()
    signal.signal(signal.SIGTERM, before)
    return watched, Path(printed.getvalue().splitlines()[-1])


@pytest.mark.slow
def test_a_server_that_relays_sealed_parcels_has_no_model(demonstration):
    watched, result = demonstration
    assert len(watched.models) == 1 + 2 * len(HOSPITALS)
    assert models_of(result, result.parents[1]) == models_of(watched.here)
    assert watched.found == set()
    watched.check_streams()


@pytest.mark.slow
def test_the_same_search_finds_all_models_and_no_image_where_parcels_are_open(
    tmp_path, monkeypatch
):
    """One hospital is enough."""
    monkeypatch.setattr(demo, "HOSPITALS", HOSPITALS[:1])
    watched = Watched(HOSPITALS[:1], OPEN)
    write_images(tmp_path / "images")
    with watched.server(tmp_path) as address, hospitals(tmp_path, address, False, ["--warm"]):
        run(tmp_path, OPEN)
    assert len(watched.models) == 2
    assert watched.found == {
        (place, each) for place in ("server", "runs") for each in watched.models
    }
    watched.check_streams()


@pytest.mark.slow
def test_a_deployment_measures_what_a_simulation_measures(demonstration, tmp_path):
    """The demo, then the same folders and settings on the simulation engine.

    The models are the same. Figures are rounded, with noise of a step (client_app/disclosure.py):
    that of a share of 110 images or more is below 0.1, and of an AUROC below 0.2.
    """
    _, deployed = demonstration
    folders = ",".join(str(deployed.parents[1] / "images" / name) for name in HOSPITALS)
    settings = {
        **parse_config_args([demo.SETTINGS]),
        "dataset": f"folder:{folders}",
        "partition": "site",
    }
    with superlink(tmp_path / "simulation") as flower:
        simulated = simulate(flower, tmp_path / "runs", len(HOSPITALS), config=None, **settings)
    assert models_of(deployed, deployed.parents[1]) == models_of(simulated)
    told, exact = (
        {line[:-1]: line[-1] for line in metrics_of(run)} for run in (deployed, simulated)
    )
    assert told.keys() == exact.keys()
    errors: dict[str, list[float]] = {}
    for line, value in told.items():
        errors.setdefault(line[-1], []).append(value - exact[line])
    for name, each in errors.items():
        if name.startswith("num-"):
            assert not any(each)
        else:
            assert any(each)
            assert max(map(abs, each)) < (1.0 if name == "auroc" else 0.5)
            assert abs(fmean(each)) < 0.2
    summary = json.loads((deployed / "summary.json").read_text())
    assert summary["hospitals"] == sorted(HOSPITALS)
