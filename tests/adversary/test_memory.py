"""A few bytes cannot fill a hospital's memory or disk, nor hold it up."""

import json
import os
import socket
import threading
import tracemalloc
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from client_app.authority.limits import check_model, decoding_threads
from client_app.authority.policy import MachineRules, Policy, PolicyError
from client_app.datasets import files, library
from client_app.datasets.image import Header, UnusableImage
from client_app.datasets.own import survey
from learning import packing
from learning.errors import ModelError
from learning.models import Architecture, activations, layout, torchvision_names
from learning.packing import unpack_buffer, unpack_network
from learning.samples import Samples
from strategies.protocol import archive
from strategies.protocol.parcel import Manifest, pack
from strategies.protocol.records import ParcelError
from tests.fakes import settings

SMALL = MachineRules(max_memory_gb=0.001, max_disk_gb=0.00001)  # 1 MB of memory, 10 kB of disk


def unpacked(architecture):
    label = Manifest("a", architecture, ["x", "y"])
    parcel = pack({"model": ArrayRecord({"w": Array(np.zeros(3, "f4"))})}, label)
    unpack_network(parcel, label, {}, torch.device("cpu"))


@pytest.mark.parametrize("name", ["mlp", "vit_h_14", "regnet_y_128gf"])
def test_a_network_is_compared_with_what_arrived_before_it_is_built(name, monkeypatch):
    """1,124 bytes cost 1.5 GB."""
    monkeypatch.setattr(packing, "_network", None)  # which builds
    architecture = Architecture(name, 3, 224, 224, 2, (20_000, 20_000))
    with pytest.raises(ParcelError, match="The model of lineage 'a' "):
        unpacked(architecture.to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": [2**20] * 100},  # 440 TB
        {"hidden": [0]},
        {"hidden": [-1]},
        {"hidden": [10**30]},
        {"hidden": [1] * 5000},
        {"hidden": [True]},
        {"classes": 0},
        {"height": -8},
        {"width": 10**18},
        {"name": "vit_b_16"},  # for images of a multiple of 16 pixels
    ],
    ids=str,
)
def test_a_network_that_cannot_be_is_refused_with_a_type(change):
    text = json.dumps({**json.loads(Architecture("mlp", 1, 9, 9, 2).to_json()), **change})
    with pytest.raises((ModelError, ParcelError)):
        unpacked(text)


def test_text_that_is_nested_too_deep_is_no_architecture():
    with pytest.raises(ModelError):
        unpacked("[" * 9000)


@pytest.mark.slow
@pytest.mark.parametrize("name", torchvision_names())
def test_the_layout_of_a_network_is_that_of_the_network(name):
    """Of all that torchvision has: what is counted without memory is what would be built."""
    architecture = Architecture(name, 1, 224, 224, 3)
    built = architecture.blank().state_dict()
    found = layout(architecture)
    assert list(found) == list(built)
    for key, tensor in built.items():
        assert (found[key].shape, found[key].dtype) == (tensor.shape, tensor.dtype)


def test_the_policy_bounds_a_model():
    """An mlp of some 1.6 GB, more than the default; and one that fits, with little memory."""
    policy = Policy.read()
    large = Architecture("mlp", 1, 8, 8, 2, (20_000, 20_000)).to_json()
    with pytest.raises(PolicyError) as caught:
        check_model(policy, large, RecordDict())
    assert caught.value.rule == "models.max-megabytes"
    small = Architecture("mlp", 1, 8, 8, 2, (8,)).to_json()
    check_model(policy, small, RecordDict())
    message = RecordDict({"model": ArrayRecord({"w": Array(np.zeros(10**6))})})
    with pytest.raises(PolicyError) as caught:
        check_model(Policy(**{**vars(policy), "machine": SMALL}), small, message)
    assert caught.value.rule == "machine.max-memory-gb"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "mobilenet_v3_small", "vit_b_16"])
