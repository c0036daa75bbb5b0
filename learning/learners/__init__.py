"""The learners by name: each method's objective during a visit."""

from learning.learners.agem import AGEM
from learning.learners.centralized import Centralized
from learning.learners.cwc import CWC
from learning.learners.derpp import DER, DERpp
from learning.learners.er import ER
from learning.learners.er_ace import ERACE
from learning.learners.fdr import FDR
from learning.learners.fedbn import FedBN
from learning.learners.feder import FedER
from learning.learners.fedprox import FedProx
from learning.learners.fedrewind import FedRewind, FedRewindAveraged
from learning.learners.fil_ver import Encoding, FilVer
from learning.learners.icarl import ICaRL
from learning.learners.lwf import LwF
from learning.learners.mah import MAH
from learning.learners.naive_rehearsal import NaiveRehearsal
from learning.learners.oewc import OnlineEWC
from learning.learners.plain import Learner, Plain
from learning.learners.prototypes import FedSpace, Pass
from learning.learners.ser import SER, Saliency
from learning.learners.sums import Sums
from learning.learners.twf import TwF

LEARNERS: dict[str, type[Learner]] = {
    "agem": AGEM,
    "centralized": Centralized,
    "cwc": CWC,
    "der": DER,
    "derpp": DERpp,
    "er": ER,
    "er-ace": ERACE,
    "fdr": FDR,
    "fedbn": FedBN,
    "feder": FedER,
    "fedprox": FedProx,
    "fedrewind": FedRewind,
    "fedrewind-averaged": FedRewindAveraged,
    "fedspace": FedSpace,
    "fil-ver": FilVer,
    "fil-ver-encoder": Encoding,
    "icarl": ICaRL,
    "lwf": LwF,
    "oewc": OnlineEWC,
    "mah": MAH,
    "pass": Pass,
    "plain": Plain,
    "rehearsal": NaiveRehearsal,
    "saliency": Saliency,
    "ser": SER,
    "sums": Sums,
    "twf": TwF,
}
