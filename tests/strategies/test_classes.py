"""Names of classes that may be one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.protocol.classes import group_spellings, quote


@pytest.mark.parametrize(
    "names",
    [
        ["Nevus", "nevus", "NEVUS"],
        ["nevus", "nevus ", " nevus", "nevus_"],
        ["0", "0.0", "00", "-0"],
        ["1,5", "1.5"],
        ["N\u00e4vus", "Na\u0308vus"],
        [
            "basal cell",
            "basal-cell",
            "Basal_Cell",
            "BasalCell",
            "basal\u2013cell",
            "basal\u00a0cell",
        ],
        ["grade 1", "grade-1", "Grade1"],
        ["1-2", "1 2", "1\u20132"],
        ["Paget's", "Paget\u2019s"],
        ["melanoma", "mela\u00adnoma", "\ufeffmelanoma"],
        ["nan", "NaN"],
        ["HER2-", "HER2\u2013", "HER2\u2212"],
        ["-1", "\u22121"],
        ["nevus", "'nevus'", '"nevus"'],
    ],
)
def test_spellings_of_one_class(names):
    assert group_spellings(names) == [sorted(names)]
    assert group_spellings(names, apart=[names[:1], names]) == []
    assert group_spellings(names, apart=[names[:1]]) == [sorted(names)]


@pytest.mark.parametrize(
    "names",
    [
        ["HER2+", "HER2-", "HER2"],
        ["1-2", "12"],
        ["-1", "1"],
        ["0", "1", "10"],
        ["T1", "T11", "T1a"],
        ["inf", "Infinity"],
        ["grade I", "grade II"],
    ],
)
def test_different_classes(names):
    assert group_spellings(names) == []


@given(st.lists(st.text()))
def test_no_text_is_lost_and_none_alike_itself(names):
    groups = group_spellings(names)
    assert all(len({*group}) > 1 and {*group} <= {*names} for group in groups)


def test_what_cannot_be_seen_can_be_read():
    assert quote("gr\u00f6\u00dfer") == "'gr\u00f6\u00dfer'"
    assert quote("in\u00a0situ") == r"'in\xa0situ'"
    assert quote("Na\u0308vus") == r"'Na\u0308vus'"
    assert quote("L" * 120) == f"'{'L' * 40}' (and 80 characters more)"
