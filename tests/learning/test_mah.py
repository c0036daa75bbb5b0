"""MAH at the hospital, beside its equations (learning/learners/mah.py)."""

import time

import numpy as np
import pytest
import torch
from torch.nn import functional

from learning.evaluation import probabilities, score
from learning.learners.mah import MAH, align, choose_outputs
from learning.learners.plain import Received
from learning.models import Architecture
from learning.models.taps import last_layer
from learning.samples import Samples, concatenate
from learning.training import train
from strategies.protocol.records import UselessError
from strategies.protocol.settings import SettingsError
from tests.fakes import settings
from tests.learning.test_derpp import digits
from tests.learning.test_training import draws, learner_of

RNG = np.random.default_rng(0)


def pixels(*classes):
    """White images of one pixel."""
    images = torch.full((len(classes), 1, 1, 1), 255, dtype=torch.uint8)
    return Samples(images, torch.tensor(classes))


def linear(*weights):
    """A network of one pixel, without a bias: its logits of a white image are the weights."""
    model = Architecture("mlp", 1, 1, 1, len(weights)).build()
    last_layer(model).weight.data = torch.tensor(weights).view(-1, 1)
    last_layer(model).bias.data = torch.arange(float(len(weights))) / 1024
    return model


def mah(model, samples, public=(10, 11, 12), outputs="most-activated", **received):
    archive = pixels(*public) if public else None
    found = Received(public=archive, **received)
    return learner_of(MAH, model, samples, found, mah__outputs=outputs)


def held(auxiliary, before=None):
    nothing = [-1] * len(auxiliary)
    return {"auxiliary": torch.tensor(auxiliary), "before": torch.tensor(before or nothing)}


def test_the_outputs_of_classes_to_come_get_auxiliary_classes():
    """Classes 0 and 2 of five are there: the other three outputs get the three of the archive."""
    learner = mah(linear(0.0, 0.0, 0.0, 0.0, 0.0), pixels(0, 2, 2), (10, 11, 12, 12))
    auxiliary = learner.memory(RNG)["auxiliary"].tolist()
    assert (auxiliary[0], auxiliary[2]) == (-1, -1)
    assert sorted(auxiliary[1:2] + auxiliary[3:]) == [10, 11, 12]
    images = learner.samples.labels.bincount().tolist()
    assert images == [1, *(2 if auxiliary[c] == 12 else 1 for c in (1,)), 2] + [
        2 if auxiliary[c] == 12 else 1 for c in (3, 4)
    ]
    again = mah(linear(0.0, 0.0, 0.0, 0.0, 0.0), pixels(0, 2, 2), (10, 11, 12, 12))
    assert again.memory(RNG)["auxiliary"].tolist() == auxiliary


def test_too_few_auxiliary_classes_are_refused():
    words = "'mah.auxiliary' is '', with 1 classes: it must name an archive of 2 or more"
    with pytest.raises(SettingsError, match=words):
        mah(linear(0.0, 0.0, 0.0), pixels(0), (10,))
    with pytest.raises(SettingsError, match="with 0 classes"):
        mah(linear(0.0, 0.0, 0.0), pixels(0), ())


def test_where_all_classes_are_there_from_the_start_it_needs_no_archive():
    learner = mah(linear(0.0, 0.0), pixels(0, 1), ())
    assert learner.samples.labels.tolist() == [0, 1]


def test_the_largest_mean_logit_goes_first():
    """Both classes want output 1: the second has it, for 9 > 5, and the first its next best, 3."""
    logits = torch.tensor([[3.0, 5.0, 2.0], [8.0, 9.0, 3.0]])
    assert choose_outputs(logits).tolist() == [0, 1]


def test_a_new_class_takes_over_the_row_that_answers_most():
    """Class 1 comes. Of the outputs 1, 2, 3 with auxiliary classes, number 3 answers most, 0.9.

    Rows 1 and 3 change places, and auxiliary class 12 leaves; 10 is now at output 3. That output 0
    answers more does not count: its class has come.
    """
    model = linear(5.0, 0.1, 0.5, 0.9)
    learner = mah(model, pixels(1, 1), memory=held([-1, 10, 11, 12]))
    assert last_layer(model).weight.flatten().tolist() == pytest.approx([5.0, 0.9, 0.5, 0.1])
    assert (last_layer(model).bias * 1024).tolist() == [0.0, 3.0, 2.0, 1.0]
    memory = {name: each.tolist() for name, each in learner.memory(RNG).items()}
    assert memory == {"auxiliary": [-1, -1, 11, 10], "before": [-1, 12, -1, -1]}
    assert learner.samples.labels.tolist() == [1, 1, 3, 2]  # 10 and 11 of the archive


