"""What training on a CPU needs of the process: its threads, and its memory."""

import ctypes
import sys

import torch

# mallopt's numbers of the two thresholds (glibc's malloc.h), and what both are set to, in bytes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = 2**30


def prepare_cpu(threads: int) -> None:
    """Set torch's threads (`cpu-threads`), and let the process keep the memory of a batch.

    The last bits of sums depend on the number of threads. Ray gives a simulated hospital a thread
    for each of its cores. So the same seed gives the same run only with a number of one's own.

    glibc returns each large block of memory to the kernel as soon as a tensor is freed. Then the
    next batch gets the same memory page by page, which can cost more time than the arithmetic
    (benchmarks/results/batch-memory.md). Other C libraries do not have this function.
    """
    torch.set_num_threads(threads)
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)
