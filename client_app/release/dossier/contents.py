"""The contents of a dossier, in the form of JSON, and the writing of a dossier."""

import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from client_app.authority.identity import Identity
from client_app.release.buffer.job import Release
from client_app.release.dossier.files import write
from client_app.request import Request
from learning.samples import Samples
from pages.pictures import pngs_by_class

FORMAT = 1
GENERATOR = ("gan-", "fid", "frechet-", "ada-p", "projection-", "diversity-")


def keep_dossier(request: Request, release: Release) -> str:
    """Write the dossier of a release into the hospital's store, and return its SHA-256."""
    hospital = request.hospital
    folder = hospital.store.folder / "dossiers" / request.run.folder.name
    identity = Identity.load(hospital.name, hospital.identity) if hospital.policy else None
    return write(folder, contents(request, release), identity)


def contents(request: Request, release: Release) -> dict[str, Any]:
    """The contents of the dossier of a release."""
    hospital, samples = request.hospital, release.samples
    classes = hospital.data.classes
    sizes = torch.bincount(samples.labels, minlength=len(classes)).tolist()
    counts = {name: size for name, size in zip(classes, sizes, strict=True) if size}
    settings, policy = hospital.settings, hospital.policy
    secret, purpose = hospital.secret, f"dossier {request.order.run}"  # the server names the run
    return {
        "format": FORMAT,
        "hospital": hospital.name,
        "run": request.order.run,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "simulated": policy is None,
        # Without a salt, somebody could guess contents and compare their hash.
        "salt": hmac.digest(secret, purpose.encode(), "sha256").hex() if secret else "",
        "leaves": {
            "images": len(samples),
            "shape": list(samples.shape),
            "classes": counts,
            "left-out": [name for name in classes if name not in counts],
            "pictures": _pictures(samples, classes),
        },
        "learnt-from": {
            "training-images": len(hospital.data.train),
            "test-images": len(hospital.data.held_out),
            "patients-known": hospital.data.train.groups is not None,
        },
        "generator": {k: v for k, v in release.figures.items() if k.startswith(GENERATOR)},
        "checked": {k: v for k, v in release.figures.items() if not k.startswith(GENERATOR)},
        "attacked": release.attacked,
        "settings": {
            "strategy": settings.strategy,
            "train": {"freeze": settings.train.freeze},
            "release": _dash(asdict(settings.release)),
            "gan": _dash(asdict(settings.gan)),
        },
        "policy": _dash(asdict(policy)) if policy else None,
        "fingerprints": {
            "code": release.code,
            **hospital.data.hashes(secret),
            "buffer": release.fingerprint,
        },
    }


def _pictures(samples: Samples, classes: Sequence[str]) -> dict[str, str]:
    """The first images of each class as PNG in base 64; features have none."""
    images, labels = (each.cpu().numpy() for each in (samples.images, samples.labels))
    pngs = pngs_by_class(images, labels, classes) if images.dtype == np.uint8 else {}
    return {name: b64encode(png).decode() for name, png in pngs.items()}


def _dash(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with dashes in its names, as in files of settings."""
    return {
        key.replace("_", "-"): _dash(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
