"""All strategies by name; each is one short file."""

from strategies.centralized import Centralized
from strategies.cwc import CWC
from strategies.cwt import CWT
from strategies.cwt_serial import CWTSerial
from strategies.fedavg import FedAvg
from strategies.fedbn import FedBN
from strategies.feder import FedER
from strategies.fedprox import FedProx
from strategies.peer import PeerStrategy
from strategies.rwt import RWT
from strategies.settings import SettingsError
from strategies.standalone import Standalone

STRATEGIES: dict[str, type[PeerStrategy]] = {
    "centralized": Centralized,
    "cwc": CWC,
    "cwt": CWT,
    "cwt-serial": CWTSerial,
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "feder": FedER,
    "fedprox": FedProx,
    "rwt": RWT,
    "standalone": Standalone,
}


def strategy_named(name: str) -> type[PeerStrategy]:
    """Look a strategy up.

    Raises:
        SettingsError: There is none of that name; lists those there are.
    """
    if name not in STRATEGIES:
        raise SettingsError(
            f"The setting 'strategy' is '{name}'; it must be one of {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[name]
