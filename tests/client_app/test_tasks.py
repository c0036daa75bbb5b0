"""Which images of a hospital arrive when, and what it tells of them, on few images by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from client_app import hospital as hospital_module
from client_app.afterwards import home
from client_app.app import app
from client_app.authority.policy import Policy, PolicyError
from client_app.datasets import LocalData, open_data
from client_app.datasets.pool import LocalSamples
from client_app.datasets.tasks import Tasks
from client_app.errors import DataError
from client_app.hospital import open_hospital
from client_app.release import disclosure
from client_app.release.disclosure import Disclosure, Noised, open_disclosure
from client_app.release.noise import effects_of_tasks, step_of
from client_app.session import session_for
from client_app.store import Store
from learning.evaluation import score
from learning.models import Architecture
from strategies.protocol.classes import outputs
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, bundle, parcel_in
from strategies.protocol.records import to_record
from strategies.protocol.settings import SettingsError
from strategies.protocol.streams import task_at
from tests.fakes import context, deployment, run_config, settings

SIX = tuple("abcdef")


def local(labels, classes=SIX, given=None, groups=None, test=None, **changes) -> LocalData:
    """Images [n, 2, 1, 3] of these classes, all of whose pixels differ; two tasks, by classes."""
    test = labels if test is None else test

    given = None if given is None else np.array(given)

    def samples(labels, start, **facts):
        pixels = torch.arange(start, start + 6 * len(labels)).to(torch.uint8)
        images, labels = pixels.view(-1, 2, 1, 3), torch.tensor(labels)
        return LocalSamples(images, labels, manifest_tasks=given, **facts)

    chosen = settings(**{"tasks": 2, **changes})
    files = [f"file {k}" for k in range(len(labels))]
    groups = None if groups is None else np.array(groups)
    return LocalData(
        samples(labels, 0, fingerprint="train", contents=files),
        samples(test, 100, fingerprint="test", groups=groups),
        classes,
        tasks=Tasks(chosen, classes) if chosen.tasks > 1 else None,
    )


def test_by_classes_every_class_keeps_its_output():
    data = local([0, 1, 2, 3, 4, 5], tasks=3, test=[5, 2, 0, 3])
    second = data.images_at(2)
    assert second.classes == SIX
    assert second.train.labels.tolist() == [2, 3]
    assert second.train.images.equal(data.train.images[2:4])
    assert second.train.contents == ["file 2", "file 3"]
    assert second.test.labels.tolist() == [0, 2, 3]
    assert second.test.images.equal(data.test.images[[2, 1, 3]])
    assert second.train.tasks is not None
    assert second.test.tasks is not None
    assert (second.train.tasks.tolist(), second.test.tasks.tolist()) == ([2, 2], [1, 2, 2])
    assert data.images_at(1).train.labels.tolist() == [0, 1]
    assert data.train_so_far(2).labels.tolist() == [0, 1, 2, 3]


def test_attacks_compare_with_test_images_of_the_trained_task():
    data = local([0, 1, 2, 3, 4, 5], tasks=3, task_cut="shared-classes", test=[5, 2, 0, 3])
    second = data.images_at(2)
    held_out = second.held_out
    assert held_out.tasks is not None
    assert (held_out.labels.tolist(), held_out.tasks.tolist()) == ([0, 1], [2, 2])
    assert held_out.images.equal(data.test.images[[1, 3]])
    assert held_out.patients.tolist() == second.test.patients[1:].tolist()
    assert len(data.images_at(0).held_out) == 4  # a single pass trains all tasks
    assert data.held_out is data.test
    permuted = local([0, 1], task_cut="permuted", tasks=3, groups=[7, 8]).images_at(2)
    assert permuted.held_out.images.equal(permuted.test.images[2:])
    assert permuted.held_out.patients.tolist() == [7, 8]


def test_a_model_at_home_counts_the_images_of_all_tasks(tmp_path):
    config = run_config(tasks=2, partition="iid")
    hospital = open_hospital(context(0, 20, config, **{"store-dir": str(tmp_path)}))
    request = SimpleNamespace(hospital=hospital.select_task(2), run=Store(tmp_path / "7"))
    disclosure: Any = SimpleNamespace(request=request, smallest=1)
    network = Architecture("mlp", 1, 8, 8, 10, (4,)).to_json()
    label = Manifest("graz", network, [*map(str, range(10))], hashes=["model=0"])
    manifest = home._manifest(disclosure, label, {})
    (counts,) = manifest.images.values()
    assert len(request.hospital.data.train) < counts["train"] == len(hospital.data.train)
    assert manifest.tasks == 2


def test_shared_classes_share_outputs():
    data = local([0, 1, 2, 3, 4, 5], tasks=3, task_cut="shared-classes", test=[5, 2, 0, 3])
    second = data.images_at(2)
    assert second.classes == ("a/c/e", "b/d/f")
    assert second.train.labels.tolist() == [0, 1]
    assert second.train.images.equal(data.train.images[2:4])
    assert second.test.labels.tolist() == [0, 0, 1]
    assert data.images_at(3).train.images.equal(data.train.images[4:])


def test_classes_beyond_those_of_the_tasks_take_no_part():
    data = local([0, 1, 2, 3, 4, 5], task_classes=2)
    assert data.images_at(2).classes == tuple("abcd")
    assert data.images_at(2).test.labels.tolist() == [0, 1, 2, 3]
    assert data.images_at(0).train.labels.tolist() == [0, 1, 2, 3]
    assert data.quarantined == data.images_at(2).quarantined == 0


def test_permuted_pixels_are_the_same_pixels_in_an_order_of_the_task():
    """Everywhere the same order, for all channels; the copies of an image are of one patient."""
    data = local([0, 1, 0], task_cut="permuted", tasks=5, groups=[7, 8, 8])
    assert data.images_at(1).train.images.equal(data.train.images)
    fifth = data.images_at(5)
    assert fifth.train.labels.tolist() == [0, 1, 0]
    assert len(fifth.test) == 15
    assert fifth.test.patients.tolist() == [7, 8, 8] * 5
    orders = set()
    for task, images in zip(range(1, 6), fifth.test.images.split(3), strict=True):
        first = images[0, 0, 0] - data.test.images[0, 0, 0, 0]
        orders.add(tuple(first.tolist()))
        assert images.equal(data.test.images[:, :, :, first.long()])
        assert data.images_at(task).train.images.equal(data.train.images[:, :, :, first.long()])
    assert len(orders) > 1  # of 3! = 6
    other = local([0, 1, 0], task_cut="permuted", tasks=5, seed=1).images_at(5)
    assert not other.test.images.equal(fifth.test.images)
    assert data.train_so_far(5).images.shape == (15, 2, 1, 3)


def test_copies_of_an_image_are_of_one_patient_where_no_patients_are_named():
    data = local([0, 1, 0], task_cut="permuted")
    assert data.images_at(1).test.groups is None
    assert data.images_at(2).test.patients.tolist() == [0, 1, 2] * 2
    assert local([0, 1, 2]).images_at(2).test.groups is None


def test_the_data_say_in_which_task_an_image_arrives():
    data = local([0, 1, 0, 1], given=[2, 1, 1, 2], task_cut="given")
    assert data.images_at(1).train.images.equal(data.train.images[[1, 2]])
    assert data.images_at(2).test.labels.tolist() == [1, 0, 0, 1]
    assert data.images_at(2).classes == SIX


@pytest.mark.parametrize("given", [None, [1, 0, 1, 2], [1, 3, 1, 2]])
def test_data_that_do_not_say_it_are_refused(given):
    with pytest.raises(DataError, match="must have a number from 1 to 2 for every image"):
        local([0, 1, 0, 1], given=given, task_cut="given").images_at(1)


def test_without_tasks_all_images_are_there():
    data = local([0, 1], tasks=1)
    assert data.images_at(0) is data
    assert data.train_so_far(0) is data.train
    assert data.test.strata.tolist() == [0, 1]


def test_at_task_0_every_image_is_there_once():
    assert local([5, 0, 3], task_cut="shared-classes").images_at(0).train.labels.tolist() == [
        0,
        2,
        0,
    ]
    assert len(local([0, 1], task_cut="permuted", tasks=3).images_at(0).test) == 2


def test_cuts_by_classes_copy_no_pixels():
    """Memory stays that of what is opened."""
    data = local([0, 1, 2, 3, 4, 5])
    assert data.images_at(2).train.pixels.data_ptr() == data.train.pixels.data_ptr()


def test_fingerprints_tell_tasks_and_cuts_apart():
    """The same images in other tasks are another question: figures of tasks are about them."""
    cases = [
        local([0, 1, 2, 3, 4, 5], **change).images_at(task)
        for change in (
            {},
            {"tasks": 3},
            {"task_cut": "shared-classes"},
            {"task_cut": "permuted"},
            {"task_cut": "permuted", "seed": 1},
        )
        for task in (1, 2)
    ]
    assert len({data.test.fingerprint for data in cases}) == len(cases)
    assert len({data.train.fingerprint for data in cases}) == len(cases)
    again = local([0, 1, 2, 3, 4, 5], train__epochs=7).images_at(1)
    assert again.test.fingerprint == cases[0].test.fingerprint


@pytest.mark.parametrize(
    ("classes", "changes", "message"),
    [
        (5, {}, "'task-classes' is 0; it must be 1 to 2 with 5 classes in 2 tasks"),
        (5, {"task_classes": 3}, "'task-classes' is 3; it must be 1 to 2 with 5 classes"),
        (3, {"tasks": 4}, "'tasks' is 4; it must be 3 or less with 3 classes"),
        (6, {"tasks": 4, "task_cut": "shared-classes"}, "'tasks' is 4; it must be 3 or less with"),
        (6, {"task_classes": 1, "task_cut": "shared-classes"}, "must be 2 to 3 with 6 classes"),
    ],
)
def test_classes_that_cannot_be_cut(classes, changes, message):
    with pytest.raises(SettingsError, match=message):
        outputs([str(k) for k in range(classes)], settings(**{"tasks": 2, **changes}))


def test_outputs_of_emnist():
    names = [str(k) for k in range(47)]
    chosen = settings(tasks=4, task_cut="shared-classes", task_classes=10)
    assert outputs(names, chosen)[::9] == ["0/10/20/30", "9/19/29/39"]
    assert outputs(names, settings(tasks=4, task_cut="classes", task_classes=10)) == names[:40]
    for other in ({"tasks": 1}, {"task_cut": "permuted"}, {"task_cut": "given"}):
        assert outputs(names, settings(**{"tasks": 4, **other})) == names


# What is told of them.


NO_TASK = Order(1, 1, "graz", [], "plain", "1")


def disclosed(tmp_path, data, policy: str | None = "", order=NO_TASK) -> Disclosure:
    """Of a hospital with an empty policy, which has the defaults; None = a simulated one."""
    (tmp_path / "policy.toml").write_text(policy or "", "utf-8")
    read = None if policy is None else Policy.read(tmp_path / "policy.toml")
    hospital = SimpleNamespace(data=data, policy=read, store=Store(tmp_path))
    request: Any = SimpleNamespace(
        hospital=hospital, seal=None, run=Store(tmp_path / "runs/1"), order=order
    )
    return open_disclosure(request)


def saying(labels, classes):
    return torch.eye(classes)[torch.tensor(labels)]


def test_the_accuracy_of_each_task_is_told(tmp_path):
    """Of images of the classes a a b b c c, the model says a b b b c a.

    Of the last one it says a, then c, then d: within its task it is right.
    """
    data = local([0, 0, 1, 1, 2, 2], tuple("abcd")).images_at(2)
    says = saying([0, 1, 1, 1, 2, 0], 4)
    says[5] = torch.tensor([0.5, 0.0, 0.3, 0.2])
    told = disclosed(tmp_path, data, None).test_figures("m", says)
    tasks = {"accuracy-of-task-1": 0.75, "accuracy-of-task-2": 0.5}
    tasks |= {"accuracy-in-task-1": 0.75, "accuracy-in-task-2": 1.0}
    assert told == {**score(says, data.test.labels), **tasks}
    at_first = disclosed(tmp_path, local([0, 1]).images_at(1), None).test_figures(
        "m", saying([0, 0], 6)
    )
    assert at_first["accuracy-of-task-1"] == at_first["accuracy"] == 0.5


def test_a_class_that_has_not_arrived_is_no_answer(tmp_path):
    """The model says c of an image of b while c has not arrived: of a and b it says b."""
    data = local([0, 1, 2, 3], tuple("abcd"))
    says = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.3, 0.6, 0.0]])
    order = Order(1, 1, "graz", [], "plain", "1", task=1)
    assert (
        disclosed(tmp_path, data.images_at(1), None, order).test_figures("m", says)["accuracy"]
        == 1.0
    )
    scores = torch.cat([says, saying([2, 3], 4)])
    order = replace(order, task=2)
    assert (
        disclosed(tmp_path, data.images_at(2), None, order).test_figures("m", scores)["accuracy"]
        == 0.75
    )


def test_shared_outputs_have_no_accuracy_within_a_task(tmp_path):
    data = local([0, 1, 2, 3], tuple("abcd"), task_cut="shared-classes").images_at(2)
    told = disclosed(tmp_path, data, None).test_figures("m", saying([0, 1, 0, 1], 2))
    assert [name for name in told if "-in-task-" in name] == []
    assert told["accuracy-of-task-2"] == 1.0


def test_tests_are_on_the_tasks_that_have_arrived(tmp_path):
    data = local([0, 0, 1, 1, 2, 2], tuple("abc"), tasks=3).images_at(2, [1, 2])
    assert data.train.labels.tolist() == [1, 1]
    assert data.test.labels.tolist() == [0, 0, 1, 1]
    data = local([0, 0, 1, 1, 2, 2], tuple("abc"), tasks=3).images_at(1, [1, 3])
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0], [0, 0, 2, 2])


def test_a_class_of_few_patients_hides_behind_no_other_task(tmp_path):
    """Classes a and c share an output; c has nine patients, and no figure is about them."""
    labels = [0] * 400 + [1] * 400 + [2] * 9 + [3] * 400
    data = local(labels, tuple("abcd"), task_cut="shared-classes").images_at(2)
    figures = disclosed(tmp_path, data)
    assert len(figures.labels) == 1200
    right = [0] * 400 + [1] * 400 + [0] * 9 + [1] * 400
    wrong = [0] * 400 + [1] * 400 + [1] * 9 + [1] * 400
    told = figures.test_figures("m", saying(right, 2), per_class=True)
    assert told == figures.test_figures("m", saying(wrong, 2), per_class=True)
    assert told["accuracy-of-task-1"] > 0.5
    assert told["images-of-class-0"] == 400


def test_numbers_of_images_are_sums_of_rounded_ones(tmp_path):
    """14 and 16 images of two classes are told as 10 and 20, not as 30 or as what else a sum is."""
    labels = [0] * 14 + [1] * 14 + [2] * 14 + [3] * 14
    data = local(labels, tuple("abcd"), task_cut="shared-classes")
    assert disclosed(tmp_path, data.images_at(1)).counts()["num-test"] == 20
    assert disclosed(tmp_path, data.images_at(2)).counts() == {
        "num-train": 20,
        "num-test": 40,
        "num-quarantined": 0,
    }
    without = local(labels, tuple("abcd"), tasks=1)
    assert disclosed(tmp_path, without).counts()["num-test"] == 60


def test_effects_on_tasks_by_hand():
    """Patient 0 has 1 of 2 images of task 1 and 2 of 4 of task 2: half of each.

    Nobody has more of either, so the length of his vector is that of (1, 1).
    """
    found = effects_of_tasks(np.array([0, 1, 0, 0, 2, 3]), np.array([1, 1, 2, 2, 2, 2]))
    assert found == pytest.approx(
        {"accuracy-of-task-1": 0.5 * 2**0.5, "accuracy-of-task-2": 0.5 * 2**0.5}
    )
    apart = effects_of_tasks(np.arange(5), np.array([1, 1, 2, 2, 2]))
    assert apart == {"accuracy-of-task-1": 0.5, "accuracy-of-task-2": pytest.approx(1 / 3)}
    assert effects_of_tasks(np.array([], dtype=np.int64), np.array([], dtype=np.int64)) == {}


def test_each_task_that_shows_an_image_again_has_more_noise(tmp_path):
    """With T tasks of the same n images a model has T figures of each patient: √T more noise."""
    data = local([0, 1] * 200, tuple("ab"), task_cut="permuted", tasks=4)
    figures = [disclosed(tmp_path, data.images_at(task)) for task in (1, 4)]
    steps = [
        each.deviations(["accuracy-of-task-1", "accuracy"])
        for each in figures
        if isinstance(each, Noised)
    ]
    assert steps[0]["accuracy-of-task-1"] == steps[0]["accuracy"] == steps[1]["accuracy"]
    assert steps[1]["accuracy-of-task-1"] == step_of(2 / 400, 1000) > steps[0]["accuracy"]


# What is done with them.


@pytest.fixture(autouse=True)
def _known_secret(monkeypatch):
    """The same noise in every test run."""
    monkeypatch.setattr(disclosure, "secret_of", lambda store: b"secret")


def write_pictures(folder, sizes):
    """An archive for `npz:` of 4 x 4 pixels, with so many images of each class to train on.

    As many are there to test on, whatever `test-fraction` is.
    """
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        arrays[f"{part}_x_0"] = rng.integers(0, 256, (len(labels), 4, 4), dtype=np.uint8)
        arrays[f"{part}_y_0"] = labels
    path = folder / f"{'-'.join(map(str, sizes))}.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return f"npz:{path}"


def test_a_hospital_opens_its_images_once_for_all_tasks(tmp_path, monkeypatch):
    """Also if 100 others are opened between two tasks; the next run opens them anew."""
    opened = []

    def noted(*args):
        opened.append(args)
        return open_data(*args)

    monkeypatch.setattr(hospital_module, "open_data", noted)
    dataset = write_pictures(tmp_path, [10, 10, 10, 10])
    place = context(0, 1, run_config(dataset=dataset, partition="iid", tasks=2))
    sessions = [session_for(place, "", tuple("0123"), "run")]
    sessions += [session_for(place, f"other-{k}", tuple("0123"), "run") for k in range(100)]
    again = session_for(place, "", tuple("0123"), "run")
    assert again is sessions[0]
    assert len(opened) == 101
    hospitals = [again.hospital.select_task(task) for task in (1, 2, 1)]
    assert [each.data.train.labels.unique().tolist() for each in hospitals] == [
        *([0, 1], [2, 3]),
        [0, 1],
    ]
    next_run = context(0, 1, run_config(dataset=dataset, partition="iid", tasks=2, seed=1))
    session_for(next_run, "", tuple("0123"), "run")
    assert session_for(place, "", tuple("0123"), "run") is not again
    assert len(opened) == 103


def test_everyone_s_images_are_those_of_all_tasks_so_far(tmp_path):
    config = run_config(partition="iid", tasks=5, task_cut="shared-classes")
    hospital = open_hospital(context(1, 3, config)).select_task(2)
    everyone = hospital.images_of_all()
    assert everyone.labels.unique().tolist() == [0, 1]
    assert hospital.data.classes == ("0/2/4/6/8", "1/3/5/7/9")
    parts = [
        open_hospital(context(k, 3, config)).select_task(t).data for k in range(3) for t in (1, 2)
    ]
    assert len(everyone) == sum(len(part.train) for part in parts)


class Asked:
    """A hospital that is asked things, by default a real one with an empty policy for open runs.

    It has so many images of each class to train on.
    """

    def __init__(self, folder, sizes, policy="", deployed=True, **config):
        self.classes = [str(k) for k in range(len(sizes))]
        dataset = write_pictures(folder, sizes)
        usual = {"strategy": "rwt", "partition": "iid", "model": "mlp", "mlp__hidden": "4"}
        settings = run_config(
            **{**usual, "tasks": 2, **config},
            train__epochs=1,
            test_fraction=0.5,
            num_server_rounds=4,
        )
        if deployed:
            (folder / "policy.toml").write_text(f"runs.sealed-only = false\n{policy}", "utf-8")
            node = {"dataset": dataset, "store_dir": folder / "store", "site": "graz"}
            self.place = deployment(settings, policy=folder / "policy.toml", **node)
        else:
            self.place = context(0, 1, {**settings, "dataset": dataset})

    def __call__(self, verb, content=None, **order):
        fields = {"round": 1, "hop": 1, "hospital": "graz", "learner": "plain", "run": "1"}
        fields |= {"classes": self.classes, "task": 1}
        if verb.startswith("query."):
            fields |= {"round": 0, "hop": 0}
        elif verb == "evaluate":
            fields["round"] = 4  # all tasks have arrived
        elif order.get("task") == 2:  # that of the rounds 3 and 4
            fields["round"] = 3
        asked = to_record(Order(**{**fields, **order}))
        parcels = content or {}
        return app(Message(RecordDict({**parcels, "order": asked}), 100, verb), self.place)

    def train(self, **order):
        parcel = parcel_in(self("query.prepare", round=0, hop=0).content)
        return self("train", parcel, epochs=1, **order)

    def test(self, **order):
        parcel = parcel_in(self("query.prepare", round=0, hop=0).content)
        return self("evaluate", bundle({"graz": parcel}), **order)


@pytest.mark.parametrize(
    ("verb", "task"), [("query.prepare", 0), ("query.prepare", 3), ("query.enrol", 1)]
)
def test_an_order_for_another_task_is_refused(verb, task, tmp_path):
    answer = Asked(tmp_path, [10] * 4)(verb, task=task, code=code_hash())
    assert answer.error.code == Failure.PARCEL
    assert f"has task {task}, which" in answer.error.reason
    answer = Asked(tmp_path, [10] * 4, tasks=1)(verb, task=1, code=code_hash(), run="2")
    assert "has task 1, which" in answer.error.reason


@pytest.mark.parametrize(
    ("verb", "round_", "arrived"),
    [
        ("evaluate", 1, [3]),
        ("evaluate", 1, [0, 1]),
        ("evaluate", 1, [1, 1]),
        ("evaluate", 1, "other"),
        ("train", 1, "other"),
        ("query.prepare", 0, "other"),
        ("query.prepare", 0, "own"),
    ],
)
def test_an_order_to_test_on_no_such_tasks_is_refused(verb, round_, arrived, tmp_path):
    """Without test images of the task, a hospital could not attack what it has trained."""
    streams = {"strategy": "fedavg", "task_order": "shuffled"}
    hospital = Asked(tmp_path, [10] * 4, **streams)
    task = task_at(settings(**streams, tasks=2, num_server_rounds=4), 1, "graz")
    tasks = {"own": [task], "other": [3 - task]}.get(str(arrived), arrived)
    answer = hospital(verb, task=task, round=round_, arrived=tasks)
    assert answer.error.code == Failure.PARCEL
    assert "has arrived" in answer.error.reason


def test_a_task_below_0_is_no_task(tmp_path):
    answer = Asked(tmp_path, [10] * 4)("query.prepare", task=-1)
    assert answer.error.reason.endswith("'task' of the order has an impossible value.")


def test_preparing_tells_of_all_tasks_and_visits_of_one(tmp_path):
    hospital = Asked(tmp_path, [10, 10, 12, 12], deployed=False)
    told = [hospital("query.prepare", round=0, task=task).content for task in (1, 2)]
    assert told[0]["card"] == told[1]["card"]
    for each in told:
        assert each["metrics"]["num-train"] == each["metrics"]["num-test"] == 44
        assert each["metrics"]["train-images-of-class-3"] == 12
    for task, images in ((1, 20), (2, 24)):
        assert hospital.train(task=task).content["metrics"]["num-examples"] == images
    figures = hospital.test(task=2).content["metrics"]
    assert figures["graz/num-examples"] == 44
    assert {"graz/accuracy-of-task-1", "graz/accuracy-of-task-2"} <= figures.keys()


@pytest.mark.usefixtures("_quick_buffers")
def test_a_buffer_is_made_of_the_task_that_the_order_names(tmp_path):
    hospital = Asked(tmp_path, [10] * 4, deployed=False)
    for task, classes in ((1, {0, 1}), (2, {2, 3})):
        asked = {"round": 0, "hop": 0, "learner": "feder", "buffer_size": 8, "task": task}
        buffer = hospital("query.prepare", **asked).content["buffer"]
        assert set(buffer["labels"].numpy().tolist()) == classes


def test_a_task_without_images_fails_as_data(tmp_path):
    """The hospital has no image of the classes 2 and 3, which others have; it still tests."""
    hospital = Asked(tmp_path, [10, 10], deployed=False)
    hospital.classes = list("0123")
    answer = hospital.train(task=2)
    assert answer.error.code == Failure.DATA
    assert answer.error.reason.endswith("The hospital has too few images to train on of task 2.")
    figures = hospital.test(task=2).content["metrics"]
    assert "graz/accuracy-of-task-1" in figures
    assert "graz/accuracy-of-task-2" not in figures
    hospital.classes = ["!", "/", "0", "1"]  # as if theirs were those of the second task
    answer = hospital.test(task=1)
    assert answer.error.code == Failure.DATA
    assert answer.error.reason.endswith("has too few test images of the tasks so far.")


def test_a_task_of_few_patients_is_not_trained_on(tmp_path):
    """The server chooses tasks: a model of one patient's images would tell them.

    Nor does it depend on how many there are, unless a class has enough of them: 9 and 9 or none.
    """

    def asked(*sizes, policy=""):
        (folder := tmp_path / f"{sizes} {policy[:1]}").mkdir()
        return Asked(folder, sizes, policy)

    assert not asked(20, 20, 40, 1).train(task=2).has_error()
    # Of 29 and 19 a server that chooses the classes may learn that they are 20 and 10 or more.
    for few in ([39, 9], [9, 9], [1, 1], [29, 19]):
        assert asked(20, 20, *few).train(task=2).error.code == Failure.POLICY
    for few in ([9, 9], [1, 1]):
        assert asked(*few, 20, 20).test(task=1).error.code == Failure.DATA
    policy = "figures.smallest-group = 9\nimages.min-train-patients = 18"
    assert not asked(20, 20, 9, 9, policy=policy).train(task=2).has_error()


def test_tasks_cannot_leave_out_a_class_that_takes_part(tmp_path):
    """Otherwise two choices would tell how many images it has."""
    hospital = Asked(tmp_path, [20] * 5, task_classes=2)
    answer = hospital("query.prepare", round=0)
    assert answer.error.code == Failure.POLICY
    chosen = "images.classes = ['0', '1', '2', '3']"
    hospital = Asked(tmp_path, [20] * 5, policy=chosen, task_classes=2)
    assert not hospital("query.prepare", round=0).has_error()


def test_tasks_that_copy_images_stay_within_the_memory(tmp_path):
    """Of 64 images of 16 bytes to train on and as many to test on, and four times those."""
    policy = "machine.max-memory-gb = 0.000005"  # 5 x 64 x 16 bytes are more
    permuted = {"task_cut": "permuted", "tasks": 4}
    hospital = Asked(tmp_path, [10] * 4, policy, **permuted)
    place = open_hospital(hospital.place, classes=tuple("0123"))
    assert len(place.select_task(3).data.test) == 120
    with pytest.raises(PolicyError, match="machine"):
        place.select_task(4)
    place = open_hospital(Asked(tmp_path, [10] * 4, policy, tasks=4).place, classes=tuple("0123"))
    assert len(place.select_task(4).data.test) == 40


def test_who_withholds_the_accuracy_withholds_that_of_each_task(tmp_path):
    sizes = [100] * 4
    for withheld, stays in (("accuracy", False), ("accuracy-of-task-#", False), ("auroc", True)):
        policy = f"figures.withheld = ['{withheld}']"
        figures = Asked(tmp_path, sizes, policy).test(task=2).content["metrics"]
        assert ("graz/accuracy-of-task-1" in figures) == stays
        assert ("graz/accuracy-in-task-1" in figures) == stays
        assert ("graz/accuracy" in figures) == (withheld != "accuracy")


def test_a_model_counts_again_at_every_task(tmp_path):
    """Each task is another question, with other noise: where two may be asked, the third is not."""
    policy = "figures.max-models = 2"
    hospital = Asked(tmp_path, [100] * 6, policy, tasks=3, evaluate__every=4)
    told = [hospital.test(task=task).content["metrics"] for task in (1, 2, 1, 3)]
    assert told[0]["graz/accuracy-of-task-1"] == told[2]["graz/accuracy-of-task-1"]
    assert told[0]["graz/accuracy-of-task-1"] != told[1]["graz/accuracy-of-task-1"]
    assert told[3]["graz/refused"] == Failure.POLICY
