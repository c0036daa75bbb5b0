"""Sealed parcels from the server's results, opened with the hospital's own key and taken home."""

from pathlib import Path

import torch
from flwr.app import RecordDict

from client_app.afterwards.home import age_of, file_name
from client_app.authority.identity import Identity, Member
from client_app.authority.sealing import Seal
from client_app.store import own_folder
from learning.export import ModelManifest, save_model
from learning.packing import unpack_network
from strategies.protocol.parcel import Manifest, check_parcel, load
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import Settings


def take_home(
    path: Path, store: Path, identity: Identity, members: dict[str, Member], settings: Settings
) -> Path:
    """Open a parcel and keep its model, unless it is at home; returns the model's file.

    Args:
        path: The parcel, as a run leaves it in `parcels/`.
        store: The hospital's own folder; it knows the runs that the hospital has taken part in.
        identity: The hospital's keys.
        members: The hospitals whose parcels it opens, by name.
        settings: Those of the run.

    Raises:
        ArchiveError: The file is no parcel.
        ParcelError: It is damaged, or not sealed for this hospital in one of its runs.
        ModelError: Its architecture is unknown.
        OSError: It cannot be read, or the model cannot be written.
    """
    parcel = load(path)
    label = check_parcel(parcel)
    opened, run = _opened(parcel, label, store, identity, members)
    manifest = ModelManifest.of(label, settings, run)
    file = own_folder(store / "models" / run) / file_name(label.lineage)
    if age_of(file) < manifest.age:
        save_model(file, unpack_network(opened, label, {}, torch.device("cpu")), manifest)
    return file


def _opened(
    parcel: RecordDict, label: Manifest, store: Path, identity: Identity, members: dict[str, Member]
) -> tuple[RecordDict, str]:
    """The parcel as it was before it was sealed, and the run of the hospital's that it is from."""
    runs = [folder.name for folder in (store / "runs").glob("*") if folder.is_dir()]
    reasons: dict[str, None] = {}  # each once, in their order
    for run in runs:
        try:
            return Seal(identity, members, run).open(parcel, label), run
        except ParcelError as error:
            reasons[str(error)] = None
    raise ParcelError(
        f"It opens in none of the {len(runs)} runs that the hospital has taken part in. "
        + " ".join(reasons)
    )
