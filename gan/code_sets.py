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

from gan.codes import Codes, Source
from gan.k_salsa import averages, blind_averages
from gan.lci import class_centroids, lci
from gan.plan import KL, lines, paths, random_codes

# Arguments: the source, LCI's clusters of a class (0 = one for every k images), k, and the
# direction of PLAN's divergence. TimeoutError: its deadline has passed; a later call continues.
CODE_SETS: dict[str, Callable[[Source, int, int, KL], Codes]] = {
    "linear": lambda source, clusters, k, kl: lines(source, random_codes(source)),
    "plan": lambda source, clusters, k, kl: paths(source, random_codes(source), "random", kl),
    "lci": lambda source, clusters, k, kl: lci(source, clusters, k),
    "lci-plan": lambda source, clusters, k, kl: paths(
        source, class_centroids(source, clusters, k), f"lci-{clusters or f'k{k}'}", kl
    ),
    "k-salsa": lambda source, clusters, k, kl: averages(source, k),
    "k-salsa-blind": lambda source, clusters, k, kl: blind_averages(source, k),
    "k-salsa-plan": lambda source, clusters, k, kl: paths(
        source, averages(source, k), f"k-salsa-{k}", kl
    ),
    "k-salsa-blind-plan": lambda source, clusters, k, kl: paths(
        source, blind_averages(source, k), f"k-salsa-blind-{k}", kl
    ),
}
