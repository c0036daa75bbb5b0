"""The privacy account: every noised release of a hospital's images, and their total ε.

A line of the file is one release: a Gaussian mechanism, or the noised steps of a visit. It is on
the disk before noise is drawn. So a release counts even if its process is killed. All releases of
a hospital count together, in all runs and for all images: two versions of a data set share most
patients. Google's dp-accounting composes their ε. Neighbouring data sets differ by one patient or
image, added or removed (gan/noised_moments.py).
"""

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from client_app.authority.node_config import OwnError
from client_app.authority.policy import PrivacyRules
from client_app.store import append_text, own_folder
from strategies.protocol.declared import MOST_EPSILON
from strategies.protocol.files import read_text, reason_of
from strategies.protocol.settings import require
from strategies.protocol.shapes import from_json

FILE = "privacy.jsonl"
BEGIN = '{"what": "'  # of each line
EXACT = 64  # kinds of sampled releases that are composed as they are


@dataclass(frozen=True)
class Spent:
    """Releases of one kind."""

    what: str  # a description for the hospital
    noise: float  # standard deviation of the noise, in sensitivities
    rate: float = 1.0  # probability that a patient (or image) is in a step; 1 = always
    steps: int = 1  # number of releases, each with its own noise


def spend(folder: Path, spent: Spent, delta: float, rules: PrivacyRules | None) -> float:
    """Add a release to the account in a folder, before it is made; returns ε of all releases.

    `delta` is δ of this ε. Without `rules` there is no limit, as in a simulation. There a
    visit that is repeated after an interruption has the same noise, so its release counts once.

    Raises:
        PolicyError: The policy does not allow this ε or δ; nothing is written.
    """
    path = own_folder(folder) / FILE
    with FileLock(path.with_suffix(".lock")):
        account = read_account(folder)
        if not rules and spent in account:
            return epsilon(account, delta)
        total = epsilon([*account, spent], delta)
        if rules:
            rules.uphold("max-delta", delta)
            # The result of dp-accounting exceeds the exact value in the last digits.
            rules.uphold("max-epsilon", round(total, 9))
        append_text(path, "\n" + json.dumps(asdict(spent)))  # the last may be incomplete
    return total


def read_account(folder: Path) -> list[Spent]:
    """All releases so far. An incomplete line is skipped: its release was never made.

    A process that is killed leaves the beginning of a line. A loss of power leaves zeros.

    Raises:
        OwnError: The file cannot be read, or a line is neither a release nor the beginning of one.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        return []
    try:
        lines = [line.strip("\0 ") for line in read_text(path).splitlines()]
        return [from_json(line, Spent) for line in lines if not _is_incomplete(line)]
    except (OSError, ValueError) as error:
        raise OwnError(
            "privacy account",
            f"{path} is damaged: {reason_of(error).removesuffix('.')}. Restore it from a backup: "
            "no release that it had may be forgotten.",
        ) from error


def _is_incomplete(line: str) -> bool:
    """Whether a line is empty, or the beginning of a release without its end."""
    begins = line.startswith(BEGIN) or BEGIN.startswith(line)
    return begins and not line.endswith("}")


def require_delta(name: str, delta: float, patients: NDArray[Any], group: int) -> None:
    """Raise a `SettingsError` if a setting δ is too large for the patients of the images.

    It must be below one over their number. The server chooses δ, so a refusal by the exact number
    would count them; the number is rounded up to whole groups.
    """
    allowed = "below one over the number of patients (or images) that a hospital trains on"
    require(delta * -(-len(np.unique(patients)) // group) * group < 1, name, delta, allowed)


def noise_for(epsilon: float, delta: float) -> float:
    """The noise of one Gaussian release, in sensitivities (Balle and Wang, ICML 2018)."""
    from dp_accounting import get_sigma_gaussian  # takes a second

    return float(get_sigma_gaussian(epsilon, delta))


def epsilon(releases: Sequence[Spent], delta: float) -> float:
    """ε of all releases together, at this δ.

    Releases without sampling together equal one Gaussian release of noise
    (Σ steps / noise²)^(-1/2) (Dong, Roth and Su, arXiv:1905.02383), with an exact ε. If there are
    sampled releases, privacy loss distributions are composed, which gives an upper bound. Each kind
    of them, a noise with a rate, takes time. So of more than `EXACT` kinds the others are merged.
    """
    import dp_accounting  # takes a second

    if any(each.noise <= 0 for each in releases):
        return math.inf
    whole = sum(each.steps / each.noise**2 for each in releases if each.rate >= 1)
    sampled = Counter[tuple[float, float]]()
    for each in releases:
        if each.rate < 1:
            sampled[each.noise, each.rate] += each.steps
    if not sampled:
        return float(dp_accounting.get_epsilon_gaussian(whole**-0.5, delta)) if whole else 0.0
    sampled = _merge(sampled)
    total = 0.0
    # To compose privacy losses of thousands takes gigabytes. Far above any allowed ε the bound of
    # Rényi differential privacy (Mironov, arXiv:1702.07476) is enough.
    bounding = dp_accounting.rdp.RdpAccountant(range(2, 64))
    for accountant in (bounding, dp_accounting.pld.PLDAccountant()):
        for (noise, rate), steps in sampled.items():
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
            accountant.compose(step, steps)
        if whole:
            accountant.compose(dp_accounting.GaussianDpEvent(whole**-0.5))
        if (total := float(accountant.get_epsilon(delta))) > 2 * MOST_EPSILON:
            break
    return total


def _merge(sampled: Counter[tuple[float, float]]) -> Counter[tuple[float, float]]:
    """Steps by noise and rate, of few kinds: they reveal at least as much as all given ones.

    The `EXACT` kinds that reveal most stay. For the others noise is rounded down, and the rate up,
    to a power of two. A smaller noise and a larger rate reveal more.
    """
    kinds = sorted(sampled, key=lambda kind: sampled[kind] * (kind[1] / kind[0]) ** 2)
    found = Counter({kind: sampled[kind] for kind in kinds[-EXACT:]})
    for noise, rate in kinds[:-EXACT]:
        rounded = 2.0 ** math.floor(math.log2(noise)), 2.0 ** math.ceil(math.log2(rate))
        found[rounded] += sampled[noise, rate]
    return found
