"""Crafted models that ask a hospital about its test images, in `evaluate` and in visits.

The attacker runs the server, and in a sealed run is a member as well.
"""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from client_app import request
from client_app.app import app
from client_app.authority.identity import Identity
from client_app.authority.policy import PolicyError
from client_app.authority.sealing import Seal
from client_app.hospital import open_hospital
from client_app.release import disclosure
from client_app.release.noise import step_of
from learning.models import Architecture
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.parcel import Manifest, bundle, pack
from strategies.protocol.records import to_record
from strategies.protocol.settings import Settings
from strategies.protocol.streams import task_at
from tests.fakes import context, deployment, run_config

SIDE = 4
PIXELS = SIDE * SIDE
TINY = 3e-6
OPEN = "[runs]\nsealed-only = false\n"


pytestmark = pytest.mark.usefixtures("known_secret")


class Victim:
    """A hospital with so many images of each class, of which it tests on a fifth.

    Pixel 0 is the attacker's best luck: it is white in one test image of the last class alone.
    """

    def __init__(self, folder, sizes, policy=OPEN, *, deployed=True, config=None):
        rng = np.random.default_rng(1)
        labels = np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)
        images = rng.integers(0, 256, (len(labels), SIDE, SIDE), dtype=np.uint8)
        images[:, 0, 0] = 0
        self.folder, self.classes = folder, [str(k) for k in range(len(sizes))]
        self.config = run_config(**{"strategy": "rwt", "num_server_rounds": 1, **(config or {})})
        (folder / "policy.toml").write_text(policy, "utf-8")
        node = {"dataset": f"npz:{folder}/a.npz", "store_dir": folder / "store", "site": "graz"}
        self.place = deployment(self.config, policy=folder / "policy.toml", **node)
        if not deployed:
            dashed = {key.replace("_", "-"): str(value) for key, value in node.items()}
            self.place = context(0, 1, self.config, **dashed)
        self._write(images, labels, "a")
        test = open_hospital(self.place, classes=tuple(self.classes)).data.test
        assert test.rows is not None
        (chosen, *_) = test.rows[test.labels == len(sizes) - 1].tolist()
        images[chosen, 0, 0] = 255
        self.image = images[chosen].reshape(-1)
        self._write(images, labels, "b")
        self.place.node_config["dataset"] = f"npz:{folder}/b.npz"

    def _write(self, images, labels, name):
        parts = {"train": slice(-1), "test": slice(-1, None)}
        arrays = {f"x_{part}": images[chosen] for part, chosen in parts.items()}
        arrays |= {f"y_{part}": labels[chosen] for part, chosen in parts.items()}
        np.savez(self.folder / f"{name}.npz", allow_pickle=False, **arrays)

    def ask(self, verb, content, **order):
        fields = {"round": 1, "hop": 1, "hospital": "graz", "learner": "plain", "run": "1"}
        if verb.startswith("query."):
            fields |= {"round": 0, "hop": 0}
        elif task := order.get("task"):
            settings = Settings.parse(self.place.run_config)
            rounds = range(1, settings.num_server_rounds + 1)
            fields["round"] = next(
                each for each in rounds if task_at(settings, each, "graz") == task
            )
        asked = to_record(Order(**{"classes": self.classes, **fields, **order}))
        content = RecordDict({**content, "order": asked})
        return app(Message(content, 100, verb, ttl=60.0), self.place)

    def figures(self, parcels, **order):
        answer = self.ask("evaluate", bundle(parcels), **order)
        assert not answer.has_error(), answer.error
        return [
            {key: answer.content["metrics"].get(f"{name}/{key}") for key in FIGURES}
            for name in parcels
        ]

    def linear(self, weights, bias, **label):
        """A model of one linear layer, as a parcel.

        Where it has no weights it has tiny ones, since exactly the same outputs are of no use.
        """
        weights = weights if np.any(weights) else np.full(np.shape(weights), TINY)
        network = Architecture("mlp", 1, SIDE, SIDE, len(self.classes))
        arrays = {"1.weight": np.asarray(weights, "f4"), "1.bias": np.asarray(bias, "f4")}
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        fields = {"lineage": "mallory", "architecture": network.to_json(), **label}
        return pack({"model": record}, Manifest(classes=self.classes, **fields))

    def constant(self, label, **place):
        """A model that gives the same class to every image."""
        return self.linear(
            np.zeros((len(self.classes), PIXELS)), np.eye(len(self.classes))[label], **place
        )

    def asking(self, pixel, least, corner=0.0, scale=1.0, **label):
        """A model that says the last class of an image whose pixel is at least so bright.

        With a `corner` it says so only if pixel 0 is white as well. Else it says class 0.
        """
        weights, bias = np.zeros((len(self.classes), PIXELS)), np.zeros(len(self.classes))
        weights[-1, pixel] = 1
        weights[-1, 0] += corner
        bias[-1] = -(least - 0.5) / 255 - corner
        bias[1:-1] = -1e3
        return self.linear(scale * weights, scale * bias, **label)