def test_what_a_network_computes_is_known_before_it_is_built(name):
    """Without memory it is counted as what a real pass over a batch of four keeps."""
    architecture = Architecture(name, 3, 32, 32, 2, (64,))
    network = architecture.blank()
    weights = {each.untyped_storage().data_ptr() for each in network.state_dict().values()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = network(images)
    real = sum(each.nbytes() for pointer, each in kept.items() if pointer not in weights)
    assert 4 * activations(architecture)[0] == pytest.approx(real, rel=0.15)
    assert output.shape == (4, 2)


@pytest.mark.parametrize(("hidden", "batch"), [((4,), 10**6), ((20_000,), 0)])
def test_the_policy_bounds_a_batch(hidden, batch):
    """A small model computes 1 GB of a large enough batch; testing has a batch of its own."""
    policy, memory = Policy.read(), MachineRules(max_memory_gb=0.5, max_disk_gb=1)
    cautious = Policy(**{**vars(policy), "machine": memory})
    check_model(cautious, Architecture("mlp", 1, 28, 28, 2, (4,)).to_json(), RecordDict(), 32)
    network = Architecture("mlp", 1, 28, 28, 2, hidden).to_json()
    with pytest.raises(PolicyError) as caught:
        check_model(cautious, network, RecordDict(), batch)
    assert caught.value.rule == "machine.max-memory-gb"


def test_a_batch_of_images_in_four_turns_takes_four_times_as_much():
    policy, memory = Policy.read(), MachineRules(max_memory_gb=0.5, max_disk_gb=1)
    cautious = Policy(**{**vars(policy), "machine": memory})
    plain, turning = (
        Architecture(name, 1, 28, 28, 2).to_json() for name in ("cnn", "rotation-cnn")
    )
    check_model(cautious, plain, RecordDict(), 1600)
    check_model(cautious, turning, RecordDict(), 400)
    with pytest.raises(PolicyError) as caught:
        check_model(cautious, turning, RecordDict(), 1600)
    assert caught.value.rule == "machine.max-memory-gb"


def zipped(compression, *contents):
    file = BytesIO()
    with zipfile.ZipFile(file, "w", compression) as packed:
        for number, content in enumerate(contents):
            packed.writestr(f"{number}.npy", content)
    return file.getvalue()


def overlapping():
    """An archive whose directory names one entry of 4 kB a hundred times."""
    content = zipped(zipfile.ZIP_STORED, bytes(4096))
    end = content.index(b"PK\5\6")
    entry = content[content.index(b"PK\1\2") : end]
    entries = b"".join(entry.replace(b"0.npy", b"%05d" % k) for k in range(100))
    directory = end - len(entry)
    counts = (100).to_bytes(2, "little") * 2
    where = len(entries).to_bytes(4, "little") + directory.to_bytes(4, "little")
    return content[:directory] + entries + b"PK\5\6" + bytes(4) + counts + where + bytes(2)


@pytest.mark.parametrize(
    "content",
    [
        zipped(zipfile.ZIP_DEFLATED, bytes(10**8)),
        zipped(zipfile.ZIP_BZIP2, bytes(10**7)),
        overlapping(),
        zipped(zipfile.ZIP_STORED, b"\x93NUMPY\x01\x00\x46\x00" + b"x" * 70),
    ],
    ids=["deflated", "bzip2", "overlapping", "no header"],
)
def test_an_archive_takes_no_more_memory_than_its_bytes(content):
    """A deflated inner archive of 1.5 MB cost 3 GB."""
    tracemalloc.start()
    try:
        with pytest.raises(archive.ArchiveError):
            archive.read(BytesIO(content))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_picture_s_texts_are_bounded():
    """2 MB of text in a chunk of 2 kB: Pillow stops at one."""
    text = b"a\0\0" + zlib.compress(bytes(2**21))
    chunk = len(text).to_bytes(4, "big") + b"zTXt" + text
    chunk += zlib.crc32(chunk[4:]).to_bytes(4, "big")
    file = BytesIO()
    PIL.Image.new("L", (8, 8)).save(file, "PNG")
    picture = file.getvalue()[:33] + chunk + file.getvalue()[33:]
    like = Samples(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    images, labels = Array(np.frombuffer(picture, np.uint8)), Array(np.zeros(1, np.int64))
    dossier = Array(np.zeros(32, np.uint8))
    record = ArrayRecord({"images": images, "labels": labels, "dossier": dossier})
    with pytest.raises(ParcelError, match="not a PNG picture"):
        unpack_buffer(record, like, classes=2, size=1)


# A hospital's own folder.


@pytest.fixture
def folder(tmp_path):
    """A folder of images, of which one can be used."""
    (tmp_path / "images" / "a").mkdir(parents=True)
    PIL.Image.new("L", (8, 8)).save(tmp_path / "images" / "a" / "good.png")
    return tmp_path / "images" / "a"


def reasons(folder, tmp_path, **rest):
    found = survey(settings(dataset=f"folder:{folder.parent}"), tmp_path / "store", **rest)
    assert [entry.where for entry in found.entries] == ["a/good.png"]
    return {each.where: each.reason for each in found.unusable}


def test_what_has_no_end_is_not_read(folder, tmp_path, monkeypatch):
    """A pipe without a writer held the import up for ever."""
    os.mkfifo(folder / "pipe.png")
    monkeypatch.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.png")

        def let_go():
            os.close(os.open(folder / "pipe.png", os.O_RDWR | os.O_NONBLOCK))

        timer = threading.Timer(20, let_go)
        timer.start()
        found = reasons(folder, tmp_path)
        timer.cancel()
    assert found["a/pipe.png"] == "is not a regular file"
    assert set(found) == {"a/pipe.png", "a/socket.png"}


def test_links_do_not_lead_out_of_the_folder(folder, tmp_path):
    """As in a manifest: to a device, say, or to what another hospital keeps."""
    (folder / "zero.png").symlink_to("/dev/zero")
    PIL.Image.new("L", (8, 8)).save(tmp_path / "other.png")
    (folder / "other.png").symlink_to(tmp_path / "other.png")
    found = reasons(folder, tmp_path)
    assert set(found.values()) == {"is a link that leads out of the folder"}
    assert set(found) == {"a/zero.png", "a/other.png"}


def test_links_within_the_folder_are_followed(folder, tmp_path):
    (folder / "again.png").symlink_to(folder / "good.png")
    found = survey(settings(dataset=f"folder:{folder.parent}"), tmp_path / "store")
    assert len(found.entries) == 2


@pytest.mark.parametrize("size", [(2**13, 2**13 + 1), (60_000, 60_000)])
def test_a_picture_with_too_many_pixels_is_not_decoded(folder, tmp_path, size, monkeypatch):
    """One of 0.5 MB took 2.3 GB. Its header alone says how large it is."""
    file = BytesIO()
    PIL.Image.new("L", (8, 8)).save(file, "PNG")
    content = bytearray(file.getvalue())
    content[16:24] = b"".join(side.to_bytes(4, "big") for side in size)
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    (folder / "large.png").write_bytes(content)
    monkeypatch.setattr(PIL.PngImagePlugin.PngImageFile, "load", None)  # which decodes
    with pytest.raises(UnusableImage, match="has more than 67108864 pixels"):
        files.read_pixels(bytes(content))
    monkeypatch.undo()
    assert reasons(folder, tmp_path) == {"a/large.png": "has more than 67108864 pixels"}


def test_as_many_images_are_decoded_at_a_time_as_memory_allows(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    largest = Header("DICOM", 8192, 8192, 1, 16).memory
    assert decoding_threads(MachineRules(16, 200), largest) == 4
    assert decoding_threads(MachineRules(16, 200), 10**6) == 16
    assert decoding_threads(MachineRules(1, 200), largest) == 1
    assert decoding_threads(None, largest) == 16


def test_as_many_headers_are_read_at_a_time_as_memory_allows(folder, tmp_path, monkeypatch):
    """Files of 8 kB on the disk took 1 GB each: a header may be as long as its file."""
    numbers = []

    class Threads(ThreadPoolExecutor):
        def __init__(self, most):
            numbers.append(most)
            super().__init__(most)

    monkeypatch.setattr(library, "ThreadPoolExecutor", Threads)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    with (folder / "long.png").open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.truncate(2**22)
    machine = MachineRules(max_memory_gb=0.026, max_disk_gb=1)
    assert reasons(folder, tmp_path, machine=machine).keys() == {"a/long.png"}
    assert numbers == [2, 16]  # to look at both, and to decode the good one


def test_a_store_does_not_grow_above_what_the_policy_allows(folder, tmp_path):
    """It is checked before an image is decoded into it."""
    for number in range(200):
        PIL.Image.new("L", (16, 16), number).save(folder / f"{number}.png")
    (folder / "good.png").unlink()
    with pytest.raises(PolicyError) as caught:
        survey(settings(dataset=f"folder:{folder.parent}"), tmp_path / "store", SMALL)
    assert caught.value.rule == "machine.max-disk-gb"
    assert not list((tmp_path / "store").rglob("*.pixels"))


def test_a_file_that_is_too_large_is_not_read(folder, tmp_path):
    with (folder / "sparse.png").open("wb") as file:
        file.truncate(2**33)
    assert reasons(folder, tmp_path) == {"a/sparse.png": "is too large a file"}
