"""All strategies by name; each is one short file."""

from collections.abc import Callable

from flwr.serverapp import Grid

from strategies.centralized import Centralized
from strategies.cwc import CWC
from strategies.cwt import CWT
from strategies.cwt_serial import CWTSerial
from strategies.engine.events import Journal
from strategies.engine.peer import PeerStrategy
from strategies.fedavg import FedAvg
from strategies.fedbn import FedBN
from strategies.feder import FedER
from strategies.fedprox import FedProx
from strategies.fedrewind import fedrewind
from strategies.protocol.settings import Settings, SettingsError
from strategies.rwt import RWT
from strategies.standalone import Standalone

# Mostly classes; what makes a strategy for a run.
Maker = Callable[[Settings, Grid, Journal], PeerStrategy]

STRATEGIES: dict[str, Maker] = {
    "centralized": Centralized,
    "cwc": CWC,
    "cwt": CWT,
    "cwt-serial": CWTSerial,
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "feder": FedER,
    "fedprox": FedProx,
    "fedrewind": fedrewind,
    "rwt": RWT,
    "standalone": Standalone,
}


def strategy_named(name: str) -> Maker:
    """Look a strategy up.

    Raises:
        SettingsError: There is none of that name; lists those there are.
    """
    if name not in STRATEGIES:
        raise SettingsError(
            f"The setting 'strategy' is '{name}'; it must be one of {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[name]
