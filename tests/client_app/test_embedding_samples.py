"""What a hospital of its own sends of a task's images, and what it keeps."""

import math
import re

import numpy as np
import PIL.Image
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict

from client_app.app import app
from client_app.release.embeddings import outgoing_form
from learning.models import Architecture
from learning.models.embedding import EmbeddingNetwork
from learning.packing import pack_network
from learning.randomness import use_seed
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, drop_encoder, hash_arrays
from strategies.protocol.records import ParcelError, to_record
from strategies.protocol.settings import rng_for
from tests.fakes import run_config

pytestmark = pytest.mark.usefixtures("_quick_audits")

CONFIG = run_config(strategy="fil-ver", train__epochs=1, filver__share=0.2)


def test_what_leaves_by_hand():
    means, log_sigmas = torch.tensor([[3.0, 4.0]]), torch.tensor([[math.log(2), 0.0]])
    embeddings = torch.stack([means, log_sigmas], dim=1)
    assert outgoing_form(embeddings, "stats", rng_for(0, "x")).tolist() == [[[3, 4], [4, 1]]]
    noise = rng_for(0, "x").standard_normal((1, 2), np.float32)[0]
    sampled = outgoing_form(embeddings, "sampled", rng_for(0, "x"))[0, 0]
    assert sampled.tolist() == pytest.approx([3 + 2 * noise[0], 4 + noise[1]])
    alone = means[:, None]
    assert torch.equal(outgoing_form(alone, "ebr", rng_for(0, "x")), alone)
    for wrong, kind in ((alone, "sampled"), (alone, "stats"), (embeddings, "ebr")):
        with pytest.raises(ParcelError, match=f"does not fit embeddings of kind '{kind}'"):
            outgoing_form(wrong, kind, rng_for(0, "x"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A hospital's 400 images of two classes: a bright half, and noise."""
    folder = tmp_path_factory.mktemp("hospital")
    rng = np.random.default_rng(0)
    for number in range(400):
        side = number % 2
        pixels = rng.integers(0, 100, (16, 16), np.uint8)
        pixels[:, 8 * side : 8 * side + 8] += 100
        path = folder / "images" / "ab"[side] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(pixels).save(path)
    return folder


class Server:
    """Asks one hospital for embeddings, by an encoder of its choice."""

    def __init__(self, folder, store, policy):
        (store / "policy.toml").write_text(f"runs.sealed-only = false\n{policy}", "utf-8")
        own: dict[str, bool | float | int | str] = {
            "site": "graz",
            "store-dir": str(store),
            "policy": str(store / "policy.toml"),
        }
        own["data-dir"] = str(folder / "images")
        self.place = Context(1, 100, own, RecordDict(), dict(CONFIG))

    def ask(
        self,
        kind="sampled",
        seed=0,
        run="1",
        spread=None,
        learner="fil-ver",
        model="vee",
        whole=False,
        **settings,
    ):
        """Order a visit.

        Args:
            kind: Of embeddings.
            seed: Of the encoder's weights.
            run: Its identity.
            spread: σ of the embeddings that the encoder is made to give.
            learner: Of the order.
            model: The network.
            whole: Whether the encoder travels with the model.
            settings: Of the run, that differ.
        """
        self.place.run_config |= {**CONFIG, **settings}
        architecture = Architecture(model, 1, 16, 16, 2)
        with use_seed(rng_for(seed, "model")):
            network = architecture.build()
        if spread and isinstance(network, EmbeddingNetwork):
            head = network.encoder.heads[1]
            head.weight.data.zero_()  # type: ignore[operator]
            head.bias.data.fill_(math.log(spread))  # type: ignore[operator]
        parcel = pack_network(network, Manifest("global", architecture.to_json(), ["a", "b"]))
        names = [name for name in parcel.array_records["model"] if name.startswith("encoder.")]
        names = [] if whole else names
        encoder = ArrayRecord({name: parcel.array_records["model"][name] for name in names})
        order = Order(1, 1, "graz", ["a", "b"], learner, run, epochs=1, embeddings=kind)
        content = RecordDict({**drop_encoder(parcel, names), "encoder": encoder})
        order = Order(**{**vars(order), "encoder": hash_arrays(encoder) if names else ""})
        content["order"] = to_record(order)
        return app(Message(content, 100, "train", ttl=600.0), self.place)


def sent(answer):
    assert not answer.has_error(), answer.error
    return answer.content.array_records.get("embeddings")


OPEN = "[embeddings]\nkinds = ['sampled']\nmax-linked = 1.0\nmax-inverted = 1.0\n"


@pytest.mark.slow
def test_nothing_leaves_unless_the_policy_names_it(folder, tmp_path, caplog):
    answer = Server(folder, tmp_path, "").ask()
    assert sent(answer) is None
    assert "model" in answer.content.array_records  # it trains all the same
    assert "embeddings.kinds" in caplog.text
    assert not [name for name in answer.content["metrics"] if name.startswith("embedding")]


@pytest.mark.slow
def test_noise_decides_whether_a_sample_leaves(folder, tmp_path, caplog):
    """An encoder that is made to add none gives images away."""
    server = Server(folder, tmp_path, OPEN)
    assert sent(server.ask(spread=1e-3)) is None
    assert re.search("embeddings.max-bits", caplog.text)
    record = sent(server.ask(spread=1.0))
    assert record["values"].numpy().shape == (64, 1, 256)
    assert sorted(set(record["labels"].numpy())) == [0, 1]
    assert not set(record) - {"values", "labels"}


@pytest.mark.slow
def test_a_sample_is_the_same_whenever_it_is_asked_for_and_is_counted(folder, tmp_path, caplog):
    server = Server(folder, tmp_path, OPEN + "max-samples = 1\n")
    first, again = sent(server.ask(spread=1.0)), sent(server.ask(spread=1.0, run="2"))
    assert hash_arrays(first) == hash_arrays(again)
    assert sent(server.ask(spread=1.0, seed=1)) is None
    assert "embeddings.max-samples" in caplog.text
    other = sent(Server(folder, tmp_path, OPEN).ask(spread=1.0, seed=1))
    assert hash_arrays(other) != hash_arrays(first)


@pytest.mark.slow
def test_a_sample_is_known_by_what_it_is_whatever_the_order_says(folder, tmp_path, caplog):
    """An encoder that travels with the model, or more of the images, is another sample."""
    server = Server(folder, tmp_path, OPEN + "max-samples = 1\n")
    assert sent(server.ask(spread=1.0, whole=True)) is not None
    assert sent(server.ask(spread=2.0, whole=True)) is None
    assert sent(server.ask(spread=1e-3, whole=True)) is None
    assert re.search("embeddings.max-bits", caplog.text)  # it was audited on its own
    assert sent(server.ask(spread=1.0, whole=True, run="3", **{"filver.share": 0.5})) is None
    assert sent(server.ask(spread=1.0, run="2")) is not None


@pytest.mark.slow
def test_the_server_cannot_draw_the_noise(folder, tmp_path):
    """Two hospitals of the same images, name and run have secrets of their own."""
    records = []
    for number in range(2):
        store = tmp_path / str(number)
        store.mkdir()
        records.append(sent(Server(folder, store, OPEN).ask(spread=1.0)))
    assert np.array_equal(*(record["labels"].numpy() for record in records))
    assert not np.array_equal(*(record["values"].numpy() for record in records))


@pytest.mark.slow
def test_orders_that_do_not_fit_are_refused(folder, tmp_path):
    server = Server(folder, tmp_path, OPEN)
    for changes in (
        {"kind": "ebr"},
        {"model": "ebr"},
        {"learner": "plain"},
        {"learner": "plain", "model": "mlp"},
        {"model": "mlp"},
    ):
        assert server.ask(**changes).error.code in (Failure.PARCEL, Failure.SETTINGS), changes
