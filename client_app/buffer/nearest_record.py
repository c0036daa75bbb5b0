"""The audit `nearest-record` (gan/audit.py): no image may be too near to a training image."""

from client_app.buffer.job import REAL_IMAGES, Job, some
from gan.audit import Auditor


def nearest_record(job: Job) -> Auditor:
    """The audit of a hospital's buffer; the hospital's own test images set its scale.

    Raises:
        ReleaseError: No test image is left to compare with.
    """
    data, release = job.hospital.data, job.hospital.settings.release
    try:
        return Auditor(
            job.train.images,
            some(data.test, REAL_IMAGES).images,
            wanted=job.learnt.labels,
            classes=data.classes,
            features=job.distance.features,
            quantile=release.quantile,
        )
    except ValueError as error:
        raise job.refusal(str(error)) from error
