"""The work of an NVFlare client in a round."""

import nvflare.client as flare
import torch
from work import Network, mark, read_job, visit

job = read_job()
flare.init()
hospital = int(flare.get_site_name().removeprefix("site-")) - 1
part = job.train_part(hospital)
network = Network()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    if job.method == "fedavg" or hospital == 0:
        mark(job, received.current_round)
    state = {name: torch.as_tensor(value) for name, value in received.params.items()}
    network.load_state_dict(state)
    visit(network, part, job)
    steps = {"NUM_STEPS_CURRENT_ROUND": len(part[1])}
    flare.send(flare.FLModel(params=network.state_dict(), meta=steps))
