"""All strategies by name; each is one short file."""

from strategies.asynchronous import Asynchronous
from strategies.centralized import Centralized
from strategies.cwc import CWC
from strategies.cwt import CWT
from strategies.cwt_serial import CWTSerial
from strategies.engine.strategy import Strategy
from strategies.fedavg import FedAvg
from strategies.fedbn import FedBN
from strategies.feder import FedER
from strategies.fedprox import FedProx
from strategies.fedrewind import FedRewind
from strategies.fedspace import FedSpace
from strategies.fil_ver import FilVer
from strategies.on_features import check_on_features
from strategies.protocol.run_config import changes_of
from strategies.protocol.settings import Settings, complete, require
from strategies.rwt import RWT
from strategies.standalone import Standalone
from strategies.sums import Sums

STRATEGIES: dict[str, type[Strategy]] = {
    "centralized": Centralized,
    "cwc": CWC,
    "cwt": CWT,
    "cwt-serial": CWTSerial,
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "feder": FedER,
    "fedprox": FedProx,
    "fedrewind": FedRewind,
    "fedspace": FedSpace,
    "fil-ver": FilVer,
    "rwt": RWT,
    "standalone": Standalone,
    "sums": Sums,
}


def strategy_of(settings: Settings) -> Strategy:
    """The strategy that the settings name; a SettingsError if it cannot run with them."""
    strategy = _class_of(settings)(settings)
    if settings.train.freeze == "body":
        check_on_features(strategy)
    return Asynchronous(strategy) if settings.asynchronous else strategy


def changed_settings(text: str | None) -> Settings:
    """The settings of a run: the defaults, with the changes in the text of a `--run-config`.

    They need not suit the strategy. A SettingsError if they cannot be used, or there is no such
    setting or strategy.
    """
    settings = Settings.parse(complete(changes_of([text] if text else [])))
    _class_of(settings)
    return settings


def _class_of(settings: Settings) -> type[Strategy]:
    name, known = settings.strategy, ", ".join(STRATEGIES)
    require(name in STRATEGIES, "strategy", name, f"one of {known}")
    return STRATEGIES[name]
