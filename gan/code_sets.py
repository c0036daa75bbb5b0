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
from gan.plan import lines, paths, random_codes

# TimeoutError: the deadline of the source has passed; a later call continues.
CODE_SETS: dict[str, Callable[[Source], Codes]] = {
    "linear": lambda source: lines(source, random_codes(source)),
    "plan": lambda source: paths(source, random_codes(source), "random"),
    "lci": lci,
    "lci-plan": lambda source: paths(
        source, class_centroids(source), f"lci-{source.clusters or f'k{source.k}'}"
    ),
    "k-salsa": averages,
    "k-salsa-blind": blind_averages,
    "k-salsa-plan": lambda source: paths(source, averages(source), f"k-salsa-{source.k}"),
    "k-salsa-blind-plan": lambda source: paths(
        source, blind_averages(source), f"k-salsa-blind-{source.k}"
    ),
}
