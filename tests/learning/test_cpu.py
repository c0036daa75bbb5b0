import subprocess
import sys

import pytest

# A process of its own, because its memory must be that of no other test.
PROGRAM = """
import resource, sys, torch
from learning.cpu import prepare_cpu

if sys.argv[1] == "prepared":
    prepare_cpu(1)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(4_000_000).sum()  # 16 MB
before = faults()
for _ in range(20):
    torch.ones(4_000_000).sum()
print((faults() - before) * resource.getpagesize(), torch.get_num_threads())
"""


def _paged(which: str) -> tuple[int, int]:
    """Bytes that 20 batches of 16 MB get from the kernel page by page, and torch's threads."""
    command = [sys.executable, "-c", PROGRAM, which]
    numbers = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(numbers[0]), int(numbers[1])


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has mallopt")
def test_the_memory_of_a_batch_is_kept_for_the_next_one() -> None:
    paged, threads = _paged("prepared")
    assert paged < 160_000_000  # 320,000,000 if each batch were paged
    assert threads == 1