FIGURES = ("num-examples", "accuracy", "balanced-accuracy", "auroc", "refused")


def rebuild(victim):
    """The only test image of the last of three classes: eight models for each pixel, in 8 messages.

    Three constant models give n0 of the n images. A model that gets k images of class 0 and r, 0 or
    1, of the last class right has accuracy (k + r) / n and balanced accuracy (k / n0 + r) / 3.
    """
    constants = victim.figures({f"c{k}": victim.constant(k) for k in range(3)})
    n, n0 = constants[0]["num-examples"], constants[0]["num-examples"] * constants[0]["accuracy"]
    found = np.zeros(PIXELS, np.uint8)
    for bit in (128, 64, 32, 16, 8, 4, 2, 1):
        parcels = {f"m{j}": victim.asking(j, found[j] + bit) for j in range(PIXELS)}
        for j, told in enumerate(victim.figures(parcels)):
            right = (3 * told["balanced-accuracy"] - told["accuracy"] * n / n0) / (1 - 1 / n0)
            found[j] += bit * (right > 0.5)
    return found, [each["accuracy"] for each in constants]


SINGLE = (100, 100, 5)  # images of the classes: 20, 20 and 1 are tested on


def test_exact_figures_give_a_single_image_away(tmp_path):
    """The attack is real: a simulation, which has one owner, still answers exactly."""
    victim = Victim(tmp_path, SINGLE, deployed=False)
    found, counts = rebuild(victim)
    assert np.array_equal(found, victim.image)
    assert counts == pytest.approx([20 / 41, 20 / 41, 1 / 41])


@pytest.mark.slow
def test_a_single_image_is_in_no_figure(tmp_path):
    """By chance 64 of the 128 bits of the image are right."""
    victim = Victim(tmp_path, SINGLE)
    found, counts = rebuild(victim)
    assert (np.unpackbits(found) == np.unpackbits(victim.image)).mean() < 0.65
    assert counts[2] != pytest.approx(1 / 41)
    (told,) = victim.figures({"m": victim.constant(2)})
    assert told["num-examples"] == 40


def test_outputs_that_are_not_finite_for_one_image_are_no_answer_either(tmp_path):
    """The sum of two weights of 3e38 is not finite where pixel 0 is white, and another bright.

    Such weights are refused whatever the images are.
    """
    bright = int(Victim(tmp_path, SINGLE).image[1:].argmax()) + 1
    for pixels in ([0, bright], [0, 1], [bright]):
        victim = Victim(tmp_path, SINGLE)
        weights = np.zeros((3, PIXELS))
        weights[-1, pixels] = 3e38
        parcels = {"m": victim.linear(weights, np.zeros(3)), "c": victim.constant(0)}
        told = victim.figures(parcels)
        assert [each["refused"] for each in told] == [Failure.USELESS, None]


def test_whether_a_tested_model_is_refused_tells_of_no_image(tmp_path):
    """Its loss is huge for white corners alone, and random pixels are what decides."""
    told = []
    for sizes in (SINGLE, (40, 100, 50)):
        (folder := tmp_path / str(sizes)).mkdir()
        victim = Victim(folder, sizes)
        weights = np.zeros((3, PIXELS))
        weights[-1, 0] = 9e5
        told += victim.figures({"m": victim.linear(weights, np.zeros(3))})
    assert told[0]["refused"] == told[1]["refused"]


