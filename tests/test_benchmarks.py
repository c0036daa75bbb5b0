"""The tables in benchmarks/ and their runner, without any run."""

import copy
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from flwr.common.config import flatten_dict
from PIL import Image

from benchmarks import (
    held_out,
    markdown,
    membership,
    over_tasks,
    pgd,
    reproduce,
    simulation,
    spurious,
)
from benchmarks.losses import AWAY, Losses
from benchmarks.reproduce import (
    TABLES,
    Repeat,
    TableError,
    check_table,
    choose,
    completed_result,
    read_table,
    render,
    run_missing,
)
from benchmarks.simulation import RunFailed
from cli import main
from client_app.authority import node_config
from deploy.running import lock
from learning.learners import LEARNERS
from learning.learners.plain import Received
from learning.models import Architecture
from learning.models.saliency import SaliencyNetwork
from learning.models.taps import last_layer
from learning.samples import Samples
from learning.suited import check_suited
from learning.training import train
from strategies.engine.strategy import RunError
from strategies.protocol.settings import Settings, complete
from strategies.registry import strategy_of
from tests.fakes import run_config, write_archive
from warm.workers import Workers

TABLE = """
title = "Two rows"
hospitals = 2
seeds = [0, 1]
columns = ["federation_accuracy", "disagreement", "hospital-1", "bytes_per_hop"]
[settings]
num-server-rounds = 3
dataset = "npz:{data}/x.npz"
[[rows]]
name = "alone"
settings.strategy = "standalone"
[[rows]]
name = "FedER"
settings = { strategy = "feder", feder.buffer-size = 16 }
paper = { federation_accuracy = 0.8341, hospital-1 = [0.8567, 0.0236] }
"""


def load(path, data, vary=()):
    return check_table(read_table(str(path), vary), data)


@pytest.fixture
def table(tmp_path):
    (tmp_path / "two.toml").write_text(TABLE)
    return load(tmp_path / "two.toml", [Path("/data")])


def first_row_of(table):
    return replace(table, rows=table.rows[:1])


class Runs:
    """In the place of Flower: leaves a result folder with a summary by (strategy, seed)."""

    def __init__(self, **changes):
        self.done = []
        self.changes = changes

    def __call__(self, output_dir, row, settings):
        self.done.append((settings["strategy"], settings["seed"]))
        result = output_dir / f"time-{len(self.done)}"
        result.mkdir(parents=True)
        config = complete({**settings, "output-dir": str(output_dir)})
        (result / "config.toml").write_text(tomli_w.dumps(nested(config)))
        shift = 0.1 * settings["seed"]  # so that seeds differ
        summary = {
            **dict.fromkeys(reproduce.COLUMNS, 0.5),
            "status": "completed",
            "failures": [],
            "hospitals": ["hospital-0", "hospital-1"],
            "data": {"hospital-0": {}, "hospital-1": {}},
            "federation_accuracy": 0.8 - shift,
            "disagreement": 0.2,
            "accuracy_matrix": [[0.6, 0.8], [0.8, 1.0 - 2 * shift]],
            "bytes_per_hop": None,
            "synthetic": {},
            **self.changes,
        }
        (result / "summary.json").write_text(json.dumps(summary))
        return result


def nested(flat):
    """Settings as config.toml has them."""
    tables: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (tables.setdefault(section, {}) if section else tables)[name] = value
    assert flatten_dict(tables) == flat
    return tables


@pytest.mark.slow
def test_the_installed_command_finds_these_benchmarks():
    """The packages of the environment stand before the checkout; opacus has such a package."""
    script = Path(sys.executable).with_name("fedhandoff")
    done = subprocess.run([script, "reproduce", "nothing"], capture_output=True, text=True)
    assert "'nothing' is neither a table in benchmarks/ nor a file" in done.stderr + done.stdout


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_run_as_far_as_its_settings_go(name):
    """`load` checks settings, strategies, columns and the paper's figures."""
    folders = 2 if "{images}" in TABLES[name].read_text() else 1
    table = load(TABLES[name], [Path(f"/data/{index}") for index in range(folders)])
    names = [row.name for row in table.rows]
    assert len({reproduce._folder(row, Repeat(0), Path()) for row in table.rows}) == len(names)
    assert not any("," in name for name in names)
    for row in table.rows:
        for column, figures in row.paper.items():
            fractions = table.columns[column].scale >= 100
            assert all(0 < figure < 1 if fractions else figure > 1 for figure in figures)
    assert "/home" not in TABLES[name].read_text()
    rows = read_table(name)["rows"]
    assert choose(rows, f" {names[-1]},{names[0]}") == [rows[0], rows[-1]]


