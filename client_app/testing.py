"""A test: models that have arrived, on the hospital's own test images."""

from collections.abc import Mapping

import torch
from flwr.app import RecordDict

from client_app.parcels import unpack
from client_app.request import Request
from learning.evaluation import count_right, normalise_once, probabilities, score


def test_here(request: Request, parcels: Mapping[str, RecordDict]) -> dict[str, float]:
    """Test models and, if the order says so, the mean of their probabilities.

    Args:
        request: What is asked, and of whom.
        parcels: The models, by lineage.

    Returns:
        Metrics, each as "<lineage>/<name>"; those of the mean as "ensemble/<name>".

    Raises:
        ParcelError: A parcel is damaged, or not for this hospital or its images.
        DeadlineError: The deadline has passed.
    """
    hospital, clock = request.hospital, request.clock
    samples = hospital.data.test
    metrics: dict[str, float] = {}
    with clock.measure("evaluate"):
        images = normalise_once(samples.images)
    total = torch.zeros((), device=hospital.device)
    for lineage, parcel in parcels.items():
        network = unpack(request, parcel, tested=True).network
        with clock.measure("evaluate"):
            each = probabilities(network, images, clock.deadline)
            total = total + each
            metrics |= _named(lineage, score(each, samples.labels))
            if hospital.settings.evaluate.per_class:
                metrics |= _named(lineage, count_right(each, samples.labels))
    if request.order.ensemble:
        metrics |= _named("ensemble", score(total, samples.labels))
    return metrics


def _named(lineage: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{lineage}/{name}": value for name, value in metrics.items()}
