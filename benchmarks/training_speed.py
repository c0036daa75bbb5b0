"""Images per second of the training loop and of the GAN's, beside bare PyTorch.

    uv run python -m benchmarks.training_speed

"Visit" is `learning.training.train` on images as they lie in a hospital's store; "bare loop" makes
the same steps on a copy in memory; "one batch" is the same step again and again on one batch that
is on the device already. They take turns, and the table has medians. The GAN's images are always on
the device, and its loop has no bare twin.
"""

import time
from collections.abc import Callable, Iterable
from statistics import median

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.gpu import digits, trained
from benchmarks.markdown import print_head, print_row, where
from benchmarks.overhead import HOSPITALS, opened
from client_app.datasets import open_data
from gan.adversaries import Adversaries, Examples
from gan.presets import PRESETS
from learning.learners import LEARNERS
from learning.learners.plain import Received
from learning.training import OPTIMIZERS, train
from strategies.protocol.settings import Settings, merged

TURNS = 7
THREADS = (1, 2)
PIXELS = {"mlp": 8, "cnn": 32, "resnet18": 32}
GAN_STEPS = 24  # a multiple of the iterations between gradient penalties
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Job = Callable[[], object]  # waits for what it has computed


def main() -> None:
    """Print a Markdown table."""
    print(f"{where()}, {DEVICE}\n")
    print_head("", "threads", "visit", "bare loop", "one batch", "visit / bare", "visit / batch")
    for threads in THREADS:
        torch.set_num_threads(threads)
        for model, pixels in PIXELS.items():
            settings = {"dataset": "digits", "partition": "iid", "model": model}
            jobs, images = visits(Settings.parse(merged({**settings, "image-size": pixels})))
            visit, bare, batch = speeds(jobs, images)
            ratios = f"{visit / bare:.2f}", f"{visit / batch:.2f}"
            print_row(model, threads, *(f"{s:,.0f}" for s in (visit, bare, batch)), *ratios)
        jobs, images = gan()
        visit, batch = speeds(jobs, images)
        cells = f"{visit:,.0f}", "–", f"{batch:,.0f}", "–", f"{visit / batch:.2f}"
        print_row("GAN `tiny`, a step", threads, *cells)


def speeds(jobs: list[Job], images: int) -> list[float]:
    """Images per second of each job, all of which see so many images."""
    seconds: list[list[float]] = [[] for _ in jobs]
    for job in jobs:
        job()  # imports, and what else comes once
    for _ in range(TURNS):
        for job, own in zip(jobs, seconds, strict=True):
            start = time.perf_counter()
            job()
            own.append(time.perf_counter() - start)
    return [images / median(own) for own in seconds]


def visits(settings: Settings) -> tuple[list[Job], int]:
    """An epoch as a visit, as a bare loop, and on one batch; and how many images it has."""
    stored = open_data(settings, 0, HOSPITALS).train.to(DEVICE)
    (copied,), architecture = opened(settings, [0])
    own = copied.train.to(DEVICE)
    learner = LEARNERS["plain"](architecture.build().to(DEVICE), stored, settings, Received())
    model = architecture.build().to(DEVICE)

    def visit() -> None:
        train(learner, settings.train, 1, np.random.default_rng(0), float("inf"))

    def steps(batches: Iterable[torch.Tensor]) -> None:
        model.train()
        optimizer = OPTIMIZERS[settings.train.optimizer](
            model.parameters(), lr=settings.train.learning_rate, fused=True
        )
        total = torch.zeros((), device=DEVICE)
        for batch in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(own.images[batch]), own.labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        total.item()

    def batches() -> list[torch.Tensor]:
        return [*torch.randperm(len(own), device=DEVICE).split(settings.train.batch_size)]

    same = [torch.arange(len(batch), device=DEVICE) for batch in batches()]
    return [visit, lambda: steps(batches()), lambda: steps(same)], len(own)


def gan() -> tuple[list[Job], int]:
    """Steps on the images of digits, and on one batch of them; and how many images they see."""
    preset = PRESETS["tiny"].fitted(8)
    everything = digits(8, DEVICE)
    size = preset.batch_size
    one = Examples(everything.images[:size], everything.labels[:size], 10, "one batch")
    every = trained(DEVICE, preset, 0)
    again = Adversaries(one, preset, every.privacy)

    def steps(trains: Adversaries) -> None:
        for iteration in range(GAN_STEPS):
            trains.step(iteration, private=False)
        trains.sums.sum().item()

    return [lambda: steps(every), lambda: steps(again)], GAN_STEPS * size


if __name__ == "__main__":
    main()
