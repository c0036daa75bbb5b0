import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict

from learning.errors import DivergedError, ModelError
from learning.models import Architecture
from learning.packing import pack_buffer, pack_network, unpack_buffer, unpack_network
from learning.samples import Samples
from strategies.protocol.parcel import Manifest, check_parcel
from strategies.protocol.records import ParcelError, UselessError

CPU = torch.device("cpu")
CNN = Architecture("cnn", 1, 8, 8, 3)
LABEL = Manifest("a", CNN.to_json(), ["x", "y", "z"])


def built(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CNN.build()


def changed(**arrays):
    """A model parcel in which some arrays are others, or missing where None is given."""
    parcel = pack_network(built(), LABEL)
    model = {**parcel.array_records["model"], **arrays}
    record = {name: array for name, array in model.items() if array is not None}
    return RecordDict({"model": ArrayRecord(record)})


def test_a_network_survives_the_journey_bit_for_bit():
    network = built()
    parcel = pack_network(network, LABEL)
    arrived = unpack_network(parcel, check_parcel(parcel), {}, CPU)
    assert list(arrived.state_dict()) == list(network.state_dict())
    for name, tensor in network.state_dict().items():
        assert torch.equal(arrived.state_dict()[name], tensor)
        assert arrived.state_dict()[name].dtype == tensor.dtype


def test_in_half_precision_numbers_are_rounded_and_counters_are_not():
    network = built()
    with torch.no_grad():
        network.get_parameter("0.weight")[0] = 1 + 2**-12  # between two numbers of 16 bits
    parcel = pack_network(network, LABEL, half=True)
    assert {array.dtype for array in parcel.array_records["model"].values()} == {"float16", "int64"}
    state = unpack_network(parcel, LABEL, {}, CPU).state_dict()
    assert (state["0.weight"][0] == 1).all()
    for name, tensor in network.state_dict().items():
        assert state[name].dtype == tensor.dtype
        assert torch.allclose(state[name], tensor, rtol=2**-11, atol=2**-24)


def test_a_number_too_large_for_half_precision_does_not_leave():
    network = built()
    with torch.no_grad():
        network.get_parameter("0.weight")[0] = 70_000
    assert pack_network(network, LABEL)
    with pytest.raises(DivergedError, match=r"'0\.weight' is not finite"):
        pack_network(network, LABEL, half=True)


def test_what_stays_home_completes_what_arrives():
    """Convolutions of one network, BatchNorm of another."""
    sender, own = built(), np.full(16, 7.0, dtype=np.float32)
    parcel = pack_network(sender, LABEL, withheld={"1.weight"})
    assert "1.weight" not in parcel["model"]
    state = unpack_network(parcel, LABEL, {"1.weight": own}, CPU).state_dict()
    assert torch.equal(state["0.weight"], sender.state_dict()["0.weight"])
    assert torch.equal(state["1.weight"], torch.from_numpy(own))


def test_without_what_stays_home_the_network_is_refused():
    parcel = pack_network(built(), LABEL, withheld={"1.bias"})
    with pytest.raises(ParcelError, match=r"lineage 'a' lacks '1\.bias'"):
        unpack_network(parcel, LABEL, {}, CPU)


def test_the_network_of_one_visit_leaves_no_trace_in_the_next():
    first = unpack_network(pack_network(built(1), LABEL), LABEL, {}, CPU)
    first.train()(torch.rand(4, 1, 8, 8)).sum().backward()
    second = unpack_network(pack_network(built(2), LABEL), LABEL, {}, CPU)
    for name, tensor in built(2).state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("parcel", "words"),
    [
        (changed(extra=Array(np.zeros(3))), "has the unknown array 'extra'"),
        (changed(**{"0.weight": None}), "lacks '0.weight'"),
        (changed(**{"0.weight": Array(np.zeros((16, 3, 3, 3), "f4"))}), r"\[16, 3, 3, 3\]; this"),
        (changed(**{"0.weight": Array(np.zeros((16, 1, 3, 3)))}), "float64 .* has torch.float32"),
        (changed(**{"0.weight": Array(np.full((16, 1, 3, 3), np.nan, "f4"))}), "is not finite"),
    ],
)
def test_a_network_that_is_not_the_architectures_is_refused(parcel, words):
    with pytest.raises(UselessError, match=words):
        unpack_network(parcel, LABEL, {}, CPU)


def test_what_stays_home_and_does_not_fit_is_no_failure_of_the_sender():
    parcel = pack_network(built(), LABEL, withheld={"1.weight"})
    own = {"1.weight": np.ones(3, dtype=np.float32)}
    with pytest.raises(ParcelError, match=r"'1\.weight' as torch.float32 \[3\]") as refused:
        unpack_network(parcel, LABEL, own, CPU)
    assert refused.type is ParcelError


