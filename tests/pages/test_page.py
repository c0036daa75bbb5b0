import re

import pytest

from pages.page import (
    Marked,
    boxed,
    document,
    figure,
    folded,
    heading,
    image,
    judged,
    listing,
    notice,
    paragraph,
    section,
    table,
    verbatim,
)


@pytest.mark.parametrize(
    "markup",
    [
        document("<b>"),
        heading("<b>"),
        paragraph("<b>"),
        verbatim("<b>"),
        table(["<b>"], []),
        table([""], [["<b>"]]),
        notice("red", paragraph("<b>")),
        document("t", contents=["<b>"]),
        section("<b>"),
        listing(["<b>"]),
        judged([("good", "<b>")]),
        judged([("<b>", "text")]),
        folded("<b>"),
        figure("<b>"),
        image(b"", "<b>"),
        table([""], [], about="<b>"),
        table([""], [[Marked("<b>", "good")]]),
        boxed("", "<b>"),
    ],
)
def test_texts_are_escaped(markup):
    assert "&lt;b&gt;" in markup
    assert "<b>" not in markup


def test_a_table_has_titles_if_one_is_not_empty():
    assert "<thead>" not in table(["", ""], [["a", 1]])
    assert "<tr><td>a</td><td>1</td></tr>" in table(["", ""], [["a", 1]])
    assert '<tr><th scope="col"></th><th scope="col">x</th></tr>' in table(["", "x"], [])


def test_values_are_shown_to_people():
    row = table([""], [[0.12345, float("nan"), float("inf"), None, 3, "x"]])
    cells = "".join(f"<td>{text}</td>" for text in ("0.123", "–", "–", "–", "3", "x"))
    assert f"<tr>{cells}</tr>" in row


def test_contents_lead_to_sections():
    page = document("t", section("What it is", paragraph("x")), contents=["What it is"])
    assert '<a href="#what-it-is">What it is</a>' in page
    assert '<section id="what-it-is">' in page


def test_a_page_may_load_and_run_nothing():
    """Not even if markup got past the escapes."""
    policy = re.search('content="(default-src \'none\';[^"]*)"', document("t"))
    assert policy
    assert "script" not in policy[1]
    assert "//" not in document("t", paragraph("x"))
