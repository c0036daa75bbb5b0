"""Which copies of training images the release check finds, and how many fresh images it discards.

    uv run python -m benchmarks.dressed_copies digits
    uv run python -m benchmarks.dressed_copies mnist.npz --training 10000
    uv run python -m benchmarks.dressed_copies <folder of a hospital's images> --image-size 64
    uv run python -m benchmarks.dressed_copies mnist.npz --training 10000 --cost 512

An archive has `x_train` and `y_train`. A folder has a manifest.csv with the columns image, label
and group (docs/data.md); `--group lesion_id` names another column for groups. Images are split by
group into training images, held-out images for the thresholds, and fresh images.

A dress is a change of an image, such as a mirroring. For each dress the table has the share of
copies and of fresh images that is refused. If a group has several training images, one is taken
out: "another image of the patient". `--cost N` measures time and memory of the check of a buffer of
N images. `--whole` measures the test of a whole buffer: how often it refuses 512 images, by the
number of exact copies of training images among them.
"""

import argparse
import io
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import fold, unfold
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from benchmarks.markdown import print_head, print_row
from gan.audit import LEVEL, Auditor, nearer_to
from learning.samples import Samples

BUFFER, PLANTED, REPEATS = 512, (0, 5, 10, 20, 40, 80), 100  # of --whole
FRESH = 500  # unchanged fresh images, for the share that is refused by mistake
Dress = Callable[[Tensor], Tensor]  # of images float [N, C, H, W], from 0 to 255


