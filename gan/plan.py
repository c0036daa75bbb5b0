"""PLAN: codes on paths through W that keep away from training images.

"A privacy-preserving walk in the latent space of generative models for medical applications"
(Pennisi et al., MICCAI 2023, arXiv:2306.12968; the thesis, section 3.2.3), and the authors' public
code. A path joins two codes of one class by T points. It starts as a straight line and minimises

    Σ ‖w_i - w_(i+1)‖² + 0.1 Σ KL(U ‖ φ_id(G(w_i))) + Σ CE(φ_class(G(w_i)), y)    (Eqs. 3.3 to 3.6)

with steps of Adam at a learning rate of 0.1: equal distances, an image that is as much one training
image as any other, and the class.

Numbered deviations:
1. The paper prints KL(φ_id ‖ U). The authors' code has KL(U ‖ φ_id), and so have we: its gradient
   does not vanish where φ_id is sure. `kl="printed"` is the other one.
2. The authors' code takes both sums over images as means of each four. We take them as printed.
3. As in the code, the ends stay, the two sums are over the points between, the noise is constant,
   and images are clipped to [-1, 1].
4. The paper does not say what its paths join if no other method gives codes: here random codes of
   the class, none of which is that of a training image. No code is an end of two paths.

Shapes: `n` codes of a class, `D` size of a code, `T` points of a path, `I` training images, `K`
classes.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from gan.codes import Codes, Source
from gan.judges import class_judge, identity_judge

KL = Literal["uniform", "printed"]
IDENTITY, CLASS = 0.1, 1.0  # λ1, λ2
LEARNING_RATE = 0.1


def random_codes(source: Source) -> Codes:
    """As many codes [n, D] of each class, drawn at random, as it has images, or paths have ends."""
    rng = torch.Generator().manual_seed(source.seed)
    codes = {}
    for label in source.labels.unique().tolist():
        count = min(int((source.labels == label).sum()), 2 * source.search.paths)
        z = torch.randn(count, source.generator.latent, generator=rng).to(source.images.device)
        with torch.no_grad():
            codes[label] = source.generator.map(torch.full((count,), label).to(z.device), z)
    return codes


def lines(source: Source, ends: Codes) -> Codes:
    """The points of straight lines between random pairs of each class, [paths · T, D]."""
    points = source.search.points
    return {
        label: torch.cat([line(*pair, points) for pair in pairs(own, source)])
        if len(own) > 1
        else own
        for label, own in ends.items()
    }


def paths(source: Source, ends: Codes, kl: KL, name: str) -> Codes:
    """The points of private paths between the same pairs, [paths · T, D].

    A class with one code has no path, and keeps it.

    Args:
        source: What they are made with.
        ends: The codes [n, D] of each class.
        kl: The direction of the divergence; see deviation 1.
        name: Of the ends, for what is kept.

    Raises:
        TimeoutError: The deadline has passed; a later call goes on.
    """
    walk = _Walk(source, kl)
    codes = {}
    for label, own in ends.items():
        made = []
        for index, (first, last) in enumerate(pairs(own, source)):

            def path(
                first: Tensor = first, last: Tensor = last, label: int = label
            ) -> dict[str, Tensor]:
                return {"w": walk(first, last, label)}

            made.append(source.once(f"path-{name}-{kl}-{label}-{index}", path)["w"])
        codes[label] = torch.cat(made) if made else own
    return codes


def pairs(codes: Tensor, source: Source) -> list[tuple[Tensor, Tensor]]:
    """Random pairs of codes [n, D], at most n / 2 and at most `source.search.paths`."""
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(source.seed))
    count = min(len(codes) // 2, source.search.paths)
    firsts, lasts = order[:count], order[count : 2 * count]
    return [(codes[i], codes[j]) for i, j in zip(firsts.tolist(), lasts.tolist(), strict=True)]


def line(first: Tensor, last: Tensor, points: int) -> Tensor:
    """Points [T, D] at equal distances from one code [D] to another, with both."""
    share = torch.linspace(0, 1, points, device=first.device)[:, None]
    return torch.lerp(first, last, share)


class _Walk:
    """Moves lines away from training images."""

    def __init__(self, source: Source, kl: KL) -> None:
        self.source, self.kl = source, kl
        self.identity, self.classes = identity_judge(source), class_judge(source)
        self.noise = source.noise()

    def __call__(self, first: Tensor, last: Tensor, label: int) -> Tensor:
        """The path [T, D] between two codes [D] of a class."""
        search = self.source.search
        straight = line(first, last, search.points)
        inner = straight[1:-1].clone().requires_grad_()
        wanted = torch.full((len(inner),), label, device=inner.device)
        optimizer = torch.optim.Adam([inner], lr=LEARNING_RATE)
        for _ in range(search.path_steps):
            self.source.check_deadline()
            images = self.source.generator.synthesise(inner, self.noise).clamp(-1, 1)
            loss = (
                equidistance(torch.cat([straight[:1], inner, straight[-1:]]))
                + IDENTITY * divergence(self.identity(images), self.kl)
                + CLASS * cross_entropy(self.classes(images), wanted, reduction="sum")
            )
            optimizer.zero_grad()
            loss.backward(inputs=[inner])
            optimizer.step()
        return torch.cat([straight[:1], inner.detach(), straight[-1:]])


def equidistance(path: Tensor) -> Tensor:
    """The sum of the squared distances of neighbours on a path [T, D] (Eq. 3.3)."""
    return path.diff(dim=0).square().sum()


def divergence(logits: Tensor, kl: KL) -> Tensor:
    """How far probabilities are from uniform ones, over all images with logits [n, I] (Eq. 3.4)."""
    log = log_softmax(logits, dim=1)
    uniform = -math.log(log.shape[1])
    if kl == "printed":
        return (log.exp() * (log - uniform)).sum()
    return (uniform - log).mean(dim=1).sum()
