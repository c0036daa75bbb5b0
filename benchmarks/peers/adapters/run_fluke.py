"""fluke: its FedAvg, with the hospitals' parts as a data set that is cut already."""

from itertools import count
from typing import Any

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from torch.optim import SGD
from work import Job, Network, Part, finish, mark, read_job


def loader(part: Part, job: Job, shuffle: bool) -> FastDataLoader:
    """A part as fluke wants it."""
    return FastDataLoader(*part, num_labels=10, batch_size=job.batch_size, shuffle=shuffle)


class MarkingServer(Server):
    """Notes when a round begins."""

    def broadcast_model(self, eligible: Any) -> None:
        """Send the model to the clients."""
        mark(work, next(numbers))
        super().broadcast_model(eligible)


class MarkingFedAVG(FedAVG):
    """FedAvg with that server."""

    def get_server_class(self) -> type[Server]:
        """The server's class."""
        return MarkingServer


work = read_job()
numbers = count()
FlukeENV().set_seed(0)
FlukeENV().set_device("cpu")
FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
FlukeENV().set_evaluator(ClassificationEval(eval_every=work.rounds + 1, n_classes=10))
parts = [loader(work.train_part(hospital), work, True) for hospital in range(work.hospitals)]
container = DummyDataContainer(parts, [None] * len(parts), None, num_classes=10)
client = {
    "batch_size": work.batch_size,
    "local_epochs": 1,
    "loss": "CrossEntropyLoss",
    "optimizer": {"name": SGD, "lr": work.learning_rate},
    "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
}
settings = {"client": client, "server": {"weighted": True}, "model": Network()}
splitter = DataSplitter(dataset=container, distribution="iid")
algorithm = MarkingFedAVG(work.hospitals, splitter, DDict(settings))
algorithm.run(work.rounds, 1.0)
mark(work, work.rounds)
finish(work, algorithm.server.model)
