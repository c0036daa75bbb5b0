"""The memory of a simulation: the sum over its processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def peak_memory(mark: str) -> Iterator[list[float]]:
    """Memory in bytes, every second, of all processes that have `mark` in their environment.

    Shared pages count once (PSS, so on Linux only).
    """
    samples: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(1.0):
            samples.append(sum(_bytes(process, mark) for process in Path("/proc").glob("[0-9]*")))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def _bytes(process: Path, mark: str) -> float:
    with suppress(OSError):  # it has ended meanwhile
        if mark.encode() in (process / "environ").read_bytes():
            lines = (process / "smaps_rollup").read_text().splitlines()
            return 1024 * sum(float(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0.0
