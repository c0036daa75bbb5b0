"""The data card: properties and problems of a hospital's images, with cures.

Everything here stays in the hospital's store. If the card is red, the server learns only the class
of each problem (`Finding.problem`), when it asks the hospital to take part.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from client_app.authority.identity import secret_of
from client_app.authority.policy import Policy
from client_app.datasets import known_images
from client_app.datasets.findings import Finding, check_group_names, list_quoted
from client_app.datasets.listing import Entry, Unusable
from client_app.datasets.own import Survey, survey
from client_app.datasets.pool import Indices, Pool, are_too_few, are_too_many
from client_app.datasets.preflight.rehearsal import rehearse
from client_app.datasets.resize import Form
from client_app.datasets.split import split
from client_app.datasets.unread import FORMATS
from client_app.errors import DataError, line_of
from client_app.store import Store, own_folder
from learning.cpu import prepare_cpu
from learning.evaluation import batch_size
from strategies.protocol.settings import Settings, SettingsError
from strategies.protocol.text import amount

SKETCH = 32  # pixels of the grey sketches that are compared
# Correlation of two sketches. Among 6,441 dermoscopy photographs at 64 pixels, no two of different
# lesions were above 0.990. Four pairs that show one photograph were above 0.997.
NEARLY_THE_SAME = 0.995
# An image is inverted if its sketch correlates less than INVERTED with the mean of all. The test
# needs similar images: half of them must correlate more than ALIKE.
INVERTED, ALIKE = -0.6, 0.5
UNEVEN = 10  # ratio of the images of the most frequent class to those of the rarest
BLOCK = 4096  # sketches compared at a time
# Problem -> text, with the number of cases, and cure.
DOUBTS = {
    "unusable-images": (
        "Images that cannot be used and are left out: {}.",
        "Repair or remove them; each is listed with the reason.",
    ),
    "contradictions": (
        "Files that have copies with another label: {}.",
        "Correct the wrong labels.",
    ),
    "near-copies": (
        "Test images that show the same as a training image: {}.",
        "Put both into one group (in a folder: one subfolder), so that the split keeps them "
        "together; otherwise test results are too good.",
    ),
    "constant-images": ("Images of one colour throughout: {}.", "Remove them."),
    "inverted-images": (
        "Images that are nearly the opposite of most others: {}.",
        "Invert them if they are negatives.",
    ),
    "one-class": (
        "All images have one label.",
        "A model learns nothing here unless other hospitals have other classes.",
    ),
    "rare-classes": (
        "Classes of fewer than {fewest} images to train on: {}.",
        "Synthetic images for other hospitals leave these classes out.",
    ),
    "untested-classes": ("Classes without a test image: {}.", "Add images of them."),
    "uneven-classes": (
        f"The most frequent class has more than {UNEVEN} times the images of the rarest.",
        "Judge by balanced accuracy, not by accuracy.",
    ),
    "little-disk": (
        "The store's disk has less free space than twice the size of the decoded images.",
        "Choose a folder on a larger disk as store in hospital.toml, or with --store-dir.",
    ),
}


@dataclass(frozen=True)
class Card:
    """The properties and problems of a hospital's images."""

    hospital: str
    source: str  # the manifest or folder
    settings: dict[str, object]  # settings of the images' form and of the split
    findings: list[Finding]  # problems, the worst first
    images: int = 0  # number of usable images
    unusable: list[Unusable] = field(default_factory=list)
    # Number of files that are no images, by kind; see `Listing.ignored`
    ignored: dict[str, int] = field(default_factory=dict)
    # Number of training and of test images of each class that takes part
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    # Number of groups of one image or more: the patients, as far as the folder, the manifest or
    # DICOM names them
    groups: int = 0
    # Number of training and of test patients of each class; empty if none is named
    patients: dict[str, dict[str, int]] = field(default_factory=dict)
    # Number of images of each format, with channels and bits
    kinds: dict[str, int] = field(default_factory=dict)
    # Number of images of each width and height, in pixels before resizing
    sizes: dict[str, int] = field(default_factory=dict)
    copies: list[list[str]] = field(default_factory=list)  # files that are identical, byte for byte
    # Pairs of a training and a test image that show the same, one for each such test image
    near_copies: list[list[str]] = field(default_factory=list)
    contradictions: list[list[str]] = field(default_factory=list)  # copies with different labels
    constant: list[str] = field(default_factory=list)  # images of one colour
    # Images that are nearly the opposite of most others
    inverted: list[str] = field(default_factory=list)
    bytes_on_disk: int = 0  # size of the decoded images in the store, in one form
    bytes_free: int = 0  # free space of the store

    @property
    def verdict(self) -> str:
        """Red: the hospital cannot take part; amber: somebody should look; green: no problem."""
        levels = {finding.level for finding in self.findings}
        return next((level for level in ("red", "amber") if level in levels), "green")


