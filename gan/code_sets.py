"""The choices for `gan.sampler` beside "random": the sets of codes of a class.

linear         lines between random codes, for comparison with PLAN
plan           private paths between the same codes
lci            centroids of clusters of training images, and lines between any two
lci-plan       private paths between random pairs of the centroids
k-salsa        averages of k training images of the class
k-salsa-blind  averages of k training images of any class, with the class of most of them
k-salsa-plan, k-salsa-blind-plan
               private paths between random pairs of the averages
"""

from collections.abc import Callable

from gan.codes import CodeSet, Source
from gan.k_salsa import Averages, Blind
from gan.lci import LCI, Centroids
from gan.plan import KL, Lines, Paths, RandomCodes

# Arguments: the source, LCI's clusters of a class (0 = one for every k images), k, and the
# direction of PLAN's divergence.
CODE_SETS: dict[str, Callable[[Source, int, int, KL], CodeSet]] = {
    "linear": lambda source, clusters, k, kl: Lines(source, RandomCodes(source)),
    "plan": lambda source, clusters, k, kl: Paths(source, RandomCodes(source), kl),
    "lci": lambda source, clusters, k, kl: LCI(source, clusters, k),
    "lci-plan": lambda source, clusters, k, kl: Paths(source, Centroids(source, clusters, k), kl),
    "k-salsa": lambda source, clusters, k, kl: Averages(source, k),
    "k-salsa-blind": lambda source, clusters, k, kl: Blind(source, k),
    "k-salsa-plan": lambda source, clusters, k, kl: Paths(source, Averages(source, k), kl),
    "k-salsa-blind-plan": lambda source, clusters, k, kl: Paths(source, Blind(source, k), kl),
}
