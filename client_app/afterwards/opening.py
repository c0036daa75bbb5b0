"""Open sealed parcels of the server's results with the hospital's key, and keep their models."""

from pathlib import Path

import torch
from flwr.app import RecordDict

from client_app.afterwards.home import age_of, file_name
from client_app.authority.identity import Identity, Member
from client_app.authority.sealing import Seal
from client_app.run import check_joined, run_folder
from client_app.store import Store, own_folder
from learning.export import ModelManifest, save_model
from learning.models import Architecture
from learning.models.whole import whole_network
from learning.packing import unpack_network
from strategies.protocol.parcel import Manifest, check_parcel, load
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import Settings


def take_home(
    path: Path, store: Path, identity: Identity, members: dict[str, Member], settings: Settings
) -> Path:
    """Open a parcel, keep its model unless it is at home already, and return the model's file.

    `store` is the hospital's own folder; `members` may have sent the parcel.

    Raises:
        ArchiveError: The file is no parcel.
        ParcelError: The parcel is damaged, or not sealed for this hospital in one of its runs.
        ModelError: The architecture is unknown.
        SettingsError: A setting for images is not that with which the hospital joined the run.
        OSError: The parcel cannot be read, or the model cannot be written.
    """
    parcel = load(path)
    label = check_parcel(parcel)
    opened, run = _open(parcel, label, store, identity, members)
    manifest = ModelManifest.from_label(label, settings, run)
    check_joined(run_folder(Store(store), run), manifest.settings)
    file = own_folder(store / "models" / run) / file_name(label.lineage)
    if age_of(file) < manifest.age:
        network = unpack_network(opened, label, {}, torch.device("cpu"))
        whole = whole_network(network, Architecture.from_json(label.architecture), settings)
        save_model(file, whole, manifest)
    return file


def _open(
    parcel: RecordDict, label: Manifest, store: Path, identity: Identity, members: dict[str, Member]
) -> tuple[RecordDict, str]:
    """The opened parcel, and the name of its run."""
    runs = [folder.name for folder in (store / "runs").glob("*") if folder.is_dir()]
    reasons: dict[str, None] = {}  # each once, in their order
    for run in runs:
        try:
            return Seal(identity, members, run).open(parcel, label), run
        except ParcelError as error:
            reasons[str(error)] = None
    raise ParcelError(
        f"The parcel opens in no run that the hospital knows ({len(runs)}). " + " ".join(reasons)
    )
