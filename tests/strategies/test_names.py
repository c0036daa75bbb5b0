import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_app.wording import wait_line
from strategies.engine.courier import Awaited
from strategies.protocol.names import RESERVED, check_name, join_names, names_of_folders


@pytest.mark.parametrize("name", ["graz", "Graz-2", "hospital-07", "a.b_c", "7", "x" * 64])
def test_names_that_can_be_used(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-x", "_x", "a/b", "a\\b", "a b", "Köln", "x" * 65, "graz\n", *RESERVED]
)
def test_names_that_lead_elsewhere_or_mean_something_else(name):
    with pytest.raises(ValueError, match=r"A hospital cannot be called .* ASCII letters"):
        check_name(name)


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["/d/graz", " /d/linz/"], ["graz", "linz"]),
        (["/d/graz/manifest.csv", "/d/linz.csv"], ["graz", "linz"]),
        (["/d/dr.graz", "/d/dr.linz"], ["dr.graz", "dr.linz"]),
        (["/graz/skin", "/linz/skin"], ["graz-skin", "linz-skin"]),
        (["/graz/skin/2024", "/linz/skin/2024"], ["graz-skin-2024", "linz-skin-2024"]),
        (["/graz/Skin", "/linz/skin"], ["graz-Skin", "linz-skin"]),  # one folder on some machines
        (["/d/Klinik Süd", "/d/Klinik (Nord)"], ["Klinik-Sud", "Klinik-Nord-"]),
        (["/graz/images", "/linz/images"], ["graz-images", "linz-images"]),
        (["/graz/images", "/linz/skin"], ["graz-images", "linz-skin"]),
        (["/d/_a", "/d/.b"], ["a", "b"]),
        (["/東京", "/大阪"], ["hospital-0", "hospital-1"]),
        (["/d/a", "/d/a"], ["hospital-0", "hospital-1"]),
        (["/d/a b", "/d/a-b"], ["hospital-0", "hospital-1"]),
        ([f"/d/{'x' * 99}{end}" for end in "ab"], ["hospital-0", "hospital-1"]),
        ([f"/{k}/skin" for k in range(11)], [f"{k}-skin" for k in range(11)]),
    ],
)
def test_simulated_hospitals_are_called_after_their_folders(places, names):
    assert names_of_folders(places) == names
    assert [check_name(name) for name in names] == names


@given(st.lists(st.text("/aÄ ._-東x", min_size=1).map("/{}".format), min_size=2, max_size=4))
def test_any_folders_give_different_names_that_can_be_used(places):
    names = names_of_folders(places)
    assert len({check_name(name).lower() for name in names}) == len(places)


def test_a_sentence_names_the_first_few():
    names = [f"h{number}" for number in range(100)]
    assert join_names([]) == ""
    assert join_names(names[:2]) == "h0, h1"
    assert join_names(names[:8]).endswith("h7")
    assert join_names(names, 3) == "h0, h1, h2 and 97 more"


def test_a_line_about_waiting_has_a_thousand_hospitals_in_a_sentence():
    waits = [Awaited(f"h{number}", "train", 999.0 - number) for number in range(1000)]
    assert (
        wait_line(waits, 999.0)
        == "waits for h0, h1, h2, h3, h4, h5, h6, h7 and 992 more to train (17 min)"
    )
    new = [Awaited(name, "query.enrol", since) for since, name in enumerate(["", "", "graz"])]
    assert wait_line(new, 5.0) == "waits for graz, 2 hospitals to enrol (5 s)"
