"""Judges the checks of a GAN: is the check with the lowest Fréchet distance the most useful one?

    uv run python -m benchmarks.snapshots drawn 32 1 4000 ~/snapshots.jsonl
    uv run python -m benchmarks.snapshots ~/rosendahl.npz 32 0 4000 ~/snapshots.jsonl

The arguments are a data set, the pixels a side, a seed, the iterations of phase 1 with the preset
`small`, and a file for the results. A data set is 500 chest X-rays that `benchmarks.phantoms`
draws, with 400 others for tests; or a file with images [n, H, W, C] and labels, as
`dataset='npz:…'` has it. Every 200 iterations the 512 images of a check are judged by
both Fréchet distances, by the balanced accuracy on training images of the small classifier that is
trained on them, and by their usefulness: the balanced accuracy on test images of a `cnn`, mean over
three, that is trained on them for 20 epochs. The first line is of 512 real images.
"""

import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from benchmarks.phantoms import chest
from gan.adversaries import Examples, Privacy
from gan.perceptual import PairwiseLPIPS
from gan.pixel_range import from_bytes
from gan.presets import choose_preset
from gan.quality import Frechet, Untrained, train_classifier
from gan.training import train_gan
from learning.models import Architecture
from learning.samples import Samples

EVERY, EPOCHS, NETWORKS = 200, 20, 3


def main() -> None:
    """Train, judge each check, and write a line for it."""
    dataset, size, seed, iterations, to = sys.argv[1:6]
    torch.set_num_threads(1)
    train, test = (drawn if dataset == "drawn" else load)(dataset, int(size), int(seed))
    classes = int(train.labels.max()) + 1
    preset = replace(
        choose_preset("small", size=int(size)),
        iterations=int(iterations),
        patience=int(iterations),
        check_every=EVERY,
    )
    by_classifier = Frechet(train.images, train_classifier(train.images, train.labels, classes, 0))
    by_untrained = Frechet(train.images, Untrained(train.images, 0))
    spread = torch.arange(preset.fid_images) * len(train) // preset.fid_images
    labels, seen = train.labels.sort().values[spread], 0

    def judge(images: Tensor, labels: Tensor) -> float:
        nonlocal seen
        small = train_classifier(images, labels, classes, 0)
        found = small.head(small.body(from_bytes(train.images))).argmax(1)
        line = {
            "run": [dataset, size, seed],
            "iteration": seen * EVERY,  # 0 = real images
            "classifier": by_classifier([images]),
            "untrained": by_untrained([images]),
            "small": balanced_accuracy_score(train.labels, found),
            "useful": useful(Samples(images, labels), test, classes),
        }
        seen += 1
        with Path(to).expanduser().open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return float(line["untrained"])

    def check(parts: Iterable[Tensor]) -> float:
        return judge(torch.cat([*parts]), labels)

    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(int(seed)))
    real = train[order[: len(labels)]]
    judge(real.images, real.labels)
    with tempfile.TemporaryDirectory() as folder:
        train_gan(
            Examples(train.images, train.labels, classes, dataset),
            preset,
            Privacy(0, "mean", PairwiseLPIPS(preset.perceptual_net, "untrained")),
            check,
            Path(folder),
            seed=int(seed),
            deadline=float("inf"),
            report=lambda standing, limit: None,
        )


def drawn(_: str, size: int, seed: int) -> tuple[Samples, Samples]:
    """Drawn X-rays, every second with spots: 500 to train on, 400 to test on."""
    rng, images = np.random.default_rng(seed), []
    for index in range(900):
        bright = chest(rng, 0.65, spots=index % 2 == 1).clip(0, 1) * 255
        picture = Image.fromarray(bright.astype(np.uint8))
        images.append(np.asarray(picture.resize((size, size), Image.Resampling.BOX)))
    samples = Samples(torch.from_numpy(np.stack(images))[:, None], torch.arange(900) % 2)
    return samples[torch.arange(500)], samples[torch.arange(500, 900)]


def load(file: str, size: int, _: int) -> tuple[Samples, Samples]:
    """The images of a file, scaled by means of areas."""
    with np.load(Path(file).expanduser()) as arrays:
        parts = [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    train, test = (
        Samples(_scale(torch.from_numpy(images), size), torch.from_numpy(labels).long())
        for images, labels in parts
    )
    return train, test


def _scale(images: Tensor, size: int) -> Tensor:
    channels_first = images.permute(0, 3, 1, 2).float()
    return interpolate(channels_first, (size, size), mode="area").round().byte()


def useful(samples: Samples, test: Samples, classes: int) -> float:
    """The mean balanced accuracy of networks that are trained on the samples."""
    channels, height, width = samples.images.shape[1:]
    weight = 1 / samples.labels.bincount(minlength=classes).clamp_min(1).float()
    weight /= weight[samples.labels].mean()
    found = []
    for seed in range(NETWORKS):
        torch.manual_seed(seed)
        model = Architecture("cnn", channels, height, width, classes, (), "unit").build()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(samples)).split(32):
                optimizer.zero_grad()
                logits = model(samples.images[batch].float() / 255)
                cross_entropy(logits, samples.labels[batch], weight).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            answers = model(test.images.float() / 255).argmax(1)
        found.append(balanced_accuracy_score(test.labels, answers))
    return float(sum(found) / NETWORKS)


if __name__ == "__main__":
    main()