def main() -> None:
    """Print a Markdown table."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("data", help="digits, an .npz archive, or a folder with a manifest.csv")
    parser.add_argument("--image-size", type=int, default=64, help="of a folder's images")
    parser.add_argument("--group", default="group", help="column of a manifest: patient or lesion")
    parser.add_argument("--training", type=int, default=10**9, help="training images, at the most")
    parser.add_argument("--copies", type=int, default=100, help="copies, and fresh images, a dress")
    parser.add_argument("--quantile", type=float, default=0.01, help="release.quantile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", type=int, help="images of a buffer, to measure its cost")
    parser.add_argument("--whole", action="store_true", help="the power of the test of a buffer")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    samples, groups = read(options.data, options.image_size, options.group)
    training, held_out, fresh, siblings, patients = split(
        samples, groups, options.training, options.seed
    )
    started = time.process_time(), time.perf_counter()
    auditor = Auditor(
        training.images,
        held_out.images,
        held_out.labels,
        wanted=training.labels,
        classes=[str(k) for k in range(int(samples.labels.max()) + 1)],
        quantile=options.quantile,
        patients=patients,
    )
    if options.whole:
        print_power(auditor, fresh)
        return
    if options.cost:
        rows = torch.arange(options.cost) % len(fresh)
        auditor.check(fresh.images[rows], fresh.labels[rows])
        cpu, wall = time.process_time() - started[0], time.perf_counter() - started[1]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{len(training)} training images: {cpu:.0f} CPU s, {wall:.0f} s, {peak:.1f} GiB")
        return
    count = min(options.copies, len(fresh))
    some = [each[torch.randperm(len(each))[:count]] for each in (training, fresh)]
    print(f"{len(training)} training, {len(held_out)} held-out images, {len(some[0])} a dress\n")
    print_head("dress", "copies refused", "fresh refused")
    if len(siblings):
        share = auditor.refuses(siblings.images, siblings.labels).double().mean().item()
        print_row(f"another image of the patient ({len(siblings)})", f"{share:.0%}", "")
    dresses = DRESSES | (COLOURS if training.images.shape[1] == 3 else {})
    images = [
        torch.cat([dressed(each.images, dress) for dress in dresses.values()]) for each in some
    ]
    labels = torch.cat([each.labels.repeat(len(dresses)) for each in some])
    refused = auditor.refuses(torch.cat(images), labels).float().view(2, len(dresses), -1)
    for name, shares in zip(dresses, refused.mean(dim=2).T.tolist(), strict=True):
        print_row(name, *(f"{share:.0%}" for share in shares))
    whole = fresh[torch.randperm(len(fresh))[:FRESH]]
    share = auditor.refuses(whole.images, whole.labels).double().mean().item()
    print(f"\nOf {len(whole)} fresh images as they are: {share:.1%}")


def print_power(auditor: Auditor, fresh: Samples) -> None:
    """Print how often the test of a whole buffer refuses, by the number of copies in it."""
    others, rng = fresh.images[:BUFFER], torch.Generator().manual_seed(0)
    known = torch.cat([auditor.training, others])
    near, far = (auditor.search.aligned(known, each) for each in auditor.equal)
    print_head("copies", f"share of {REPEATS} buffers refused")
    for count in PLANTED:
        refused = 0
        for _ in range(REPEATS):
            copies = torch.randperm(len(auditor.training), generator=rng)[:count]
            rest = torch.randint(len(others), (BUFFER - count,), generator=rng)
            rows = torch.cat([copies, len(auditor.training) + rest])
            first, second = ((values[rows], index[rows]) for values, index in (near, far))
            refused += nearer_to(first, second, len(auditor.equal[0]))[1] < LEVEL
        print_row(count, f"{refused / REPEATS:.0%}")


def read(data: str, size: int, group: str) -> tuple[Samples, np.ndarray]:
    """Images, and the group of each."""
    if data == "digits":
        bunch = load_digits()
        images, labels = (bunch.images * 255 / 16).round().astype(np.uint8)[:, None], bunch.target
    elif data.endswith(".npz"):
        with np.load(data) as archive:
            images, labels = archive["x_train"], archive["y_train"]
        images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    else:
        rows = pd.read_csv(Path(data) / "manifest.csv")
        files = [Path(data) / name for name in rows["image"]]
        shown = [
            Image.open(f).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            for f in files
        ]
        images = np.stack([np.array(each) for each in shown]).transpose(0, 3, 1, 2)
        labels = pd.factorize(rows["label"], sort=True)[0]
    groups = rows[group].to_numpy() if "rows" in locals() else np.arange(len(images))
    tensors = torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))
    return Samples(*tensors), groups


def split(
    samples: Samples, groups: np.ndarray, most: int, seed: int
) -> tuple[Samples, Samples, Samples, Samples, Tensor]:
    """Training images (70 %), held-out images (15 %) and fresh images (15 %) of different groups.

    Then one image of each training group that has several, taken out of the training images, and
    the groups of the training images.
    """
    names, own = np.unique(groups, return_inverse=True)
    place = np.random.default_rng(seed).permutation(len(names))[own] / len(names)
    parts = (place < 0.7, (place >= 0.7) & (place < 0.85), place >= 0.85)
    learnt, held_out, fresh = (torch.from_numpy(part.nonzero()[0]) for part in parts)
    rng = torch.Generator().manual_seed(seed)
    learnt = learnt[torch.randperm(len(learnt), generator=rng)[:most]]
    first = torch.from_numpy(np.unique(own[learnt], return_index=True)[1])
    several = np.bincount(own[learnt])[own[learnt[first]]] > 1
    taken = torch.zeros(len(learnt), dtype=torch.bool)
    taken[first[torch.from_numpy(several)]] = True
    patients = torch.from_numpy(own[learnt[~taken]])
    known, siblings = samples[learnt[~taken]], samples[learnt[taken]]
    return known, samples[held_out], samples[fresh], siblings, patients


def dressed(images: Tensor, dress: Dress) -> Tensor:
    """The images uint8 [N, C, H, W] in a dress."""
    return dress(images.float()).round().clamp(0, 255).to(torch.uint8)


def moved(angle: float = 0, shift: float = 0, scale: float = 1) -> Dress:
    """Turn by degrees, shift down and right by a share of the side, and scale; fill with zeros."""

    def move(images: Tensor) -> Tensor:
        by = [max(1, round(shift * images.shape[3])) if shift else 0] * 2
        bilinear = v2.InterpolationMode.BILINEAR
        out: Tensor = functional.affine(
            images, angle, by, scale, [0.0, 0.0], interpolation=bilinear
        )
        return out

    return move


def cropped(images: Tensor) -> Tensor:
    """Images without a tenth on each side, resized to their old size."""
    height, width = images.shape[2:]
    top, left = max(1, round(height / 10)), max(1, round(width / 10))
    size = [height - 2 * top, width - 2 * left]
    out: Tensor = functional.resized_crop(images, top, left, *size, [height, width])
    return out


def blurred(images: Tensor) -> Tensor:
    """Images after a Gaussian filter of 1 pixel, or 0.6 for small images."""
    sigma, side = (0.6, 5) if images.shape[2] < 16 else (1.0, 7)
    out: Tensor = functional.gaussian_blur(images, [side, side], [sigma, sigma])
    return out


def jpeg(quality: int) -> Dress:
    """Compress as JPEG of a quality."""

    def compress(images: Tensor) -> Tensor:
        out = []
        for image in images.clamp(0, 255).to(torch.uint8):
            packed = io.BytesIO()
            functional.to_pil_image(image).save(packed, "JPEG", quality=quality)
            out.append(functional.pil_to_tensor(Image.open(packed)).float())
        return torch.stack(out)

    return compress


def halves(images: Tensor) -> Tensor:
    """The left half of each image beside the right half of the next."""
    half = images.shape[3] // 2
    return torch.cat([images[..., :half], images.roll(1, 0)[..., half:]], 3)


def beside(images: Tensor) -> Tensor:
    """Each image and the next side by side, both of half the width."""
    size = [images.shape[2], images.shape[3] // 2]
    narrow: Tensor = functional.resize(images, size, antialias=True)
    return torch.cat([narrow, narrow.roll(1, 0)], 3)


def checkered(cells: int) -> Dress:
    """Put each image and the next into the cells of a checkerboard in turn."""

    def dress(images: Tensor) -> Tensor:
        down, right = (torch.arange(side) * cells // side for side in images.shape[2:])
        return images.where((down[:, None] + right) % 2 == 0, images.roll(1, 0))

    return dress


def shuffled(cells: int) -> Dress:
    """Put the cells of each image into a random order."""

    def dress(images: Tensor) -> Tensor:
        size = (images.shape[2] // cells, images.shape[3] // cells)
        whole = images[..., : cells * size[0], : cells * size[1]]
        patches = unfold(whole, size, stride=size)
        order = torch.rand(len(images), 1, patches.shape[2]).argsort(2).expand_as(patches)
        high, wide = whole.shape[2:]
        out = images.clone()
        out[..., :high, :wide] = fold(patches.gather(2, order), (high, wide), size, stride=size)
        return out

    return dress


def hidden(images: Tensor) -> Tensor:
    """Images with a grey square over a third, at a random place."""
    out = images.clone()
    size = [round(side * 3**-0.5) for side in images.shape[2:]]
    for image in out:
        at = zip(image.shape[1:], size, strict=True)
        top, left = (int(torch.randint(s - z + 1, ())) for s, z in at)
        image[:, top : top + size[0], left : left + size[1]] = 128
    return out


def bent(alpha: float) -> Dress:
    """Bend elastically: `alpha` is torchvision's at 28 pixels."""

    def dress(images: Tensor) -> Tensor:
        share = images.shape[2] / 28
        bend = v2.ElasticTransform(alpha * share, max(1.0, 5 * share))
        return torch.stack([bend(each) for each in images])

    return dress


