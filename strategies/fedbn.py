"""FedBN: FedAvg, but each hospital keeps BatchNorm layers of its own.

Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021,
arXiv:2102.07623, Algorithm 1. Weights, biases and running statistics of all BatchNorm layers stay
at the hospital. The server averages the other arrays. The hospital's half,
learning/learners/fedbn.py, chooses the arrays that travel.

Deviations:
 1. The average is weighted by numbers of images. In the authors' code all hospitals count equally,
    as with `fedavg.weights = "equal"`.
 2. The authors' code finds BatchNorm layers by names that contain "bn", and so averages those that
    ResNets call `downsample.1`. Here the type of a layer decides.
"""

from strategies.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg with the learner that keeps BatchNorm layers at the hospital."""

    learner = "fedbn"
    keeps_layers = True
    needs_fresh_optimizer = "whose BatchNorm layers do not travel, and so neither their moments"