def single_out(victim, each):
    """The share of right answers to 120 questions about one patient, with so many models for each.

    The attacker knows how to single the patient out, and that about half of the answers are yes.
    """
    questions = [(pixel, least) for pixel in range(1, PIXELS) for least in range(16, 256, 32)]
    sums = np.zeros(len(questions))
    for copy in range(each):  # other weights, the same answers
        asked = {
            f"m{k}": victim.asking(*question, corner=1.0, scale=1 + copy / 1000)
            for k, question in enumerate(questions)
        }
        sums += [
            sum(told[key] or 0 for key in ("accuracy", "balanced-accuracy"))
            for told in victim.figures(asked)
        ]
    answers = [victim.image[pixel] >= least for pixel, least in questions]
    return ((sums > sums.mean()) == answers).mean()


@pytest.mark.slow
def test_a_patient_who_can_be_singled_out_stays_hidden_in_a_class_of_ten(tmp_path):
    """480 models, whose answers differ in one image out of 110, and are averaged."""
    (tmp_path / "exact").mkdir()
    assert single_out(Victim(tmp_path / "exact", (500, 50), deployed=False), 1) == 1
    assert single_out(Victim(tmp_path, (500, 50)), 4) < 0.65


def told_of_sizes(victim, fraction=0.2, classes=None):
    """All numbers of images that a hospital tells in a run, or how it fails."""
    victim.classes = classes or victim.classes
    victim.place.run_config["test-fraction"] = fraction
    run = f"{100 * fraction:.0f}-{'-'.join(victim.classes)}"
    answer = victim.ask("query.prepare", {}, run=run)
    if answer.has_error():
        return answer.error.code, answer.error.reason
    visit = victim.ask("train", victim.constant(0), epochs=1, run=run)
    told = {**answer.content["metrics"], **visit.content["metrics"]}
    return {name: value for name, value in told.items() if name.startswith("num-")}


def test_two_runs_with_other_classes_gave_the_size_of_a_rare_one(tmp_path):
    """The attack is real: the simulation still answers exactly, as does 'num-quarantined'."""
    victim = Victim(tmp_path, SINGLE, deployed=False)
    told, without = told_of_sizes(victim), told_of_sizes(victim, classes=["0", "1"])
    sizes = [sum(each[f"num-{part}"] for part in ("train", "test")) for each in (told, without)]
    assert sizes[0] - sizes[1] == without["num-quarantined"] == 5


def test_a_run_does_not_choose_whose_images_take_part(tmp_path, caplog):
    victim = Victim(tmp_path, SINGLE)
    code, reason = told_of_sizes(victim, classes=["0", "1"])
    assert (code, reason) == (Failure.POLICY, str(PolicyError("images.classes", "", "")))
    assert "images.classes allows runs with 0, 1, 2; the value is '0, 1'" in caplog.text
    (tmp_path / "policy.toml").write_text(OPEN + '[images]\nclasses = ["0", "1"]', "utf-8")
    told = [told_of_sizes(victim, classes=classes) for classes in (["0", "1"], ["1", "x", "0"])]
    assert told[0] == told[1]
    assert told[0]["num-quarantined"] == 0


@pytest.mark.slow
def test_no_number_of_images_depends_on_how_many_show_a_rare_class(tmp_path):
    """Nor on a few of a large one; whatever share is tested on. Rare are three, and nine."""
    for k in range(3):
        (tmp_path / str(k)).mkdir()
    hospitals = [
        Victim(tmp_path / str(k), sizes) for k, sizes in enumerate([(100, 100, 3), (100, 103, 9)])
    ]
    for fraction in (0.1, 0.2, 0.5):
        few, many = (told_of_sizes(each, fraction) for each in hospitals)
        assert few == many
        assert set(few) == {"num-train", "num-test", "num-quarantined", "num-examples"}
        assert not any(value % 10 for value in few.values())
    exact = Victim(tmp_path / "2", (100, 103, 9), deployed=False)
    assert told_of_sizes(exact)["num-train"] == 80 + 82 + 7


