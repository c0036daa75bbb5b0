"""The features of a data set's images, computed once with a frozen network: `train.freeze`.

A store keeps them in a file for each data set, form of images and network:

    features/<data set>/<form and network>.npy    for each image its `id`, and `z` float32 [d]

An image is computed again only if its pixels change, or the code that computes features. Rows of
images that are no longer in the data set are removed. The file is saved from time to time, so that
a kill loses a minute of work.

Features have 32 bits, so that sums of them, and a model that is exported whole, agree with the run.
They take a thirtieth of the pixels of an image of 224 x 224.

Shapes: `N` images, `C` channels, `H, W` pixels, `d` features.
"""

import hashlib
import zlib
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.authority.limits import check_disk, check_pass
from client_app.authority.policy import MachineRules
from client_app.datasets.library import VERSION
from client_app.datasets.pool import Pool
from client_app.store import hold_lock, own_folder
from learning.judgement import random_samples
from learning.models import frozen, pixels, small
from learning.models.frozen import Body
from learning.models.whole import frozen_network
from learning.samples import Samples
from strategies.protocol.console import Pace
from strategies.protocol.files import replacing
from strategies.protocol.settings import Settings

# A hash of the code between pixels and features; `VERSION` is that of the decoders.
CODE = zlib.crc32(
    b"".join(Path(str(module.__file__)).read_bytes() for module in (frozen, pixels, small))
)
BATCH = 32  # images in a pass
SAVED = 16 * BATCH  # images between two saves


def add_features(pool: Pool, settings: Settings, store: Path, machine: MachineRules | None) -> Pool:
    """The pool with features [N, d, 1, 1] instead of images.

    Raises:
        ModelError: The network cannot be built, does not end in a linear layer, or gives features
            of random pixels that are not finite; or the weights do not fit it.
        PolicyError: The computation needs more memory than `machine` allows, or the store would be
            larger.
    """
    network, whole = frozen_network(settings, pool.images.shape[1:])
    body = Body(network)
    facts = [settings.image_size, settings.image_fit, settings.image_channels, whole.to_json()]
    facts += [CODE, *(_version(package) for package in ("timm", "torchvision"))]
    data, form = (
        hashlib.sha256(text.encode()).hexdigest()[:16] for text in (settings.dataset, repr(facts))
    )
    file = own_folder(store / "features" / data) / f"{form}.npy"
    ids = _identities(pool)
    lock = file.with_name("lock")
    with hold_lock(lock, "computes features"):  # simulated hospitals may share a data set
        for draft in file.parent.glob(".*.part"):  # of a process that was killed
            draft.unlink()
        table = _load_kept(file, body.width)
        if not np.array_equal(table["id"], ids):
            check_pass(machine, whole, BATCH)
            check_disk(machine, store, len(ids) * table.itemsize)
            _compute(file, ids, table, pool, body)
            table = _load_kept(file, body.width)
    hashes = None if pool.contents else ids.astype(str).tolist()
    z = table["z"][:, :, None, None]
    return replace(pool, images=z, rows=None, pixel_hashes=hashes, whole=whole)


def _version(package: str) -> str:
    """The version of an installed package; empty if it is not installed."""
    return metadata.version(package) if find_spec(package) else ""


def _identities(pool: Pool) -> NDArray[np.bytes_]:
    """Identities of the images, [N]: hashes of their files and of the decoders, or of pixels."""
    if pool.contents is not None:
        parts = [f"{VERSION} {content}".encode() for content in pool.contents]
    else:
        rows = range(len(pool.images)) if pool.rows is None else pool.rows
        parts = [pool.images[row].tobytes() for row in rows]
    return np.array([hashlib.sha256(part).hexdigest().encode() for part in parts])


def _load_kept(file: Path, width: int) -> NDArray[np.void]:
    """The table in a file, mapped; empty if there is no file, or a damaged one."""
    with suppress(FileNotFoundError, ValueError, EOFError):
        # Copy on write, since torch wants writable arrays.
        found: NDArray[np.void] = np.load(file, mmap_mode="c", allow_pickle=False)
        return found
    return np.zeros(0, [("id", "S64"), ("z", np.float32, (width,))])


def _compute(
    file: Path, ids: NDArray[np.bytes_], table: NDArray[np.void], pool: Pool, body: Body
) -> None:
    """Write the table of some images; their rows in the old table are not computed again."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    body.to(device)
    old = {each: row for row, each in enumerate(table["id"].tolist())}
    known = np.array([old.get(each, -1) for each in ids.tolist()])
    done = known >= 0
    new = np.zeros(len(ids), table.dtype)
    new["id"], new[done] = ids, table[known[done]]
    missing = np.flatnonzero(~done)
    if len(missing):
        like = torch.empty(0, *pool.images.shape[1:], dtype=torch.uint8, device=device)
        body.check(random_samples(Samples(like, like), 1).images[:BATCH])
    rows = np.arange(len(ids)) if pool.rows is None else pool.rows
    pace = Pace("The frozen network", "images")
    for start in range(0, len(missing), BATCH):
        pace(start, len(missing))
        batch = missing[start : start + BATCH]
        # Always as many images: the last bits of a feature depend on their number.
        images = torch.from_numpy(pool.images[rows[np.resize(batch, BATCH)]])
        new["z"][batch] = body(images.to(device))[: len(batch)].cpu().numpy()
        done[batch] = True
        if (start + BATCH) % SAVED == 0:
            _save(file, new[done])
    _save(file, new)


def _save(file: Path, table: NDArray[np.void]) -> None:
    with replacing(file) as draft, draft.open("wb") as out:
        draft.chmod(0o600)
        np.save(out, table, allow_pickle=False)
