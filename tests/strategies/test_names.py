import pytest

from strategies.protocol.names import RESERVED, check_name


@pytest.mark.parametrize("name", ["graz", "Graz-2", "hospital-07", "a.b_c", "7", "x" * 64])
def test_names_that_can_be_used(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-x", "_x", "a/b", "a\\b", "a b", "Köln", "x" * 65, "graz\n", *RESERVED]
)
def test_names_that_lead_elsewhere_or_mean_something_else(name):
    with pytest.raises(ValueError, match=r"A hospital cannot be called .* ASCII letters"):
        check_name(name)