def test_in_order_a_new_class_has_the_next_row():
    """The same class 1: no row moves, and the auxiliary class 10 of its output leaves."""
    model = linear(5.0, 0.1, 0.5, 0.9)
    learner = mah(model, pixels(1, 1), outputs="in-order", memory=held([-1, 10, 11, 12]))
    assert last_layer(model).weight.flatten().tolist() == pytest.approx([5.0, 0.1, 0.5, 0.9])
    memory = {name: each.tolist() for name, each in learner.memory(RNG).items()}
    assert memory == {"auxiliary": [-1, -1, 11, 12], "before": [-1, 10, -1, -1]}
    assert learner.samples.labels.tolist() == [1, 1, 2, 3]  # 11 and 12 of the archive


def test_two_new_classes_find_rows_that_have_moved():
    """Class 1 takes the row of output 2, 0.9, and its own goes there; class 2 is to have that one.

    Means: class 1 (white) 0.4, 0.9 at outputs 1, 2; class 2 (black) has the biases alone, of which
    that of output 2 is the largest of 1 and 2, but it is taken. Of 1 and 3 it gets 3.
    """
    model = linear(5.0, 0.4, 0.9, 0.1)
    samples = concatenate([pixels(1), Samples(pixels(2).images * 0, torch.tensor([2]))])
    learner = mah(model, samples, memory=held([-1, 10, 11, 12]))
    assert last_layer(model).weight.flatten().tolist() == pytest.approx([5.0, 0.9, 0.1, 0.4])
    memory = {name: each.tolist() for name, each in learner.memory(RNG).items()}
    assert memory == {"auxiliary": [-1, -1, -1, 10], "before": [-1, 11, 12, -1]}


def test_a_swap_keeps_what_all_other_outputs_say():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Architecture("cnn", 1, 8, 8, 10).build().eval()
    before = model(digits(range(10)).images).detach()
    archive = Samples(digits(range(10)).images, digits(range(10)).labels + 100)
    memory = held([-1] * 4 + list(range(100, 106)))
    learner = learner_of(MAH, model, digits(range(4, 6)), Received(memory=memory, public=archive))
    after = model.eval()(digits(range(10)).images).detach()
    auxiliary, names = learner.memory(RNG)["auxiliary"], learner.memory(RNG)["before"]
    now = torch.where(auxiliary < 0, names, auxiliary)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    torch.testing.assert_close(after[:, 4:], before[:, 4 + now[4:] - 100])
    assert (auxiliary >= 0).sum() == 4


def test_classes_that_have_come_stay_where_they_are():
    model = linear(5.0, 0.1, 0.9)
    learner = mah(model, pixels(0, 1), memory=held([-1, -1, 12], [-1, 10, -1]))
    assert last_layer(model).weight.flatten().tolist() == pytest.approx([5.0, 0.1, 0.9])
    assert learner.memory(RNG)["before"].tolist() == [-1, 10, -1]


def test_kept_logits_are_compared_where_they_mean_the_same():
    """Outputs (0, A, B, C) when a row was kept; class 1 came and took the row of C: (0, 1, B, A).

    So the kept logits (1, 2, 3, 4) are (1, 4, 3, 2): their columns are swapped as the rows were.
    A row of another model, (0, C, 1, A) with 1 and 2 still to come, tells 1 by C, and A; not B.
    One in which class 1 had come as well, by another row, tells class 1 by that.
    """
    a, b, c = 10, 11, 12
    now, before = torch.tensor([-1, -1, b, a]), torch.tensor([-1, c, -1, -1])
    then = torch.tensor([[-1, a, b, c], [-1, c, 13, a], [-1, -1, b, c]])
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).expand(3, -1)
    targets, known = align(logits, then, now, before)
    assert targets.tolist() == [[1.0, 4.0, 3.0, 2.0], [1.0, 2.0, 0.0, 4.0], [1.0, 2.0, 3.0, 0.0]]
    assert known.tolist() == [[True] * 4, [True, True, False, True], [True, True, True, False]]


def test_the_distance_by_hand():
    """Outputs (1, 1, 1, 1), targets (1, 2, unknown, 4) of four: (0 + 1 + 0 + 9) / 4."""
    learner = mah(
        linear(0.0, 0.0, 0.0, 0.0), pixels(1), memory=held([-1, -1, 11, 10], [-1, 12, -1, -1])
    )
    kept = {
        "logits": torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "auxiliary": torch.tensor([[-1, 12, 13, 10]]),
    }
    assert learner.distance(torch.ones(1, 4), kept).item() == 2.5


