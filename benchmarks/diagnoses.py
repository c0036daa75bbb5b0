"""Writes folders of the five skin centres with the seven diagnoses of HAM10000 as classes.

    uv run python -m benchmarks.diagnoses ~/diagnoses --data <folder with skin/>
    uv run fedhandoff reproduce five_centres --data ~/diagnoses --output ~/five-diagnoses

In a centre's manifest.csv the `label` is melanoma or not, and `diagnosis` is the diagnosis. In the
folders written here, the diagnosis is the label. Actinic keratoses (AK) and squamous cell
carcinomas (SCC) are one class, AKIEC, as in HAM10000 (Tschandl et al., Sci. Data 5:180161).
"""

import argparse
import csv
import shutil
from pathlib import Path

AKIEC = ("AK", "SCC")


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnoses")
    parser.add_argument("to", type=Path, help="the folder to write")
    parser.add_argument("--data", type=Path, required=True, help="the folder with skin/")
    arguments = parser.parse_args()
    manifests = sorted(arguments.data.expanduser().glob("skin/*/manifest.csv"))
    if not manifests:
        parser.error(f"{arguments.data}: there is no skin/<centre>/manifest.csv.")
    for manifest in manifests:
        relabel(manifest, arguments.to.expanduser() / "skin" / manifest.parent.name)


def relabel(manifest: Path, to: Path) -> None:
    """Copy a centre's images, and its manifest with diagnoses as labels."""
    (to / "images").mkdir(parents=True, exist_ok=True)
    for image in (manifest.parent / "images").iterdir():
        shutil.copyfile(image, to / "images" / image.name)
    with manifest.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with (to / "manifest.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        for row in rows:
            diagnosis = row["diagnosis"]
            writer.writerow({**row, "label": "AKIEC" if diagnosis in AKIEC else diagnosis})


if __name__ == "__main__":
    main()
