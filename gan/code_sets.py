"""What `gan.sampler` may be beside "random": how a class's set of codes comes about.

linear         lines between random codes, which PLAN is compared with
plan           private paths between the same
lci            centroids of clusters of training images, and lines between any two
lci-plan       private paths between random pairs of the centroids
k-salsa        averages of k training images
k-salsa-plan   private paths between random pairs of the averages
"""

from collections.abc import Callable
from dataclasses import dataclass

from gan.codes import Codes, Source
from gan.k_salsa import averages_of
from gan.lci import between, centroids_of
from gan.plan import KL, lines, paths, random_codes


@dataclass(frozen=True)
class Choice:
    """What the settings leave open.

    Attributes:
        clusters: LCI's clusters of a class; 0 = one for every k images.
        k: Training images of an average.
        kl: The direction of PLAN's divergence.
    """

    clusters: int
    k: int
    kl: KL

    @property
    def lci(self) -> str:
        """A name for LCI's centroids."""
        return f"lci-{self.clusters or f'k{self.k}'}"


def _linear(source: Source, choice: Choice) -> Codes:
    return lines(source, random_codes(source))


def _plan(source: Source, choice: Choice) -> Codes:
    return paths(source, random_codes(source), choice.kl, "random")


def _lci(source: Source, choice: Choice) -> Codes:
    centres = centroids_of(source, choice.clusters, choice.k)
    return {label: between(own) for label, own in centres.items()}


def _lci_plan(source: Source, choice: Choice) -> Codes:
    return paths(source, centroids_of(source, choice.clusters, choice.k), choice.kl, choice.lci)


def _k_salsa(source: Source, choice: Choice) -> Codes:
    return averages_of(source, choice.k)


def _k_salsa_plan(source: Source, choice: Choice) -> Codes:
    return paths(source, averages_of(source, choice.k), choice.kl, f"k-salsa-{choice.k}")


CODE_SETS: dict[str, Callable[[Source, Choice], Codes]] = {
    "linear": _linear,
    "plan": _plan,
    "lci": _lci,
    "lci-plan": _lci_plan,
    "k-salsa": _k_salsa,
    "k-salsa-plan": _k_salsa_plan,
}