def answers_of_tasks(victim, classes, **config):
    """What a hospital tells of numbers, or why it tells nothing, at every task."""
    victim.place.run_config |= {"num-server-rounds": 4, **config}
    victim.place.run_config["train.learning-rate"] = 1e-30
    network = Architecture("mlp", 1, SIDE, SIDE, len(classes))
    weights = Array(np.full((len(classes), PIXELS), TINY, "f4"))
    record = ArrayRecord({"1.weight": weights, "1.bias": Array(np.zeros(len(classes), "f4"))})
    model = pack({"model": record}, Manifest("mallory", network.to_json(), list(classes)))
    for task in range(1, config["tasks"] + 1):
        order = {"run": f"{config['task-cut']}-{config['tasks']}-{task}", "task": task}
        tested = bundle({"m": model})
        for verb, sent in (("query.prepare", {}), ("train", model), ("evaluate", tested)):
            answer = victim.ask(verb, sent, epochs=int(verb == "train"), **order)
            if answer.has_error():
                yield {answer.error.reason: float(answer.error.code)}
            else:
                told = answer.content["metrics"].items()
                yield {name: each for name, each in told if "num-" in name or "images-of" in name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "tasks", "classes"),
    [
        ("classes", 2, "0123"),
        ("classes", 4, "0123"),
        ("shared-classes", 2, ["0/2", "1/3"]),
        ("permuted", 2, "0123"),
    ],
)
def test_no_choice_of_tasks_tells_how_many_show_a_rare_class(cut, tasks, classes, tmp_path):
    """Rare are three, and nine: neither numbers nor what is refused depend on it."""
    told = []
    for k, sizes in enumerate([(100, 100, 3, 3), (103, 100, 9, 9)]):
        (tmp_path / str(k)).mkdir()
        victim = Victim(tmp_path / str(k), sizes)
        told.append(list(answers_of_tasks(victim, classes, **{"tasks": tasks, "task-cut": cut})))
    assert told[0] == told[1]
    assert told[0][0]["num-train"] == 160


def test_which_classes_are_answers_is_another_question(tmp_path):
    """Of two of the three tasks the hospital has no image: its images, and noise, were the same."""
    config = {"strategy": "cwt", "tasks": 3, "task_order": "shuffled", "num_server_rounds": 3}
    victim = Victim(tmp_path, (200, 200), f"{OPEN}[figures]\nmax-models = 3\n", config=config)
    victim.classes = [*"012345"]
    model = bundle({"m": victim.constant(0)})
    answers = [
        victim.ask("evaluate", model, task=1, arrived=arrived).content["metrics"]
        for arrived in ([1], [1, 2], [1, 3], [1, 2, 3])
    ]
    assert ["m/refused" in told for told in answers] == [False, False, False, True]


def test_two_cuts_of_the_same_images_are_two_questions(tmp_path):
    """Of classes 0 and 1, task 1 has both in a run of two tasks, and in a run of three as well.

    With task 1 only, runs differ in the outputs that may answer: 0 to 2, or 0 and 1. A model that
    says class 2 of one patient is then right about that patient in the second run alone.
    """
    config = {"strategy": "cwt", "tasks": 2, "task_order": "shuffled", "num_server_rounds": 3}
    config["evaluate__every"] = 3
    victim = Victim(tmp_path, (200, 200), f"{OPEN}[figures]\nmax-models = 1\n", config=config)
    victim.classes = [*"012345"]
    asked = {"task": 1, "arrived": [1]}
    model = bundle({"m": victim.constant(0)})
    refused = []
    for tasks in (2, 3, 2):
        victim.place.run_config["tasks"] = tasks
        told = victim.ask("evaluate", model, run=str(tasks), **asked).content["metrics"]
        refused.append("m/refused" in told)
    assert refused == [False, True, False]


def test_a_model_of_no_use_is_counted_before_it_is_judged(tmp_path):
    """Layers that stay here decide, too: exact answers about them are as few as tested models."""
    victim = Victim(tmp_path, (100, 100), f"{OPEN}[figures]\nmax-models = 2\n")
    weights = np.random.default_rng(0).normal(size=(2, PIXELS))
    parcels = {f"m{k}": victim.linear((k + 1) * 1e4 * weights, [0.0, 0.0]) for k in range(3)}
    told = victim.figures(parcels)
    expected = [Failure.USELESS, Failure.USELESS, Failure.POLICY]
    assert [each["refused"] for each in told] == expected
    assert victim.figures({"again": parcels["m0"]})[0]["refused"] == Failure.USELESS


