"""FedBN: FedAvg in which every hospital keeps its BatchNorm layers to itself.

Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021,
arXiv:2102.07623, Algorithm 1. Weights, biases and running statistics of all BatchNorm layers stay
at the hospital; the average runs over what travels. The hospital's half, which decides what that
is, is learning/learners/fedbn.py.

Deviations:
 1. Hospitals count with their numbers of images, unless `fedavg.weights` is "equal", as in the
    authors' code.
 2. The authors' code finds layers by names that contain "bn", and so averages those that ResNets
    call `downsample.1`; here a layer is a BatchNorm layer by its type.
"""

from strategies.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg with the learner whose BatchNorm layers do not travel."""

    learner = "fedbn"
