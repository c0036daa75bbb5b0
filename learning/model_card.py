"""The model card: a model's purpose, training, tests and limits.

After Mitchell et al., "Model cards for model reporting", FAT* 2019, arXiv:1810.03993. The card
gives the known facts, and says which facts are not known.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from learning.export import FORM, ModelManifest
from learning.intervals import number, read_figure
from strategies.protocol.files import write_whole
from strategies.protocol.tested import TESTED
from strategies.protocol.text import amount, printable

NOT_OWN = {
    "everyone": "the images of all hospitals together, as only a simulation can",
    "public": "a public archive, and on no image of the hospital",
    "none": "synthetic images alone, and on no image of the hospital's own",
}
UNIT_FEATURES = "The last layer gets the features of an image divided by their Euclidean length."
# Figures of a class: titles of columns, and names of the figures.
OF_CLASS = {"found": "recall", "sensitivity": "sensitivity", "specificity": "specificity"}


def model_card(manifest: ModelManifest) -> str:
    """The card of a model, as Markdown, with the manifest at its end."""
    shape = manifest.network
    # A backquote would end the block of code; JSON can write it in another way.
    whole = json.dumps(json.loads(manifest.to_json()), indent=1).replace("`", "\\u0060")
    form = ", ".join(f"{key} = {_plain(manifest.settings[key])}" for key in FORM)
    frozen = (
        "The last layer alone is of the hospitals. The other weights were frozen; their SHA-256 "
        f"is {shape.frozen}."
    )
    lines = [
        f"# Model {_plain(manifest.lineage)} ({_plain(manifest.settings['strategy'])})",
        f"Written on {_plain(manifest.date)} after round {manifest.round}, hop {manifest.hop} of "
        f"run {_plain(manifest.run)}.",
        "## What it does",
        f"The network ({_plain(shape.name)}) gives an image the probability of each of "
        f"{len(manifest.classes)} classes: {', '.join(map(_plain, manifest.classes))}. It always "
        "answers with one of these, whatever the image shows.",
        f"Images are bytes of {shape.channels} x {shape.height} x {shape.width} (channels, height, "
        f"width), turned by their EXIF data, and brought to this form with {form}. The "
        f"interpolation is {_plain(manifest.resized)}; another one changes some answers. Bytes are "
        f"scaled inside the model (pixels = {_plain(shape.pixels)}).",
        *([UNIT_FEATURES] if shape.has_unit_features else []),
        *([frozen] if shape.frozen else []),
        "## Who trained it",
        *_training_lines(manifest),
        "## Where it was tested",
        *_tests(manifest),
        "## What it is not for",
        *_limits(manifest),
        "## Licence",
        "The licence of the weights is the consortium's to decide; this card gives none.",
        "## Manifest",
        f"```json\n{whole}\n```",
    ]
    return "\n\n".join(lines) + "\n"


def write_card(model: Path, manifest: ModelManifest) -> Path:
    """Write the card of a model beside its file; return the path of the card.

    Raises:
        OSError: It cannot be written.
    """
    path = model.with_suffix(".md")
    write_whole(path, model_card(manifest))
    return path


def _training_lines(manifest: ModelManifest) -> Iterator[str]:
    places = dict(each.partition("=")[::2] for each in manifest.not_own)
    trainers = {name for k, name in enumerate(manifest.visited, 1) if str(k) not in places}
    if manifest.visited:
        visited = Counter(manifest.visited)
        route = [_plain(name) for name in manifest.visited]
        stops = route if len(route) <= 12 else ["...", *route[-11:]]
        counts = ", ".join(f"{_plain(name)} {count}" for name, count in visited.items())
        last = f"In its last visit it was trained for {amount(manifest.epochs, 'epoch')}."
        if manifest.settings["strategy"] == "sums":
            last = "Nothing was trained: it follows from sums of features of their images."
        yield f"Visits: {counts}. Route: {' → '.join(stops)}. {last}"
    elif manifest.round:
        yield (
            "A server averaged the models of several hospitals. This model has no list of these "
            "hospitals."
        )
        trainers = set(manifest.images)
    else:
        yield "No hospital has trained it."
    for images, visits in Counter(places.values()).items():
        source = NOT_OWN.get(images, _plain(images))
        yield f"At {visits} of these visits it was trained on {source}."
    if "everyone" in places.values():
        trainers = set(manifest.images)
    if lent := Counter(each.partition("=")[2] for each in manifest.replayed):
        sources = [f"{_plain(name)} in {amount(n, 'visit')}" for name, n in lent.items()]
        yield f"It was also trained on synthetic images: of {', '.join(sources)}."
    elif manifest.visited:
        yield "It was trained on no synthetic images."
    if not manifest.images:
        yield "The hospitals' numbers of images are not known here."
        return
    rows = [
        [_plain(hospital), title, *(_count_seen(counts, key, hospital in trainers) for key in keys)]
        for hospital, counts in manifest.images.items()
        for title, *keys in [
            ("all", "train", "test"),
            *((_plain(name), f"train/{name}", f"test/{name}") for name in manifest.classes),
            ("groups, such as patients", "train-groups", "test-groups"),
        ]
        if any(key in counts for key in keys)
    ]
    yield _table(["hospital", "images", "trained on", "for testing"], rows)
    if unknown := sorted(trainers - manifest.images.keys()):
        yield f"Not known here: the images of {', '.join(map(_plain, unknown))}."


def _count_seen(counts: Mapping[str, float], key: str, trained: bool) -> str:
    """A number of images as text; "none" to train on where the model was not trained."""
    if key.startswith("train") and not trained:
        return "none"
    return _count(counts, key)


def _tests(manifest: ModelManifest) -> Iterator[str]:
    if not manifest.tested:
        yield "No figures are known here."
        return
    yield _table(
        ["hospital", "test images", "patients", *(figure.heading for figure in TESTED.values())],
        [
            [_plain(hospital), _count(figures, "num-examples"), _count(figures, "num-patients")]
            + [_figure(figures, name) for name in TESTED]
            for hospital, figures in manifest.tested.items()
        ],
    )
    sure = [
        f"{name}-low" in figures
        for figures in manifest.tested.values()
        for name in TESTED
        if name in figures
    ]
    text = "The figures have no interval."
    if any(sure):
        some = "" if all(sure) else " Some figures have none."
        text = f"Intervals are of 95 %, over patients, or over images if none are named.{some}"
    if noised := [_plain(h) for h, figures in manifest.tested.items() if _is_noised(figures)]:
        text += (
            f" Figures of {', '.join(noised)} are those that left the hospital: with noise, which "
            "intervals allow for, and without classes of few patients."
        )
    yield text
    rows = [
        [_plain(hospital), _plain(name), _count(figures, f"images-of-class-{k}")]
        + [_figure(figures, f"{each}-of-class-{k}") for each in OF_CLASS.values()]
        for hospital, figures in manifest.tested.items()
        for k, name in enumerate(manifest.classes)
        if f"recall-of-class-{k}" in figures
    ]
    if rows:
        yield _table(["hospital", "class", "test images", *OF_CLASS], rows)
        yield (
            "Found: the share of a class's images with the right answer. Sensitivity and "
            "specificity compare the class with all others, at a threshold that the hospital has "
            "chosen on training images."
        )
        if manifest.tasks > 1:
            yield "A threshold was chosen on images of the last task, for its classes alone."


def _limits(manifest: ModelManifest) -> Iterator[str]:
    tested = ", ".join(map(_plain, manifest.tested)) or "none"
    yield (
        "- It is **not a medical device**: nobody has approved it for diagnosis or treatment.\n"
        f"- Hospitals whose tests are known here: {tested}. Its performance for other hospitals, "
        "devices and patients is not known here."
    )
    for hospital, figures in manifest.tested.items():
        recalls = [figures.get(f"recall-of-class-{k}") for k in range(len(manifest.classes))]
        pairs = zip(manifest.classes, recalls, strict=True)
        missed = [_plain(name) for name, recall in pairs if recall == 0]
        if missed and not _is_noised(figures):
            yield f"- At {_plain(hospital)} it found **no image** of: {', '.join(missed)}."
    for hospital in manifest.tested:
        counts = manifest.images.get(hospital, {})
        rare = [name for name in manifest.classes if not counts.get(f"test/{name}")]
        counted = any(key.startswith("test/") for key in counts)
        if counted and rare:
            names = ", ".join(map(_plain, rare))
            yield f"- {_plain(hospital)} tested it on few images, or none, of: {names}."


def _is_noised(figures: Mapping[str, float]) -> bool:
    return any(name.endswith("-noise") for name in figures)


def _figure(figures: Mapping[str, float], name: str) -> str:
    figure = read_figure(figures, name)
    return number(figure) if figure else ""


def _count(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[name]:g}" if name in figures else ""


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: object) -> str:
    """A text from outside, escaped so that Markdown shows it unchanged."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", printable(" ".join(str(text).split())))
