"""The classifiers behind PLAN and k-SALSA: of training images, and of classes.

PLAN (Pennisi et al., MICCAI 2023, arXiv:2306.12968), section 3, has two ResNet-18s, φ_id and
φ_class. φ_id is trained on flips and turns, and also on projections of each training image, because
it is applied to synthetic images. Both are trained on the hospital's own images, and stay in its
store.

Shapes: `N` images, `C` channels, `R` pixels a side, `K` outputs, `F` features.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from gan.codes import Source
from gan.quality import BATCH, LEARNING_RATE, Classifier


class Judge(nn.Module):
    """A classifier of images in [-1, 1]."""

    def __init__(self, network: str, channels: int, outputs: int) -> None:
        super().__init__()
        self.channels = channels
        if network == "small":
            small = Classifier(channels, outputs)
            self.body, self.head, self.learning_rate = small.body, small.head, LEARNING_RATE
        else:
            large = resnet18(num_classes=outputs)
            *body, self.head = large.children()
            self.body, self.learning_rate = nn.Sequential(*body, nn.Flatten()), 0.001
            self.channels = 3

    def first(self, images: Tensor) -> Tensor:
        """The output [N, F, h, w] of the first convolution for images [N, C, R, R]."""
        maps: Tensor = self.body[0](images.expand(-1, self.channels, -1, -1))
        return maps

    def features(self, images: Tensor) -> Tensor:
        """The input [N, F] of the last layer for images [N, C, R, R]."""
        features: Tensor = self.body(images.expand(-1, self.channels, -1, -1))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """The logits [N, K] of images [N, C, R, R]."""
        logits: Tensor = self.head(self.features(images))
        return logits


def class_judge(source: Source) -> Judge:
    """φ_class: the classifier of classes, numbered from 0."""
    return _train_once(source, "class", source.images, source.labels)


def identity_judge(source: Source) -> Judge:
    """φ_id: the classifier of training images, by their index."""
    projected = [source.projection(again).images for again in range(source.effort.projections)]
    images = torch.cat([source.images, *projected])
    own = torch.arange(len(source.images), device=images.device)
    return _train_once(source, "identity", images, own.repeat(1 + len(projected)))


def _train_once(source: Source, name: str, images: Tensor, labels: Tensor) -> Judge:
    """A classifier in evaluation mode, without gradients of its weights."""
    effort = source.effort
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(source.seed)
        judge = Judge(effort.network, images.shape[1], int(labels.max()) + 1).to(images.device)
    kept = source.make_once(f"judge-{name}", train, judge, images, labels, source)
    judge.load_state_dict(kept)
    return judge.requires_grad_(False).eval()


def train(judge: Judge, images: Tensor, labels: Tensor, source: Source) -> dict[str, Tensor]:
    """Train a classifier in a fixed number of steps on images [N, C, R, R], labels int64 [N].

    Returns:
        Its state dict.

    Raises:
        TimeoutError: The source's deadline has passed.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(source.seed)
        optimizer = torch.optim.Adam(judge.parameters(), lr=judge.learning_rate)
        for _ in range(source.effort.network_steps):
            source.check_deadline()
            batch = torch.randint(len(images), (BATCH,)).to(images.device)
            turned = turn(images[batch]) if source.mirror else images[batch]
            optimizer.zero_grad()
            cross_entropy(judge(turned), labels[batch]).backward()
            optimizer.step()
    return dict(judge.state_dict())


def turn(images: Tensor) -> Tensor:
    """Images [N, C, R, R], each mirrored or not and turned by 0, 90, 180 or 270 degrees."""
    kinds = torch.randint(8, (len(images),)).tolist()
    return torch.stack(
        [
            torch.rot90(image.flip(2) if kind > 3 else image, kind % 4, (1, 2))
            for image, kind in zip(images, kinds, strict=True)
        ]
    )