CONTINUAL = (
    *("split_cifar10", "mah_micro_imagenet", "ser_imagenet", "ser_spurious"),
    *("twf_cifar10", "twf_cifar100", "twf_cub200"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUAL)
def test_the_rows_of_chapter_2_train_in_small(name):
    """Each row's network and learner train in two tasks: four random images of two classes each.

    Files are left out. A row that differs from an earlier one only in sizes is not trained again.
    """
    side = 32 if name == "twf_cub200" else 16  # its network halves them five times
    rng = np.random.default_rng(0)
    public = random_images(rng, side, range(4))
    new = cache(Architecture.build)
    trained = set()
    for row in load(TABLES[name], [Path("/data")]).rows:
        files = {key for key, value in row.settings.items() if str(value).startswith(("/", "npz:"))}
        own = {key: value for key, value in row.settings.items() if key not in files}
        size = min(own.get("reservoir.size", 0), 4)
        own |= {"tasks": 2, "num-server-rounds": 2, "reservoir.size": size}
        own |= {"twf.teacher-epochs": 1, "lwf.warm-up": 1, "train.learning-rate": 0.01}
        if (key := tuple(sorted(own.items()))) in trained:
            continue
        trained.add(key)
        settings = Settings.parse(complete(own))
        learner = strategy_of(settings).learner
        architecture = Architecture(settings.model, 3, side, side, 4)
        check_suited(learner, architecture, settings)
        network = copy.deepcopy(new(architecture))
        memory: dict[str, Any] = {}
        rehearsal: dict[str, Any] = {}
        for task in (1, 2):
            samples = random_images(rng, side, range(2 * task - 2, 2 * task))
            received = Received((), memory, rehearsal, task=task, public=public)
            each = LEARNERS[learner](network, samples, settings, received)
            metrics = train(each, settings.train, 1, rng, time.monotonic() + 600)
            assert math.isfinite(metrics["train-loss"]), row.name
            memory, rehearsal = dict(each.memory(rng)), dict(each.rehearsal())


def random_images(rng, side, classes):
    pixels = rng.integers(0, 256, (4, 3, side, side), dtype=np.uint8)
    labels = torch.arange(4) % len(classes) + min(classes)
    return Samples(torch.from_numpy(pixels), labels)


def test_spurious_brightness_by_hand(tmp_path):
    """Class 0 is brighter by 5, class 9 by 50; 250 becomes 255. Test images stay."""
    images, labels = np.full((2, 1, 1), 250, dtype=np.uint8), np.array([0, 9])
    images[1] = 100
    arrays: dict[str, Any] = {"x_train": images, "y_train": labels}
    np.savez(tmp_path / "x.npz", **arrays, x_test=images, y_test=labels)
    spurious.write(tmp_path / "x.npz")
    with np.load(tmp_path / "x_spurious.npz") as found:
        assert found["x_train"].flatten().tolist() == [255, 150]
        assert found["x_test"].flatten().tolist() == [250, 100]
        assert found["y_train"].tolist() == [0, 9]


def test_an_attack_moves_each_value_by_its_strength_towards_a_larger_loss():
    """Logits x / 10 and 1 − x / 10 of a pixel x: class 0 is right where x > 5.

    With ε = 4, 100 becomes 96; 3 becomes 0, the least. So one of two images is told right.
    """
    layer = torch.nn.Linear(1, 2)
    layer.weight.data, layer.bias.data = torch.tensor([[0.1], [-0.1]]), torch.tensor([0.0, 1.0])
    network = torch.nn.Sequential(torch.nn.Flatten(), layer)
    images = torch.tensor([100.0, 3.0]).view(2, 1, 1, 1)
    moved = pgd.attack(network, images, torch.zeros(2, dtype=torch.int64), 4.0)
    assert moved.flatten().tolist() == [96.0, 0.0]
    class_0 = torch.zeros(2, dtype=torch.int64)
    assert pgd.accuracy(network, images.byte(), class_0, 4.0) == 0.5


def test_the_alignment_of_features_by_hand():
    """0, 1, 2 is aligned with 1, 4, 7, which is three times as far, and not with 1, −2, 1."""
    x = np.array([[0.0], [1.0], [2.0]])
    assert over_tasks.cka(x, 3 * x + 1) == pytest.approx(1)
    assert over_tasks.cka(x, np.array([[1.0], [-2.0], [1.0]])) == pytest.approx(0)


def test_the_nearest_of_the_first_half_tell_the_second():
    """Classes 0 and 1 lie at 0 and 9. One of the two images to tell is labelled as the other."""
    features = np.array([0.0] * 5 + [9.0] * 5 + [1.0, 8.0] * 5)[:, None]
    labels = np.array([0] * 5 + [1] * 5 + [0, 1, 0, 1, 0, 1, 0, 1, 0, 0])
    assert over_tasks.neighbour_accuracy(features, labels) == 0.9


def test_the_similarity_of_maps_by_hand():
    """Shares ½, ½, 0, 0 and ½, 0, ½, 0 overlap by ½; a scale changes nothing."""
    a = torch.tensor([[[1.0, 1.0], [0.0, 0.0]]] * 3)
    b = torch.tensor([[[4.0, 0.0], [4.0, 0.0]], [[2.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    assert over_tasks.similarity(a, b).tolist() == [0.5, 1.0, 0.0]


def test_a_grad_cam_map_is_twice_as_strong_for_twice_the_logit():
    torch.manual_seed(0)  # with some weights no feature speaks for a class
    network = Architecture("ser-cnn", 3, 16, 16, 4).build().eval()
    assert isinstance(network, SaliencyNetwork)
    samples = random_images(np.random.default_rng(0), 16, range(4))
    once = over_tasks.grad_cam(network, samples)
    last_layer(network.classifier).weight.data *= 2
    twice = over_tasks.grad_cam(network, samples)
    assert once.shape == (4, 16, 16)
    assert once.max() > 0
    assert torch.allclose(twice, 2 * once)


@pytest.mark.slow
def test_a_network_is_measured_after_each_task(tmp_path, monkeypatch, capsys):
    """Before the first task features are those of the first network."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "store"))
    monkeypatch.setattr(node_config, "_simulates", False)
    data = tmp_path / "new" / "data"
    held_out.write(data)

    def measure(row, *arguments):
        words = ["over_tasks", str(tmp_path / "table.toml"), row, "--data", str(data)]
        monkeypatch.setattr(sys, "argv", [*words, "--vary", "train.epochs=1", *arguments])
        over_tasks.main()
        lines = capsys.readouterr().out.splitlines()[4:]
        return [line.strip("| ").split(" | ") for line in lines]

    described = TABLES["twf_small"].read_text("utf-8")
    ser = 'settings = { learner = "ser", model = "ser-cnn" }'
    (tmp_path / "table.toml").write_text(f'{described}[[rows]]\nname = "SER"\n{ser}\n', "utf-8")
    before, *after = measure("DER++", "--before", str(data / "digits_6_to_9.npz"))
    assert len(after) == 3
    assert set(before[2:5]) == {"0.00"}
    assert all(float(each) > 0 for each in after[-1][2:5])
    first, *_ = measured = measure("SER", "--maps", str(tmp_path / "maps.png"))
    assert len(measured) == 3
    assert first[3:] == ["1.000", "1.000"]
    with Image.open(tmp_path / "maps.png") as picture:
        assert picture.size == (4 * 34 + 2, 6 * 34 + 2)
    with pytest.raises(SystemExit):
        measure("DER++", "--maps", str(tmp_path / "maps.png"))
    assert "must be ser-" in capsys.readouterr().err


def test_the_table_and_the_lists_in_comparing_md_can_be_run(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "comparing.md").read_text("utf-8")
    (own,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "skin.toml").write_text(own, encoding="utf-8")
    table = load(tmp_path / "skin.toml", [Path("/data")])
    assert [row.name for row in table.rows] == ["alone", "FedER", "FedER without buffers"]
    vary = re.findall(r"--vary ([a-z]\S*=\S+)", page)
    assert len(check_table(read_table(None, vary), []).rows) == 6


PAPERS = (Path(__file__).parents[1] / "docs" / "methods" / "papers.md").read_text("utf-8")


def test_the_matrix_of_papers_has_every_file_and_no_other():
    rows = [line.split(" | ") for line in PAPERS.splitlines() if line.startswith("| ")]
    files = {name for row in rows if len(row) > 3 for name in re.findall(r"`(\w+)`", row[2])}
    assert files == set(TABLES)


def test_the_matrix_of_papers_has_every_table_of_the_thesis_in_order():
    tables = [
        f"{chapter}.{n + 1}" for chapter, last in ((2, 13), (3, 3), (4, 12)) for n in range(last)
    ]
    assert re.findall(r"^\| Table (\d\.\d+)", PAPERS, re.MULTILINE) == tables


@pytest.mark.parametrize("part", ["Chapter 2", "Chapter 3", "Chapter 4", "CWC", "FIL-VER"])
def test_the_matrix_of_papers_counts_its_rows(part):
    """In its first table: rows, at the published size, small, not at all, without a file."""
    (counts,) = re.findall(rf"(?im)^\| (?:Thesis, )?{part} \| ([\d |]+) \|$", PAPERS)
    (rows,) = re.findall(rf"(?ms)^## {part}\b(.*?)^## ", PAPERS)
    cells = [row.split(" | ") for row in rows.splitlines() if re.match(r"\| (?:Table|Fig)", row)]
    sizes = [cell[3] for cell in cells]
    assert [int(count) for count in counts.split(" | ")] == [
        len(cells),
        sum("published" in size for size in sizes),
        sum(size.startswith("small") for size in sizes),
        sizes.count("–"),
        [cell[2] for cell in cells].count("–"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"disagreement"', '"agreement"', "No column is called 'agreement'"),
        ('"hospital-1"', '"hospital-2"', "No column is called 'hospital-2'"),
        ("num-server-rounds", "num-rounds", "no setting 'num-rounds' .*'num-server-rounds'"),
        ("num-server-rounds = 3", "num-server-rounds = 0", "num-server-rounds"),
        ("seeds = [0, 1]", "seeds = [0, 1]\nfolds = 1", "num-folds"),
        ('"feder"', '"feddr"', "feddr"),
        ("paper = { federation", "paper = { ensemble", "no column 'ensemble_accuracy'"),
        ('name = "alone"', "", "A row of .*two.toml has no 'name'"),
        ("seeds = ", "seed = ", "two.toml has 'seed'; it may have rows, title"),
        ('"alone"', '"fedER!"', "Two rows have one name"),
        ("[settings]", "[settings", "two.toml is not TOML: "),
        ("seeds = [0, 1]", "seeds = []", r"The seeds are \[\]: give one or more, each once"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "each once"),  # one run would count as two
        ("seeds = [0, 1]", "seeds = 3", "two.toml cannot be used: 'seeds' is 3; it must be a list"),
        ("hospitals = 2", "hospitals = 'x'", "'hospitals' is 'x'; it must be a whole"),
        ("hospitals = 2", "hospitals = 0", "'hospitals' is 0: give 1 or more"),
        ("[settings]", "settings = 3\n[other]", "'settings' is 3; it must be an object"),
        ('name = "alone"', "name = 3", "name' is 3; it must be a text"),
        ('name = "alone"', 'name = "?"', "Row '\\?' needs a name with a letter"),
        ("seeds = [0, 1]", "seeds = [0, -1]", "Row 'alone': .*'seed' is -1"),
        (
            "[settings]",
            "[settings]\nseed = 3",
            "Row 'alone' sets 'seed', but a row has several runs: use --seeds",
        ),
        ("settings.strategy =", "settings.resume = '/r'\nsettings.strategy =", "sets 'resume'"),
    ],
)
def test_a_table_that_does_not_fit_together_is_refused_at_once(tmp_path, old, new, words):
    assert old in TABLE
    (tmp_path / "two.toml").write_text(TABLE.replace(old, new))
    with pytest.raises(ValueError, match=words):
        load(tmp_path / "two.toml", [Path("/data")])


def test_the_folder_of_data_is_named_on_the_command_line(table, tmp_path):
    assert table.rows[0].settings["dataset"] == "npz:/data/x.npz"
    with pytest.raises(TableError, match="--data"):
        load(tmp_path / "two.toml", [])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("feder_digit", "did you mean feder_digits?"),
        ("/no.toml", "neither a table in benchmarks/ nor a file that can be read; there are afcl_"),
        (None, "Name a TOML file, or one of afcl_"),
    ],
)
def test_a_table_that_is_not_there_is_named(name, words):
    with pytest.raises(TableError) as error:
        read_table(name)
    assert words in str(error.value)


def test_a_table_without_rows_is_refused(tmp_path):
    (tmp_path / "own.toml").write_text("rows = []")
    with pytest.raises(TableError, match=r"own.toml has no row"):
        load(tmp_path / "own.toml", [])


def test_a_setting_varies_once():
    with pytest.raises(TableError, match=r"names 'train.epochs' twice: give all values"):
        read_table(None, ["train.epochs=1", "train.epochs=3"])


def test_only_the_rows_of_a_table_must_be_there(tmp_path):
    (tmp_path / "own.toml").write_text('[[rows]]\nname = "defaults"')
    table = load(tmp_path / "own.toml", [])
    assert [(row.name, row.hospitals, row.settings) for row in table.rows] == [("defaults", 2, {})]
    assert [str(repeat) for repeat in table.repeats] == ["seed 0"]
    assert list(table.columns)[:2] == ["federation_balanced_accuracy", "federation_accuracy"]


def test_settings_that_vary_make_rows_of_all_their_values(tmp_path):
    vary = [
        "strategy=cwt,rwt",
        "train.learning-rate=0.1,1",
        "mlp.hidden='8,8','16'",
        "train.epochs=3",
    ]
    rows = check_table(read_table(None, vary), []).rows
    assert len(rows) == 8
    assert rows[0].name == "strategy=cwt train.learning-rate=0.1 mlp.hidden=8 8"
    wanted = {"strategy": "rwt", "train.learning-rate": 1, "mlp.hidden": "16", "train.epochs": 3}
    assert rows[-1].settings == wanted
    (tmp_path / "two.toml").write_text(TABLE)
    rows = load(tmp_path / "two.toml", [Path("/data")], ["evaluate.cross=true,false"]).rows
    assert [row.name for row in rows] == [
        f"{name} evaluate.cross={cross}" for name in ("alone", "FedER") for cross in (True, False)
    ]
    assert rows[3].settings["feder.buffer-size"] == 16
    assert rows[3].settings["evaluate.cross"] is False


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("train.epoch=1,2", "no setting 'train.epoch' .*'train.epochs'"),
        ("train.epochs=1,many", "Row 'train.epochs=many': .* must be a whole number"),
        ("strategy=cwt,feddr", "Row 'strategy=feddr': .*must be one of"),
        ("train.epochs=1,1", "Two rows have one name"),
    ],
)
def test_values_that_cannot_be_used_are_refused_at_once(vary, words):
    with pytest.raises(ValueError, match=words):
        check_table(read_table(None, [vary]), [])


def test_a_row_that_does_not_exist_is_refused():
    with pytest.raises(TableError, match="No row is called 'FedRE'"):
        choose([{"name": "alone", "name_in_file": "alone"}], "alone,FedRE")


def test_a_value_is_checked_with_the_chosen_rows_only():
    """Noise needs sums by images, which most rows of this table are not."""
    vary = ["sums.epsilon=10.0"]
    described = read_table("five_centres_frozen", vary)
    with pytest.raises(TableError, match="it must be images"):
        check_table(described, [Path("/data")])
    rows = choose(described["rows"], "sums with noise")
    (row,) = check_table(described | {"rows": rows}, [Path("/data")]).rows
    assert row.settings["sums.epsilon"] == 10


def test_a_row_of_the_file_stands_for_all_that_a_setting_makes_of_it():
    rows = read_table("two_hospitals", ["num-server-rounds=3,6"])["rows"]
    names = ["FedER num-server-rounds=3", "FedER num-server-rounds=6"]
    assert [row["name"] for row in choose(rows, "FedER")] == names
    assert [row["name"] for row in choose(rows, names[1])] == names[1:]


def test_the_table_shows_mean_and_deviation_beside_the_paper(table, tmp_path):
    """By hand, in percent.

    federation_accuracy: 80 and 70, mean 75, std sqrt((25 + 25) / 1) = 7.1.
    disagreement: 20 in both runs, std 0.
    hospital-1: 80, 100 and 80, 80 over models and seeds, mean 85, std sqrt((3·25 + 225) / 3) = 10.
    """
    assert run_missing(table, tmp_path, Runs())
    text = render(table, tmp_path, "the command")
    heading, _, alone, feder = text.splitlines()[-4:]
    assert heading == (
        "|  | federation accuracy, % | paper | disagreement, % | all models at hospital-1, % "
        "| paper | MB per hop |"
    )
    assert alone == "| alone | 75.0 ± 7.1 | – | 20.0 ± 0.0 | 85.0 ± 10.0 | – | – |"
    assert feder == "| FedER | 75.0 ± 7.1 | 83.4 | 20.0 ± 0.0 | 85.0 ± 10.0 | 85.7 ± 2.4 | – |"
    assert text.startswith("## Two rows\n\n    the command\n\nSeeds 0, 1. Commit ")
    assert markdown.commit() in text
    assert markdown.machine() in text


def test_a_cell_says_of_how_many_figures_it_is(table, tmp_path):
    """By hand: hospital-1 tested the first model of both seeds, 80 in each, the second of none."""
    runs = Runs(accuracy_matrix=[[0.6, 0.8], [0.8, None]])
    assert run_missing(first_row_of(table), tmp_path, runs)
    assert "| 80.0 ± 0.0 (2 of 4) | – | – |" in render(table, tmp_path, "")


def test_rounds_and_epochs_until_the_accuracy_is_reached():
    """By hand: two hospitals, two epochs a visit, a test after each epoch.

    0.75 is first reached at the second visit of round 2, after its first epoch: after three whole
    visits and this epoch, 3·2 + 1 = 7.
    """
    accuracies: list[list[float | None]] = [
        [0.2, 0.3],
        [0.4, None],
        [0.5, 0.6],
        [0.75, 0.7],
        [0.8, 0.9],
    ]
    visits: list[dict[str, Any]] = [
        {"round": 1 + i // 2, "hop": 1 + i % 2, "epochs": epochs, "hospital": f"hospital-{i % 2}"}
        | {"global_accuracy": accuracy}
        for i, visit in enumerate(accuracies)
        for epochs, accuracy in enumerate(visit, 1)
    ]
    assert rounds_and_epochs(visits) == ([2], [7])
    assert rounds_and_epochs(visits[:6]) == ([None], [None])
    averaged = [visit | {"hospital": "", "hop": 1} for visit in visits[1::4]]  # a row per round
    assert rounds_and_epochs(averaged) == ([3], [None])


def rounds_and_epochs(visits):
    columns = reproduce.list_columns(2)
    rounds, epochs = columns["rounds_to_75"], columns["epochs_to_75"]
    return rounds.values({"visits": visits}), epochs.values({"visits": visits})


def test_seconds_of_a_round_are_their_median_and_the_best_is_the_summarys():
    columns = reproduce.list_columns(2)
    summary = {"history": {"seconds": [9.0, 2.0, 3.0]}, "best": {"federation_accuracy": 0.8}}
    assert columns["seconds_per_round"].values(summary) == [3.0]
    assert columns["best_federation_accuracy"].values(summary) == [0.8]
    assert columns["seconds_per_round"].values({"history": {"seconds": []}}) == [None]


def test_figures_over_tasks_and_the_traffic_of_a_run_are_columns():
    columns = reproduce.list_columns(2)
    summary = {"forgetting": 0.25, "backward_transfer": -0.25, "accuracy_over_tasks": None}
    assert [columns[name].values(summary) for name in summary] == [[0.25], [-0.25], [None]]
    traffic = columns["megabytes"]
    told = traffic.values({"bytes_sent": 1_500_000, "bytes_received": 500_000})
    assert told == [pytest.approx(2.0 / traffic.scale)]


def test_the_accuracy_and_oscillation_of_the_last_rounds():
    last = {"mean": 0.9, "std": 0.02, "balanced_mean": 0.8, "balanced_std": None}
    columns = reproduce.list_columns(2)
    for name, figure in last.items():
        assert columns[f"last_rounds_{name}"].values({"last_rounds": last}) == [figure]


def test_the_mean_of_the_last_five_rounds_is_of_what_was_measured_in_them():
    """By hand: (0.5 + 0.6 + 0.7 + 1.0) / 4 = 0.7; round 1 of 6 is too early."""
    column = reproduce.list_columns(2)["last_5_personalized_accuracy"]
    history = {"personalized_accuracy": [0.1, 0.5, 0.6, None, 0.7, 1.0]}
    assert column.values({"history": history}) == [pytest.approx(0.7)]
    assert column.values({"history": {"personalized_accuracy": [None]}}) == [None]


def test_the_performance_of_a_node_is_that_of_the_model_it_trained_last_at_itself():
    """By hand: "b" trains model 1 in round 1 and model 0 in round 2, which is 0.6 there."""
    rows = [("a", 0.1, 0.2), ("b", 0.3, 0.4), ("b", 0.5, 0.6), ("", 0.7, 0.8)]
    visits = [{"hospital": h, "own_accuracies": {"a": a, "b": b}} for h, a, b in rows]
    columns = reproduce.list_columns(2)
    first, second = columns["after-visit-hospital-0"], columns["after-visit-hospital-1"]
    summary = {"hospitals": ["a", "b"], "visits": visits}
    assert (first.values(summary), second.values(summary)) == ([0.1], [0.6])
    averaged = {"hospitals": ["a", "b"], "visits": visits[3:]}
    assert first.values(averaged) == [None]


def test_what_the_gans_of_all_hospitals_measured_whatever_measured_it():
    columns = reproduce.list_columns(2)
    synthetic = {
        "a": {"projection-plain-lpips-vgg": 0.2, "fid": 30.0, "gan-private": 1.0},
        "b": {"projection-plain-lpips-vgg": 0.3, "frechet-classifier": 0.9, "gan-private": 0.0},
    }
    wanted = {"projection_plain": [0.2, 0.3], "frechet": [30.0, 0.9], "gan_private": [1.0, 0.0]}
    for name, figures in wanted.items():
        assert columns[name].values({"synthetic": synthetic}) == figures
    assert columns["projection_private"].values({"synthetic": synthetic}) == []


def test_a_table_with_folds_has_a_run_for_each_seed_and_fold(tmp_path):
    (tmp_path / "two.toml").write_text(TABLE.replace("columns", "folds = 2\ncolumns", 1))
    table, runs = load(tmp_path / "two.toml", [Path("/data")]), Runs()
    started = []

    def start(output_dir, row, settings):
        started.append((output_dir.name, settings["seed"], settings["num-folds"], settings["fold"]))
        return runs(output_dir, row, settings)

    assert run_missing(first_row_of(table), tmp_path, start)
    assert started == [
        ("seed-0-fold-0", 0, 2, 0),
        ("seed-0-fold-1", 0, 2, 1),
        ("seed-1-fold-0", 1, 2, 0),
        ("seed-1-fold-1", 1, 2, 1),
    ]
    text = render(table, tmp_path, "")
    assert "Seeds 0, 1, 2 folds each. Commit" in text
    assert "| FedER (0 of 4 runs) |" in text
    assert run_missing(first_row_of(table), tmp_path, start)
    assert len(started) == 4


def test_images_stands_for_the_folders_of_as_many_hospitals(tmp_path):
    text = TABLE.replace("npz:{data}/x.npz", "{images}").replace("hospitals = 2\n", "")
    (tmp_path / "own.toml").write_text(text)
    folders = [tmp_path / name for name in "abc"]
    table = load(tmp_path / "own.toml", folders)
    paths = ",".join(map(str, folders))
    assert table.rows[0].settings["dataset"] == f"folder:{paths}"
    assert table.rows[0].hospitals == 3
    for folder in folders:
        folder.mkdir()
        (folder / "manifest.csv").touch()
    table = load(tmp_path / "own.toml", folders)
    assert table.rows[0].settings["dataset"] == f"manifest:{paths}"
    (folders[1] / "manifest.csv").unlink()
    with pytest.raises(TableError, match=r"or none of them: .*/b is a folder"):
        load(tmp_path / "own.toml", folders)
    with pytest.raises(TableError, match="two hospitals or more: --data A,B"):
        load(tmp_path / "own.toml", folders[:1])


def test_a_row_may_lose_visits(tmp_path, command, capsys):
    (tmp_path / "two.toml").write_text(TABLE.replace('"alone"\n', '"alone"\nlost = 0.2\n'))
    (row, other), repeat = load(tmp_path / "two.toml", [tmp_path]).rows, Repeat(0)
    assert (row.losses, other.losses) == (Losses(0.2), Losses())
    assert reproduce._folder(row, repeat, tmp_path).name == "seed-0-lost-0-2"
    assert reproduce._folder(other, repeat, tmp_path).name == "seed-0"
    write_archive(tmp_path / "x.npz", 4)
    assert command(tmp_path / "two.toml", "--data", tmp_path) == (2, [])
    assert "'alone' loses visits, which needs --workers" in capsys.readouterr().err
    (tmp_path / "two.toml").write_text(TABLE.replace('"alone"\n', '"alone"\nlost = 20\n'))
    with pytest.raises(TableError, match="'lost' is a share, from 0 to below 1"):
        load(tmp_path / "two.toml", [tmp_path])


def test_a_run_is_complete_if_all_that_failed_was_meant_to(tmp_path):
    (tmp_path / "two.toml").write_text(TABLE.replace('"alone"\n', '"alone"\nlost = 0.2\n'))
    table = load(tmp_path / "two.toml", [tmp_path])
    for row in table.rows:
        for reason in ("boom", AWAY):
            status = "completed with failures"
            runs = Runs(status=status, failures=[{"outcome": "gone", "reason": reason}])
            run_missing(replace(table, rows=[row]), tmp_path / reason, runs)
            lost = row.name == "alone" and reason == AWAY
            assert (completed_result(row, Repeat(0), tmp_path / reason) is not None) == lost
    # With a small share it may be that no hospital is ever away.
    assert run_missing(first_row_of(table), tmp_path / "none", Runs())
    noted = {path.read_text() for path in (tmp_path / "none").rglob("visits")}
    assert noted == {"lost 0.2"}


def test_a_run_is_complete_without_the_buffers_that_may_not_leave(table, tmp_path):
    stayed = [{"outcome": "release", "reason": "Image 3 is too near."}]
    left = {"hospital-1": {"gan-private": 1.0}}
    runs = Runs(status="completed with failures", failures=stayed, synthetic=left)
    assert run_missing(table, tmp_path, runs)
    shown = render(table, tmp_path, "")
    assert "| buffers released |" in shown
    assert "| 2 of 4 |" in shown
    left_out = Runs(**runs.changes, data={"hospital-0": {}})
    assert not run_missing(table, tmp_path / "left-out", left_out)


def test_losses_are_the_same_for_all_methods_and_as_many_as_they_say():
    losses, rounds = Losses(0.4), range(1, 501)
    lost = [[losses.is_lost(3, r, hospital, 4) for r in rounds] for hospital in range(4)]
    assert lost == [[losses.is_lost(3, r, hospital, 4) for r in rounds] for hospital in range(4)]
    assert all(sum(each) == pytest.approx(200, abs=50) for each in lost)  # 4.5 deviations
    assert len(set(map(tuple, lost))) == 4
    assert [losses.is_lost(4, r, 0, 4) for r in rounds] != lost[0]


def test_one_hospital_leaves_for_good():
    losses = Losses(leaves_after=2)
    left = [{h for h in range(4) if losses.is_lost(0, r, h, 4)} for r in range(1, 7)]
    assert left[:2] == [set(), set()]
    assert len(left[2]) == 1
    assert left[2:] == [left[2]] * 4


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """One process for simulated hospitals."""
    log = tmp_path_factory.mktemp("workers") / "log"
    with log.open("w") as opened, Workers(1, {}, opened) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["rwt", "cwt-serial", "fedavg"])
def test_a_lost_visit_is_an_absence_and_the_run_goes_on(workers, tmp_path, strategy):
    losses = Losses(0.4)
    settings = {"strategy": strategy, "num-server-rounds": 3, "evaluate.every": 3}
    settings |= {"model": "mlp", "train.epochs": 1}
    result = simulation.run_warm(workers, tmp_path, 3, settings, losses)
    events = [json.loads(line) for line in (result / "metrics.jsonl").read_text().splitlines()]
    visits = [each for each in events if each["verb"] == "train"]
    for visit in visits:
        hospital = int(visit["hospital"].removeprefix("hospital-"))
        away = losses.is_lost(run_config()["seed"], visit["round"], hospital, 3)
        assert visit["outcome"] == ("gone" if away else "ok")
    assert {visit["outcome"] for visit in visits} == {"gone", "ok"}
    tested = {each["hospital"] for each in events if each["verb"] == "evaluate"}
    assert len(tested) == 3
    summary = json.loads((result / "summary.json").read_text())
    assert {each["reason"] for each in summary["failures"]} == {AWAY}


def test_ctrl_c_ends_a_table_and_not_its_present_run_alone(tmp_path, monkeypatch):
    def interrupted(*_):
        raise RunError("It was ended by Ctrl-C.") from KeyboardInterrupt()

    monkeypatch.setattr(simulation, "run_on", interrupted)
    monkeypatch.setattr(simulation, "UnreliableGrid", lambda *_: None)
    workers: Any = SimpleNamespace(log=io.StringIO())
    with pytest.raises(KeyboardInterrupt):
        simulation.run_warm(workers, tmp_path, 2, {})


def test_a_row_may_have_a_number_of_hospitals_and_a_table_other_figures_to_compare_with(tmp_path):
    text = 'beside = "the others"\n' + TABLE.replace('"alone"\n', '"alone"\nhospitals = 3\n')
    (tmp_path / "two.toml").write_text(text)
    table = load(tmp_path / "two.toml", [Path("/data")])
    assert [row.hospitals for row in table.rows] == [3, 2]
    assert "| federation accuracy, % | the others |" in render(table, tmp_path, "")


def test_the_commit_of_a_run_is_that_before_it(table, tmp_path):
    """The code may change while the run is under way."""
    code, runs = ["before"], Runs()

    def start(output_dir, row, settings):
        code[0] = "after"
        return runs(output_dir, row, settings)

    run_missing(first_row_of(table), tmp_path, start, lambda: code[0])
    assert sorted(path.read_text() for path in tmp_path.rglob("commit")) == ["after", "before"]


def test_what_is_completed_is_not_run_again(table, tmp_path):
    first, second = Runs(), Runs()
    assert run_missing(first_row_of(table), tmp_path, first)
    assert first.done == [("standalone", 0), ("standalone", 1)]
    assert "| FedER (0 of 2 runs) | – |" in render(table, tmp_path, "")
    assert run_missing(table, tmp_path, second)
    assert second.done == [("feder", 0), ("feder", 1)]


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        (
            {
                "status": "completed with failures",
                "failures": [{"outcome": "crashed", "reason": "out of ink"}] * 2,
            },
            "completed with failures: out of ink",
        ),
        ({"data": {"hospital-0": {}}}, "completed"),
    ],
)
def test_what_did_not_go_as_it_should_is_run_again(table, tmp_path, changes, outcome, capsys):
    assert not run_missing(first_row_of(table), tmp_path, Runs(**changes))
    assert re.search(rf"seed 0: {outcome}, \d+ s$", capsys.readouterr().out, re.MULTILINE)
    assert completed_result(table.rows[0], Repeat(0), tmp_path) is None
    again = Runs()
    again.done = [None] * 5  # its folders have names of their own
    assert run_missing(first_row_of(table), tmp_path, again)
    assert len(again.done) == 7


def test_a_result_with_other_settings_does_not_count(table, tmp_path):
    run_missing(table, tmp_path, Runs())
    (tmp_path / "two.toml").write_text(TABLE.replace("buffer-size = 16", "buffer-size = 32"))
    changed = load(tmp_path / "two.toml", [Path("/data")])
    assert completed_result(changed.rows[0], Repeat(0), tmp_path)
    assert completed_result(changed.rows[1], Repeat(0), tmp_path) is None


def test_a_run_that_fails_does_not_stop_the_others(table, tmp_path, capsys):
    runs = Runs()

    def start(output_dir, row, settings):
        if settings["seed"] == 0 and settings["strategy"] == "standalone":
            raise RunFailed("boom")
        return runs(output_dir, row, settings)

    assert not run_missing(table, tmp_path, start)
    assert len(runs.done) == 3
    assert "alone, seed 0: failed: boom" in capsys.readouterr().out
    assert "| alone (1 of 2 runs) | 70.0 |" in render(table, tmp_path, "")


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Calls the command with arguments, and with Flower replaced; its exit code and its runs."""

    def call(*arguments):
        runs = Runs()
        monkeypatch.setattr(reproduce, "superlink", Superlink)
        monkeypatch.setattr(
            reproduce, "run", lambda _, folder, row, settings, gpus: runs(folder, row, settings)
        )
        output = ["--output", str(tmp_path / "the output")]
        with pytest.raises(SystemExit) as end:
            main(["reproduce", *map(str, arguments), *output])
        return end.value.code, runs.done

    return call


def test_the_command_does_the_runs_and_keeps_the_table(tmp_path, command, capsys):
    (tmp_path / "two.toml").write_text(TABLE)
    write_archive(tmp_path / "x.npz", 4)
    path, output = tmp_path / "two.toml", tmp_path / "the output"
    assert command(path, "--data", tmp_path, "--rows", "FedER") == (
        0,
        [("feder", 0), ("feder", 1)],
    )
    kept = (output / "table.md").read_text()
    printed = capsys.readouterr().out
    assert kept in printed
    assert [line for line in kept.splitlines() if line.startswith("| ")][2:] == [
        "| FedER | 75.0 ± 7.1 | 83.4 | 20.0 ± 0.0 | 85.0 ± 10.0 | 85.7 ± 2.4 | – |"
    ]
    folder = output / "feder" / "seed-1"
    assert f"\n[2/2] FedER, seed 1: under way in {folder}\n[2/2] FedER, seed 1: c" in printed
    assert f"uv run fedhandoff compare '{output}'\n" in printed
    assert f"uv run fedhandoff reproduce {path} --data {tmp_path} --rows FedER --output" in kept


def test_the_command_sweeps_and_goes_on_where_it_was(command):
    first = ["--vary", "strategy=cwt,rwt", "--vary", "num-server-rounds=2"]
    assert command(*first, "--seeds", "3")[1] == [("cwt", 3), ("rwt", 3)]
    assert command(*first, "--seeds", "3,4") == (0, [("cwt", 4), ("rwt", 4)])


def test_two_processes_do_not_run_one_table(tmp_path, command, capsys):
    """Each would take the other's result folders for its own."""
    (tmp_path / "the output").mkdir()
    with lock(tmp_path / "the output", "A table"):
        assert command("--vary", "strategy=cwt") == (2, [])
    assert "A table already runs from" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["echo It has failed.; exit 9", None])
def test_a_table_needs_neither_git_nor_nvidia_smi(tmp_path, monkeypatch, script):
    """git refuses a clone of another user; nvidia-smi fails without a driver."""
    for name in ("git", "nvidia-smi") if script else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (markdown.commit(), markdown.gpu_names()) == ("unknown", [])


def test_a_row_has_a_column_for_each_cell():
    assert markdown.table_row(["a|b", 0.5]) == "| a&#124;b | 0.5 |"


def test_what_this_machine_lacks_is_named_before_anything_runs(tmp_path, command, capsys):
    (tmp_path / "two.toml").write_text(TABLE)
    assert command(tmp_path / "two.toml", "--data", "/no") == (2, [])
    assert "Row 'alone': The setting 'dataset'" in capsys.readouterr().err
    assert command("--vary", "strategy=cwt", "--hospitals", "1") == (2, [])
    assert "'min-hospitals' is 2; it must be at most" in capsys.readouterr().err


def test_a_superlink_that_does_not_start_is_named_with_its_last_words(tmp_path, monkeypatch):
    """Its log is in a temporary folder."""
    (tmp_path / "flower-superlink").write_text("#!/bin/sh\necho no room; exit 1\n")
    (tmp_path / "flower-superlink").chmod(0o755)
    monkeypatch.setattr(simulation, "flower_environment", lambda _: {"PATH": str(tmp_path)})
    with (
        pytest.raises(RunFailed, match="did not start: no room"),
        simulation.superlink(tmp_path / "own"),
    ):
        pass


def test_a_superlink_ends_with_a_table_that_gets_sigterm(tmp_path, monkeypatch):
    (tmp_path / "flower-superlink").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "flower-superlink").chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []

    class Known(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Known)
    monkeypatch.setattr(simulation, "flower_environment", lambda _: {"PATH": str(tmp_path)})
    monkeypatch.setattr(simulation, "_answers", lambda *_: True)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended, simulation.superlink(tmp_path / "own"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (ended.value.code, started[0].poll()) == (143, -15)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ('{"success": true, "runs": []}', "nothing of run 7; has its SuperLink been ended?"),
        ("Connection refused", "says: Connection refused"),
        (
            '{"runs": [{"status": "finished:failed", "status-details": "boom"}]}',
            "finished:failed: boom",
        ),
    ],
)
def test_a_run_that_flower_knows_nothing_good_of_has_failed(listed, words, tmp_path, monkeypatch):
    def flwr(command, **_):
        text = "Successfully started run 7\nits log" if command[1] == "run" else listed
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr("subprocess.run", flwr)
    with pytest.raises(RunFailed) as error:
        simulation.run({}, tmp_path, 2)
    assert words in str(error.value)
    assert str(error.value).endswith("its log")


class Superlink:
    def __init__(self, folder, XDG_DATA_HOME):
        self.store = XDG_DATA_HOME

    def __enter__(self):
        assert self.store.endswith("output/store")
        return {}

    def __exit__(self, *error):
        return None


def test_attacks_are_on_the_newest_completed_run_of_each_repeat(tmp_path, monkeypatch, capsys):
    """By hand: 60 and 50 % over two seeds, mean 55, std sqrt(2 · 25) = 7.1; a run without a commit
    was not completed."""
    for place in ("plan/seed-0/1", "plan/seed-0/2", "plan/seed-1/1", "lci/seed-0/1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "commit").touch()
        (tmp_path / place / "config.toml").touch()
        summary = {"status": "completed", "failures": [], "data": {}}
        (tmp_path / place / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "plan/seed-0/3").mkdir()
    worth = {"plan/seed-0/2": 0.6, "plan/seed-1/1": 0.5, "lci/seed-0/1": 0.4}

    def attack(run, networks):
        yield worth[str(run.relative_to(tmp_path))], networks / 10

    monkeypatch.setattr(membership, "attack", attack)
    monkeypatch.setattr("sys.argv", ["membership", str(tmp_path), "3"])
    membership.main()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "| lci | 40.0 | 30.0 |",
        "| plan | 55.0 ± 7.1 | 30.0 ± 0.0 |",
    ]
