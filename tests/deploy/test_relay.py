"""What the server of a deployment has, and what goes to and from it: of sealed models nothing."""

import socket
import threading
from contextlib import contextmanager, suppress

import pytest
from flwr.common.config import parse_config_args
from PIL import Image

from client_app.app import app as hospital_app
from deploy.demo import HOSPITALS, hospitals, run, server, write_images
from strategies.protocol.settings import Settings
from tests.fakes import FakeGrid, Ledger, context, go, models_of, parcels_of, run_config

SETTINGS = (
    "strategy='cwt' model='mlp' num-server-rounds=1 train.epochs=1 min-hospitals=3 seed=1 "
    "hop-timeout=300 sealed="
)
PART = 65536  # bytes of a file that are searched again when some of them have changed
PATIENT = "Mustermann"  # in the name of every file of an image


def part_of(parcel):
    """Some bytes of the largest array of a model: few, as a data base cuts it into pages."""
    arrays = [array.numpy() for array in parcel.array_records["model"].values()]
    return max(arrays, key=lambda array: array.size).tobytes()[10_000:10_032]


def models_of_a_run(images, store):
    """Bytes of the first model, and of each trained one: from the same run in this process."""
    config = run_config() | parse_config_args([SETTINGS + "false"])

    def hospital(name):
        folders = {"data-dir": str(images / name), "store-dir": str(store)}
        place = context(0, 1, config, site=name, **folders)
        return lambda message: hospital_app(message, place)

    grid = FakeGrid({node: hospital(name) for node, name in enumerate(HOSPITALS, 100)})
    state = go(Settings.parse(config), grid, Ledger())
    first = [part_of(m.content) for m in grid.sent if m.metadata.message_type == "train"]
    return {*first}, {part_of(parcel) for parcel in parcels_of(state).values()}


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


@pytest.mark.slow
def test_a_server_that_relays_sealed_parcels_has_no_model(tmp_path):
    """The same search finds all models, and still no image, where parcels are open."""
    images = tmp_path / "images"
    write_images(images)
    for file in images.rglob("*.png"):
        file.rename(file.with_stem(f"{PATIENT}-{file.stem}"))
    first, trained = models_of_a_run(images, tmp_path / "store")
    assert (len(first), len(trained)) == (1, len(HOSPITALS))
    wanted = {*first, *trained, *signs_of(images)}
    relayed = {("server", each) for each in first | trained}
    kept = {("runs", each) for each in {*first, *trained}}
    results = []
    for sealed in (False, True):
        folder = tmp_path / f"sealed-{sealed}"
        folder.mkdir()
        (folder / "images").symlink_to(images)
        streams: list[bytearray] = []
        with (
            Spy(folder, wanted) as spy,
            server(folder) as address,
            tap(address, streams) as tapped,
            hospitals(folder, tapped, sealed, ["--warm"]),
        ):
            results.append(run(folder, SETTINGS + str(sealed).lower()))
        assert spy.found == (set() if sealed else relayed | kept)
        assert sum(map(len, streams)) > 1_000_000  # the models went by here
        assert all(stream[:2] == b"\x16\x03" for stream in streams)  # TLS
        assert not any(each in stream for stream in streams for each in wanted)
    assert models_of(results[0]) == models_of(results[1], tmp_path / "sealed-True")
