"""p2pfl: as many nodes as hospitals, in one process, fully connected through memory.

Training is done by Ray's actors, as p2pfl does where Ray is installed. All nodes are in the set
that trains, and the first one's model is the result.
"""

from typing import Any

import lightning
import torch
from datasets import Dataset, DatasetDict
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.node import Node
from p2pfl.settings import Settings
from p2pfl.utils.utils import set_standalone_settings, wait_convergence, wait_to_finish
from torch.nn.functional import cross_entropy
from work import Job, Network, finish, mark, read_job


class Lightning(lightning.LightningModule):
    """The network as Lightning trains it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.network, self.job, self.visits = Network(), job, 0

    def on_fit_start(self) -> None:
        """Note that a visit begins."""
        mark(self.job, -1)  # it does not know its round

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        """The loss of a batch."""
        return cross_entropy(self.network(batch["image"]), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.job.learning_rate)


def part_of(job: Job, hospital: int) -> P2PFLDataset:
    """The training images of a hospital in one random order, which p2pfl keeps in all rounds."""
    images, labels = job.train_part(hospital)
    order = torch.randperm(len(labels))
    rows = Dataset.from_dict({"image": images[order].numpy(), "label": labels[order].numpy()})
    data = P2PFLDataset(DatasetDict({"train": rows, "test": rows.select(range(1))}))
    data.set_batch_size(job.batch_size)
    return data


if __name__ == "__main__":
    job = read_job()
    set_standalone_settings()
    Settings.training.RAY_ACTOR_POOL_SIZE = 2
    nodes = [
        Node(
            LightningModel(Lightning(job)),
            part_of(job, hospital),
            protocol=MemoryCommunicationProtocol(),
        )
        for hospital in range(job.hospitals)
    ]
    for node in nodes:
        node.start()
    for number, node in enumerate(nodes):
        for other in nodes[:number]:
            node.connect(other.addr)
    wait_convergence(nodes, job.hospitals - 1, wait=60)
    nodes[0].set_start_learning(rounds=job.rounds, epochs=1, trainset_size=job.hospitals)
    wait_to_finish(nodes)
    network = nodes[0].get_model().get_model().network
    for node in nodes:
        node.stop()
    finish(job, network)
