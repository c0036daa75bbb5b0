"""A figure that is declared has its place in each table, page and text that shows it."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from client_app.release.noise import effects
from pages.figures import FIGURES
from server_app.summary import Summary, _Row
from strategies.protocol.may_leave import METRICS
from strategies.protocol.tested import TESTED
from tests.client_app.test_details import details, said, saying, told_of

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("metric", TESTED)
def test_a_summary_has_the_means_of_a_figure_of_tests(metric):
    name = metric.replace("-", "_")
    means = {f"{kind}_{name}" for kind in ("personalized", "federation", "ensemble")}
    ends = {f"federation_{name}_{end}" for end in ("low", "high")}
    assert means | ends <= {field.name for field in fields(Summary)}


def test_the_effect_of_a_patient_on_each_figure_of_tests_is_known():
    assert TESTED.keys() <= effects(np.arange(8), np.arange(8) % 2).keys()


def test_each_figure_of_tests_has_an_interval_in_the_last_round(tmp_path):
    labels = [0, 1] * 40
    told = told_of(details(tmp_path, labels), said(saying(labels)))
    for metric in TESTED:
        assert told[f"{metric}-low"] < told[metric] <= told[f"{metric}-high"]


def test_other_people_s_rows_are_checked_for_each_figure():
    assert FIGURES.keys() <= _Row.__annotations__.keys()


def test_no_declared_figure_has_a_digit():
    """In an answer, the digits of a name stand for a class or a task."""
    assert not [name for name in METRICS if re.search(r"\d", name)]


@pytest.mark.parametrize(
    ("page", "names"), [("privacy/figures.md", TESTED), ("reading-figures.md", FIGURES)]
)
def test_a_page_explains_each_figure(page, names):
    text = re.sub("[_-]", " ", (DOCS / page).read_text("utf-8").lower())
    assert not [name for name in names if re.sub("[_-]", " ", name) not in text]