@pytest.mark.parametrize("rule", ["smallest-group = 9", "max-models = 999", "max-detailed = 9"])
def test_another_rule_is_another_question(rule, tmp_path):
    victim = Victim(tmp_path, SINGLE)
    model = Architecture("mlp", 1, SIDE, SIDE, 3).build()
    label = Manifest("mallory", "", victim.classes)
    before = disclosure.open_disclosure(opened(victim))
    assert before.fingerprint(model, label) == before.fingerprint(model, label)
    (tmp_path / "policy.toml").write_text(f"{OPEN}[figures]\n{rule}\n", "utf-8")
    after = disclosure.open_disclosure(opened(victim))
    assert before.fingerprint(model, label) != after.fingerprint(model, label)


def test_the_mean_of_models_is_one_question_in_any_order(tmp_path):
    """Other noise for every order would be averaged."""
    victim = Victim(tmp_path, (100, 100), f"{OPEN}[figures]\nmax-models = 4\n")
    models = [victim.asking(pixel, 99, lineage=f"m{pixel}") for pixel in (1, 2, 3)]
    told = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        parcels = bundle({f"p{k}": models[k] for k in order})
        metrics = victim.ask("evaluate", parcels, ensemble=True).content["metrics"]
        told.append({key: metrics[key] for key in metrics if key.startswith("ensemble/")})
    assert told[0]
    assert told[0] == told[1] == told[2]


def test_the_steps_of_figures_do_not_tell_numbers_either(tmp_path):
    """All multiples of a step give the step away, and it follows from the number of patients."""
    steps = set()
    for k, sizes in enumerate([(100, 100, 3), (100, 103, 9)]):
        (tmp_path / str(k)).mkdir()
        figures = disclosure.open_disclosure(opened(Victim(tmp_path / str(k), sizes)))
        assert isinstance(figures, disclosure.Noised)
        steps.add(tuple(figures.deviations(["accuracy"]).values()))
        network = Architecture("mlp", 1, SIDE, SIDE, 3).build()
        told = {figures.loss_figures(str(j), network)["train-loss"] for j in range(40)}
        steps.add(round(min(np.diff(sorted(told))), 6))
    assert len(steps) == 2


def opened(victim):
    """What the hospital makes of a message."""
    order = to_record(Order(1, 1, "graz", victim.classes, "plain", "1"))
    message = Message(RecordDict({"order": order}), 100, "evaluate", ttl=60.0)
    return request.Request.open(message, victim.place, request.Clock(60.0))


@pytest.mark.slow
def test_details_of_all_models_together_tell_little_of_a_patient(tmp_path):
    """Details of as many models as there are questions, in the one table that an answer moves most.

    A right answer moves the counts of class 1 by one image, where the noise has 5 of them.
    """
    questions = [(pixel, least) for pixel in range(1, PIXELS) for least in range(16, 256, 96)]

    def right(folder, policy, **where):
        folder.mkdir()
        victim = Victim(folder, (500, 200), policy, **where)
        asked = {
            f"m{k}": victim.asking(*each, corner=1.0, lineage=f"m{k}")
            for k, each in enumerate(questions)
        }
        content = bundle(asked)
        told = victim.ask("evaluate", content, final=True).content["metrics"]
        sums = np.array([told.get(f"m{k}/answers-1-of-class-1", 0) for k in range(len(questions))])
        answers = [victim.image[pixel] >= least for pixel, least in questions]
        count = sum("answers-1-of-class-1" in key for key in told)
        return ((sums > sums.mean()) == answers).mean(), count

    assert right(tmp_path / "exact", OPEN, deployed=False) == (1, 45)
    share, count = right(tmp_path / "all", OPEN + "[figures]\nmax-detailed = 45\n")
    assert (share < 0.7, count) == (True, 45)
    share, count = right(tmp_path / "few", OPEN)
    assert (share < 0.7, count) == (True, 20)


