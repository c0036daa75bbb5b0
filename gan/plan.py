"""PLAN: codes on paths through W that keep away from training images.

"A privacy-preserving walk in the latent space of generative models for medical applications"
(Pennisi et al., MICCAI 2023, arXiv:2306.12968; the thesis, section 3.2.3), and the authors' public
code. A path joins two codes of one class by T points. It starts as a straight line and minimises

    Σ ‖w_i - w_(i+1)‖² + 0.1 Σ KL(U ‖ φ_id(G(w_i))) + Σ CE(φ_class(G(w_i)), y)    (Eqs. 3.3 to 3.6)

with steps of Adam at a learning rate of 0.1. The terms ask for equal distances, for an image that
is equally like all training images, and for the class.

Numbered deviations:
1. The paper prints KL(φ_id ‖ U). The authors' code has KL(U ‖ φ_id), and so has this code: its
   gradient does not vanish where φ_id is certain. `kl="printed"` is the printed one.
2. The authors' code takes both sums over images as means of four images each. Here they are the
   printed sums.
3. As in the authors' code, the ends do not move, the two sums are over the points between, the
   noise is constant, and images are clipped to [-1, 1].
4. The paper does not give the ends of paths if no other method provides codes. Here they are random
   codes of the class, none of a training image. No code is an end of two paths.

Shapes: `n` codes of a class, `D` size of a code, `T` points of a path, `I` training images, `K`
classes.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from gan.codes import KL, Codes, Source
from gan.judges import Judge, class_judge, identity_judge

IDENTITY, CLASS = 0.1, 1.0  # λ1, λ2
LEARNING_RATE = 0.1


@torch.no_grad()
def random_codes(source: Source) -> Codes:
    """Random codes [n, D] of each class: as many as it has images, at most two for each path."""
    rng, codes = torch.Generator().manual_seed(source.seed), {}
    for label, rows in source.rows.items():
        count = min(len(rows), 2 * source.effort.paths)
        z = torch.randn(count, source.generator.latent, generator=rng).to(rows.device)
        codes[label] = source.generator.map(torch.full_like(rows[:1], label).repeat(count), z)
    return codes


def lines(source: Source, ends: Codes) -> Codes:
    """Points [lines · T, D] of straight lines between random pairs of the codes of each class.

    A class with one code keeps it.
    """
    points = source.effort.points
    return {
        label: torch.cat([line(*pair, points) for pair in pairs(own, source)] or [own])
        for label, own in ends.items()
    }


def paths(source: Source, ends: Codes, name: str) -> Codes:
    """The points of private paths between the same pairs; `name` is that of the set of ends."""
    judges, codes = (identity_judge(source), class_judge(source)), {}
    for label, own in ends.items():
        made = [
            source.make_once(
                f"path-{name}-{source.kl}-{label}-{index}", _walk, source, *judges, *pair, label
            )
            for index, pair in enumerate(pairs(own, source))
        ]
        codes[label] = torch.cat([each["w"] for each in made] or [own])
    return codes


def _walk(
    source: Source, identity: Judge, classes: Judge, first: Tensor, last: Tensor, label: int
) -> dict[str, Tensor]:
    """The points w [T, D] of a private path between two codes [D] of a class."""
    straight, noise = line(first, last, source.effort.points), source.noise()
    inner = straight[1:-1].clone().requires_grad_()
    wanted = torch.full((len(inner),), label, device=inner.device)
    optimizer = torch.optim.Adam([inner], lr=LEARNING_RATE)
    for _ in range(source.effort.path_steps):
        source.check_deadline()
        images = source.generator.synthesise(inner, noise).clamp(-1, 1)
        loss = (
            equidistance(torch.cat([straight[:1], inner, straight[-1:]]))
            + IDENTITY * divergence(identity(images), source.kl)
            + CLASS * cross_entropy(classes(images), wanted, reduction="sum")
        )
        optimizer.zero_grad()
        loss.backward(inputs=[inner])
        optimizer.step()
    return {"w": torch.cat([straight[:1], inner.detach(), straight[-1:]])}


def pairs(codes: Tensor, source: Source) -> list[tuple[Tensor, Tensor]]:
    """Random pairs of codes [n, D], at most n / 2 and at most `source.effort.paths`."""
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(source.seed))
    count = min(len(codes) // 2, source.effort.paths)
    firsts, lasts = order[:count], order[count : 2 * count]
    return [(codes[i], codes[j]) for i, j in zip(firsts.tolist(), lasts.tolist(), strict=True)]


def line(first: Tensor, last: Tensor, points: int) -> Tensor:
    """Points [T, D] at equal distances from one code [D] to another, both included."""
    share = torch.linspace(0, 1, points, device=first.device)[:, None]
    return torch.lerp(first, last, share)


def equidistance(path: Tensor) -> Tensor:
    """The sum of the squared distances of neighbours on a path [T, D] (Eq. 3.3)."""
    return path.diff(dim=0).square().sum()


def divergence(logits: Tensor, kl: KL) -> Tensor:
    """The divergence between probabilities and uniform ones, from logits [n, I] (Eq. 3.4)."""
    log = log_softmax(logits, dim=1)
    uniform = -math.log(log.shape[1])
    if kl == "printed":
        return (log.exp() * (log - uniform)).sum()
    return (uniform - log).mean(dim=1).sum()
