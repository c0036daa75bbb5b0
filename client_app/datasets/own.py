"""A hospital's own image files: list, decode once, check, and turn into a pool."""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from logging import ERROR, WARNING
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_app.authority.policy import MachineRules
from client_app.datasets.dicom import NO_PICTURE
from client_app.datasets.findings import Finding, check_classes, check_groups
from client_app.datasets.image import plain_name
from client_app.datasets.library import DecodedImages, File, open_library
from client_app.datasets.listing import Entry, Listing, Unusable, list_folder, list_manifest
from client_app.datasets.pool import Pool, are_too_many
from client_app.datasets.resize import Form
from client_app.datasets.unread import REPORTS, is_system
from client_app.errors import DataError
from strategies.protocol.classes import quote, sort_classes
from strategies.protocol.data_sets import manifests_in
from strategies.protocol.files import expand
from strategies.protocol.names import join_names
from strategies.protocol.settings import Settings
from strategies.protocol.text import amount

LISTINGS: dict[str, Callable[[str], Listing]] = {"folder": list_folder, "manifest": list_manifest}


@dataclass(frozen=True, eq=False)
class Survey:
    """A hospital's image files, listed and opened."""

    listing: Listing
    images: DecodedImages

    @cached_property
    def files(self) -> list[File]:
        """The files that can be used, [n]."""
        return [file for file in self.images.files if file.row >= 0]

    @cached_property
    def entries(self) -> list[Entry]:
        """The entries that can be used, [n]."""
        return [file.entry for file in self.files]

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The rows of their pixels in `images`, [n]."""
        return np.array([file.row for file in self.files], dtype=np.int64)

    @cached_property
    def contents(self) -> list[str]:
        """Hash of each usable file, with its slice, [n]."""
        return [f"{file.content}/{file.entry.slice}" for file in self.files]

    @cached_property
    def unusable(self) -> list[Unusable]:
        """All images that cannot be used; for the hospital alone."""
        return self.listing.unusable + [
            Unusable(file.entry.where, file.reason)
            for file in self.images.files
            if file.reason and not self._is_report(file)
        ]

    @cached_property
    def ignored(self) -> Counter[str]:
        """Number of files that are no images, by kind; see `Listing.ignored`."""
        return self.listing.ignored + Counter(
            REPORTS for file in self.images.files if self._is_report(file)
        )

    def _is_report(self, file: File) -> bool:
        """Whether a file is a report that a PACS exports beside images; only in a folder."""
        return file.reason == NO_PICTURE and self.listing.source.is_dir()

    @cached_property
    def named_groups(self) -> list[list[str]]:
        """The names of each image's group, DICOM patient and volume, as far as it has them, [n]."""
        named = []
        for file in self.files:
            entry, patient = file.entry, file.header and file.header.patient
            group, volume = plain_name(entry.group), "" if entry.slice is None else str(entry.file)
            kinds = {"group": group, "patient": patient, "volume": volume}
            named.append([f"{kind} {name}" for kind, name in kinds.items() if name])
        return named

    @cached_property
    def groups(self) -> list[int]:
        """Number of each image's group, [n]; images of one group, and copies, have the same."""
        root = list(range(len(self.files)))

        def top(index: int) -> int:
            while root[index] != index:
                root[index] = index = root[root[index]]  # assigned from left to right
            return index

        first: dict[str, int] = {}
        for index, names in enumerate(self.named_groups):
            for name in (*names, f"content {self.files[index].content}"):
                root[top(index)] = top(first.setdefault(name, index))
        return [top(index) for index in range(len(root))]

    def findings(self, max_quarantined: float, known: Sequence[str] = ()) -> Iterator[Finding]:
        """Yield the problems that show without the pixels; see `check_classes`."""
        unusable, total = len(self.unusable), len(self.unusable) + len(self.entries)
        if are_too_many(unusable, total, max_quarantined):
            yield Finding(
                "unusable-images",
                f"{unusable} of {amount(total, 'image')} cannot be used; the setting "
                f"'max-quarantined' allows a share of {max_quarantined:g}.",
                "Repair or remove them; each is listed with the reason.",
            )
        labels = Counter(entry.label for entry in self.entries)
        yield from check_classes(labels, known)
        if empty := sorted(self._named_classes() - labels.keys()):
            yield Finding(
                "empty-classes",
                f"Classes without an image that can be used: {join_names([*map(quote, empty)])}.",
                "Check that all files were copied. Move folders that are no classes elsewhere.",
                "amber",
            )
        yield from self.listing.findings
        if any(entry.split for entry in self.entries):
            yield from self._split_findings()
        else:
            kinds = Counter(name.partition(" ")[0] for each in self.named_groups for name in each)
            yield from check_groups(kinds, len(self.entries), Counter(self.groups))

    def _named_classes(self) -> set[str]:
        """The classes of the listing, also of rows that cannot be used, and of the folders."""
        source = self.listing.source
        folders = source.iterdir() if source.is_dir() else ()
        names = {each.name for each in folders if each.is_dir() and not is_system(each.name)}
        return names | self.listing.labels | {entry.label for entry in self.listing.entries}

    def _split_findings(self) -> Iterator[Finding]:
        """Yield the problems of the split in the manifest."""
        tested = {entry.split == "test" for entry in self.entries}
        if len(tested) < 2:
            yield Finding(
                "split-without-images",
                "The column 'split' has no image to train on, or none to test on.",
                "Write 'train' and 'test' into this column, or leave it out.",
            )
        places: dict[str, set[Path]] = {}
        for file in self.files:
            places.setdefault(file.content, set()).add(file.entry.file)
        # The slices of one file are a group; those of its copies are copies.
        copied = [[file.content] if len(places[file.content]) > 1 else [] for file in self.files]
        for problem, what, names in (
            ("groups-in-both-splits", "groups", self.named_groups),
            ("copies-in-both-splits", "files (byte for byte)", copied),
        ):
            sides: dict[str, set[bool]] = {}
            for entry, each in zip(self.entries, names, strict=True):
                for name in each:
                    sides.setdefault(name, set()).add(entry.split == "test")
            if both := sum(len(side) > 1 for side in sides.values()):
                yield Finding(
                    problem,
                    f"{both} {what} are in both the training and the test images.",
                    "Put each on one side, or leave out the column 'split'.",
                )

    def pool(self) -> Pool:
        """The images that can be used, with labels, groups, sites and split."""
        entries = self.entries
        classes = sort_classes(entry.label for entry in entries)
        number = {name: index for index, name in enumerate(classes)}
        sites, splits, tasks = (
            [getattr(entry, name) for entry in entries] for name in ("site", "split", "task")
        )
        groups = np.array(self.groups)
        return Pool(
            images=self.images.pixels,
            rows=self.rows,
            labels=np.array([number[entry.label] for entry in entries]),
            classes=tuple(classes),
            sites=np.unique(sites, return_inverse=True)[1] if all(sites) else None,
            held_out=np.array([split == "test" for split in splits]) if any(splits) else None,
            always_held_out=any(splits),
            groups=groups if len(np.unique(groups)) < len(groups) else None,
            tasks=np.array(tasks) if any(tasks) else None,
            quarantined=len(self.unusable),
            fingerprint=hashlib.sha256(repr([entries, self.contents]).encode()).hexdigest(),
            contents=self.contents,
        )


