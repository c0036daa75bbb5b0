"""FedProx: FedAvg with a penalty on the distance from the global model.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, arXiv:1812.06127, Eq. 2.
At hospital j, where w_t are the global weights that it received:

    min_w  F_j(w) + µ/2 ‖w − w_t‖²

µ is `fedprox.mu`; µ = 0 is FedAvg. The hospital's half is learning/learners/fedprox.py.

Deviations:
 1. No partial work: every hospital does all its epochs.
"""

from strategies.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with the proximal learner."""

    learner = "fedprox"
