"""The limits of `train.freeze = "body"`: settings that need images, and not their features."""

from strategies.engine.strategy import Strategy
from strategies.protocol.learners import NEED_IMAGES
from strategies.protocol.settings import require

GANS = ("class-gaussians", "dp-mean-embedding")  # values of `gan.method` for features


def check_on_features(strategy: Strategy) -> None:
    """Refuse (SettingsError) a run on features that needs images."""
    settings = strategy.settings
    body = "with train.freeze 'body'"
    trains = not NEED_IMAGES & {visit.learner for visit in strategy.kinds()}
    named = ("learner", settings.learner) if settings.learner else ("strategy", settings.strategy)
    for key, value, fits, allowed in (
        (*named, trains, "one that needs no images"),
        ("model", settings.model, len(settings.networks) == 1, "the same at all hospitals"),
        ("train.augment", settings.train.augment, settings.train.augment == "none", "none"),
        ("task-cut", settings.task_cut, settings.task_cut != "permuted", "without pixels"),
    ):
        require(fits, key, value, f"{allowed} {body}")
    if strategy.buffer_size:
        gan = settings.gan
        require(gan.method in GANS, "gan.method", gan.method, f"{' or '.join(GANS)} {body}")
        require(gan.sampler == "random", "gan.sampler", gan.sampler, f"random {body}")
        require(gan.projections == 0, "gan.projections", gan.projections, f"0 {body}")
