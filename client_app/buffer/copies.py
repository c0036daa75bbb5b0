"""The audit `copies` (gan/audit.py): no image may be a training image in another dress."""

from client_app.buffer.job import Job, some
from gan.audit import Auditor

HELD_OUT = 300  # test images that are enough to set the scale


def copies(job: Job) -> Auditor:
    """The audit of a hospital's buffer; the hospital's own test images set its scale.

    Raises:
        ReleaseError: No test image is left to compare with.
    """
    data = job.hospital.data
    held_out = some(data.test, HELD_OUT)
    try:
        return Auditor(
            job.train.images,
            held_out.images,
            held_out.labels,
            wanted=job.learnt.labels,
            classes=data.classes,
            quantile=job.hospital.settings.release.quantile,
        )
    except ValueError as error:
        raise job.refusal(str(error)) from error
