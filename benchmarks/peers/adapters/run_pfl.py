"""pfl (Apple's pfl-research): its FedAvg in the simulated backend, in one process."""

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from work import Network, finish, mark, read_job


class WithLoss(Network):
    """The network with the two functions that pfl asks for."""

    def loss(self, images: Any, labels: Any, eval: bool = False) -> torch.Tensor:
        """Mean cross-entropy of a batch."""
        self.eval() if eval else self.train()
        return cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images: Any, labels: Any, eval: bool = True) -> dict[str, Any]:
        """Summed cross-entropy of a batch."""
        loss = cross_entropy(self(images), labels, reduction="sum").item()
        return {"loss": Weighted(loss, len(labels))}


class Marks(TrainingProcessCallback[Any]):
    """Notes when a round begins."""

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Begin the first one."""
        mark(job, 0)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Begin the next one."""
        mark(job, central_iteration + 1)
        return False, Metrics()


job = read_job()
parts = [job.train_part(hospital) for hospital in range(job.hospitals)]
users = list(range(job.hospitals))


def load_user(user: int) -> Dataset:
    """The images of a hospital in a new order, since pfl goes through them as they lie."""
    images, labels = parts[user]
    order = torch.randperm(len(labels))
    return Dataset(raw_data=[images[order], labels[order]], user_id=str(user))


data = FederatedDataset(load_user, get_user_sampler("minimize_reuse", users))
network = WithLoss()
model = PyTorchModel(
    model=network,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
)
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=job.rounds,
        evaluation_frequency=job.rounds + 1,
        train_cohort_size=job.hospitals,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=job.learning_rate,
        local_batch_size=job.batch_size,
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=1000),
    callbacks=[Marks()],
)
finish(job, network)
