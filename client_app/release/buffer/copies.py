"""The audit `copies` (audit/copies.py): no image may be a training image in another dress."""

import numpy as np
import torch

from audit.copies import Auditor
from client_app.release.buffer.job import Job


def copies(job: Job) -> Auditor:
    """The audit of a hospital's buffer; the hospital's own test images set its scale.

    Raises:
        ReleaseError: No test image is left to compare with.
    """
    data = job.hospital.data
    _, patients = np.unique(data.train_patients, return_inverse=True)
    try:
        return Auditor(
            job.train.images,
            data.test.images,
            data.test.labels,
            wanted=job.learnt.labels,
            classes=data.classes,
            quantile=job.hospital.settings.release.quantile,
            patients=torch.from_numpy(patients),
        )
    except ValueError as error:
        raise job.refusal(str(error)) from error
