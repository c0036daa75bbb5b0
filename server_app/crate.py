"""A run's folder as an RO-Crate: who trained what on what (docs/crate.md).

The crate has facts of summary.json and metrics.jsonl only, and the hashes of the folder's files.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flwr.common.config import unflatten_dict

from pages.crate import Check, Contents, CrateError, files_below, write_crate
from pages.release_view import noun_of
from server_app.measures import participants
from server_app.summary import NAME as SUMMARY
from server_app.summary import Summary
from strategies.engine.events import LOG, Event, read_events
from strategies.protocol.archive import ArchiveError
from strategies.protocol.files import is_locked
from strategies.protocol.names import join_names
from strategies.protocol.parcel import Manifest, check_parcel, load
from strategies.protocol.records import ParcelError
from strategies.protocol.run_config import read_config
from strategies.protocol.text import amount

# The content of each file of a result directory, by a pattern of its path.
MODELS = "parcels/*.npz"
ABOUT = {
    "config.toml": "The settings of the run.",
    "metrics.jsonl": "The events of the run, one on each line.",
    "log.txt": "The lines of the log about the run.",
    "under-way.json": "The last state of the run.",
    "summary.json": "The figures of the run.",
    "accuracy_matrix.csv": "The accuracy of every model at every hospital.",
    "report.html": "The figures as a page, with pictures.",
    MODELS: "A model, or a sealed model, with its label.",
    "checkpoint/*": "A part of the state with which the run can be resumed.",
}
INPUT = "config.toml"


def write_run_crate(folder: Path) -> Path:
    """The crate of a run that has ended, in its folder; if it is there, the files are checked.

    Raises:
        CrateError: It is no result directory; the run has not ended; or a file was changed.
        FileError: A file is damaged.
        OSError: A file cannot be read, or the crate cannot be written.
    """
    if not folder.is_dir():
        raise CrateError(f"There is no folder {folder}.")
    if is_locked(folder):
        raise CrateError(f"The run of {folder} is under way: wait for its end.")
    try:
        summary = Summary.read(folder, any_version=True)
    except FileNotFoundError as error:
        raise CrateError(
            f"{folder} has no summary.json: it is not a result directory, or its run has not ended."
        ) from error
    files = files_below(folder)
    events = [*read_events(folder / LOG)]
    sent, received = (sum(e.bytes_sent for e in events), sum(e.bytes_received for e in events))
    told = (summary.hospitals, summary.bytes_sent, summary.bytes_received)
    if told != (participants(events), sent, received):
        raise CrateError(f"summary.json and {LOG} in {folder} are not of one run, or one was cut.")
    models = {each: _label(folder / each) for each in files if Path(each).match(MODELS)}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        contents = _contents(folder, summary, events, files, models, now)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # a fact is missing
        raise CrateError(
            f"{SUMMARY}, {LOG} or {INPUT} in {folder} is damaged, or of another version: {error}."
        ) from error
    return write_crate(folder, contents, now)


def _label(path: Path) -> Manifest:
    """The label of a model, which is checked against the hashes in it."""
    try:
        return check_parcel(load(path))
    except (ArchiveError, ParcelError) as error:
        raise CrateError(f"{path} is not the model that the run left: {error}") from error


def _contents(
    folder: Path,
    summary: Summary,
    events: list[Event],
    files: list[str],
    models: dict[str, Manifest],
    now: str,
) -> Contents:
    # A real hospital keys its hashes with a secret, and has a policy; a simulated one has neither.
    real = {event.hospital for event in events if event.outcome == "policy"} | {
        hospital
        for hospital, data in summary.data.items()
        if str(data["train"]["fingerprint"]).startswith("keyed-")
    }
    if real:
        signed = (
            "Each hospital judged the settings by its own policy, which stays there, with its "
            "ledger and its approved code."
        )
    elif summary.data:
        signed = "The hospitals were simulated: there was no policy, and nobody signed off."
    else:
        signed = "Whether the hospitals were real is not recorded."
    who = join_names(summary.hospitals) if summary.hospitals else "no hospital"
    config = unflatten_dict(read_config(folder / INPUT)) if INPUT in files else {}
    name = folder.resolve().name  # the folder may be given as "."
    text = (
        f"Training by {who} with the method {summary.strategy}. {signed} The results of a "
        "hospital's attacks on its models are in the hospital's store (membership.jsonl), not in "
        "this folder."
    )
    return Contents(
        name=name,
        description=text,
        action=f"Run {name}: {amount(summary.rounds, 'round')} of {summary.strategy}",
        status="Failed" if summary.status == "failed" else "Completed",
        error=summary.error,
        began=summary.began,
        ended=summary.ended,
        version=summary.version,
        code=summary.code,
        images={h: _images(summary.data.get(h, {})) for h in summary.hospitals},
        files={each: _description(each) for each in files},
        inputs=[INPUT] if INPUT in files else [],
        makers={each: [*dict.fromkeys(label.visited)] for each, label in models.items()},
        checks=[
            Check(
                "CheckValue",
                f"Hashes of {amount(len(models), 'model')}, by their labels: OK",
                time=now,
            ),
            *_sign_offs(summary, events, real),
            *_disclosure(summary, events, noun_of(config)),
            Check("DisclosureCheck", "Check by a person: not recorded", status="Potential"),
        ],
    )


def _description(file: str) -> str:
    found = (text for pattern, text in ABOUT.items() if Path(file).match(pattern))
    return next(found, "A file of the run.")


def _images(data: Mapping[str, Any]) -> str:
    """The facts that the server has about a hospital's images, in words."""
    if not data:
        return "Nothing is known of them."
    kind, parts = data["kind"] or "not recorded", []
    for part in ("train", "test"):
        number, mark = data[part]["images"], data[part]["fingerprint"] or "not recorded"
        images = "an unknown number of images" if number is None else amount(number, "image")
        parts.append(f"{images} to {part} (hash {mark})")
    return f"Kind: {kind}; {'; '.join(parts)}."


