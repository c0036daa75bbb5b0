"""The hospitals' halves of the methods: what is minimised during a visit, by name."""

from client_app.learners.centralized import Centralized
from client_app.learners.cwc import CWC
from client_app.learners.fedbn import FedBN
from client_app.learners.feder import FedER
from client_app.learners.fedprox import FedProx
from client_app.learners.fedrewind import FedRewind
from client_app.learners.plain import Plain

LEARNERS: dict[str, type[Plain]] = {
    "centralized": Centralized,
    "cwc": CWC,
    "fedbn": FedBN,
    "feder": FedER,
    "fedprox": FedProx,
    "fedrewind": FedRewind,
    "plain": Plain,
}
