"""Facts of learners (learning/learners), by name, for code that must not import torch."""

from typing import Literal

# The values of the setting `learner`.
ReplayingLearner = Literal["agem", "der", "derpp", "er", "er-ace", "fdr", "icarl", "rehearsal"]
OtherLearner = Literal["lwf", "mah", "oewc", "pass", "saliency", "ser", "twf"]
# A memory travels with the model: means of features or sums of gradients, without noise. It has no
# average.
WITH_MEMORY = frozenset({"cwc", "fedspace", "icarl", "mah", "twf"})
# Visits train on kept images: `reservoir.*`.
WITH_RESERVOIR = frozenset({"agem", "der", "derpp", "er", "er-ace", "fdr", "icarl", "mah", "twf"})
BY_TASK = frozenset({"agem", "fdr"})  # keep `reservoir.size` / `tasks` images of each task
# A hospital keeps a network, or weights or features of one, for all models that come.
KEEP_NETWORK = frozenset({"icarl", "lwf", "oewc", "pass", "twf"})
# Visits need layers, rotated images or a saliency of images, and so cannot train on features.
NEED_IMAGES = frozenset({"fedbn", "fedspace", "fil-ver", "fil-ver-encoder", "pass", "ser", "twf"})