def hued(images: Tensor) -> Tensor:
    """Images whose grey is constant. Their red minus green is the grey of the originals."""
    grey = images.mean(1, keepdim=True) - 128
    return torch.cat([128 + grey / 2, 128 - grey / 2, torch.full_like(grey, 128)], 1)


def coloured(images: Tensor) -> Tensor:
    """The colours of images alone: the grey is constant."""
    return images - images.mean(1, keepdim=True) + 128


def mixed(share: float) -> Dress:
    """Mix each image with the next."""
    return lambda images: share * images + (1 - share) * images.roll(1, 0)


def both(*names: str) -> Dress:
    """Apply several dresses, one after the other."""

    def dress(images: Tensor) -> Tensor:
        for name in names:
            images = DRESSES[name](images).clamp(0, 255)
        return images

    return dress


DRESSES: dict[str, Dress] = {
    "none": lambda images: images,
    "mirror": lambda images: images.flip(3),
    "turn by 90°": lambda images: images.rot90(1, (2, 3)),
    "turn by 10°": moved(angle=10),
    "shift by a tenth": moved(shift=0.1),
    "scale to 0.85": moved(scale=0.85),
    "crop": cropped,
    "brightness +30": lambda images: images + 30,
    "contrast × 0.6": lambda images: 0.6 * (images - 128) + 128,
    "contrast × 1.4": lambda images: 1.4 * (images - 128) + 128,
    "gamma 0.7": lambda images: 255 * (images / 255) ** 0.7,
    "inversion": lambda images: 255 - images,
    "blur": blurred,
    "noise of 20": lambda images: images + 20 * torch.randn_like(images),
    "grey": lambda images: images.mean(1, keepdim=True).expand_as(images),
    "JPEG": jpeg(75),
    "JPEG of quality 10": jpeg(10),
    "mix 50/50": mixed(0.5),
    "mix 90/10": mixed(0.9),
    "halves of two": halves,
    "two side by side": beside,
    "two in a checkerboard of 2 x 2": checkered(2),
    "two in a checkerboard of 4 x 4": checkered(4),
    "quarters moved": shuffled(2),
    "16 patches moved": shuffled(4),
    "a third hidden": hidden,
    "bent (40)": bent(40),
    "bent (80)": bent(80),
    "turn by 20°": moved(angle=20),
}
COLOURS: dict[str, Dress] = {"hidden in hue": hued, "colours alone": coloured}
for names in (
    ("mirror", "brightness +30"),
    ("mirror", "shift by a tenth"),
    ("turn by 90°", "inversion"),
    ("crop", "contrast × 0.6"),
    ("noise of 20", "mirror"),
    ("noise of 20", "shift by a tenth"),
    ("blur", "turn by 10°"),
    ("mix 50/50", "mirror"),
    ("inversion", "JPEG"),
    ("mirror", "brightness +30", "shift by a tenth"),
):
    DRESSES[", ".join(names)] = both(*names)


if __name__ == "__main__":
    main()