def examine(
    hospital: str, settings: Settings, store: Path, policy: Path | None = None
) -> tuple[Card, Survey | None]:
    """Check all images of a hospital, including those that could not be used before.

    `settings` have the hospital's own `dataset`. Without a policy the hospital is simulated, and
    the default policy is checked as well.

    Returns:
        The card, and the images for its page; None if no image can be used.

    Raises:
        SettingsError: The policy cannot be used.
        PolicyError: The store would be larger than the policy allows.
    """
    prepare_cpu(settings.cpu_threads)
    rules = Policy.read(policy) if policy else None
    machine = rules.machine if rules else None
    if rules:
        settings = replace(settings, max_quarantined=rules.images.max_quarantined)
    path = settings.dataset.partition(":")[2]
    secret = secret_of(Store(own_folder(store / hospital))) if policy else b""
    names = ["image_size", "image_fit", "image_channels"]
    names += [] if policy else ["test_fraction", "seed"]
    card = Card(hospital, path, {name: getattr(settings, name) for name in names}, [])
    try:
        found = survey(settings, store, machine, retry=True)
    except DataError as error:
        finding = Finding("no-images", error.explain(), "Other checks need images.")
        return replace(card, findings=[finding], unusable=_unreadable_file(error)), None
    taking_part = rules.images.classes if rules else ()
    entries = [each for each in found.entries if not taking_part or each.label in taking_part]
    findings = [
        *found.findings(settings.max_quarantined, settings.class_names),
        *_unknown(entries, settings),
    ]
    left_out = {each.label for each in found.entries} - {each.label for each in entries}
    if left_out:
        text = f"The policy (images.classes) leaves out images of {list_quoted(sorted(left_out))}."
        advice = "If they are to take part, name these classes there, spelt in this way."
        findings.append(Finding("classes-left-out", text, advice, "note"))
    ignored = dict(found.ignored)
    card = replace(card, findings=findings, unusable=found.unusable, ignored=ignored)
    if not found.entries:
        return card, None
    pool = found.pool()
    own, sides, too_few = _split_sides(pool, settings, taking_part, secret)
    findings += too_few
    card = _describe(card, found, pool, own, sides, store)
    if not any(found.named_groups):
        text = "No patients or groups of images are named."
        advice = "If a patient has several images, name patients: column 'patient', or subfolders."
        findings.append(Finding("no-groups", text, advice, "note"))
    findings.extend(check_group_names(Counter(each.group for each in found.entries if each.group)))
    findings.extend(_doubts(card, settings))
    if card.verdict != "red":
        findings.extend(rehearse(hospital, settings, store, policy))
    order = ("red", "amber", "note")
    findings.sort(key=lambda finding: order.index(finding.level))
    return card, found


