import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

from client_app.authority import privacy_account
from client_app.authority.node_config import OwnError
from client_app.authority.policy import PolicyError, PrivacyRules
from client_app.authority.privacy_account import (
    FILE,
    Spent,
    epsilon,
    noise_for,
    read_account,
    require_delta,
    spend,
)
from strategies.protocol.declared import LEAST_DELTA, LEAST_EPSILON, MOST_DELTA, MOST_EPSILON
from strategies.protocol.settings import SettingsError

RULES = PrivacyRules(require=[], max_epsilon=1.0, max_delta=1e-5)


def delta_of(noise, eps):
    """δ of one Gaussian release: Balle and Wang 2018, theorem 5."""
    return norm.cdf(1 / (2 * noise) - eps * noise) - math.exp(eps) * norm.cdf(
        -1 / (2 * noise) - eps * noise
    )


def test_the_noise_of_one_release():
    assert noise_for(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-3)
    assert delta_of(noise_for(2.0, 1e-5), 2.0) == pytest.approx(1e-5, rel=1e-4)


def test_four_releases_are_one_of_half_the_noise():
    spent = [Spent("x", 8.0)] * 3 + [Spent("y", 8.0)]
    assert delta_of(4.0, epsilon(spent, 1e-5)) == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.slow
def test_a_sampled_step_tells_less_and_never_nothing():
    """One step of rate q: δ_q(ε') = q δ(ε) at ε' = ln(1 + q (e^ε - 1)), for removal."""
    noise, rate = 2.0, 0.1
    sampled = epsilon([Spent("x", noise, rate)], 1e-5)
    whole = math.log(1 + (math.exp(sampled) - 1) / rate)
    assert rate * delta_of(noise, whole) == pytest.approx(1e-5, rel=2e-2)
    both = epsilon([Spent("x", noise, rate), Spent("y", 4.0)], 1e-5)
    assert both > max(sampled, epsilon([Spent("y", 4.0)], 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("delta", [LEAST_DELTA, MOST_DELTA])
@pytest.mark.parametrize("noise", [0.1, 1000.0])
def test_a_guarantee_within_the_bounds_of_settings_is_finite(delta, noise):
    """With δ = 1e-16 that of sampled steps was not."""
    assert 0 <= epsilon([Spent("x", noise, 0.1, 100)], delta) < 1e4
    for least in (LEAST_EPSILON, MOST_EPSILON):
        assert epsilon([Spent("x", noise_for(least, delta))], delta) == pytest.approx(least)


def test_a_huge_privacy_loss_is_refused_without_gigabytes(tmp_path, monkeypatch):
    """50 epochs of 1,000 patients in batches of 8: the exact sum, 3732, takes 4 GB."""
    monkeypatch.setattr(dp_accounting.pld.PLDAccountant, "compose", None)
    with pytest.raises(PolicyError) as refusal:
        spend(tmp_path, Spent("x", 0.1, 0.008, 6250), 1e-5, RULES)
    assert float(str(refusal.value.requested)) > 3732
    assert not read_account(tmp_path)


@pytest.mark.slow
def test_many_kinds_of_releases_are_composed_as_few_that_reveal_more(monkeypatch):
    """A server chooses them, and each one took time at all later releases."""
    cheap = [Spent("x", 900.0 + k, 0.01 + 1e-6 * k) for k in range(3000)]
    first = [Spent("x", 4.0, 0.1, 100), Spent("x", 5.0, 0.1, 100)]
    few = [*first, *cheap[:2], Spent("x", 900.0, 0.9)]
    exact = epsilon(few, 1e-5)
    composed, event = [], dp_accounting.PoissonSampledDpEvent

    def event_spied(rate, release):
        composed.append((rate, release.noise_multiplier))
        return event(rate, release)

    monkeypatch.setattr(privacy_account, "EXACT", 2)
    monkeypatch.setattr(dp_accounting, "PoissonSampledDpEvent", event_spied)
    assert exact < epsilon(few, 1e-5) < 1.001 * exact
    composed.clear()
    epsilon(first + cheap, 1e-5)
    merged = {(2**-6, 512.0), (2**-6, 1024.0), (2**-6, 2048.0)}
    assert {*composed} == {(0.1, 4.0), (0.1, 5.0)} | merged


def test_no_noise_is_no_guarantee():
    assert epsilon([Spent("x", 0.0)], 1e-5) == math.inf


def test_a_release_is_counted_before_it_is_made_and_the_second_one_is_refused(tmp_path):
    folder, spent = tmp_path / "own", Spent("statistic", noise_for(1.0, 1e-5))
    assert spend(folder, spent, 1e-5, RULES) == pytest.approx(1.0)
    with pytest.raises(PolicyError) as refusal:
        spend(folder, spent, 1e-5, RULES)
    assert refusal.value.rule == "privacy.max-epsilon"
    two = noise_for(1.0, 1e-5) / math.sqrt(2)
    assert delta_of(two, refusal.value.requested) == pytest.approx(1e-5, rel=1e-2)
    assert read_account(folder) == [spent]
    assert (folder / FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("rules", "counted"), [(None, 1), (replace(RULES, max_epsilon=9.0), 2)])
def test_a_repeated_visit_counts_again_only_where_its_noise_is_new(tmp_path, rules, counted):
    first, other = Spent("hop 1", 4.0, 0.1, 10), Spent("hop 2", 4.0, 0.1, 10)
    totals = [spend(tmp_path, each, 1e-5, rules) for each in (first, first, other)]
    assert read_account(tmp_path) == [first] * counted + [other]
    assert (totals[0] == totals[1]) == (counted == 1)
    assert totals[2] == epsilon([first] * counted + [other], 1e-5)


def test_a_small_limit_is_not_rounded_up(tmp_path):
    """Two releases of ε = 0.001 have 0.0014 together, which was rounded to 0.001."""
    rules = replace(RULES, max_epsilon=0.001)
    spent = Spent("statistic", noise_for(0.001, 1e-5))
    spend(tmp_path, spent, 1e-5, rules)
    with pytest.raises(PolicyError):
        spend(tmp_path, spent, 1e-5, rules)


def test_a_larger_delta_buys_nothing(tmp_path):
    with pytest.raises(PolicyError, match="privacy"):
        spend(tmp_path, Spent("x", 100.0), 1e-4, RULES)


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    spend(tmp_path, Spent("x", 100.0), 1e-5, RULES)
    with (tmp_path / FILE).open("a") as file:
        file.write('\n{"what": "y", "noi')
    spend(tmp_path, Spent("z", 100.0), 1e-5, RULES)
    assert read_account(tmp_path) == [Spent("x", 100.0), Spent("z", 100.0)]


@pytest.mark.parametrize("end", ["\0" * 40, " ", "\r", "\n", "\n\0\0"])
def test_what_stands_behind_a_release_does_not_take_it_back(tmp_path, end):
    """A loss of power leaves zeros in the place of the next line; an editor leaves blanks."""
    spend(tmp_path, Spent("x", 100.0), 1e-5, RULES)
    with (tmp_path / FILE).open("a", newline="") as file:
        file.write(end)
    assert read_account(tmp_path) == [Spent("x", 100.0)]
    spend(tmp_path, Spent("z", 100.0), 1e-5, RULES)
    assert read_account(tmp_path) == [Spent("x", 100.0), Spent("z", 100.0)]


@pytest.mark.parametrize("damaged", ["<html>", '\ufeff{"what": "x", "no', "{'what'", '{"what": 1}'])
def test_a_line_that_no_release_begins_with_is_not_passed_over(tmp_path, damaged):
    """The releases of such a line would be forgotten, and their ε spent again."""
    spend(tmp_path, Spent("x", 100.0), 1e-5, RULES)
    with (tmp_path / FILE).open("a") as file:
        file.write(f"\n{damaged}")
    with pytest.raises(OwnError) as refusal:
        spend(tmp_path, Spent("z", 100.0), 1e-5, RULES)
    assert "Restore it from a backup" in refusal.value.explain()


@pytest.mark.parametrize("delta", [1 / 306, 1 / 300, 1 / 311])
def test_a_refusal_by_delta_does_not_count_the_patients(delta):
    """301 and 310 patients are 310; a simulation, whose groups are of one, has the exact number."""

    def refused(patients, group):
        try:
            require_delta("train.dp.delta", delta, np.arange(patients), group)
        except SettingsError:
            return True
        return False

    assert len({refused(patients, 10) for patients in range(301, 311)}) == 1
    assert refused(310, 10) == (delta * 310 >= 1)
    assert refused(305, 1) == (delta * 305 >= 1)
