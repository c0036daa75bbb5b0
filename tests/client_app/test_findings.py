"""Names of classes, columns and patients that a hospital is asked about, or refused for."""

import re
from collections import Counter

import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.datasets.columns import check_columns, find_columns
from client_app.datasets.findings import check_classes, check_group_names, check_groups
from client_app.datasets.listing import list_manifest
from client_app.datasets.preflight.card import examine
from client_app.datasets.preflight.page import text
from client_app.errors import DataError
from strategies.protocol.classes import quote
from strategies.protocol.may_leave import CARD
from tests.fakes import settings

NEEDED = ("image", "label")


def columns_findings(names, rows):
    return list(check_columns(names, rows, find_columns(names, NEEDED)))


def said(findings, level="red"):
    return {each.problem: each.text for each in findings if each.level == level}


@pytest.mark.parametrize(
    ("names", "problem", "words"),
    [
        (["Melanoma\u00a0in\u00a0situ", "b"], "names-of-classes", r"'Melanoma\xa0in\xa0situ'"),
        (["L" * 120, "b"], "names-of-classes", "(and 80 characters more)"),
        (["a\tb", "b"], "names-of-classes", r"'a\tb'"),
        (["a ", "b"], "names-of-classes", "'a '"),
        (["Nevus", "nevus"], "classes-in-two-spellings", "'Nevus' and 'nevus'"),
        (["0", "0.0", "1"], "classes-in-two-spellings", "'0' and '0.0'"),
        (["N\u00e4vus", "Na\u0308vus"], "classes-in-two-spellings", r"'Na\u0308vus' and 'N"),
        *(
            ([name, "b"], "names-of-no-class", repr(name))
            for name in [
                *("nan", "NaN", "None", "NA", "unknown", "Unknown", "N/A", "?", "test"),
                *("#NV", "#N/A", "#WERT!", "#BEZUG!", "#REF!", "#NAME?", "#DIV/0!", "#ZAHL!"),
                *("k.A.", "k. A.", "(leer)", "(blank)", "(null)", "–", "—", "not available"),
                *("train_set", "Test-Set", "training data", "test_images", "valset", "testdata"),
            ]
        ),
        ([str(number) for number in range(1001)], "many-classes", "1001 classes"),
    ],
)
def test_names_of_classes_that_are_refused(names, problem, words):
    images = Counter(dict.fromkeys(names, 9))
    assert words in said(check_classes(images, ()))[problem]
    if problem in ("classes-in-two-spellings", "names-of-no-class"):
        assert not list(check_classes(images, names))  # the run names them: they are classes


@pytest.mark.parametrize("name", ["-1", "-1.0"])
def test_minus_one_may_be_a_class_or_no_label(name):
    images = Counter({name: 9, "1": 9})
    assert repr(name) in said(check_classes(images, ()), "amber")["class-or-no-label"]
    assert not list(check_classes(images, images))
    assert not list(check_classes(Counter({"-2": 9, "1": 9}), ()))


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["1", "001", "2"], "'001' and '1'."),
        (["1", "1.0", "2.0"], "'1' and '1.0'."),
        (["P-7", "p_07", "P 7", "p7"], "'P 7' and 'P-7' and 'p7' and 'p_07'."),
        (["graz-1-2", "graz-1_02"], "'graz-1-2' and 'graz-1_02'."),
        ([each for number in range(7) for each in (f"{number}", f"0{number}")], ", and 2 more."),
        (["1-11", "11-1", "10", "100", "0", "1.5", "1.05", "a0", "a00b", "p7", "P7", "x"], ""),
    ],
)
def test_patients_that_may_be_one_are_a_question(names, pairs):
    text = said(check_group_names(Counter(names)), "amber").get("patients-in-two-spellings", "")
    assert text.endswith(pairs)
    assert bool(text) == bool(pairs)


@pytest.mark.parametrize(
    ("sizes", "asked"),
    [
        ([14] * 6, True),
        ([10, 10, 1], True),
        ([10] * 19, True),
        ([10] * 20, False),
        ([9] * 6, False),
        ([10, 1, 1], False),
        ([99], False),
        ([], False),
    ],
)
def test_few_groups_of_many_images_may_be_classes(sizes, asked):
    """Such as malignant/melanoma and malignant/bcc. One group alone is another finding."""
    images = Counter({f"{number} x": size for number, size in enumerate(sizes)})
    text = said(check_group_names(images), "amber").get("groups-like-classes", "")
    assert bool(text) == asked
    if sizes == [14] * 6:
        assert "name 6 patients for 84 images. Are '0 x', '1 x'" in text
        assert "'4 x' and 1 more patients?" in text


def test_a_class_is_spelt_as_the_run_names_it():
    (finding,) = check_classes(Counter(Melanoma=9, nevus=9), ["melanoma", "nevus"])
    assert (finding.problem, finding.level) == ("classes-in-two-spellings", "red")


@pytest.mark.slow
@given(st.lists(st.text(max_size=120), min_size=1, max_size=4, unique=True))
def test_names_that_nothing_is_said_of_may_leave(names):
    if not list(check_classes(Counter(dict.fromkeys(names, 9)), ())):
        assert CARD["classes"](names)


@pytest.mark.parametrize(
    "name", ["patient_id", "Patient ID", "PatientID", "PATIENT-ID", " patient id ", "patientId"]
)
def test_a_column_is_read_however_its_words_are_joined(name):
    names = ["Image", "LABEL", name]
    assert find_columns(names, NEEDED)["group"] == 2
    (note,) = columns_findings(names, [["0", "a", "x"]])
    assert f"{quote(name)} (as 'group')" in note.text
    assert "Not read" not in note.text