def test_details_are_of_the_last_models_of_a_run_alone(tmp_path):
    """A lineage may come as it was after each of its visits."""
    victim = Victim(tmp_path, (100, 100), deployed=False)
    models = {
        "a": victim.constant(0, round=1, hop=2),
        "b": victim.constant(1, round=1, hop=1),
        "c": victim.constant(1, lineage="eve"),
    }
    content = bundle(models)
    for final in (True, False):
        told = victim.ask("evaluate", content, final=final).content["metrics"]
        assert {key[0] for key in told if "/answers-" in key} == ({"a", "c"} if final else set())


@pytest.mark.slow
def test_a_training_loss_is_told_as_finely_as_the_number_of_patients_says(tmp_path):
    """160 images of large classes: noise and steps of √1000 / 512 of twice what guessing loses."""
    # Models of the last round would be attacked, which takes long.
    config = {"train__learning_rate": 1e-30, "num_server_rounds": 2}
    victim = Victim(tmp_path, SINGLE, config=config)

    def told(k):
        model = victim.linear(np.full((3, PIXELS), k * 1e-9), [1e-9, 0, 0])
        return victim.ask("train", model, epochs=1).content["metrics"]["train-loss"]

    step = disclosure.WORST * np.log(3) * step_of(1 / 160, 1000)
    steps = np.array([told(k) for k in range(1, 41)]) / step
    assert np.allclose(steps, np.round(steps))
    assert 0.5 < steps.std() < 1.5
    assert steps.mean() * step == pytest.approx(np.log(3), abs=step / 2)


LIMITED = OPEN + "[figures]\nmax-models = 3\n"
LARGE = (200, 200)


def test_so_many_models_are_tested_in_a_run_and_no_more(tmp_path):
    victim = Victim(tmp_path, LARGE, LIMITED)
    models = {str(k): victim.linear(np.full((2, PIXELS), k), [0, 0]) for k in range(4)}
    told = victim.figures(models)
    assert [each["refused"] for each in told] == [None, None, None, Failure.POLICY]
    assert told[3]["accuracy"] is None
    assert victim.figures({"again": models["0"]}) == told[:1]


def test_another_run_is_no_way_around_the_limit(tmp_path):
    """A server can begin as many runs as it likes."""
    victim = Victim(tmp_path, LARGE, LIMITED)
    models = [victim.linear(np.full((2, PIXELS), k), [0, 0]) for k in range(4)]
    told = [victim.figures({"m": model}, run=f"run-{k}")[0] for k, model in enumerate(models)]
    assert [each["refused"] for each in told] == [None, None, None, Failure.POLICY]


@pytest.mark.slow
def test_one_round_is_not_trained_again_and_again(tmp_path):
    """Each time another model can be read; other runs count, too."""
    victim = Victim(tmp_path, LARGE, OPEN + "max-visits = 3\n")
    answers = [victim.ask("train", victim.constant(0), epochs=1, run=run) for run in "1123"]
    failed = [answer.error.code if answer.has_error() else None for answer in answers]
    assert failed == [None, None, None, Failure.POLICY]


def test_a_run_s_seed_does_not_choose_other_test_images(tmp_path):
    """Else the same model would be another question, and the noise of its figures averaged."""
    victim, told = Victim(tmp_path, LARGE, LIMITED), []
    for seed in range(5):
        victim.place.run_config |= {"seed": seed, "test-fraction": 0.1 + seed / 20}
        told += victim.figures({"m": victim.constant(1)}, run=f"run-{seed}")
    assert told[0]["accuracy"] is not None
    assert told == told[:1] * 5


def test_the_same_model_on_images_of_other_tasks_is_another_question(tmp_path):
    config = {"tasks": 5, "task_cut": "permuted", "num_server_rounds": 5, "evaluate__every": 5}
    config |= {"task_order": "shuffled"}
    victim, told = Victim(tmp_path, LARGE, LIMITED, config=config), []
    for task in range(1, 5):
        told += victim.figures({"m": victim.constant(1)}, task=task, arrived=[task])
    assert [each["refused"] for each in told] == [None, None, None, Failure.POLICY]


