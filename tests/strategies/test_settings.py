import re
from dataclasses import replace

import numpy as np
import pytest

from learning.learners import LEARNERS
from strategies.protocol import settings as settings_module
from strategies.protocol.settings import Settings, SettingsError, complete, defaults, rng_for
from strategies.protocol.streams import task_at
from strategies.registry import STRATEGIES, strategy_of
from tests.fakes import all_defaults, run_config


def test_the_defaults_are_valid():
    settings = Settings.parse(run_config())
    assert settings.strategy in STRATEGIES
    assert settings.train.batch_size == 32
    assert settings.mlp.widths == (256, 256)


def test_without_a_checkout_there_are_no_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr(settings_module, "PYPROJECT", tmp_path / "pyproject.toml")
    with pytest.raises(SettingsError, match=r"pyproject.toml, which is not there: run this in a"):
        defaults()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num-server-rounds", 0, "The setting 'num-server-rounds' is 0; it must be 1 to 100000."),
        (
            "num-server-rounds",
            1.5,
            "The setting 'num-server-rounds' is 1.5; it must be a whole number.",
        ),
        ("num-server-rounds", True, "'num-server-rounds' is true; it must be a whole number"),
        ("train.epochs", "3", "'train.epochs' is '3'; it must be a whole number"),
        ("train.optimizer", "adan", "'train.optimizer' is 'adan'; it must be one of adam, sgd."),
        ("train.learning-rate", -1, "'train.learning-rate' is -1; it must be above 0"),
        ("partition", "random", "it must be one of iid, dirichlet, classes, site"),
        ("evaluate.cross", "yes", "'evaluate.cross' is 'yes'; it must be true or false"),
        ("evaluate.cross", "sample:1", "or 'sample:' and a number of 2 or more"),
        ("test-fraction", 1.0, "it must be 0 or more, and below 1"),
        ("validation-fraction", -0.1, "it must be 0 or more, and below 1"),
        (
            "pretrained",
            "resnet18.pth",
            "'pretrained' is 'resnet18.pth'; it must be imagenet, package:efficientnet-lite0, an ",
        ),
        ("image-fit", "fill", "'image-fit' is 'fill'; it must be one of squash, pad, crop."),
        ("num-folds", 1, "'num-folds' is 1; it must be 0, or 2 or more."),
        ("fold", 1, "'fold' is 1; it must be 0 or more, below num-folds."),
        ("max-quarantined", 1.0, "'max-quarantined' is 1.0; it must be 0 or more, and below 1."),
        ("classes", "a,a", "'classes' is 'a,a'; it must be two or more different names"),
        ("classes", "a", "'classes' is 'a'; it must be two or more different names"),
        ("tasks", 0, "'tasks' is 0; it must be 1 or more."),
        ("tasks", 11, "'num-server-rounds' is 10; it must be 11 or more, a round for each of the"),
        ("task-cut", "time", "it must be one of classes, shared-classes, permuted, given."),
        ("task-classes", -1, "'task-classes' is -1; it must be 0 or more."),
        ("image-channels", 1, "'image-channels' is 1; it must be one of 0, 3."),
        ("output-dir", "runs", "it must be an absolute path, or one that starts with ~"),
        ("resume", "runs", "an absolute path, or one that starts with ~, or empty."),
        ("mlp.hidden", "256,,1", "such as '256,256'"),
        ("release.shadow-generators", 258, "is 258; it must be 0, or an even number up to 256."),
    ],
)
def test_a_wrong_value_is_named(key, value, message):
    with pytest.raises(SettingsError) as error:
        Settings.parse({**run_config(), key: value})
    assert message in str(error.value)


# Whole numbers without a limit of their own: the images, classes or hospitals of a run limit them,
# or the time of a message, or the number of rounds (`tasks`).
LIMITED_ELSEWHERE = {
    *("partition-classes", "tasks", "task-classes", "num-folds", "min-hospitals", "seed"),
    *("train.batch-size", "train.halve-every", "evaluate.every", "hop-timeout", "prepare-timeout"),
    *("gan.k", "gan.iterations", "gan.projections", "release.min-class-images"),
    "reservoir.batch-size",
}


def test_no_number_is_so_large_that_a_run_would_fill_the_memory_or_never_end():
    """The server lists the rounds; a buffer of 10^9 images takes 64 GB at 8 pixels a side."""
    numbers = {key for key, usual in all_defaults().items() if type(usual) is int}
    assert {key for key in numbers if not is_refused(key, 10**9)} == LIMITED_ELSEWHERE


def is_refused(key, value):
    """Whether the settings, a method or a learner refuse a value."""
    try:
        for name in STRATEGIES:
            settings = Settings.parse({**run_config(strategy=name), key: value})
            strategy_of(settings)
        for learner in LEARNERS.values():
            learner.read_settings(settings)
    except SettingsError as error:
        return f"'{key}' is {value}" in str(error)
    return False


PRIVATE = re.compile(r"(epsilon|delta|noise-multiplier|clipping-norm)$")


