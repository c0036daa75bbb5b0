"""NVFlare's simulator: its recipes for FedAvg and for cyclic weight transfer.

Each client has a process of its own, ten of them at most: beyond that the simulator ends and starts
processes in turn.
"""

from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.cyclic import CyclicRecipe
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from work import Network, finish, read_job

if __name__ == "__main__":
    job = read_job()
    recipe_of = {"handoff": CyclicRecipe, "fedavg": FedAvgRecipe}[job.method]
    recipe = recipe_of(
        name="peer",
        model=Network(),
        min_clients=job.hospitals,
        num_rounds=job.rounds,
        train_script=str(Path(__file__).with_name("nvflare_client.py")),
    )
    clients = [f"site-{number + 1}" for number in range(job.hospitals)]
    threads = min(10, job.hospitals)
    workspace = job.folder / "nvflare"
    recipe.execute(SimEnv(clients=clients, num_threads=threads, workspace_root=str(workspace)))
    (file,) = workspace.rglob("FL_global_model.pt")
    network = Network()
    network.load_state_dict(torch.load(file, weights_only=True)["model"])
    finish(job, network)