def test_a_step_trains_on_both_and_keeps_the_task_alone():
    """Eq. 2.4 without anything kept: the cross-entropy over images of both."""
    model = linear(0.3, -0.2, 0.1)
    learner = mah(model, pixels(0, 0), (10, 11))
    batch = learner.samples
    assert sorted(batch.labels.tolist()) == [0, 0, 1, 2]
    logits = model(batch.images)
    loss = learner.observe(batch, draws())
    torch.testing.assert_close(loss, functional.cross_entropy(logits, batch.labels))
    kept = learner.rehearsal()
    assert (kept["labels"].tolist(), kept["seen"].item()) == ([0, 0], 2)
    torch.testing.assert_close(kept["logits"], logits[:2].detach())
    assert torch.equal(kept["auxiliary"], learner.auxiliary.expand(2, -1))


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("balance", ["none", "sampler"])
def test_public_images_do_not_fill_a_step(one_pass, balance, monkeypatch):
    """24 own images beside 400 public ones: with a policy a step has eight own ones, new or kept.

    Own images have pixels of their own.
    """
    new, kept = [], []
    observe = MAH.observe

    def note(learner, batch, draws):
        new.append(len(batch.images[batch.labels == 0].unique()))
        kept.append(len(learner.reservoir))
        return observe(learner, batch, draws)

    monkeypatch.setattr(MAH, "observe", note)
    own = Samples(torch.arange(24, dtype=torch.uint8).view(-1, 1, 1, 1), torch.zeros(24).long())
    received = Received(public=pixels(*[10, 11] * 200), min_batch=8)
    chosen = {"derpp__one_pass": one_pass, "train__class_balance": balance}
    learner = learner_of(MAH, linear(0.3, -0.2, 0.1), own, received, **chosen)
    config, soon = settings(train__batch_size=16, **chosen).train, time.monotonic() + 60
    train(learner, config, 1, np.random.default_rng(0), soon, fewest=8)
    assert len(new) > 2
    assert min(new) >= 8
    assert min(kept[1:]) >= 8


def test_without_a_policy_public_images_are_images_like_others():
    learner = mah(linear(0.3, -0.2, 0.1), pixels(0, 0), (10, 11))
    assert (learner.counted, len(learner.samples)) == (None, 4)


def test_of_one_kept_image_alone_nothing_is_replayed():
    """BatchNorm cannot train on it; it was kept in a batch of auxiliary images but for it."""
    kept = {
        "images": pixels(0).images,
        "labels": pixels(0).labels,
        "logits": torch.ones(1, 2),
        "auxiliary": torch.tensor([[-1, 10]]),
        "seen": torch.tensor(1),
    }
    model = linear(0.3, -0.2)
    learner = mah(model, pixels(0), (10,), memory=held([-1, 10]), rehearsal=kept)
    loss = learner.observe(pixels(0), draws())
    expected = functional.cross_entropy(model(pixels(0).images), pixels(0).labels)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (held([-1, 10, 10]), "names a class twice, or one that the archive"),
        (held([-1, 10, 99]), "names a class twice, or one that the archive"),
        (held([-1, 10, -2]), "names a class twice, or one that the archive"),
        (held([-1, 10, 11], [99, -1, -1]), "names a class twice, or one that the archive"),
        (held([-1, 10]), r"has 'auxiliary' as torch.int64 \[2\]"),
        ({"auxiliary": torch.tensor([-1, 10, 11])}, "lacks 'before'"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(memory, words):
    with pytest.raises(UselessError, match=words):
        mah(linear(0.0, 0.0, 0.0), pixels(0), memory=memory)


def test_an_optimizer_s_state_does_not_travel_with_rows_that_are_exchanged():
    chosen = settings(train__optimizer_state="travels", mah__auxiliary="public:/a.npz")
    with pytest.raises(SettingsError, match=r"'train\.optimizer-state' is 'travels'; .*mah"):
        MAH.check_suited(linear(0.0, 0.0), chosen)


@pytest.mark.slow
def test_output_c_is_class_c_on_a_stream():
    """Digits 0 to 2, then 3 and 4; those from 5 on hold the outputs of 3 and 4 meanwhile."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Architecture("mlp", 1, 8, 8, 5, (64,)).build()
    settled, received = settings(train__learning_rate=0.01), Received(public=digits(range(5, 10)))
    for task, classes in enumerate((range(3), range(3, 5)), start=1):
        rng = np.random.default_rng(task)
        found = Received(
            memory=received.memory, rehearsal=received.rehearsal, public=received.public
        )
        learner = MAH(model, digits(classes), settled, found)
        train(learner, settled.train, 5, rng, time.monotonic() + 60)
        received = Received(
            memory=learner.memory(rng), rehearsal=learner.rehearsal(), public=found.public
        )
    assert received.memory["auxiliary"].tolist() == [-1] * 5
    for classes in (range(3), range(3, 5)):
        samples = digits(classes)
        judged = score(probabilities(model, samples.images, time.monotonic() + 60), samples.labels)
        assert judged["accuracy"] > 0.8
