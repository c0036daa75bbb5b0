"""Who takes part in which task."""

import pytest

from strategies.engine import presence
from strategies.engine.presence import plan_table
from strategies.protocol.settings import SettingsError
from strategies.registry import strategy_of
from tests.fakes import settings

NAMES = ["graz", "linz", "salzburg", "wien"]


@pytest.fixture(autouse=True)
def _files_are_read_again():
    presence._read.cache_clear()


def plan(enrolment, names=NAMES, tasks=4):
    chosen = settings(strategy="fedavg", tasks=tasks, enrolment=str(enrolment), num_server_rounds=8)
    return plan_table(chosen, names)


def active(table, tasks=4):
    return [[name for name in table if table[name][t] == "active"] for t in range(tasks)]


def test_the_scenarios_of_figure_4():
    assert active(plan("")) == active(plan("S1")) == [NAMES] * 4
    assert active(plan("S2")) == [NAMES[:4], NAMES[:3], NAMES[:2], NAMES[:1]]
    assert plan("S2")["wien"] == ["active", "left", "left", "left"]
    assert active(plan("S3")) == [NAMES[:1], NAMES[:2], NAMES[:3], NAMES[:4]]
    assert plan("S3")["wien"] == ["not-yet", "not-yet", "not-yet", "active"]
    assert active(plan("S4")) == [[name] for name in NAMES]
    assert plan("S4")["linz"] == ["not-yet", "active", "left", "left"]


def test_scenarios_with_other_numbers_of_hospitals():
    ten = [f"h{k}" for k in range(10)]
    assert [len(each) for each in active(plan("S2", ten))] == [10, 8, 5, 2]
    assert [len(each) for each in active(plan("S3", ten))] == [2, 5, 8, 10]
    assert sorted(name for names in active(plan("S4", ten)) for name in names) == ten
    with pytest.raises(SettingsError, match="no hospital is active in task 2"):
        plan("S4", NAMES[:2], tasks=4)
    assert active(plan("S2", NAMES, tasks=1), 1) == [NAMES]


def test_a_table_in_a_file(tmp_path):
    path = tmp_path / "plan.csv"
    path.write_text("graz,active,active\nwien, not-yet, active\nlinz,active,left\n")
    assert plan(path, ["graz", "linz", "wien"], 2) == {
        "graz": ["active", "active"],
        "linz": ["active", "left"],
        "wien": ["not-yet", "active"],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("graz,active,active\n", "no line for 'linz'"),
        ("graz,active,active\nlinz,active\n", "'linz' needs one of"),
        ("graz,active,active\nlinz,active,away\n", "'linz' needs one of"),
        ("graz,active,active\nlinz,left,active\n", "'linz' comes back"),
        ("graz,active,left\nlinz,active,left\n", "no hospital is active in task 2"),
        ("graz,active,left\nlinz,active,active\ngraz ,active,active\n", "'graz' has two lines"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, text, reason):
    path = tmp_path / "plan.csv"
    path.write_text(text)
    with pytest.raises(SettingsError, match=reason):
        plan(path, ["graz", "linz"], 2)


def test_a_missing_file_and_methods_that_need_everybody_are_refused(tmp_path):
    missing = str(tmp_path / "none.csv")
    with pytest.raises(SettingsError, match="cannot be read"):
        strategy_of(settings(strategy="fedavg", enrolment=missing)).check(sealed=False)
    for strategy in ("rwt", "standalone"):  # one of them hands no model on
        reason = f"'enrolment' is 'S2'; it must be empty with strategy '{strategy}', which has all"
        with pytest.raises(SettingsError, match=reason):
            strategy_of(settings(strategy=strategy, enrolment="S2"))