@pytest.mark.parametrize(
    "name",
    [
        *("subject", "Subject ID", "patients", "patient number", "PatientNo", "pateint_id", "mrn"),
        *("id_paciente", "numero de patient", "NHS number", "record_id", "mrn_hash", "individual"),
        *("case", "CaseID", "lesions", "study_instance_uid", "Fallnummer", "patient_uid", "pid"),
    ],
)
def test_a_column_like_that_of_patients_is_not_passed_over(name):
    rows = [["0", "a", "x"], ["1", "a", "x"], ["2", "b", "y"]]
    findings = columns_findings(["image", "label", name], rows)
    assert name in said(findings)["patients-not-read"]
    # Where each has a value of its own, or other patients are named, nothing is lost.
    alone = [[*row[:2], str(number)] for number, row in enumerate(rows)]
    assert not said(columns_findings(["image", "label", name], alone))
    names, both = ["image", "label", name, "group"], [[*row, row[2]] for row in rows]
    assert not said(columns_findings(names, both))


@pytest.mark.parametrize("name", ["age", "sex", "patient_age", "PatientSex", "note", "stage"])
def test_other_columns_are_named_and_no_more(name):
    rows = [["0", "a", "7"], ["1", "b", "7"]]
    findings = columns_findings(["image", "label", name], rows)
    assert [each.level for each in findings] == ["note"]
    assert f"Not read: {name!r}." in findings[0].text


def test_a_patient_in_several_groups_is_a_question():
    names = ["image", "label", "group", "patient_id"]
    rows = [["0", "a", "g", "x"], ["1", "a", "h", "x"]]
    findings = columns_findings(names, rows)
    assert "'patient_id'" in said(findings, "amber")["patients-in-several-groups"]


@pytest.mark.parametrize(
    ("patients", "blank"),
    [
        (["x", "x"], ""),
        (["x", "", "x"], "no patient in 1 of 3"),
        (["x", "", "", "y", ""], "3 of 5"),
        (["", ""], ""),
        (["NA", "NA", "x", ""], "3 of 4"),
        (["unknown", "x"], "1 of 2"),
        (["-1", "x", "-1.0"], "2 of 3"),
        (["NA7", "x"], ""),
    ],
)
def test_images_without_a_patient_among_others_are_a_question(patients, blank):
    """As a spreadsheet saves merged cells: the name in the first row of a patient only.

    In the split, images with one word for none stay together: they may be of one patient.
    """
    findings = columns_findings(["image", "label", "patient"], [["0", "a", p] for p in patients])
    found = said(findings, "amber")
    assert blank in found["images-without-patient"] if blank else not found


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fold", ["train", "test", ""]),
        ("set", ["Training", "Validation", "Test"]),
        ("x", ["tr", "te", "val"]),
        ("use", ["development", "holdout"]),
        ("is_test", ["0", "1", "0"]),
        ("test", ["True", "False", "False"]),
    ],
)
def test_a_split_under_another_name_is_not_thrown_away(name, values):
    rows = [[str(number), "a", value] for number, value in enumerate(values)]
    findings = columns_findings(["image", "label", name], rows)
    assert repr(name) in said(findings, "amber")["split-not-read"]


@pytest.mark.parametrize(
    ("name", "values"), [("fold", "0123"), ("sex", "mfmf"), ("test", ["pcr", "elisa"])]
)
def test_other_values_are_no_split(name, values):
    rows = [[str(number), "a", value] for number, value in enumerate(values)]
    assert not said(columns_findings(["image", "label", name], rows))


@pytest.mark.parametrize(("name", "meant"), [("slices", "slice"), ("spilt", "split")])
def test_a_column_that_is_nearly_one_is_a_question(name, meant):
    findings = columns_findings(["image", "label", name], [["0", "a", "7"]])
    assert f"is it '{meant}'" in said(findings, "amber")["columns-not-read"]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("File Name,label", "'image' 0 times.* Is 'filename' that column"),
        ("image,Diagnosis", "'label' 0 times.* Is 'diagnosis' that column"),
        ("image,lable", "'label' 0 times.* Is 'lable' that column"),
        ("image,label,Split,split", "'split' 2 times"),
        ("image,label,patient_id,Patient ID", "'patient_id' 2 times"),
    ],
)
def test_a_missing_column_is_looked_for(header, words, tmp_path):
    (tmp_path / "manifest.csv").write_text(f"{header}\n0.png,a,x,y\n")
    with pytest.raises(DataError, match=r"manifest must name '[\w]+' once\.$") as error:
        list_manifest(str(tmp_path))
    assert re.search(words, error.value.own)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [({"patient": 4}, "PatientID"), ({"group": 4}, "subfolder"), ({}, "copies")],
)
def test_one_patient_is_said_to_be_one(kinds, words):
    assert words in said(check_groups(Counter(kinds), 4, Counter({0: 4})))["one-patient"]
    most = check_groups(Counter(kinds), 9, Counter({0: 5, 1: 2, 2: 2}))
    assert "5 of 9" in said(most, "amber")["one-patient-has-most"]
    assert not list(check_groups(Counter(kinds), 9, Counter({0: 3, 1: 3, 2: 3})))


def test_a_folder_without_images_is_named(tmp_path):
    for number in range(24):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("L", (8, 8), 9 * number).save(path)
    (tmp_path / "data" / "keratosis").mkdir()
    (tmp_path / "data" / "broken").mkdir()
    (tmp_path / "data" / "broken" / "0.png").touch()
    chosen = settings(dataset=f"folder:{tmp_path / 'data'}", max_quarantined=0.1)
    card = examine("graz", chosen, tmp_path / "store")[0]
    assert card.verdict == "amber"
    assert "Classes without an image that can be used: 'broken', 'keratosis'." in text(card)
