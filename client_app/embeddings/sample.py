"""What a hospital sends of a task: embeddings of a share of its images (strategies/fil_ver.py).

The noise of `sampled` embeddings is drawn once for each image of a task, from a secret of the
hospital: a server that could draw it too, or get another draw, would take it off.
"""

import hashlib
import hmac

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from client_app.disclosure import secret_of
from client_app.request import Request
from learning.learners.fil_ver import FilVer
from learning.learners.plain import Learner
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import rng_for


def embeddings_of(request: Request, learner: Learner) -> dict[str, ArrayRecord]:
    """The record `embeddings` of a visit's answer.

    Raises:
        ParcelError: The learner has no embeddings, or not of the kind that was ordered.
    """
    kind = request.order.embeddings
    if not isinstance(learner, FilVer):
        raise ParcelError("The order asks for embeddings, which its learner does not make.")
    all_values = leaving(learner.samples.images, kind, _noise(request))
    rows = learner.chosen
    values, labels = all_values[rows].cpu().numpy(), learner.samples.labels[rows].cpu().numpy()
    return {"embeddings": ArrayRecord({"values": Array(values), "labels": Array(labels)})}


def leaving(embeddings: Tensor, kind: str, rng: np.random.Generator) -> Tensor:
    """What would leave of images: float32 [n, P, d].

    Args:
        embeddings: As the encoder gives them: µ and log σ [n, 2, d], or f(x) [n, 1, d].
        kind: A key of `strategies.protocol.embeddings.PARTS`.
        rng: Draws the noise of `sampled`.

    Raises:
        ParcelError: The encoder is not one for this kind.
    """
    if embeddings.shape[1] != (1 if kind == "ebr" else 2):
        raise ParcelError(f"The encoder that came is not one for embeddings of kind '{kind}'.")
    if kind == "ebr":
        return embeddings
    means, sigmas = embeddings[:, 0], embeddings[:, 1].exp()
    if kind == "stats":
        return torch.stack([means, sigmas**2], dim=1)
    noise = torch.from_numpy(rng.standard_normal(means.shape, np.float32)).to(means.device)
    return (means + sigmas * noise)[:, None]


def _noise(request: Request) -> np.random.Generator:
    """For the noise of a task: from the seed in a simulation, else from the hospital's secret.

    The same images and the same encoder have the same noise in every run.
    """
    hospital, order = request.hospital, request.order
    if hospital.policy is None:
        return rng_for(hospital.settings.seed, "embeddings", order.task, hospital=hospital.name)
    place = f"embeddings {order.encoder} {hospital.data.train_fingerprint}"
    key = hmac.digest(secret_of(hospital.store), place.encode(), hashlib.sha256)
    return np.random.default_rng(int.from_bytes(key))