def test_neither_are_ensembles_nor_visits(tmp_path):
    """An ensemble is a model too; a visit goes on without its figure."""
    config = {"strategy": "fedavg", "train__learning_rate": 1e-30}
    victim = Victim(tmp_path, LARGE, LIMITED, config=config)
    models = {str(k): victim.linear(np.full((2, PIXELS), k), [0, 0]) for k in range(3)}
    answer = victim.ask("evaluate", bundle(models), ensemble=True)
    assert "2/accuracy" in answer.content["metrics"]
    assert "ensemble/accuracy" not in answer.content["metrics"]
    answer = victim.ask("train", victim.constant(1), epochs=1, test=True)
    assert not answer.has_error()
    assert "accuracy-after-visit" not in answer.content["metrics"]


@pytest.fixture
def sealed(tmp_path, monkeypatch, caplog):
    """Asks a hospital, as a member that signs whatever label it likes; why it refuses, or ""."""
    names = ("graz", "mallory", "stranger")
    identities = {name: Identity.load(name, tmp_path / name) for name in names}
    members = {name: identities[name].member for name in names[:2]}
    graz = Seal(identities["graz"], members, "1")
    monkeypatch.setattr(request, "seal_for", lambda hospital, order: replace(graz, run=order.run))
    config = {"sealed": True, "tasks": 2, "task_cut": "permuted", "num_server_rounds": 2}
    victim = Victim(tmp_path, LARGE, "", config=config)
    sent = {**members, "stranger": identities["stranger"].member}

    def ask(label, number=0, by="mallory", run="1", relabelled=None, **order):
        model = victim.linear(np.full((2, PIXELS), number), [0, 0], **{"visited": [by], **label})
        parcel = Seal(identities[by], sent, run).close(model)
        if relabelled:
            manifest = victim.linear(
                np.zeros((2, PIXELS)), [0, 0], **{"visited": [by], **relabelled}
            )
            label = Manifest.read(manifest)
            parcel = pack(parcel.array_records, label)
        content = bundle({"m": parcel})
        caplog.clear()
        answer = victim.ask("evaluate", content, sealed=True, round=2, **{"task": 1, **order})
        refused = answer.content["metrics"].get("m/refused") == Failure.PARCEL
        return caplog.messages[-1] if refused else ""

    return ask


def test_each_signed_model_is_tested_under_its_label_alone(sealed):
    label = {"round": 2, "hop": 1, "epochs": 1}
    assert sealed(label) == ""
    assert sealed(label) == ""  # as after a resume
    assert "round and hop was already tested" in sealed(label, number=1)
    assert sealed({**label, "hop": 3}, number=2) == ""
    assert sealed({**label, "epochs": 2}, number=3) == ""  # `evaluate.epochs`: in any order
    assert sealed(label, task=2) == ""  # a model that failed a visit, in the round after it
    assert "round and hop was already tested" in sealed(label, number=1, task=2)
    assert sealed({"round": 1, "hop": 9}, number=4) == ""  # the copy before an undone model
    assert "No member is called 'nobody'" in sealed({**label, "lineage": "nobody"})


def test_only_what_a_member_has_signed_for_this_run_and_label_is_tested(sealed):
    label = {"round": 1, "hop": 1}
    assert "who is not a member" in sealed(label, by="stranger")
    assert "another run" in sealed(label, run="2")
    assert "another label" in sealed(label, relabelled={"round": 2, "hop": 1})
    assert "another sender" in sealed({**label, "visited": ["graz"]})


def test_what_is_withheld_stays(tmp_path):
    policy = OPEN + '[figures]\nwithheld = ["accuracy", "auroc", "train-loss"]\n'
    victim = Victim(tmp_path, LARGE, policy, config={"strategy": "fedavg"})
    (told,) = victim.figures({"m": victim.constant(0)})
    assert {key for key, value in told.items() if value is not None} == {
        "num-examples",
        "balanced-accuracy",
    }
    content = bundle({"m": victim.constant(0)})
    details = victim.ask("evaluate", content, final=True).content["metrics"]
    assert "m/balanced-accuracy-low" in details
    assert not [name for name in details if name.startswith(("m/accuracy", "m/auroc"))]
    answer = victim.ask("train", victim.constant(0), epochs=1, test=True)
    assert not answer.has_error(), answer.error
    assert not {"train-loss", "accuracy-after-visit"} & {*answer.content["metrics"]}
    assert answer.content["metrics"]["num-examples"] == 320