def _split_sides(
    pool: Pool, settings: Settings, taking_part: Sequence[str], secret: bytes
) -> tuple[Indices, dict[str, Indices], list[Finding]]:
    """The images that are split, those to train and to test on, and what hinders the split."""
    every = np.arange(len(pool.labels))
    labels, own = known_images(pool, every, settings.class_names, taking_part)
    try:
        train, test = split(pool, labels, own, settings, 0, secret)
    except (DataError, SettingsError) as error:
        finding = Finding("no-split", line_of(error), "Change the setting, or the images.")
        none = own[:0]
        return none, {"train": none, "test": none}, [finding]
    sides = {"train": train, "test": test}
    if not are_too_few(train, test):
        return own, sides, []
    groups = own if pool.groups is None else np.unique(pool.groups[own])
    text = f"There are {amount(len(train), 'image')} to train on and {len(test)} to test on"
    text += f", of {len(groups)} patients or groups, each on one side."
    advice = "A hospital needs at least 2 and 1 of them; see also 'test-fraction'."
    return own, sides, [Finding("too-few-images", text, advice)]


def _describe(
    card: Card, found: Survey, pool: Pool, own: Indices, sides: dict[str, Indices], store: Path
) -> Card:
    """The card with the properties of the images that can be used."""
    groups, classes, patients = np.array(found.groups), {}, {}
    for number in np.unique(pool.labels[own]):
        name = pool.classes[number]
        shown = {side: some[pool.labels[some] == number] for side, some in sides.items()}
        classes[name] = {side: len(some) for side, some in shown.items()}
        patients[name] = {side: len(np.unique(groups[some])) for side, some in shown.items()}
    where = [entry.where for entry in found.entries]
    labels = {entry.where: entry.label for entry in found.entries}
    sketches, varied = _sketches(found)
    near = _near_copies(sketches, sides["train"], sides["test"])
    copies = _copies(found)
    headers = [file.header for file in found.files if file.header]
    return replace(
        card,
        source=str(found.listing.source),
        images=len(where),
        classes=classes,
        groups=len(np.unique(groups)),
        patients=patients if any(found.named_groups) else {},
        kinds=_counts(f"{h.kind}, {h.channels} x {h.bits} bits" for h in headers),
        sizes=_counts(f"{h.width} x {h.height}" for h in headers),
        copies=copies,
        near_copies=[[where[a], where[b]] for a, b in near],
        contradictions=[each for each in copies if len({labels[name] for name in each}) > 1],
        constant=[*compress(where, (~varied).tolist())],
        inverted=[*compress(where, _find_inverted(sketches).tolist())],
        bytes_on_disk=found.images.pixels.nbytes,
        bytes_free=shutil.disk_usage(store).free,
    )