def _sign_offs(summary: Summary, events: list[Event], real: set[str]) -> Iterator[Check]:
    """The last answer of each real hospital to the question whether it takes part."""
    answers = {event.hospital: event for event in events if event.verb == "query.enrol"}
    for hospital, event in sorted(answers.items()):
        if event.outcome == "policy":
            text = f"{hospital} refused the run by its policy: {event.reason}"
            yield Check("SignOff", text, hospital, "Failed", _time(summary, event))
        elif event.outcome == "ok" and hospital in real:
            text = f"{hospital} judged the settings by its policy, and took part"
            yield Check("SignOff", text, hospital, time=_time(summary, event))


def _disclosure(summary: Summary, events: list[Event], noun: str) -> Iterator[Check]:
    """The checks of synthetic images, or of vectors, before they left."""
    for event in events:
        if event.outcome == "release":
            text = f"{event.hospital} kept its synthetic {noun}s: {event.reason}"
            yield Check("DisclosureCheck", text, event.hospital, "Failed", _time(summary, event))
        elif event.verb == "query.prepare" and event.metrics.get("release-passed") == 1:
            text = (
                f"{event.hospital} searched its synthetic {noun}s for copies of real ones: passed"
            )
            yield Check("DisclosureCheck", text, event.hospital, time=_time(summary, event))


def _time(summary: Summary, event: Event) -> str:
    """The time of an event, in ISO 8601; empty if the start or the time is unknown."""
    # Times leave interruptions out. In virtual time an answer takes none.
    if not summary.began or summary.resumed or not event.time >= event.seconds:
        return ""
    moment = datetime.fromisoformat(summary.began) + timedelta(seconds=event.time)
    return moment.isoformat(timespec="seconds")