@pytest.mark.parametrize("key", [key for key in all_defaults() if PRIVATE.search(key)])
@pytest.mark.parametrize("value", [1e9, 1001, 1e-30, -1])
def test_privacy_settings_have_bounds_on_both_sides(key, value):
    freeze = {"train__freeze": "body"} if key.startswith("sums.") else {}
    strategy = "sums" if freeze else "rwt"
    config = {**run_config(strategy=strategy, sums__ridge=1.0, **freeze), key: value}
    with pytest.raises(SettingsError, match=f"The setting '{key}' is {value}; it must be .* to"):
        strategy_of(Settings.parse(config))


def test_all_wrong_values_are_named_at_once():
    wrong = {"train.epochs": 0, "train.dp.delta": 2, "gan.k": True, "seed": -1, "partition": "x"}
    config = {**run_config(), **wrong}
    del config["model"]
    with pytest.raises(SettingsError) as error:
        Settings.parse(config)
    text = str(error.value)
    shown = {**wrong, "gan.k": "true", "partition": "'x'"}
    assert all(f"The setting '{key}' is {shown[key]}; it must be " in text for key in wrong)
    assert "The setting 'model' is missing" in text
    with pytest.raises(
        SettingsError, match=r"'epochs'.* did you mean 'train.epochs'.*'modl'.*'model'"
    ):
        complete({"epochs": 1, "modl": "mlp"})


def test_a_long_value_is_shown_by_its_beginning_and_without_its_password():
    url = "x" * 270 + "://me:hunter2@host/" + "x" * 70_000
    with pytest.raises(SettingsError) as error:
        Settings.parse(run_config(**{"gan.kl": url, "seed": 10**5000, "train.epochs": -(10**400)}))
    assert "hunter2" not in str(error.value)
    assert len(str(error.value)) < 1000
    with pytest.raises(SettingsError, match=r"There is no setting 'sed' .*; did you mean 'seed'"):
        complete({"sed": 10**5000})


def test_only_tasks_of_classes_have_so_many():
    with pytest.raises(SettingsError, match="'task-classes' is 5; it must be 0 with the task-cut"):
        Settings.parse(run_config(tasks=2, task_cut="permuted", task_classes=5))


@pytest.mark.parametrize(
    ("tasks", "rounds", "expected"),
    [
        (1, 3, [0, 0, 0]),
        (2, 4, [1, 1, 2, 2]),
        (3, 3, [1, 2, 3]),
        (2, 5, [1, 1, 1, 2, 2]),
        (3, 7, [1, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_each_task_has_rounds_one_after_the_other(tasks, rounds, expected):
    settings = Settings.parse(run_config(tasks=tasks, num_server_rounds=rounds))
    assert [task_at(settings, each) for each in range(1, rounds + 1)] == expected
    assert task_at(settings, 0) == expected[0]


def test_a_missing_key_is_named():
    config = run_config()
    del config["train.epochs"]
    with pytest.raises(SettingsError, match=r"'train\.epochs' is missing"):
        Settings.parse(config)


@pytest.mark.parametrize(
    ("strategy", "key", "value", "message"),
    [
        ("feder", "feder.buffer-size", -1, "'feder.buffer-size' is -1; it must be 0 to 100000"),
        ("feder", "feder.variant", "half", "it must be one of full, buffer-only, synthetic-only"),
        ("fedrewind", "rewind.fraction", 0.5, "it must be 0 or more, and below 0.5"),
        ("centralized", "centralized.data", "all", "it must be one of real, synthetic, both"),
    ],
)
def test_a_method_refuses_its_own_wrong_values(strategy, key, value, message):
    settings = Settings.parse({**run_config(strategy=strategy), key: value})
    with pytest.raises(SettingsError) as error:
        strategy_of(settings)
    assert message in str(error.value)
    strategy_of(replace(settings, strategy="cwt"))  # who does not use a value does not judge it


def test_the_run_config_can_be_had_back():
    config = run_config(train__epochs=7, cwc__strength=0.5)
    assert Settings.parse(config).run_config == config


def test_a_whole_number_serves_as_a_fraction():
    assert Settings.parse(run_config(train__learning_rate=1)).train.learning_rate == 1.0


def test_an_unknown_strategy_lists_the_choices():
    with pytest.raises(
        SettingsError, match=r"'feddr'; it must be one of .*cwt, cwt-serial, fedavg, .*standalone"
    ):
        strategy_of(Settings.parse(run_config(strategy="feddr")))


def test_randomness_depends_on_every_argument_and_on_nothing_else():
    places = [
        (0, "visit", 1, 1, "a"),
        (1, "visit", 1, 1, "a"),
        (0, "route", 1, 1, "a"),
        (0, "visit", 2, 1, "a"),
        (0, "visit", 1, 2, "a"),
        (0, "visit", 1, 1, "b"),
    ]
    draws = [rng_for(*place).integers(2**63) for place in places]
    np.random.seed(7)  # nobody else's seed matters
    assert draws == [rng_for(*place).integers(2**63) for place in places]
    assert len(set(draws)) == len(draws)
