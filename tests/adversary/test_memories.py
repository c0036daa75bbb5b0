"""What travels beside a model is hostile, too: a memory is refused with a sentence, or trained on.

The attacker is another hospital, which seals what it likes; here runs are open.
"""

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from learning.models import Architecture
from strategies.protocol.may_leave import Failure
from strategies.protocol.parcel import Manifest, pack
from strategies.protocol.records import array_records
from tests.adversary.test_sums import SIDE, Victim

pytestmark = pytest.mark.usefixtures("known_secret")
REFUSED = {Failure.PARCEL, Failure.USELESS, Failure.DIVERGED}


def changed(memory):
    """Every array of a memory: absent, of other names, types, shapes and numbers."""
    for name, array in memory.items():
        others = {each: value for each, value in memory.items() if each != name}
        yield others
        yield {**others, f"{name}2": array}
        yield {**memory, "more": array}
        for type_ in ("f8", "f4", "f2", "i8", "u1", "?"):
            yield {**others, name: array.astype(type_)}
        for shaped in (array[None], array.ravel()[:0], np.concatenate([array.ravel()] * 2)):
            yield {**others, name: shaped}
        for number in (np.nan, np.inf, 1e30, -1e30, 1e6, -1.0, 0.0, 7.0, 2.0**62, -(2.0**62)):
            if array.dtype.kind == "f" or abs(number) < 2**63:  # false for NaN
                with np.errstate(over="ignore"):
                    yield {**others, name: np.full_like(array, number)}


def write_archive(path):
    """Public images of six classes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, SIDE, SIDE), dtype=np.uint8)
    labels = np.arange(24, dtype=np.uint8) % 6
    parts = {"x_train": images, "y_train": labels, "x_test": images[:6], "y_test": labels[:6]}
    np.savez(path, allow_pickle=False, **parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "network"),
    [
        ("mah", "mlp"),
        ("icarl", "mlp"),
        ("twf", "cnn"),
        ("cwc", "mlp"),
        ("fedspace", "rotation-mlp"),
        ("ser", "ser-cnn"),
        ("pass", "rotation-mlp"),
        *((each, "mlp") for each in ("er", "agem", "fdr", "lwf", "oewc")),
    ],
)
def test_a_hostile_memory_is_refused_before_anything_is_trained(learner, network, tmp_path):
    write_archive(tmp_path / "public.npz")
    side = {"cnn": 16, "ser-cnn": 32}.get(network, SIDE)
    victim = Victim(
        tmp_path,
        (30, 30),
        real=False,
        strategy="cwt",
        model=network,
        image_size=side,
        mlp__hidden="8",
        num_server_rounds=2,
        train__learning_rate=1e-3,
        train__batch_size=30,
        mah__auxiliary=f"public:{tmp_path}/public.npz",
    )
    architecture = Architecture(network, 1, side, side, 2, (8,))
    label = Manifest("mallory", architecture.to_json(), victim.classes)
    state = {key: each.numpy() for key, each in architecture.build().state_dict().items()}
    model = ArrayRecord({key: Array(each) for key, each in state.items()})
    first = victim.order(pack({"model": model}, label), learner=learner)
    assert not first.has_error(), first.error
    sent = array_records(RecordDict({**first.content})).get("memory", ArrayRecord())
    memory = {name: each.numpy() for name, each in sent.items()}
    assert bool(memory) == (learner in ("mah", "icarl", "twf", "cwc", "fedspace"))
    if not memory:  # whatever comes is of no use to this learner
        memory = {"weight": np.zeros((2, 2), "f4"), "classes": np.arange(3)}
    outcomes = []
    every = list(changed(memory))
    for number, hostile in enumerate(random.Random(0).sample(every, min(40, len(every)))):
        record = ArrayRecord({name: Array(np.asarray(each)) for name, each in hostile.items()})
        parcel = pack({"model": model, "memory": record}, label)
        answer = victim.order(parcel, f"run-{number}", learner)
        outcomes.append(answer.error.code if answer.has_error() else None)
    assert {*outcomes} <= {None, *REFUSED}
    assert len(outcomes) > 10
    assert not sent or Failure.USELESS in outcomes
