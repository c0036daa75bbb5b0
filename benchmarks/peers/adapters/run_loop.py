"""The yardstick: the same work in a PyTorch loop, in one process."""

import torch
from work import Network, finish, mark, read_job, visit

job = read_job()
parts = [job.train_part(hospital) for hospital in range(job.hospitals)]
model = Network()
models = [Network() for _ in parts if job.method == "rotation"]
for number in range(job.rounds):
    mark(job, number)
    if job.method == "handoff":
        for part in parts:
            visit(model, part, job)
        continue
    if models:
        for hospital, part in enumerate(parts):
            visit(models[(hospital + number) % len(models)], part, job)
        model = models[0]
        continue
    start = {name: value.clone() for name, value in model.state_dict().items()}
    mean = {name: torch.zeros_like(value) for name, value in start.items()}
    images = sum(len(part[1]) for part in parts)
    for part in parts:
        model.load_state_dict(start)
        visit(model, part, job)
        for name, value in model.state_dict().items():
            mean[name] += value * (len(part[1]) / images)
    model.load_state_dict(mean)
mark(job, job.rounds)
finish(job, model)
