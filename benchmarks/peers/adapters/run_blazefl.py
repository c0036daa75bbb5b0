"""BlazeFL: its FedAvg with two processes that share memory."""

from pathlib import Path
from typing import Any

import torch
from blazefl.contrib import (
    FedAvgBaseServerHandler,
    FedAvgPartitionedDataset,
    FedAvgProcessPoolClientTrainer,
)
from blazefl.core import IPCMode, ModelSelector
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from work import Network, finish, mark, read_job


class Networks(ModelSelector[str]):
    """The one network."""

    def select_model(self, model_name: str) -> torch.nn.Module:
        """A new one."""
        return Network()


class Parts(FedAvgPartitionedDataset):
    """The images of all hospitals in one tensor, so that a process gets two handles."""

    def __init__(self, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.images, self.labels = (
            torch.cat(each).share_memory_() for each in zip(*parts, strict=True)
        )
        self.sizes = [len(labels) for _, labels in parts]

    def get_dataset(self, type_: Any, cid: int) -> TensorDataset:
        """The images of one hospital."""
        return TensorDataset(self.images.split(self.sizes)[cid], self.labels.split(self.sizes)[cid])

    def set_dataset(self, type_: Any, cid: int, dataset: Any) -> None:
        """Nothing: a visit changes no images."""

    def get_dataloader(self, type_: Any, cid: int, batch_size: int, generator: Any) -> DataLoader:
        """Batches that are taken from the tensors at once, the fastest way that torch has."""
        data = self.get_dataset(type_, cid)
        order = RandomSampler(data, generator=generator)
        return DataLoader(data, sampler=BatchSampler(order, batch_size, False), batch_size=None)


if __name__ == "__main__":
    job = read_job()
    data = Parts([job.train_part(hospital) for hospital in range(job.hospitals)])
    server = FedAvgBaseServerHandler(
        Networks(), "", data, job.rounds, job.hospitals, 1.0, "cpu", 1000, seed=0
    )
    trainer = FedAvgProcessPoolClientTrainer(
        Networks(),
        "",
        Path("share"),
        Path("state"),
        data,
        "cpu",
        job.hospitals,
        epochs=1,
        batch_size=job.batch_size,
        lr=job.learning_rate,
        seed=0,
        num_parallels=2,
        ipc_mode=IPCMode.SHARED_MEMORY,
    )
    while not server.if_stop():
        mark(job, server.round)
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
    mark(job, server.round)
    finish(job, server.model)
