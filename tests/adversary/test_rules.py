"""Thousands of changed policies and settings: each is refused with a reason, or can be meant.

Whoever writes a policy makes slips; whoever starts a run sends any settings.
"""

import math
import random
import re

import pytest
from flwr.app import Message, RecordDict

from client_app.app import app
from client_app.authority.node_config import OwnError
from client_app.authority.policy import DEFAULTS, Policy, PolicyError, explain
from gan.presets import PresetError
from learning.learners import LEARNERS
from strategies.protocol.code import code_hash
from strategies.protocol.may_leave import Failure
from strategies.protocol.order import Order
from strategies.protocol.records import to_record
from strategies.protocol.settings import Settings, SettingsError, defaults
from strategies.registry import strategy_of
from tests.fakes import deployed

# As TOML writes them.
VALUES = [
    *("0", "-1", "1", "2", "0.5", "-0.5", "1.5", "1e400", "-1e400", "1e308", "5e-324", "nan"),
    *("inf", f"{2**63}", f"-{2**63}", "9" * 400, "9" * 5000, "0x" + "f" * 5000, "true", "false"),
    *('""', '"x"', '"nan"', "[]", '[""]', '["x"]', "[0]", "[[]]", "[nan]", "{}", "{a = 1}"),
    *(
        "x",
        "=",
        "1979-05-27",
        "[" * 5000,
        "{a = " * 5000,
        '"\\ud800"',
        "'a\tb'",
        '["auroc", "auroc"]',
    ),
]
TEXTS = [
    *("", "0", "1", "-1", "1,2", "9" * 5000, "²", "٣", "1,", ",", "a,a", "sample:999999"),
    *("sample:0", "/x", "~", "~x", "public:", "public:/x", "x" * 70_000, "\0", "nan", "1e400"),
    *("inf,1", "x://a:b@c"),
]
NUMBERS = [
    *(0, 1, -1, 2, 7, 2**31, 2**63 - 1, -(2**63), True, False),
    *(0.0, -0.0, 0.5, 1.0, -1.5, 5e-324, 1e-300, 1e300, 1.8e308, math.inf, -math.inf, math.nan),
]
HUGE = [2**63, 10**400, 1 << 20_000]  # which no message of Flower's can hold


def mutated(text, rng):
    """The text of a policy with one to three changes."""
    lines = text.splitlines()
    for _ in range(rng.choice([1, 1, 2, 3])):
        place = rng.randrange(len(lines))
        rules = [k for k, line in enumerate(lines) if " = " in line]
        match rng.randrange(6):
            case 0 | 1 | 2 if rules:
                place = rng.choice(rules)
                lines[place] = f"{lines[place].split(' = ')[0]} = {rng.choice(VALUES)}"
            case 3:
                lines.insert(rng.randrange(len(lines)), lines[place])
            case 4:
                line = lines[place]
                at = rng.randrange(len(line) + 1)
                lines[place] = line[:at] + rng.choice('"[]{}=.#\n\0ä \\') + line[at + 1 :]
            case _:
                lines[place] = rng.choice(["", "[", "[[runs]]", "[runs", "a.b.c = 1", "runs = 1"])
    return "\n".join(lines)


def test_a_changed_policy_is_refused_with_its_path_or_bounds_all_it_says(tmp_path):
    rng, settings, refused = random.Random(0), Settings.parse(defaults()), []
    _, *tables = re.split(r"^(?=\[)", DEFAULTS.read_text("utf-8"), flags=re.MULTILINE)
    path = tmp_path / "policy.toml"
    for _ in range(1000):
        path.write_text(mutated(rng.choice(tables).strip(), rng), "utf-8")
        try:
            policy = Policy.read(path)
        except OwnError as error:
            refused.append(error.explain())
            continue
        for table in vars(policy).values():
            numbers = [each for each in vars(table).values() if isinstance(each, int | float)]
            assert all(0 <= number <= 1e9 for number in numbers)
        assert explain(list(policy.judge(settings)))
    assert all(str(path) in each for each in refused)
    assert 500 < len(refused) < 950


@pytest.mark.parametrize("seed", range(10))
def test_changed_settings_are_refused_with_a_reason_or_can_be_judged(seed):
    rng, policy, usual, refused = random.Random(seed), Policy.read(), defaults(), 0
    for _ in range(100):
        settings = usual | changes(usual, rng, HUGE)
        try:
            parsed = Settings.parse(settings)
            strategy_of(parsed)
            assert explain(list(policy.judge(parsed)))
            for learner in LEARNERS.values():
                learner.read_settings(parsed)
            parsed.train.hospital_settings(1).round_settings(2**40)
            policy.check(parsed)
        except (SettingsError, PresetError, PolicyError):
            refused += 1
    assert 50 < refused < 100


def changes(usual, rng, more=()):
    keys = rng.sample(sorted(usual), rng.choice([1, 1, 2, 3]))
    kinds = [TEXTS if isinstance(usual[key], str) else [*NUMBERS, *more] for key in keys]
    both = [kind if rng.random() < 0.9 else TEXTS + NUMBERS for kind in kinds]
    return {key: rng.choice(values) for key, values in zip(keys, both, strict=True)}


@pytest.mark.slow
def test_no_setting_ends_an_enrolment_without_a_reason(tmp_path):
    rng, place = random.Random(0), deployed(tmp_path)
    usual = dict(place.run_config)
    for number in range(300):
        place.run_config.clear()
        place.run_config.update(usual | changes(usual, rng))
        order = Order(0, 0, "graz", [], "plain", str(number), code=code_hash())
        content = RecordDict({"order": to_record(order)})
        answer = app(Message(content, 100, "query.enrol", ttl=60.0), place)
        if answer.has_error():
            assert answer.error.code != Failure.CRASHED, answer.error.reason