def _unreadable_file(error: DataError) -> list[Unusable]:
    """The file or folder behind an error. The text omits its name: the server may read the text."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.filename:
        return [Unusable(str(cause.filename), f"cannot be read ({type(cause).__name__})")]
    return []


def _unknown(entries: Sequence[Entry], settings: Settings) -> Iterator[Finding]:
    """Yield findings for images of unknown classes or tasks, if the settings ask for known ones."""
    known, last, total = settings.class_names, settings.tasks, len(entries)
    strange = sum(entry.label not in known for entry in entries) if known else 0
    if strange:
        yield Finding(
            "unknown-classes",
            f"{strange} of {total} images show none of the federation's classes (classes).",
            "Give them one of these labels, or leave them out.",
            "red" if are_too_many(strange, total, settings.max_quarantined) else "amber",
        )
    untimely = sum(not 1 <= entry.task <= last for entry in entries)
    if untimely and last > 1 and settings.task_cut == "given":
        yield Finding(
            "unknown-tasks",
            f"{untimely} of {total} images have no task from 1 to {last} (task-cut).",
            "Write the number of the task into the column 'task' of the manifest.",
        )


def _doubts(card: Card, settings: Settings) -> Iterator[Finding]:
    """Yield the problems that do not exclude the hospital."""
    parts = card.classes.values()
    sizes, fewest = [sum(part.values()) for part in parts], settings.release.min_class_images
    cases = {
        "unusable-images": len(card.unusable),
        "contradictions": sum(map(len, card.contradictions)),
        "near-copies": len(card.near_copies),
        "constant-images": len(card.constant),
        "inverted-images": len(card.inverted),
        "one-class": len(sizes) == 1,
        "rare-classes": sum(part["train"] < fewest for part in parts),
        "untested-classes": sum(not part["test"] for part in parts),
        "uneven-classes": max(sizes, default=0) > UNEVEN * min(sizes, default=0),
        "little-disk": 2 * card.bytes_on_disk > card.bytes_free,
    }
    known = {finding.problem for finding in card.findings}
    for problem, count in cases.items():
        if count and problem not in known:
            text, advice = DOUBTS[problem]
            yield Finding(problem, text.format(count, fewest=fewest), advice, "amber")
    files = card.images + len(card.unusable) + card.ignored.get("", 0)
    for what, count in card.ignored.items():
        many = are_too_many(count, files, settings.max_quarantined)
        yield Finding("ignored-files", *_ignored_files(what, count, many))


def _ignored_files(what: str, count: int, many: bool) -> tuple[str, str, Literal["amber", "note"]]:
    """Text, advice and level of a finding about files that are no images."""
    if format_ := next((each for each in FORMATS if each.name == what), None):
        text = f"Files in a format that is not read here ({what}): {count}."
        return text, f"{format_.cure[0].upper()}{format_.cure[1:]}.", format_.level
    if what:
        return f"Ignored: {count} {what}.", "No action is needed.", "note"
    text = f"Files that are ignored, since their names have no suffix of an image: {count}."
    return text, "If some are images, rename them.", "amber" if many else "note"


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _copies(found: Survey) -> list[list[str]]:
    same: dict[str, list[str]] = {}
    for entry, content in zip(found.entries, found.contents, strict=True):
        same.setdefault(content, []).append(entry.where)
    return [names for names in same.values() if len(names) > 1]


def _sketches(found: Survey) -> tuple[Tensor, Tensor]:
    """Small grey images of mean 0 and norm 1 [n, S·S], and True [n] if not of one colour."""
    pixels = torch.from_numpy(found.images.pixels)
    parts, varied = [], []
    for block in torch.from_numpy(found.rows).split(batch_size(pixels[0].numel())):
        images = pixels[block]
        flat = images.flatten(1)
        varied.append(flat.amin(dim=1) < flat.amax(dim=1))
        grey = Form(SKETCH).apply(images).float().mean(dim=1).flatten(1)
        parts.append(functional.normalize(grey - grey.mean(dim=1, keepdim=True), dim=1))
    return torch.cat(parts), torch.cat(varied)


def _near_copies(sketches: Tensor, train: Indices, test: Indices) -> list[tuple[int, int]]:
    """Pairs of a training and a test image with nearly the same sketch, one for each test image.

    Hundreds of exports of one placeholder would have a pair for each two of them.
    """
    pairs: dict[int, int] = {}
    for start in range(0, len(test), BLOCK):
        tested = test[start : start + BLOCK]
        for begin in range(0, len(train), BLOCK):
            trained = train[begin : begin + BLOCK]
            agreement, place = (sketches[tested] @ sketches[trained].T).max(dim=1)
            for found in (agreement > NEARLY_THE_SAME).nonzero().flatten().tolist():
                pairs.setdefault(int(tested[found]), int(trained[place[found]]))
    return [(trained, tested) for tested, trained in pairs.items()]


def _find_inverted(sketches: Tensor) -> Tensor:
    """True [n] for images that are the opposite of the mean; all False if images are not alike."""
    agreement = sketches @ functional.normalize(sketches.mean(dim=0), dim=0)
    return (agreement < INVERTED) & (agreement.median() > ALIKE)
