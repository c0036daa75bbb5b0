"""What the preflight calls green, a run takes: enrolment, and the first model."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import PIL.Image
import pytest
from flwr.app import Message, RecordDict
from hypothesis import event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cli import main
from client_app.app import app
from client_app.datasets.preflight.card import examine
from strategies.protocol.code import code_hash
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from strategies.registry import strategy_of
from tests.fakes import context, deployment, settings

# Without keys, and with few images.
OPEN = "runs.sealed-only = false\nfigures.smallest-group = 1\nimages.min-train-patients = 2\n"


def write(folder, classes, sizes=((16, 16),), patients=0):
    """So many images of each class, of these sizes in turn, of so many patients (0: none named)."""
    rng = np.random.default_rng(0)
    for name, count in classes.items():
        for k in range(count):
            path = folder / name / (f"patient-{k % patients}" if patients else "") / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            height, width = sizes[k % len(sizes)]
            PIL.Image.fromarray(rng.integers(0, 256, (height, width), np.uint8)).save(path)


def card_of(folder, rules=None, **changes):
    chosen = settings(dataset=f"folder:{folder / 'data'}", **changes)
    policy = folder / "policy.toml" if rules is not None else None
    if policy:
        policy.write_text(rules)
    return examine("graz", chosen, folder / "store", policy)[0]


def asked(verb, folder, config, deployed, classes=(), buffer_size=0):
    """What the server that has this run would ask, and what the hospital answers."""
    chosen = strategy_of(config)
    own = {"store-dir": str(folder / "store"), "site": "graz"}
    if deployed:
        own |= {"policy": str(folder / "policy.toml"), "dataset": config.dataset}
        place = deployment(config.run_config, **own)
    else:
        place = context(0, 1, config.run_config, **own)
    order = Order(
        *(0, 0, "graz", list(classes), chosen.learner, "1"),
        code=code_hash() if verb == "query.enrol" else "",
        buffer_size=buffer_size,
        images=chosen.images,
    )
    return app(Message(RecordDict({"order": to_record(order)}), 100, verb, ttl=600.0), place)


@pytest.mark.slow
@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["nevus", "melanoma", "Kr\u00e4tze", "T 1", "10", "Nevus", "L" * 101])
        | st.text(st.sampled_from("aB0 -_\u00e4\u0308\u00a0"), min_size=1, max_size=9),
        st.integers(3, 14),
        min_size=2,
        max_size=3,
    ),
    st.lists(st.sampled_from([(16, 16), (16, 12), (40, 40)]), min_size=1, max_size=2),
    st.sampled_from([0, 1, 3]),
    st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(["cwt", "feder", "fedavg", "centralized"]),
            "image_size": st.sampled_from([8, 16, 16, 0, 64]),
            "test_fraction": st.sampled_from([0.2, 0.5, 0.0]),
            "num_folds": st.sampled_from([0, 3]),
            "classes": st.sampled_from(["", "nevus,melanoma"]),
        }
    ),
    st.booleans(),
)
def test_a_run_takes_whom_the_preflight_lets_pass(classes, sizes, patients, changes, deployed):
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "data", classes, sizes, patients)
        changes = {"model": "mlp", "mlp__hidden": "8", **changes}
        card = card_of(folder, OPEN if deployed else None, **changes)
        event(card.verdict)
        if card.verdict == "red":
            return
        config = settings(dataset=f"folder:{folder / 'data'}", **changes)
        size = strategy_of(config).buffer_size
        answer = asked("query.enrol", folder, config, deployed, buffer_size=size)
        assert not answer.has_error(), (answer.error, card)
        named = answer.content["card"]["classes"]
        answer = asked("query.prepare", folder, config, deployed, named)
        assert not answer.has_error(), (answer.error, card)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": 64}, "'gan.preset' is 'tiny', for images of 16 pixels"),
        ({"model": "resnet"}, "resnet"),
        ({"train__dp__noise_multiplier": 1.0, "strategy": "cwt", "model": "resnet18"}, "batch"),
        ({"classes": "a,b,c", "tasks": 2}, "'task-classes' is 0"),
        ({"pretrained": "/no/such.safetensors"}, "pretrained"),
    ],
)
def test_what_enrolment_or_preparation_would_refuse_is_red(changes, words, tmp_path):
    write(tmp_path / "data", {"a": 15, "b": 15})
    (finding,) = (f for f in card_of(tmp_path, **changes).findings if f.level == "red")
    assert finding.problem == "refused"
    assert words in finding.text.lower()


@pytest.mark.slow
def test_too_many_test_images_of_each_class_are_red(tmp_path):
    write(tmp_path / "data", {"a": 15, "b": 15})
    findings = card_of(tmp_path, test_per_class="15").findings
    (finding,) = (each for each in findings if each.level == "red")
    assert finding.problem == "no-split"
    assert "'test-per-class' is 15" in finding.text


@pytest.mark.parametrize(
    ("rules", "changes", "words"),
    [
        ("[images]\nmax-size = 8", {}, "images.max-size allows 8 or less; the value is 16"),
        ("[models]\nmax-megabytes = 0", {}, "models.max-megabytes allows 0"),
        ("[code]\napproved = ['" + "0" * 64 + "']", {}, "code.approved allows 0"),
        ("[images]\nclasses = ['A', 'b']", {}, "spell otherwise, as 'A'"),
    ],
)
def test_a_policy_that_refuses_is_red(rules, changes, words, tmp_path):
    write(tmp_path / "data", {"a": 30, "b": 30})
    card = card_of(tmp_path, f"{rules}\n", sealed=True, **changes)
    (finding,) = (f for f in card.findings if f.level == "red")
    assert words in finding.text


def test_no_character_of_a_name_commands_the_terminal(tmp_path, monkeypatch, capsys):
    write(tmp_path / "data", {"a\x1b[31m": 15, "b": 15})
    where = ["--data-dir", tmp_path / "data", "--store-dir", tmp_path / "store", "--site", "Graz"]
    with pytest.raises(SystemExit):
        main(["preflight", *map(str, where)])
    shown = "".join(capsys.readouterr())
    assert "RED" in shown
    assert "\x1b" not in shown


def test_the_rules_of_a_hospital_without_a_policy_are_a_question(tmp_path):
    write(tmp_path / "data", {"a": 15, "b": 15})
    (finding,) = (f for f in card_of(tmp_path).findings if f.level == "amber")
    assert "runs.sealed-only allows sealed runs; the value is an open run" in finding.text


@pytest.mark.parametrize(("variant", "level"), [("full", "amber"), ("synthetic-only", "red")])
def test_a_buffer_that_cannot_be_made_is_said(variant, level, tmp_path):
    write(tmp_path / "data", {"a": 11, "b": 11})
    card = card_of(tmp_path, sealed=True, strategy="feder", feder__variant=variant)
    assert {f.problem: f.level for f in card.findings}["no-buffer"] == level


@pytest.mark.parametrize(("patients", "made"), [(0, True), (9, False)])
def test_a_buffer_of_classes_of_few_patients_cannot_be_made(patients, made, tmp_path):
    write(tmp_path / "data", {"a": 60, "b": 60}, patients=patients)
    rules = f"{OPEN}release.allow-without-privacy = true\nrelease.min-averaged = 10\n"
    changes = {"gan__method": "class-gaussians", "train__freeze": "body", "model": "cnn"}
    card = card_of(tmp_path, rules, strategy="feder", **changes)
    found = {each.problem for each in card.findings}
    assert "refused" not in found, card.findings
    assert ("no-buffer" in found) != made


@pytest.mark.parametrize(("images", "warned"), [(20, True), (60, False)])
def test_a_hospital_in_which_no_model_gets_a_figure_is_amber(images, warned, tmp_path):
    """A third of the images of a class is for tests; 10 are the fewest by the default policy."""
    write(tmp_path / "data", {"a": images, "b": images})
    rules = "runs.sealed-only = false\nimages.min-train-patients = 2\n"
    card = card_of(tmp_path, rules, test_fraction=1 / 3)
    found = {each.problem: each.level for each in card.findings}
    assert (found.get("no-figures") == "amber") == warned
    assert "refused" not in found
