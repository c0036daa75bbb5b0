"""A hospital's checks of its synthetic images before release, in words with thresholds.

docs/privacy/buffers.md explains each figure, and the limits of a passed check.
"""

import re
from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any, NamedTuple

from learning.intervals import number
from pages.figures import percent
from pages.page import Marked

UNABLE = Marked("cannot tell", "warn")
LEAK = (
    "The leak: the advantage of the best attack over the negative control, from 0 (none) to 1 "
    "(as for copies of training images)"
)
PASS, FAIL, LOOK = Marked("pass", "good"), Marked("FAIL", "bad"), Marked("look", "warn")
NONE = "–"
LEVEL = 0.001  # the level of audit/copies.py, which takes seconds to import


class Check(NamedTuple):
    """One line of a hospital's table."""

    question: str
    measured: str
    limit: str
    result: object

    def reword(self, noun: str) -> "Check":
        """The line for a buffer of `noun_of`."""
        question, measured, limit = (reword(each, noun) for each in self[:3])
        return Check(question, measured, limit, self.result)


class Checks(NamedTuple):
    """A hospital's checks: rows of a table, and remarks for a person to look at."""

    rows: list[Check]
    remarks: list[str]


def release_checks(
    figures: Mapping[str, float],
    config: Mapping[str, Any],
    attacked: Mapping[str, Any] | None = None,
    *,
    noised: bool = False,
) -> Checks:
    """The checks of a hospital, by its figures and the settings; and the remarks on them.

    `attacked` is the outcome of attacks on its images, which stays at the hospital. If the figures
    are `noised`, the noise alone may put one beyond its limit: only exact figures tell.
    """
    rows = [*check_rows(figures, config, noised)]
    if attacked is not None:
        rows += attack_checks(attacked) or [Check(LEAK, "no attack was tried", "", LOOK)]
    noun = noun_of(config)
    return Checks([each.reword(noun) for each in rows], [*remarks(figures, noised)])


def noun_of(config: Mapping[str, Any]) -> str:
    """The noun for the content of a buffer, by the settings: "image", or "vector" of features."""
    return "vector" if config.get("train", {}).get("freeze") == "body" else "image"


def reword(text: str, noun: str) -> str:
    """A text about a buffer of images, for a buffer of `noun_of`."""
    return (
        text
        if noun == "image"
        else re.sub(r"\b(a|A)n image", rf"\1 {noun}", text).replace("image", noun)
    )


def attack_checks(attacked: Mapping[str, Any]) -> list[Check]:
    """The rows of membership attacks and of their positive control; empty without attacks."""
    if not (leak := attacked.get("leak")):
        return []
    limit, noticed = attacked["limit"], attacked["noticed"]
    return [
        Check(
            LEAK,
            number(leak),
            f"upper end at most {limit:g}",
            PASS if leak["high"] <= limit else UNABLE,
        ),
        Check(
            "The positive control: near-copies that were mixed in on purpose and noticed",
            "not even half of the images" if noticed is None else f"{noticed:.0%} of the images",
            "some must be noticed",
            UNABLE if noticed is None else PASS,
        ),
    ]


def check_rows(
    figures: Mapping[str, float], config: Mapping[str, Any], noised: bool
) -> Iterator[Check]:
    """The rows of the checks: question, figure, limit and result."""
    beyond = UNABLE if noised else FAIL
    if isfinite(share := figures.get("release-refused", nan)):
        result = FAIL if share else PASS
        yield Check("Too near, though released", percent(share), "0%", result)
    if isfinite(share := figures.get("release-discarded", nan)):
        most = float(config["release"]["max-discarded"])
        yield Check(
            "Too near and drawn again",
            f"{share:.1%}",
            f"at most {percent(most)}",
            PASS if share <= most else beyond,
        )
    if isfinite(rank := figures.get("release-median-rank", nan)):
        yield Check(
            "Test images that are more like a training image than the median synthetic image is",
            f"{rank:.0%}",
            "no limit",
            NONE,
        )
    if isfinite(share := figures.get("held-out-refused", nan)):
        yield Check("Test images that would be too near", f"{share:.1%}", "no limit", NONE)
    if isfinite(share := figures.get("release-nearer-to-training", nan)):
        p = figures.get("release-nearer-p", nan)
        yield Check(
            "Nearer to a training image than to a test image",
            f"{share:.0%}; by chance with probability {p:.3g}",
            f"probability at least {LEVEL:g}; 50% if the generative model remembers no image",
            beyond if p < LEVEL else PASS,
        )
    if isfinite(private := figures.get("gan-private", nan)):
        allowed = bool(config["release"]["without-privacy"])
        yield Check(
            "Was the privacy loss used in the training?",
            "yes" if private else "no",
            "not required in this run" if allowed else "yes",
            PASS if private else LOOK if allowed else FAIL,
        )
    if isfinite(epsilon := figures.get("gan-epsilon", nan)):
        yield Check(
            "How much can one patient (or image) have changed the generative model? "
            "(differential privacy)",
            f"ε = {epsilon:g}, δ = {figures.get('gan-delta', nan):g}",
            "the limit of the hospital's policy",
            NONE,
        )
    for kind, (before, after) in _projections(figures).items():
        yield Check(
            "How far are training images from all that the generative model can draw? "
            f"({_distance_name(kind)})",
            f"{before:#.3g} before the privacy phase, {after:#.3g} after it",
            "should rise",
            LOOK if after < before and not noised else NONE,
        )


def remarks(figures: Mapping[str, float], noised: bool) -> Iterator[str]:
    """Remarks on figures that did not fail, but that a person should look at."""
    for kind, (before, after) in _projections(figures).items():
        if after < before and not noised:
            yield (
                "the privacy phase is meant to move the generative model away from the training "
                f"images. Here their distance fell from {before:#.3g} to {after:#.3g} "
                f"({_distance_name(kind)}): the phase missed its purpose."
            )
    if figures.get("gan-private", 1.0) == 0:
        yield ("the privacy loss was not used for the released images: it made them worse at once.")
    for name in figures:
        kind = name.removeprefix("diversity-synthetic-")
        real = figures.get(f"diversity-real-{kind}", nan)
        if kind != name and figures[name] < real / 2 and not noised:
            yield (
                f"two synthetic images of a class differ by {figures[name]:#.3g} on average, two "
                f"real ones by {real:#.3g} ({_distance_name(kind)}): the synthetic images show "
                "little of the variety of the real ones."
            )


def _projections(figures: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """By kind, the distances of projections before and after the privacy phase, if both exist."""
    prefix = "projection-private-"
    kinds = [name.removeprefix(prefix) for name in figures if name.startswith(prefix)]
    found = {
        kind: (figures.get(f"projection-plain-{kind}", nan), figures[prefix + kind])
        for kind in kinds
    }
    return {kind: both for kind, both in found.items() if all(map(isfinite, both))}


def _distance_name(distance: str) -> str:
    """A distance in words."""
    weights, _, network = distance.partition("-")
    kind = "LPIPS" if weights == "lpips" else "an untrained network of its shape"
    return f"perceptual distance, {kind}, {network}"
