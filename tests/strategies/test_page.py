import pytest

from strategies.protocol.page import document, heading, notice, paragraph, table, verbatim


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
    ],
)
def test_texts_are_escaped(markup):
    assert "&lt;b&gt;" in markup
    assert "<b>" not in markup


def test_a_table_has_titles_if_one_is_not_empty():
    assert table(["", ""], [["a", 1]]) == "<table>\n<tr><td>a</td><td>1</td></tr>\n</table>\n"
    assert "<tr><th></th><th>x</th></tr>" in table(["", "x"], [])


def test_values_are_shown_to_people():
    row = table([""], [[0.12345, float("nan"), float("inf"), None, 3, "x"]])
    cells = "".join(f"<td>{text}</td>" for text in ("0.123", "–", "–", "–", "3", "x"))
    assert f"<tr>{cells}</tr>" in row
