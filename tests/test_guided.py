"""Whole federations with the learners that are guided from outside: MAH, TwF and SER."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from strategies.protocol.settings import SettingsError
from tests.test_tasks import federate


@pytest.fixture
def public(tmp_path):
    """An archive of the digits, under other names."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images * 15.9).astype(np.uint8).reshape(-1, 8, 8)[:400]
    arrays = {"x_train": pixels, "y_train": labels[:400], "x_test": pixels, "y_test": labels[:400]}
    np.savez(tmp_path / "public.npz", **arrays)
    return f"public:{tmp_path / 'public.npz'}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "model", "strategy"),
    [
        *(("mah", "cnn", "rwt"), ("twf", "cnn", "cwt-serial"), ("ser", "ser-cnn", "rwt")),
        ("icarl", "cnn", "cwt-serial"),
    ],
)
def test_models_are_handed_on_through_two_tasks(tmp_path, public, learner, model, strategy):
    """What travels is taken up at the other hospital, and what is kept by either's next model.

    All classes come at every hospital, in two tasks of five.
    """
    state, ledger, _ = federate(
        tmp_path,
        strategy=strategy,
        learner=learner,
        model=model,
        num_server_rounds=2,
        task_cut="classes",
        mah__auxiliary=public,
        twf__teacher=public,
        twf__teacher_epochs=1,
    )
    assert [(e.hospital, e.reason) for e in ledger.events if e.outcome != "ok"] == []
    memories = [
        state.shelf.get(each.parcel).array_records.get("memory") for each in state.models.values()
    ]
    if learner == "mah":
        for memory in memories:
            assert memory is not None
            assert memory["auxiliary"].numpy().tolist() == [-1] * 10
            assert (memory["before"].numpy() >= 0).sum() == 5
    if learner == "ser":
        assert memories == [None, None]
    if learner == "icarl":
        assert [memory and {*memory} for memory in memories] == [{"weight", "bias"}]
    kept = [*tmp_path.glob("store/*/runs/*/rehearsal/*.npz")]
    assert kept
    rows = np.load(kept[0])
    assert 0 < len(rows["labels"]) <= 500
    assert any(name.startswith("teacher.") for name in rows) == (learner == "twf")


def test_what_cannot_be_averaged_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="'learner' is 'twf'; it must be one without a memory"):
        federate(tmp_path, strategy="fedavg", learner="twf")
