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

from gan.codes import CodeSet, Source
from gan.k_salsa import Averages
from gan.lci import LCI, Centroids
from gan.plan import KL, Lines, Paths, RandomCodes


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


CODE_SETS: dict[str, Callable[[Source, Choice], CodeSet]] = {
    "linear": lambda source, _: Lines(source, RandomCodes(source)),
    "plan": lambda source, chosen: Paths(source, RandomCodes(source), chosen.kl),
    "lci": lambda source, chosen: LCI(source, chosen.clusters, chosen.k),
    "lci-plan": lambda source, chosen: Paths(
        source, Centroids(source, chosen.clusters, chosen.k), chosen.kl
    ),
    "k-salsa": lambda source, chosen: Averages(source, chosen.k),
    "k-salsa-plan": lambda source, chosen: Paths(source, Averages(source, chosen.k), chosen.kl),
}
