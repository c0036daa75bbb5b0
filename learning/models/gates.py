"""TwF's gates: the choice of a teacher's features for a student, M of Eq. 2.9 to 2.11.

Boschini et al., arXiv:2206.00388; thesis, section 2.2. Two branches look at the teacher's features
h at a point; their sum is mapped to a logit for each value, and a gate is open where it is above 0:

    M = gumbel(M_Ch + M_Sp)                                                              (Eq. 2.9)
    M_Sp = C_1x1 ∘ C_3x3 ∘ C_3x3 ∘ C_1x1 (h)                                             (Eq. 2.10)
    M_Ch = tanh(BN(W_1 g)) · σ(BN(W_2 g)) + W_3 g,   g = GAP(h)                          (Eq. 2.11)

Each task has its own scale and shift of BN, and its own W; all tasks share the statistics of BN.
Settings that the paper does not give are from the authors' code: the 3x3 convolutions have a
dilation of 2, the first convolution keeps a quarter of the channels, and the last one in a branch
has no ReLU.

Deviations from the authors' code:
 1. The code has a logit for an open and one for a closed gate, and compares the two. Here W gives
    their difference, which alone decides. The noise is logistic: the difference of two Gumbel
    variables.
 2. Each W is initialised as by Kaiming et al. In the code the W of the gates themselves have a
    deviation of 1, because their initialisation is never called.

Shapes: `N` images, `C` channels, `T` tasks, numbered from 0.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

TEMPERATURE = 2 / 3  # τ of the noise
REDUCTION = 4


class TaskNorm(nn.Module):
    """Batch normalisation with a scale and a shift for each task; of [N, C] or [N, C, H, W]."""

    def __init__(self, channels: int, tasks: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale = nn.Parameter(1 + 0.02 * torch.randn(tasks, channels))
        self.shift = nn.Parameter(torch.zeros(tasks, channels))

    def forward(self, values: Tensor, tasks: Tensor) -> Tensor:
        """Normalise values by the tasks int64 [N] of the images; the shape stays."""
        maps = values.reshape(*values.shape[:2], *(values.shape[2:] or (1, 1)))
        scale, shift = self.scale[tasks, :, None, None], self.shift[tasks, :, None, None]
        normed: Tensor = scale * self.norm(maps) + shift
        return normed.view(values.shape)


class TaskLinear(nn.Module):
    """A matrix for each task, applied to channels: [N, C, ...] -> [N, C, ...]."""

    def __init__(self, channels: int, tasks: int) -> None:
        super().__init__()
        deviation = math.sqrt(2 / channels)
        self.weight = nn.Parameter(deviation * torch.randn(tasks, channels, channels))

    def forward(self, values: Tensor, tasks: Tensor) -> Tensor:
        """Apply to each image the matrix of its task, int64 [N]."""
        columns = values.reshape(*values.shape[:2], -1)  # [N, C, H·W]
        return torch.bmm(self.weight[tasks], columns).view(values.shape)


class Gates(nn.Module):
    """M at one point: features [N, C, H, W] and tasks int64 [N] -> a logit for each value."""

    def __init__(self, channels: int, tasks: int) -> None:
        super().__init__()
        few = max(channels // REDUCTION, 1)
        self.linear = nn.ModuleList(TaskLinear(channels, tasks) for _ in range(3))  # W_1, W_2, W_3
        self.norms = nn.ModuleList(TaskNorm(channels, tasks) for _ in range(2))
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(channels, few, kernel_size=1),
                nn.Conv2d(few, few, kernel_size=3, dilation=2, padding=2),
                nn.Conv2d(few, few, kernel_size=3, dilation=2, padding=2),
                nn.Conv2d(few, 1, kernel_size=1),
            ]
        )
        self.spatial_norms = nn.ModuleList(TaskNorm(width, tasks) for width in (few, few, few, 1))
        self.gate = TaskLinear(channels, tasks)

    def forward(self, features: Tensor, tasks: Tensor) -> Tensor:
        """Logits [N, C, H, W]: above 0 where a gate is more likely open than closed."""
        both = self.channel(features, tasks)[:, :, None, None] + self.spatial(features, tasks)
        logits: Tensor = self.gate(both, tasks)
        return logits

    def channel(self, features: Tensor, tasks: Tensor) -> Tensor:
        """The logits [N, C] of the channel gates, by Eq. 2.11."""
        pooled = features.mean(dim=(2, 3))
        first, second, rest = (linear(pooled, tasks) for linear in self.linear)
        first_norm, second_norm = self.norms
        attention = first_norm(first, tasks).tanh() * second_norm(second, tasks).sigmoid()
        attended: Tensor = attention + rest
        return attended

    def spatial(self, features: Tensor, tasks: Tensor) -> Tensor:
        """The logits [N, 1, H, W] of the spatial gates, by Eq. 2.10."""
        layers = list(zip(self.convolutions, self.spatial_norms, strict=True))
        for convolution, norm in layers[:-1]:
            features = norm(convolution(features), tasks).relu()
        last, norm = layers[-1]
        mapped: Tensor = norm(last(features), tasks)
        return mapped


def sample_gates(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Gates drawn by their logits: 0 or 1, with the gradient of the soft gate at temperature τ.

    A gate is open with the probability σ(logit).
    """
    uniform = torch.rand(logits.shape, generator=generator).clamp(1e-7, 1 - 1e-7)
    soft = ((logits + uniform.logit().to(logits.device)) / TEMPERATURE).sigmoid()
    hard = (soft > 0.5).to(soft.dtype)
    return hard + (soft - soft.detach())


def diversity(gates: Tensor) -> Tensor:
    """The likeness of gates [N, C, H, W] of different images at one point, a scalar (Eq. 2.12).

    1/N Σ_j log( 1/N Σ_k e^{g_j·g_k / T} ) − g_j·g_j / T,      g = GAP(M) / ‖GAP(M)‖,  T = 2
    """
    pooled = functional.normalize(gates.mean(dim=(2, 3)), dim=1)
    products = pooled @ pooled.T / 2
    return (products.logsumexp(dim=1) - math.log(len(gates)) - products.diagonal()).mean()


def distance(student: Tensor, teacher: Tensor, gates: Tensor) -> Tensor:
    """The distance of Eq. 2.8 at one point, a scalar. All arguments are [N, C, H, W].

    Features are those before the non-linearity. The margin of ReLU_m is the mean of a channel's
    negative values in the batch. Features have a norm of 1 over the space of each channel. A value
    counts 0 if it is at most 0 at the teacher and no greater at the student (Heo et al.,
    arXiv:1904.01866). The squares are summed over channels, and averaged over space and images.
    """
    negative = teacher < 0
    count = negative.sum(dim=(0, 2, 3), keepdim=True)
    margin = teacher.clamp(max=0).sum(dim=(0, 2, 3), keepdim=True) / (count + 1e-6)
    wanted = torch.maximum(teacher, margin)  # ReLU_m
    student, wanted = (
        each / (torch.linalg.vector_norm(each, dim=(2, 3), keepdim=True) + 1e-6)
        for each in (student, wanted)
    )
    counts = ~((student <= wanted) & (wanted <= 0))
    squares: Tensor = gates * counts * (student - wanted).square()
    return squares.mean(dim=(2, 3)).sum(dim=1).mean()
