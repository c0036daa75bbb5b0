"""The time of one message: when to give up, and how long what took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Starts when a message arrives.

    Args:
        allowed: Seconds until the message expires.

    Attributes:
        deadline: When to give up, in the time of `time.monotonic`.
        seconds: Seconds spent so far, by the name of the metric.
    """

    def __init__(self, allowed: float) -> None:
        self.deadline = time.monotonic() + allowed
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Add the time spent inside to the metric `seconds-<what>`."""
        start = time.perf_counter()
        yield
        spent = self.seconds.get(f"seconds-{what}", 0.0) + time.perf_counter() - start
        self.seconds[f"seconds-{what}"] = spent