def own_data(data_dir: str) -> str:
    """The setting `dataset` for the folder or manifest of a hospital."""
    path = expand(data_dir)
    kind = "manifest" if path.is_file() or manifests_in(path) else "folder"
    return f"{kind}:{data_dir}"


def survey(
    settings: Settings, store: Path, machine: MachineRules | None = None, *, retry: bool = False
) -> Survey:
    """List and open a hospital's images, with a library in `store`; see `open_library`.

    Raises:
        DataError: The folder or manifest cannot be read, or lists no image. Or the images differ in
            size, and the settings have no `image-size`.
        PolicyError: The store would be larger than `machine` allows.
    """
    kind, _, path = settings.dataset.partition(":")
    listing = LISTINGS[kind](path)
    source = listing.source
    name = f"{source.stem}-{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    folder, form = store / "images" / name, Form.from_settings(settings)
    return Survey(listing, open_library(folder, listing.entries, form, retry, machine))


def load_own(_: str, settings: Settings, store: Path, machine: MachineRules | None = None) -> Pool:
    """Load a hospital's images; see `survey`.

    Raises:
        PolicyError: The store would be larger than `machine` allows.
        DataError: The images cannot be opened, or do not pass the preflight. The message names only
            the class of each problem, since the server reads it. Details are in the hospital's log.
    """
    found = survey(settings, store, machine)
    findings = list(found.findings(settings.max_quarantined, settings.class_names))
    for finding in findings:
        if finding.level != "note":
            logging.getLogger("flwr").log(
                ERROR if finding.level == "red" else WARNING, "%s %s", finding.text, finding.advice
            )
    if red := [finding.problem for finding in findings if finding.level == "red"]:
        problems = ", ".join(red)
        raise DataError(
            f"The hospital's data did not pass the preflight: {problems}. At the hospital, 'uv run "
            "fedhandoff preflight' shows details."
        )
    are_dicom = all(file.header and file.header.kind.startswith("DICOM") for file in found.files)
    kind = settings.dataset.partition(":")[0]
    return replace(found.pool(), kind=f"{kind} of DICOM files" if are_dicom else kind)


@contextmanager
def name_images(settings: Settings) -> Iterator[None]:
    """An error names the folder or the manifest; only for commands at the hospital."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{settings.dataset.partition(':')[2]}: {error.explain()}") from error
