"""Codes: points of a GAN's latent space W from which a hospital's synthetic images are rendered.

Some samplers choose codes by the codes of training images, which `Source.projection` finds: LCI
(gan/lci.py), PLAN (gan/plan.py) and k-SALSA (gan/k_salsa.py), by name in gan/code_sets.py. Codes of
training images show patients. Like all files here they stay in the hospital's store.

Slow results are kept in `Source.folder`, each as a file that is complete or missing. After a kill
at any moment, a call with the same source continues.

Shapes: `N` images, `C` channels, `R` pixels a side, `D` size of a code, `n` codes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from gan.checkpoint import write_whole
from gan.networks import Generator, to_bytes
from gan.perceptual import PairwiseLPIPS, distances
from gan.projection import Projection, Start, mean_w, project
from gan.synthesis import PART

Codes = Mapping[int, Tensor]  # codes [n, D] of each class
KL = Literal["uniform", "printed"]
VERSION = 1  # of the search for codes; codes of another version are not used
BLOCK = 32  # images that are projected, rendered or compared at once


@dataclass(frozen=True)
class Effort:
    """The effort of the search for codes."""

    images: int  # most training images of a class that are projected
    projection_steps: int  # of Adam, for each image
    projections: int  # of each image, for the classifier of identities
    paths: int  # most paths of a class
    points: int  # of a path, with both ends
    path_steps: int  # of Adam, for each path
    average_steps: int  # of Adam, for each average
    network: Literal["small", "resnet18"]  # of the classifiers
    network_steps: int  # of Adam, for each classifier

    @property
    def fingerprint(self) -> str:
        """A text that changes with the effort, and with the version of the search."""
        return sha256(repr((VERSION, asdict(self))).encode()).hexdigest()[:16]


# As published: projections of LCI and PLAN, paths of PLAN, averages of k-SALSA.
_PAPER = Effort(
    images=1_000,
    projection_steps=500,
    projections=5,
    paths=500,
    points=50,
    path_steps=100,
    average_steps=100,
    network="resnet18",
    network_steps=5_000,
)
EFFORTS: dict[str, Effort] = {  # by the GAN's preset
    # Half a minute to a minute on one CPU core for each sampler.
    "tiny": Effort(
        images=45,
        projection_steps=60,
        projections=1,
        paths=6,
        points=20,
        path_steps=40,
        average_steps=60,
        network="small",
        network_steps=300,
    ),
    "small": replace(
        _PAPER,
        images=200,
        projection_steps=200,
        projections=1,
        paths=20,
        network="small",
        network_steps=1_000,
    ),
    "xray-256": _PAPER,
    "skin-256": _PAPER,
}


@dataclass(frozen=True, eq=False)
class Source:
    """The input of code sets."""

    generator: Generator  # a trained generator, on the images' device
    images: Tensor  # training images [N, C, R, R] in [-1, 1]
    labels: Tensor  # their classes, int64 [N]
    distance: PairwiseLPIPS  # the perceptual distance, on the same device
    effort: Effort  # effort of the search
    mirror: bool  # whether mirrored and turned images are plausible
    clusters: int  # LCI's clusters of a class; 0 = one for every k images
    k: int  # images of an average of k-SALSA
    kl: KL  # direction of PLAN's divergence (gan/plan.py, deviation 1)
    folder: Path  # folder of slow results, for one generator, these images and this effort
    seed: int  # seed of all randomness; torch's global generators do not change
    deadline: float  # time limit, on the clock of `time.monotonic`

    def projection(self, again: int = 0) -> Projection:
        """The codes of all images; another value of `again` means a search with other noise.

        Codes start at the mean of their class: few steps do not lead from class to class.

        Raises:
            TimeoutError: The deadline has passed; a later call continues.
        """
        w = torch.zeros(len(self.images), self.generator.latent, device=self.images.device)
        found = Projection(w, torch.zeros_like(self.images), w.new_zeros(len(w)))
        for label, own in self.rows.items():
            start = mean_w(self.generator, self.labels[own], seed=self.seed)
            for index, rows in enumerate(own.split(BLOCK)):
                name = f"projection-{again}-{label}-{index}"
                kept = self.make_once(name, self._project, rows, start, self.seed + again)
                for part, whole in vars(found).items():
                    whole[rows] = kept[part]
        return found

    @property
    def rows(self) -> dict[int, Tensor]:
        """The rows int64 [I] of the images of each class."""
        return {k: (self.labels == k).nonzero().flatten() for k in self.labels.unique().tolist()}

    def noise(self) -> list[Tensor]:
        """The noise maps [1, 1, h, w] of all images during the search for codes."""
        rng = torch.Generator().manual_seed(self.seed)
        shapes = self.generator.noise_shapes
        return [torch.randn(1, 1, *each, generator=rng).to(self.images.device) for each in shapes]

    def _project(self, rows: Tensor, start: Start, seed: int) -> dict[str, Tensor]:
        found = project(
            self.generator,
            self.images[rows],
            start,
            features=self.distance.features,
            seed=seed,
            deadline=self.deadline,
            steps=self.effort.projection_steps,
        )
        return vars(found)

    def make_once(
        self, name: str, make: Callable[..., Mapping[str, Tensor]], *given: object
    ) -> dict[str, Tensor]:
        """The result of `make`, from the file of that name if an earlier call has kept it.

        Raises:
            TimeoutError: The deadline has passed.
        """
        path = self.folder / f"{name}.pt"
        if not path.exists():
            self.check_deadline()
            made = {key: value.cpu() for key, value in make(*given).items()}
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, made)
        device = self.images.device
        kept: dict[str, Tensor] = torch.load(path, map_location=device, weights_only=True)
        return kept

    def check_deadline(self) -> None:
        """Refuse to go on after the deadline.

        Raises:
            TimeoutError: It has passed.
        """
        if time.monotonic() > self.deadline:
            raise TimeoutError("The search for codes took longer than allowed.")


class Deck:
    """Codes to draw without replacement; a class starts again when all its codes are drawn."""

    def __init__(self, codes: Codes, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.codes = {
            k: each[torch.randperm(len(each), generator=rng)] for k, each in codes.items()
        }
        self.drawn = dict.fromkeys(codes, 0)

    def draw(self, labels: Tensor) -> Tensor:
        """The next codes [n, D] of classes int64 [n]."""
        rows = []
        for label in labels.tolist():
            own = self.codes[label]
            rows.append(own[self.drawn[label] % len(own)])
            self.drawn[label] += 1
        return torch.stack(rows)


@torch.no_grad()
def render_code_parts(generator: Generator, codes: Tensor, seed: int) -> Iterator[Tensor]:
    """As `render_codes`, in parts of `PART` images."""
    rng = torch.Generator(codes.device).manual_seed(seed)
    for part in codes.split(PART):
        made = []
        for block in part.split(BLOCK):
            shapes = [(len(block), 1, *each) for each in generator.noise_shapes]
            noise = [torch.randn(each, generator=rng, device=codes.device) for each in shapes]
            made.append(to_bytes(generator.synthesise(block, noise)))
        yield torch.cat(made)


def render_codes(generator: Generator, codes: Tensor, seed: int) -> Tensor:
    """Images uint8 [n, C, R, R] from codes [n, D]; the seed decides on the noise."""
    return torch.cat([*render_code_parts(generator, codes, seed)])


@torch.no_grad()
def pairwise(images: Tensor, distance: PairwiseLPIPS) -> Tensor:
    """The perceptual distances [N, N] of images [N, C, R, R] in [-1, 1].

    It holds the features of two blocks of images at a time: a 256 x 256 image has millions.
    """
    blocks = images.split(BLOCK)
    matrix = torch.zeros(len(images), len(images), device=images.device)
    for i, first in enumerate(blocks):
        x = distance.features(first)
        for j, second in enumerate(blocks[: i + 1]):
            found = distances(x, x if i == j else distance.features(second))
            rows, columns = slice(i * BLOCK, i * BLOCK + len(first)), slice(j * BLOCK, None)
            matrix[rows, columns][:, : len(second)] = found
            matrix[columns, rows][: len(second)] = found.T
    return matrix.fill_diagonal_(0)


def sample_rows(labels: Tensor, count: int, seed: int) -> Tensor:
    """Random indices of at most `count` images of each class, from labels int64 [N]."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=rng).to(labels.device)
    chosen = [order[labels[order] == label][:count] for label in labels.unique()]
    return torch.cat(chosen).sort().values
