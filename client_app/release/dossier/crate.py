"""A dossier's folder as an RO-Crate (docs/crate.md)."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client_app.release.dossier.files import Checked
from pages.crate import Check, Contents, files_below, write_crate
from pages.release_view import noun_of
from strategies.protocol.files import read_bytes

ABOUT = {
    "dossier.json": "The dossier: the released data, their origin and their checks.",
    "dossier.html": "The dossier as a page.",
    "dossier.sig": "The hospital's signature of dossier.json.",
}


def write_dossier_crate(path: Path, checked: Checked) -> Path:
    """The crate of a valid dossier, in its folder; if it is there, the files are checked.

    Raises:
        CrateError: A file was changed, or is no ordinary file.
        OSError: A file cannot be read, or the crate cannot be written.
    """
    dossier = json.loads(read_bytes(path))
    hospital, code = checked.hospital, dossier["fingerprints"]["code"]
    known, made = dossier["learnt-from"], dossier["leaves"]
    noun = noun_of(dossier["settings"])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    contents = Contents(
        name=f"Release dossier of {hospital}",
        description=f"{hospital} released {made['images']} synthetic {noun}s to the run "
        f"{checked.run}, with the method {dossier['settings']['strategy']}. They are not in this "
        "folder; the dossier has their SHA-256.",
        action=f"{hospital} made synthetic {noun}s",
        status="Completed",
        error="",
        began="",
        ended=dossier["written"],
        version="",
        code=code,
        images={
            hospital: f"{known['training-images']} training images, {known['test-images']} test "
            f"images. Hash of the training images: {dossier['fingerprints']['train-images']}."
        },
        files={
            each: ABOUT.get(each, "A file of the dossier.") for each in files_below(path.parent)
        },
        inputs=[],
        checks=[
            Check("CheckValue", f"Signature of {hospital}, and the page: OK", time=now),
            *_checks(dossier, hospital, noun),
        ],
    )
    return write_crate(path.parent, contents, now)


def _checks(dossier: Mapping[str, Any], hospital: str, noun: str) -> Iterator[Check]:
    written, rules = dossier["written"], json.dumps(dossier["policy"], sort_keys=True)
    policy = hashlib.sha256(rules.encode()).hexdigest()
    text = f"{hospital} judged the release by its policy, and allowed it"
    yield Check("SignOff", text, hospital, time=written, rules=policy)
    text = f"Search for copies of training {noun}s among the synthetic ones: passed"
    yield Check("DisclosureCheck", text, hospital, time=written, rules=policy)
    verdict = dossier["attacked"].get("verdict", "not attacked")
    status = {"passed": "Completed", "refused": "Failed"}.get(verdict, "Potential")
    text = f"Membership attacks on the synthetic {noun}s: {verdict}"
    yield Check("DisclosureCheck", text, hospital, status, written, policy)
