"""p2pfl: its FedAvg without a server, all nodes in one process, which train in Ray's.

All nodes know each other, and all train in every round. p2pfl does not shuffle images.
"""

import threading
import time

import lightning
import torch
from datasets import Dataset, DatasetDict
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.node import Node
from p2pfl.settings import Settings
from p2pfl.utils.topologies import TopologyFactory, TopologyType
from p2pfl.utils.utils import set_standalone_settings, wait_convergence, wait_to_finish
from torch.nn.functional import cross_entropy
from work import Job, Network, finish, mark, read_job

CORES = 2
LONGEST = 3600.0  # seconds; benchmarks.peers ends it sooner


class Classifier(lightning.LightningModule):
    """The network, and how p2pfl trains it."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.network = Network()
        self.learning_rate = learning_rate

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        return cross_entropy(self.network(batch["image"]), batch["label"])

    def test_step(self, batch: dict[str, torch.Tensor], batch_index: int) -> None:
        """Nothing: p2pfl tests before each round, which this work does not ask for."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def data_of(job: Job, hospital: int) -> P2PFLDataset:
    """A hospital's training images, and one of them to test on, as p2pfl wants them."""
    images, labels = job.train_part(hospital)
    train = Dataset.from_dict({"image": images.numpy(), "label": labels.numpy()})
    splits = DatasetDict({"train": train, "test": train.select([0])})
    return P2PFLDataset(splits, batch_size=job.batch_size)


def watch(job: Job, node: Node) -> None:
    """Mark each round of a node when it begins."""
    begun = -1
    while begun < job.rounds - 1:
        if node.state.round is not None and node.state.round > begun:
            begun = node.state.round
            mark(job, begun)
        time.sleep(0.01)


if __name__ == "__main__":
    job = read_job()
    set_standalone_settings()
    Settings.training.RAY_ACTOR_POOL_SIZE = CORES
    torch.manual_seed(0)
    nodes = [
        Node(
            LightningModel(Classifier(job.learning_rate)),
            data_of(job, hospital),
            addr=f"hospital-{hospital}",
            protocol=MemoryCommunicationProtocol(),
        )
        for hospital in range(job.hospitals)
    ]
    for node in nodes:
        node.start()
    TopologyFactory.connect_nodes(
        TopologyFactory.generate_matrix(TopologyType.FULL, len(nodes)), nodes
    )
    wait_convergence(nodes, job.hospitals - 1, wait=60)
    threading.Thread(target=watch, args=(job, nodes[0]), daemon=True).start()
    nodes[0].set_start_learning(rounds=job.rounds, epochs=1, trainset_size=job.hospitals)
    wait_to_finish(nodes, timeout=LONGEST)
    mark(job, job.rounds)
    classifier = nodes[0].get_model().get_model()
    for node in nodes:
        node.stop()
    finish(job, classifier.network)
