"""What a hospital's files say about its patients stays there: names, paths, DICOM tags."""

import logging

import numpy as np
import pytest

from client_app.app import app as hospital_app
from strategies.protocol.settings import Settings
from tests.fakes import FakeGrid, Ledger, context, go, run_config

pydicom = pytest.importorskip("pydicom", reason="needs the extra dicom")

SECRETS = ("Mustermann", "PAT-4711", "19500101", "befund_", "geheim", "Radiologie Nord")


def write_dicom(path, values):
    """A radiograph of 8 x 8 pixels whose tags, file name and folder tell of a patient."""
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.SOPClassUID, dataset.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.1", "1.2.3"
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.PatientName, dataset.PatientID = "Mustermann^Erika", f"PAT-4711-{path.stem}"
    dataset.PatientBirthDate, dataset.InstitutionName = "19500101", "Radiologie Nord"
    dataset.Rows = dataset.Columns = 8
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit, dataset.PixelRepresentation = 15, 0
    dataset.PixelData = values.astype("<u2").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)


@pytest.fixture
def hospitals(tmp_path):
    """Folders of three hospitals; the last has more damaged files than are allowed."""
    rng = np.random.default_rng(0)
    folders = [tmp_path / f"geheim-{name}" for name in ("graz", "linz", "wien")]
    for folder in folders:
        for k in range(20):
            path = folder / ("krank" if k % 2 else "gesund") / f"befund_{k}.dcm"
            write_dicom(path, rng.integers(0, 4000, (8, 8)) + 500 * (k % 2))
        (folder / "krank" / "befund_99.dcm").write_bytes(path.read_bytes()[:-50])
    for k in range(5):
        (folders[-1] / "krank" / f"befund_{k}.dcm").write_bytes(b"Mustermann")
    return folders


def bytes_of(message):
    """All that a message holds, as one text."""
    if message.has_error():
        return message.error.reason.encode()
    content = message.content
    arrays = [array.data for record in content.array_records.values() for array in record.values()]
    words = [
        f"{name} {dict(record)}".encode()
        for name, record in content.items()
        if name not in content.array_records
    ]
    names = [f"{name} {list(record)}".encode() for name, record in content.array_records.items()]
    return b"\n".join([*arrays, *words, *names])


def test_nothing_that_names_a_patient_leaves_a_hospital(hospitals, tmp_path, caplog):
    config = run_config(strategy="rwt", num_server_rounds=2, train__epochs=1, model="mlp")
    config |= {"max-quarantined": 0.1, "min-hospitals": 2}
    answers = []

    def hospital(folder):
        place = context(0, 1, config, **{"data-dir": str(folder), "store-dir": str(tmp_path)})
        place.node_config["site"] = folder.name.removeprefix("geheim-")

        def answer(message):
            answers.append(hospital_app(message, place))
            return answers[-1]

        return answer

    ledger = Ledger()
    grid = FakeGrid({100 + k: hospital(folder) for k, folder in enumerate(hospitals)})
    with caplog.at_level(logging.INFO):
        state = go(Settings.parse(config), grid, ledger)

    assert state.hospitals == ["graz", "linz"]
    prepared = ledger.of("query.prepare")
    assert [event.metrics["num-quarantined"] for event in prepared] == [1.0, 1.0]
    (refused,) = {event.reason for event in ledger.of("query.enrol") if event.outcome != "ok"}
    assert "did not pass the preflight: unusable-images" in refused
    assert not any(digit in refused for digit in "0123456789")
    said = [bytes_of(message) for message in (*answers, *grid.sent)]
    said += [record.getMessage().encode() for record in caplog.records]
    assert any(b"krank" in each for each in said)  # the names of classes do leave
    for secret in SECRETS:
        assert not any(secret.encode() in each for each in said), secret