def test_an_unknown_architecture_is_refused():
    label = Manifest("a", CNN.to_json().replace("cnn", "gnn"), [])
    with pytest.raises(ModelError, match="'gnn'"):
        unpack_network(changed(), label, {}, CPU)


def test_a_network_that_diverged_does_not_leave():
    network = built()
    network.state_dict()["0.weight"][0] = float("inf")
    with pytest.raises(DivergedError, match=r"'0\.weight' is not finite.*learning-rate"):
        pack_network(network, LABEL)


def samples(count=6, channels=1, height=5, width=4):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return Samples(torch.from_numpy(images), torch.arange(count) % 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_buffer_survives_the_journey_bit_for_bit(channels):
    sent = samples(channels=channels)
    arrived = unpack_buffer(pack_buffer(sent, "0" * 64), sent, classes=3, size=6)
    assert torch.equal(arrived.images, sent.images)
    assert torch.equal(arrived.labels, sent.labels)


def test_a_large_buffer_is_no_decompression_bomb(monkeypatch):
    """Pillow refuses pictures of twice its limit, which 700 images of 512 x 512 pixels are."""
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 20)
    sent = samples()
    arrived = unpack_buffer(pack_buffer(sent, "0" * 64), sent, classes=3, size=6)
    assert torch.equal(arrived.images, sent.images)


def test_a_buffer_of_smooth_images_travels_in_less_than_its_pixels():
    ramp = torch.arange(64, dtype=torch.uint8).expand(100, 1, 64, 64)
    record = pack_buffer(Samples(ramp, torch.zeros(100, dtype=torch.int64)), "0" * 64)
    assert len(record["images"].data) < ramp.numel() / 20


@pytest.mark.parametrize(
    ("record", "like", "words"),
    [
        (pack_buffer(samples(5), "0" * 64), samples(), r"int64 \[5\] labels"),
        (pack_buffer(samples(width=5), "0" * 64), samples(), "not 6 of 1x5x4, .* set image-size"),
        (pack_buffer(samples(height=9), "0" * 64), samples(), "not 6 of 1x5x4"),
        (
            pack_buffer(samples(channels=3), "0" * 64),
            samples(),
            "'RGB', 4, 30.* set image-channels",
        ),
        (
            pack_buffer(Samples(samples().images, torch.full((6,), 3)), "0" * 64),
            samples(),
            "labels outside of 0 to 2",
        ),
        (
            pack_buffer(Samples(samples().images, torch.full((6,), -1)), "0" * 64),
            samples(),
            "labels outside of 0 to 2",
        ),
        (
            pack_buffer(Samples(samples().images, torch.zeros(6, dtype=torch.int32)), "0" * 64),
            samples(),
            "int32 .* must be int64",
        ),
        (ArrayRecord({"images": Array(np.zeros(3))}), samples(), "not images, labels"),
        (pack_buffer(samples(), "00"), samples(), "names no dossier"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(record, like, words):
    with pytest.raises(ParcelError, match=words):
        unpack_buffer(record, like, classes=3, size=6)


def test_a_buffer_that_is_no_picture_is_refused():
    record = pack_buffer(samples(), "0" * 64)
    picture = record["images"].numpy().copy()
    picture[40:] = 7
    with pytest.raises(ParcelError, match="not a PNG"):
        unpack_buffer(ArrayRecord({**record, "images": Array(picture)}), samples(), 3, 6)


def features(count=6, width=5):
    vectors = torch.nn.functional.normalize(torch.rand(count, width))[:, :, None, None]
    return Samples(vectors, torch.arange(count) % 3)


def test_a_buffer_of_features_arrives_as_it_left():
    sent = features()
    arrived = unpack_buffer(pack_buffer(sent, "0" * 64), sent, classes=3, size=6)
    assert torch.equal(arrived.images, sent.images)
    assert torch.equal(arrived.labels, sent.labels)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda z: 2 * z, "do not have length 1"),
        (lambda z: z * torch.nan, "do not have length 1"),
        (lambda z: z[:, :4], r"float32 \[6, 4\] features; they must be float32 \[6, 5\]"),
        (lambda z: z.double(), r"float64 \[6, 5\] features; they must be float32 \[6, 5\]"),
        (lambda z: z[:5], r"float32 \[5, 5\] features"),
    ],
)
def test_other_numbers_than_features_are_refused(change, error):
    sent = features()
    record = pack_buffer(sent, "0" * 64)
    changed = Array(change(sent.images[:, :, 0, 0]).numpy())
    with pytest.raises(ParcelError, match=error):
        unpack_buffer(ArrayRecord({**record, "features": changed}), sent, 3, 6)


def test_features_are_no_images():
    with pytest.raises(ParcelError, match="not images, labels and dossier"):
        unpack_buffer(pack_buffer(features(), "0" * 64), samples(), 3, 6)
    with pytest.raises(ParcelError, match="not features, labels and dossier"):
        unpack_buffer(pack_buffer(samples(), "0" * 64), features(), 3, 6)
