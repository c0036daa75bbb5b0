import re

import pytest

from learning.intervals import Figure
from pages.page import Marked, render, value_text
from pages.pictures import named_strip
from pages.plots import Cells, Lane, Line, chart, charts_by_name, heat, spans, steps
from pages.release_view import release_checks
from tests.pages.macros import call

HOSTILE = "<b>\"'&"
CELL = ("", {"class": HOSTILE})
PARTS = {
    "title": lambda: render("ledger", HOSTILE, runs=[], verdict="", whole=True),
    "text": lambda: render("ledger", "t", runs=[], verdict=HOSTILE, whole=True),
    "section": lambda: call("section", HOSTILE),
    "folded": lambda: call("fold", HOSTILE),
    "list": lambda: call("listing", [HOSTILE]),
    "sentence": lambda: call("verdict_list", [{"judgement": "good", "text": HOSTILE}]),
    "judgement": lambda: call("verdict_list", [{"judgement": HOSTILE, "text": "text"}]),
    "column": lambda: call("table", [HOSTILE], []),
    "cell": lambda: call("table", [""], [[HOSTILE]]),
    "card": lambda: call("table", ["a", HOSTILE, "b"], [[1, 2, 3]]),
    "table": lambda: call("table", [""], [], HOSTILE),
    "mark": lambda: call("table", [""], [[Marked(HOSTILE, "good")]]),
    "line": lambda: call("svg", chart(HOSTILE, [Line(HOSTILE, [1], [0.5])], across=HOSTILE)),
    "heat": lambda: call("cells", heat(HOSTILE, [HOSTILE], [HOSTILE], [[1.0]], [0.5], HOSTILE)),
    "steps": lambda: call("cells", steps(HOSTILE, {HOSTILE: [(HOSTILE, HOSTILE)]}, [HOSTILE])),
    "attribute": lambda: call("cells", Cells("", "", [([], [("", [CELL])])])),
}


@pytest.mark.parametrize("part", PARTS)
def test_texts_are_escaped(part):
    markup = PARTS[part]()
    assert "&lt;b&gt;" in markup
    assert "<b>" not in markup
    assert HOSTILE not in markup


def test_a_table_has_titles_if_one_is_not_empty():
    assert "<thead>" not in call("table", ["", ""], [["a", 1]])
    assert "<tr><td>a</td><td>1</td></tr>" in call("table", ["", ""], [["a", 1]])
    titles = '<tr><th scope="col"></th><th scope="col">x</th></tr>'
    assert titles in call("table", ["", "x"], [])


def test_of_more_than_two_cells_each_says_its_title_for_narrow_screens():
    row = '<tr><td>graz</td><td data-label="gain">0.100</td><td data-label="images">4</td></tr>'
    assert row in call("table", ["hospital", "gain", "images"], [["graz", 0.1, 4]])


def test_values_are_shown_to_people():
    row = call("table", [""], [[0.12345, float("nan"), float("inf"), None, 3, "x"]])
    cells = "".join(f"<td>{text}</td>" for text in ("0.123", "–", "–", "–", "3", "x"))
    assert f"<tr>{cells}</tr>" in row


def test_a_tiny_fraction_is_not_shown_as_zero():
    """Such as a δ of 1e-05, in a ledger and in a policy's rulings."""
    shown = [value_text(value) for value in (1e-5, -0.00012345, 0.0005, 0.0, 12.5)]
    assert shown == ["1e-05", "-0.00012", "0.001", "0.000", "12.500"]


def test_pictures_have_the_digits_of_the_text():
    """With two digits, 0.996 was 1.00, and a difference of 0.003 was 0."""
    small: Figure = {"value": -0.003, "low": -0.0049, "high": -0.001}
    (panel,) = charts_by_name([Line("graz", [1], [0.996])], {})
    assert call("cells", heat("", ["a"], ["b"], [[0.996]], [0.5], "")).count(">0.996<") == 1
    assert "chance: 0.996" in chart("t", [], 0.996).about
    assert panel.about == "graz: 0.996 after round 1"
    assert "0.996" in [shape.text for shape in panel.shapes]
    about = spans("t", [Lane("a", [small], 0.0)]).about
    assert about == "t. a: -0.003 (-0.005 to -0.001), the dashed line is at 0.000"


def test_no_dashed_line_runs_through_a_name_and_no_mark_is_cut():
    """A row's name ends 3 pixels below its line of letters; a figure clips its picture."""
    ends: list[Figure] = [{"value": x, "low": x, "high": x} for x in (0.0, 1.0)]
    drawn = spans("t", [Lane(f"{k}", [figure] * 2, 0.5) for k, figure in enumerate(ends)])
    shapes = [{"class": "", "tag": each.tag, **each.attributes} for each in drawn.shapes]
    names, lines = (
        [float(str(each[y])) for each in shapes if each["class"] == kind]
        for kind, y in (("name", "y"), ("chance", "y1"))
    )
    assert [line > name + 3 for name, line in zip(names, lines, strict=True)] == [True, True]
    radii = [float(str(each["r"])) for each in shapes if each["tag"] == "circle"]
    (padding,) = re.findall(r"padding:0 (\d+)px", str(drawn.size["style"]))
    assert 0 < max(radii) < float(padding)


def test_contents_lead_to_sections():
    runs = [{"title": f"Run {k}", "rows": [], "settings": []} for k in (1, 2)]
    page = render("ledger", "t", runs=runs, verdict="", whole=True)
    assert '<a href="#run-1">Run 1</a>' in page
    assert '<section id="run-1">' in page


def test_what_a_template_is_not_given_is_an_error():
    with pytest.raises(Exception, match="'verdict' is undefined"):
        render("ledger", "t", runs=[], whole=True)


def test_a_page_may_load_and_run_nothing():
    """Not even if markup got past the escapes."""
    page = render("ledger", "t", runs=[], verdict="x", whole=True)
    policy = re.search('content="(default-src \'none\';[^"]*)"', page)
    assert policy
    assert "script" not in policy[1]
    assert "//" not in page


def test_a_picture_is_inside_of_its_page():
    assert named_strip("a", b"\x89PNG").source == "data:image/png;base64,iVBORw=="


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.81, 0.83], [0.75, 0.8, 0.85, 0.9, 0.95]),
        ([0.99, 1.0], [0.8, 0.85, 0.9, 0.95, 1.0]),
        ([0.52, 0.9], [0.5, 0.6, 0.7, 0.8, 0.9]),
        ([0.1, 0.95], [0, 0.25, 0.5, 0.75, 1]),
        ([float("nan")], [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_lines_have_the_axis_that_they_need(values, ticks):
    """A fifth at least: 0.81 to 0.83 is no leap."""
    drawn = chart("t", [Line("a", range(len(values)), values)] if values == values else [])
    texts = [each.text for each in drawn.shapes if each.tag == "text"]
    assert texts[:5] == [f"{tick:g}" for tick in ticks]


def test_checks_of_features_are_not_about_images():
    """Also where no attack was tried."""
    [leak] = release_checks({}, {"train": {"freeze": "body"}}, {}).rows
    assert "copies of training vectors" in leak.question
    assert leak.measured == "no attack was tried"


def test_the_description_of_a_line_over_time_has_its_seconds():
    """0.5 at first, and 0.75 at the end, after a minute and a half."""
    drawn = chart("t", [Line("a", [0, 90], [0.5, 0.75])], across="seconds")
    assert drawn.about == "t. a: 0.500 at first, 0.750 after 90 seconds"
