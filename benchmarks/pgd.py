"""Accuracy of exported models under adversarial attacks: the thesis, Fig. 2.9.

    uv run python -m benchmarks.pgd <archive.npz> <model.safetensors>...

Projected gradient descent (Madry et al., arXiv:1706.06083) moves each test image in `STEPS` steps
towards a larger loss, by at most ε for each value of 0 to 255. Fig. 2.9 compares the rows
ER-ACE and ER-ACE SER of ser_imagenet.toml; docs/using-a-model.md explains how to export their
models. In a SER network no gradient reaches the saliency network, so the attack cannot use it. A
part of the measured robustness may come from this.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from learning.export import load_model
from strategies.protocol.archive import load

STEPS, BATCH = 10, 32
STRENGTHS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # ε; the thesis prints none


def attack(network: nn.Module, images: Tensor, labels: Tensor, strength: float) -> Tensor:
    """Images of float [n, C, H, W], from 0 to 255, at most `strength` away from the given ones."""
    moved = images.clone()
    for _ in range(STEPS):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(network(moved), labels), moved)
        moved = moved.detach() + 2.5 * strength / STEPS * gradient.sign()
        moved = moved.clamp(images - strength, images + strength).clamp(0, 255)
    return moved


def accuracy(network: nn.Module, images: Tensor, labels: Tensor, strength: float) -> float:
    """The share of images uint8 [n, C, H, W] that the network classifies correctly under attack."""
    right = 0
    for part, wanted in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        moved = attack(network, part.float(), wanted, strength) if strength else part
        right += int((network(moved).argmax(dim=1) == wanted).sum())
    return right / len(images)


def main(archive: Path, models: list[Path]) -> None:
    """Print the accuracy of each model, a row for each ε."""
    arrays = load(archive)
    images, labels = torch.from_numpy(arrays["x_test"]), torch.from_numpy(arrays["y_test"]).long()
    images = images[:, None] if images.ndim == 3 else images.movedim(-1, 1)
    networks = [load_model(each)[0].requires_grad_(False) for each in models]
    print("ε", *(each.stem for each in models), sep="\t")
    for strength in STRENGTHS:
        found = (accuracy(network, images, labels, strength) for network in networks)
        print(strength, *(f"{100 * each:.1f} %" for each in found), sep="\t")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
