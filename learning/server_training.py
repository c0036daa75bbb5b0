"""Training at the server: a classifier rehearses on embeddings (strategies/fil_ver.py).

Only fil-ver trains at the server. Hospitals have sent the embeddings; the server has no image.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict

from learning.cpu import prepare_cpu
from learning.learners.fil_ver import Rehearsal
from learning.learners.plain import Received
from learning.packing import pack_network, unpack_network
from learning.samples import Samples, concatenate
from learning.training import train
from strategies.protocol.parcel import Manifest
from strategies.protocol.settings import Settings


def rehearse(
    network: ArrayRecord,
    architecture: str,
    tasks: Sequence[Sequence[ArrayRecord]],
    settings: Settings,
    steps: int,
    rng: np.random.Generator,
) -> tuple[ArrayRecord, float]:
    """Train a model's classifier on embeddings, equally many of each task.

    Args:
        network: The model.
        architecture: Architecture of the model, as JSON.
        tasks: The hospitals' embeddings of each task (strategies/protocol/embeddings.py).
        settings: Settings of the run, with `train.*` of the round. `train.class-balance` and
            `train.augment` have no effect: they are for images.
        steps: S_max; each step has `train.batch-size` embeddings, drawn with replacement.
        rng: Decides on the draws, and on the noise of embeddings with means and variances.

    Returns:
        The model, and the mean loss.

    Raises:
        DivergedError: The trained model is of no use.
    """
    prepare_cpu(settings.cpu_threads)
    label = Manifest("server", architecture, [])
    model = unpack_network(RecordDict({"model": network}), label, {}, torch.device("cpu"))
    sent = [concatenate(map(_samples, each)) for each in tasks]
    starts = np.cumsum([0, *map(len, sent)])
    shares = np.array_split(np.arange(steps * settings.train.batch_size), len(tasks))
    drawn = [
        start + rng.integers(len(each), size=len(share))
        for start, each, share in zip(starts, sent, shares, strict=False)
    ]
    rows, whole = torch.from_numpy(np.concatenate(drawn)), concatenate(sent)
    samples = Samples(whole.pixels, whole.labels[rows], rows)  # no copies of embeddings
    own = replace(settings.train, class_balance="none", augment="none")
    learner = Rehearsal(model, samples, replace(settings, train=own), Received())
    metrics = train(learner, own, 1, rng, inf)
    return pack_network(model, label).array_records["model"], metrics["train-loss"]


def _samples(sent: ArrayRecord) -> Samples:
    values, labels = (torch.from_numpy(sent[name].numpy()) for name in ("values", "labels"))
    if values.shape[1] == 2:  # µ and σ²; the learner takes µ and log σ
        means, variances = values.unbind(dim=1)
        values = torch.stack([means, variances.log() / 2], dim=1)
    return Samples(values, labels)
