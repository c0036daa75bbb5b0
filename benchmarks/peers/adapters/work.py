"""The parts that all adapters share: the job, the network, a visit, marks and the result.

Adapters run in environments of their own. Their import path has this folder, and nothing else of
this app. So this module imports only torch and numpy.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

Part = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Job:
    """The work of one run."""

    folder: Path  # the folder of the run, with parts.npz; also for marks and result
    # handoff (one model visits the hospitals in turn), rotation (each hospital trains another
    # hospital's model) or fedavg
    method: str
    hospitals: int  # the number of hospitals
    rounds: int  # the number of rounds; in each round every hospital trains for one epoch
    batch_size: int  # images per step
    learning_rate: float  # the learning rate of plain SGD

    def train_part(self, hospital: int) -> Part:
        """The training images [n, 784], from 0 to 1, and labels [n] of one hospital."""
        return self._read(f"train-{hospital}")

    def test_part(self) -> Part:
        """The test images and labels of all hospitals together."""
        return self._read("test")

    def _read(self, name: str) -> Part:
        with np.load(self.folder / "parts.npz") as parts:
            images, labels = parts[f"{name}-images"], parts[f"{name}-labels"]
        return torch.from_numpy(images).float() / 255, torch.from_numpy(labels)


class Network(nn.Module):
    """784-256-256-10 with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [n, 10] of images [n, 784]."""
        logits: torch.Tensor = self.layers(images)
        return logits


def read_job() -> Job:
    """The job whose folder the environment names."""
    torch.set_num_threads(1)
    folder = Path(os.environ["PEER_FOLDER"])
    return Job(folder, **json.loads((folder / "job.json").read_text("utf-8")))


def visit(model: nn.Module, part: Part, job: Job) -> None:
    """Train for one epoch on shuffled images."""
    images, labels = part
    optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
    model.train()
    for batch in torch.randperm(len(images)).split(job.batch_size):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def mark(job: Job, round_number: int) -> None:
    """Note that a round has begun somewhere. Of all marks of a round, the first one counts."""
    with (job.folder / "marks.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps([round_number, time.time()]) + "\n")


def finish(job: Job, model: nn.Module) -> None:
    """Write the accuracy of the final model on the test images of all hospitals."""
    images, labels = job.test_part()
    model.eval()
    with torch.inference_mode():
        accuracy = (model(images).argmax(1) == labels).double().mean().item()
    result = {"accuracy": accuracy, "python": sys.version.split()[0], "torch": torch.__version__}
    (job.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
