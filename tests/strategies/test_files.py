"""Files that are whole or not there at all."""

import pytest

from strategies.protocol.files import replacing


def test_an_error_names_the_file_and_not_its_draft(tmp_path):
    with (
        pytest.raises(OSError, match=r"does not exist: '.*missing'"),
        replacing(tmp_path / "missing" / "table.csv"),
    ):
        pass
    (tmp_path / "table.csv").write_text("old")
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "table.csv"):
        pass  # nothing is written
    assert caught.value.filename == str(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == "old"
