"""Embeddings of a share of a hospital's images in a task (strategies/fil_ver.py).

The hospital audits them first, and its policy decides whether they leave. The noise of `sampled`
embeddings is drawn once for each image, from a secret of the hospital. The server could average the
noise of several samples out. So a hospital counts the samples that leave in all runs
(`embeddings.max-samples`).
"""

import hashlib
import hmac
import logging

import numpy as np
import torch
from filelock import FileLock
from flwr.app import Array, ArrayRecord
from torch import Tensor

from audit.embeddings import Encoded, audit_embeddings
from client_app.authority.policy import EmbeddingRules, PolicyError, uphold
from client_app.release.disclosure import Disclosure
from client_app.request import Request
from client_app.store import Store, append_text, own_folder
from learning.learners.fil_ver import FilVer
from learning.learners.plain import Learner
from learning.randomness import secret_rng
from strategies.protocol.embeddings import MOST
from strategies.protocol.files import read_text
from strategies.protocol.records import ParcelError
from strategies.protocol.settings import rng_for


def pack_embeddings(
    request: Request, learner: Learner, disclosure: Disclosure
) -> tuple[dict[str, ArrayRecord], dict[str, float]]:
    """The record `embeddings` of a visit's answer, if it may leave, and the figures of its audit.

    Raises:
        ParcelError: The learner makes no embeddings, or another kind than the order asks for.
        DeadlineError: The deadline has passed.
    """
    kind, hospital = request.order.embeddings, request.hospital
    if not isinstance(learner, FilVer):
        raise ParcelError("The order asks for embeddings, but its learner makes none.")
    rows, name = learner.chosen[:MOST], _name(learner, kind)
    values = outgoing_form(learner.samples.images, kind, _noise(request, name))[rows]
    try:
        if hospital.policy:  # an audit takes seconds
            uphold(next(hospital.policy.embeddings.judge(kind, {})))
        figures = _audit(request, learner, rows, values, name)
        if hospital.policy:
            _check(hospital.policy.embeddings, kind, figures, hospital.store, name)
    except PolicyError as error:
        logging.getLogger("flwr").error("No embeddings leave. %s", error.explain())
        return {}, {}
    arrays = {"values": values, "labels": learner.samples.labels[rows]}
    record = ArrayRecord({key: Array(each.cpu().numpy()) for key, each in arrays.items()})
    return {"embeddings": record}, disclosure.embedding_figures(figures, rows.numpy())


def outgoing_form(embeddings: Tensor, kind: str, rng: np.random.Generator) -> Tensor:
    """The embeddings in the form that leaves, float32 [n, P, d]; `rng` draws noise for `sampled`.

    They are outputs of the encoder: µ and log σ [n, 2, d], or f(x) [n, 1, d]. `kind` is a key of
    `strategies.protocol.embeddings.PARTS`.

    Raises:
        ParcelError: The encoder does not fit this kind.
    """
    if embeddings.shape[1] != (1 if kind == "ebr" else 2):
        raise ParcelError(f"The received encoder does not fit embeddings of kind '{kind}'.")
    if kind == "ebr":
        return embeddings
    means, sigmas = embeddings[:, 0], embeddings[:, 1].exp()
    if kind == "stats":
        return torch.stack([means, sigmas**2], dim=1)
    noise = torch.from_numpy(rng.standard_normal(means.shape, np.float32)).to(means.device)
    return (means + sigmas * noise)[:, None]


def _audit(
    request: Request, learner: FilVer, rows: Tensor, values: Tensor, name: str
) -> dict[str, float]:
    """The figures of the audit of a sample, made once."""
    hospital, kind = request.hospital, request.order.embeddings
    if kept := request.run.load(name):
        return {key: float(value) for key, value in kept.items()}
    embeddings = learner.samples.images
    variances = (2 * embeddings[:, 1]).exp() if embeddings.shape[1] == 2 else embeddings[:, 0] * 0
    encoded = Encoded(kind, hospital.data.train, embeddings[:, 0], variances)
    rng = rng_for(hospital.settings.seed, "audit", hospital=hospital.name)
    with request.clock.measure("evaluate"):
        report = audit_embeddings(encoded, rows, values.flatten(1), rng, request.clock.deadline)
    request.run.save(name, {key: np.array(value) for key, value in report.figures.items()})
    return report.figures


def _check(
    rules: EmbeddingRules, kind: str, figures: dict[str, float], store: Store, name: str
) -> None:
    """Refuse (PolicyError) a sample that the policy does not allow; otherwise count it."""
    for ruling in rules.judge(kind, figures):
        uphold(ruling)
    path = own_folder(store.folder / "embeddings") / "left"
    with FileLock(path.with_name(".left.lock")):
        known = read_text(path).split() if path.exists() else []
        if name not in known:
            rules.uphold("max-samples", len(known) + 1)
            append_text(path, f"{name}\n")


def _name(learner: FilVer, kind: str) -> str:
    """The name of a sample: a hash of all that decides its noise and audit, without order texts."""
    digest = hashlib.sha256(kind.encode())
    for tensor in (learner.samples.images, learner.samples.labels, learner.chosen):
        digest.update(f"{tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().numpy().tobytes())
    return f"embeddings/{digest.hexdigest()[:32]}"


def _noise(request: Request, name: str) -> np.random.Generator:
    """The noise of a sample: from the seed in a simulation, else from the hospital's secret."""
    hospital = request.hospital
    if hospital.policy is None:
        seed, task = hospital.settings.seed, request.order.task
        return rng_for(seed, "embeddings", task, hospital=hospital.name)
    return secret_rng(hmac.digest(hospital.secret, name.encode(), "sha256"))
