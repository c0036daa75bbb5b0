"""Checks the settings of a run before it starts.

    uv run fedhandoff check --run-config "strategy='cwt' train.epochs=5" --hospitals 4

A run needs a minute to find an error. For an unknown key, Flower reports only that the run config
is invalid. Hospitals check their own images, classes and policies when they enrol. The networks are
checked last, since this check imports torch, which takes seconds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from server_app.notices import gan_preset, notices
from server_app.results import check_same
from server_app.tracking import feed
from strategies.engine import checkpoint
from strategies.engine.in_order import read_turns
from strategies.engine.presence import SCENARIOS, plan_table
from strategies.protocol.classes import outputs
from strategies.protocol.data_sets import KINDS, manifests_in, side_of
from strategies.protocol.files import FileError, expand
from strategies.protocol.may_leave import OWN_FILES
from strategies.protocol.run_config import changes_of, read_config
from strategies.protocol.settings import PUBLIC, Settings, SettingsError, complete, require
from strategies.protocol.text import amount
from strategies.registry import strategy_of


def check_texts(texts: Sequence[str], hospitals: int | None) -> None:
    """Check the texts of `--run-config` for a simulation, and print that they can be used.

    Raises:
        SettingsError: As in `check`; or the texts cannot be read.
    """
    settings = check(complete(changes_of(texts)), hospitals=hospitals)
    for notice in notices(settings, strategy_of(settings), simulated=True):
        print(notice)
    print(
        f"The settings can be used: strategy '{settings.strategy}', dataset '{settings.dataset}', "
        f"{amount(settings.num_server_rounds, 'round')}. The hospitals check the rest when they "
        "enrol: their images, their classes and their policies."
    )


def check(
    config: Mapping[str, Any], *, hospitals: int | None = None, simulated: bool = True
) -> Settings:
    """Check the settings of a run.

    Without `hospitals` their number is unknown. Hospitals that are not `simulated` by this machine
    have images, files and folders of their own.

    Raises:
        SettingsError: It names the unusable setting, its value and the allowed values.
    """
    settings = Settings.parse(config)
    strategy = strategy_of(settings)
    strategy.check(sealed=settings.sealed and not simulated)
    apart = simulated or all(kind.images != "everyone" for kind in strategy.kinds())
    allowed = (
        "one whose images stay at the hospitals, since these are not simulated (centralized.data, "
        "filver.pretrain and filver.offline)"
    )
    require(apart, "strategy", settings.strategy, allowed)
    size = settings.image_size or (side_of(settings.dataset) if simulated else 0)
    if strategy.buffer_size and settings.gan.method == "stylegan2-ada":
        gan_preset(settings.gan, size)
    times = settings.asynchrony
    if times.replay:
        read_turns(Path(times.replay))
    allowed = "empty where hospitals are not simulated: real visits have durations of their own"
    require(simulated or not times.seconds, "async.seconds", times.seconds, allowed)
    if hospitals is not None:
        allowed = f"at most the number of hospitals, which is {hospitals}"
        fewest = settings.min_hospitals
        require(fewest <= hospitals, "min-hospitals", fewest, allowed)
        if settings.enrolment in SCENARIOS:
            plan_table(settings, [str(k) for k in range(hospitals)])
    answers = 2  # number of a network's outputs; of unknown classes there are at least two
    if simulated:
        answers = _check_data(settings, hospitals) or answers
        for key in OWN_FILES:
            chosen = settings.run_config[key]
            path = Path(chosen.removeprefix(PUBLIC))
            require(not path.is_absolute() or path.is_file(), key, chosen, "an existing file")
        _check_folder(settings)
    feed.check(settings)
    # A real hospital has its own file of weights. An unknown image has a colour.
    own = settings if simulated else replace(settings, pretrained="")
    grey = simulated and side_of(settings.dataset) > 0
    channels = settings.image_channels or (1 if grey else 3)
    _check_models(own, strategy.learner, channels, size, answers)
    return settings


def _check_models(settings: Settings, learner: str, channels: int, size: int, answers: int) -> None:
    """Check that the learner can train the networks; a hospital checks an unknown size (0).

    Published weights are not loaded, since that may be a download.
    """
    from learning.errors import ModelError
    from learning.models import MODELS, Architecture, activations  # imports torch
    from learning.models.frozen import feature_width
    from learning.models.preprocessing import IMAGENET, have_unit_features, pixels_of
    from learning.models.pretrained import load_pretrained
    from learning.suited import check_suited

    names = settings.networks
    usable = not settings.pretrained or settings.pretrained.endswith(".safetensors")
    allowed = "an exported model (*.safetensors), or empty, for networks that are not torchvision's"
    require(usable or not names & MODELS.keys(), "pretrained", settings.pretrained, allowed)
    shape = (channels, size or 224, size or 224)
    for name in sorted(names):
        try:
            pixels = pixels_of(settings, name)
            unit, hidden = have_unit_features(settings.pretrained), settings.mlp.widths
            network = Architecture(name, *shape, answers, hidden, pixels, unit_features=unit)
            if size and settings.pretrained not in ("", IMAGENET):
                load_pretrained(network.blank(), network, settings.pretrained)
            if settings.train.freeze == "body":
                if size:
                    activations(network)  # the body computes the features
                network = network.head(feature_width(network.skeleton()))
            check_suited(learner, network, settings, sized=size > 0)
        except ModelError as error:
            text = f"The setting 'model' is {settings.model!r}. {error}"
            raise SettingsError(text) from error


def _check_data(settings: Settings, hospitals: int | None) -> int:
    """Check the data set's name, its place on this machine, and its partition.

    Returns the number of a network's outputs; 0 if the classes are unknown.
    """
    dataset, partition = settings.dataset, settings.partition
    kind, colon, rest = dataset.partition(":")
    names = [f"{name}:{each.rest}" if each.rest else name for name, each in KINDS.items()]
    known = kind in KINDS and bool(KINDS[kind].rest) == bool(colon) == bool(rest.strip())
    require(known, "dataset", dataset, f"one of {', '.join(names)}")
    several = kind in ("folder", "manifest") and hospitals != 1  # one path may have a comma
    sources = rest.split(",") if several else [rest]
    wanted = KINDS[kind].place or ("folder" if rest.startswith("/") else "")
    for source in sources if wanted else ():
        allowed = f"an absolute path; there is no {wanted} '{source}'"
        require(_is_there(wanted, Path(source.strip())), "dataset", dataset, allowed)
    if len(sources) > 1:
        require(partition == "site", "partition", partition, "site for several folders")
        folders = [Path(source.strip().removesuffix("/manifest.csv")) for source in sources]
        distinct = len({expand(folder).resolve() for folder in folders}) == len(sources)
        require(distinct, "dataset", dataset, "another folder or manifest for each hospital")
        count = len(sources)
        fits = hospitals in (None, count)
        allowed = f"one folder for each of {hospitals} hospitals, not {count}"
        require(fits, "dataset", dataset, allowed)
    elif partition == "site" and (side_of(kind) or (kind == "folder" and several)):
        raise SettingsError(
            "The setting 'partition' is 'site', and the data set does not say which site an image "
            f"comes from ('dataset' is {dataset!r}); it must be iid, dirichlet or classes."
        )
    given = settings.tasks > 1 and settings.task_cut == "given"
    allowed = "another value unless the images are in a manifest, which has the column 'task'"
    require(kind == "manifest" or not given, "task-cut", settings.task_cut, allowed)
    numbered = [str(k) for k in range(KINDS[kind].classes)]
    classes = settings.class_names or numbered
    answers = outputs(classes, settings) if classes else []
    if numbered:
        _check_digits(settings, numbered, hospitals)
    return len(answers)


def _check_digits(settings: Settings, numbered: Sequence[str], hospitals: int | None) -> None:
    """Check the cut of a data set whose classes are known."""
    count, k = len(numbered), settings.partition_classes
    if settings.partition == "classes":
        least = -(-count // hospitals) if hospitals else 1
        allowed = f"{least} to {count}: all hospitals together have all {count} classes"
        require(least <= k <= count, "partition-classes", k, allowed)
    allowed = f"names of which some are of the data set's classes, {', '.join(numbered)}"
    shown = not settings.class_names or {*settings.class_names} & {*numbered}
    require(bool(shown), "classes", settings.classes, allowed)
    tested = settings.test_fraction > 0 or settings.dataset != "digits"
    allowed = "above 0 with the data set 'digits', which has no test images of its own"
    require(tested, "test-fraction", settings.test_fraction, allowed)


def _is_there(wanted: str, path: Path) -> bool:
    """Whether the source of a data set, a `Kind.place`, has an absolute path and can be read."""
    if wanted == "file":
        return path.is_absolute() and path.is_file()
    path = expand(path)
    there = path.is_dir() if wanted == "folder" else path.is_file() or bool(manifests_in(path))
    return path.is_absolute() and there


def _check_folder(settings: Settings) -> None:
    """Check the folder of the results, or of the run to resume."""
    if settings.resume:
        path = expand(settings.resume)
        folder = path / "checkpoint"
        there = (folder / checkpoint.STATE).is_file()
        allowed = "the result directory of a run that has not completed"
        require(there, "resume", settings.resume, allowed)
        check_same(settings, read_config(path / "config.toml"), folder / "resume.toml")
        return
    try:
        folder = expand(settings.output_dir)
        nearest = next(each for each in (folder, *folder.parents) if each.exists())
        usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    except (OSError, FileError):
        usable = False
    allowed = "a folder that the server can write to"
    require(usable, "output-dir", settings.output_dir, allowed)
