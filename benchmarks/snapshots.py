"""Judges the snapshots of a GAN, and its phase 2 at each α.

    uv run python -m benchmarks.snapshots digits 0 ~/snapshots.jsonl
    uv run python -m benchmarks.snapshots xray 0 ~/snapshots.jsonl

The hospital has 719 digits, or 300 drawn X-rays of 32 pixels. At the checks of phase 1, the 512
images of the check are judged by four measures: the Fréchet distances of both stand-ins; the
accuracy of a small classifier that is trained on them, on the hospital's training images; and the
test accuracy of a `cnn` that is trained on them for 30 epochs, which is the purpose of a buffer.
Then phase 2 starts from the same GAN for each α. 1e-6 is the control: as many steps, and in effect
no privacy loss. With seed 0 all snapshots are judged, with others the best one alone.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from benchmarks.phantoms import chest
from gan.adversaries import Examples, Privacy
from gan.nearest import nearest
from gan.perceptual import PairwiseLPIPS
from gan.pixel_range import from_bytes
from gan.presets import Preset, choose_preset
from gan.quality import Frechet, Untrained, train_classifier
from gan.schedule import ENOUGH
from gan.training import train_gan
from learning.models import Architecture

ALPHAS = (1e-6, 0.5, 1.0, 2.0, 3.0)


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Preset]:
    """Training images [n, 1, 16, 16] and labels, and the same for tests."""
    found = load_digits()
    images = torch.from_numpy((found.images * 255 / 16).astype("uint8"))[:, None]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    preset = choose_preset("tiny", size=8)
    labels = torch.from_numpy(found.target).long()
    train, test = order[:719], order[1437:]
    return images[train], labels[train], images[test], labels[test], preset


def xray(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Preset]:
    """The same for drawn X-rays of 32 pixels: normal, and with spots."""
    rng = np.random.default_rng(seed)
    drawn = []
    for index in range(600):
        bright = chest(rng, 0.65, spots=index % 2 == 1).clip(0, 1) * 255
        small = Image.fromarray(bright.astype(np.uint8)).resize((32, 32), Image.Resampling.BOX)
        drawn.append(np.asarray(small))
    images = torch.from_numpy(np.stack(drawn))[:, None]
    labels = torch.arange(600) % 2
    preset = replace(choose_preset("small", size=32), iterations=800)
    return images[:300], labels[:300], images[300:], labels[300:], preset


def small_accuracy(images: Tensor, labels: Tensor, real: Tensor, truth: Tensor, k: int) -> float:
    """The accuracy on real images of a small classifier that is trained on others."""
    model = train_classifier(images, labels, k, 0)
    with torch.no_grad():
        answers = model.head(model.body(from_bytes(real))).argmax(1)
    return float((answers == truth).double().mean())


def useful(images: Tensor, labels: Tensor, real: Tensor, truth: Tensor, k: int) -> float:
    """The test accuracy of the network `cnn`, trained for 30 epochs."""
    torch.manual_seed(0)
    if images.shape[2] < 16:
        images, real = (interpolate(x.float(), scale_factor=2).byte() for x in (images, real))
    channels, height, width = images.shape[1:]
    model = Architecture("cnn", channels, height, width, k, (), "unit").build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(30):
        for batch in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            cross_entropy(model(images[batch].float() / 255), labels[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return float((model(real.float() / 255).argmax(1) == truth).double().mean())


def main() -> None:
    """Train, judge, and write a line for each judged set of images."""
    name, seed, to = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).expanduser()
    train, truth, test, test_truth, preset = {"digits": digits, "xray": xray}[name](seed)
    k = int(truth.max()) + 1
    square = train
    if preset.resolution != train.shape[2]:
        size = (preset.resolution, preset.resolution)
        square = interpolate(train.float(), size=size, mode="bilinear").round().byte()
    distance = PairwiseLPIPS(preset.perceptual_net, "untrained")
    by_classifier = Frechet(square, train_classifier(square, truth, k, 0))
    by_untrained = Frechet(square, Untrained(square, 0))
    chosen = by_classifier if preset.otherwise == "classifier" else by_untrained
    spread = torch.arange(preset.fid_images) * len(truth) // preset.fid_images
    labels = truth.sort().values[spread]
    features = distance.features(from_bytes(square))

    def judge(images: Tensor, alpha: float, iteration: int, phase: int) -> None:
        began = time.monotonic()
        small = small_accuracy(images, labels, square, truth, k)
        seconds = time.monotonic() - began
        small_images = images
        if images.shape[2] != train.shape[2]:
            small_images = interpolate(images.float(), size=train.shape[2:], mode="area").byte()
        made = distance.features(from_bytes(images))
        # The mean over all pairs of ‖a − b‖² from means and mean squares.
        mean = (
            features.square().sum(1).mean()
            + made.square().sum(1).mean()
            - 2 * features.mean(0) @ made.mean(0)
        ).item()
        line = {
            "data": name,
            "seed": seed,
            "alpha": alpha,
            "phase": phase,
            "iteration": iteration,
            "classifier": by_classifier([images]),
            "untrained": by_untrained([images]),
            "small": small,
            "small-seconds": seconds,
            "useful": useful(small_images, labels, test, test_truth, k),
            "pairs": mean,
            "nearest": nearest(images, square, distance)[0].mean().item(),
        }
        with to.open("a") as file:
            file.write(json.dumps(line) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        plain: dict[int, Tensor] = {}
        for alpha in ALPHAS if name == "digits" else (1e-6, 1.0, 3.0):
            taken: list[Tensor] = []

            def capture(parts: Iterable[Tensor], taken: list[Tensor] = taken) -> float:
                taken.append(torch.cat([*parts]))
                return chosen(taken[-1:])

            trained = train_gan(
                Examples(square, truth, k, f"{name} {seed}"),
                preset,
                Privacy(alpha * preset.privacy_scale, "mean", distance),
                capture,
                Path(folder) / str(alpha),
                seed=seed,
                deadline=float("inf"),
                report=lambda standing, limit: None,
                judged_by=chosen.name,
            )
            first = [check for check in trained.progress if check.phase == 1]
            second = [check for check in trained.progress if check.phase == 2]
            if not plain:
                for check, images in zip(first, taken, strict=False):
                    plain[check.iteration] = images
                    best = min(first, key=lambda c: c.frechet)
                    if seed == 0 or check is best:
                        judge(images, 0.0, check.iteration, 1)
            limit = ENOUGH * sorted(check.frechet for check in first)[:2][-1]
            good = [place for place, check in enumerate(second) if check.frechet <= limit]
            if good:  # the generator is that of the last good check
                images = taken[len(taken) - len(second) + good[-1]]
                judge(images, alpha, second[good[-1]].iteration, 2)


if __name__ == "__main__":
    main()
