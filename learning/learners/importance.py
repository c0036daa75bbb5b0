"""The importance of each parameter for a visit: the Ω of CWC.

An estimate is a list of tensors, none of them negative, in the shapes of the parameters.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from learning.samples import Samples

FISHER_IMAGES = 256  # enough for an estimate; the gradients of single images take time


class SynapticIntelligence:
    """The share of each parameter in the decrease of the loss, over its squared change.

    Zenke et al., "Continual learning through synaptic intelligence", ICML 2017, arXiv:1703.04200,
    Eq. 3 to 5. With g the gradient of the task's loss alone, over the steps t of one visit:

        ω_i = − Σ_t g_i(t) (w_i(t+1) − w_i(t))
        Ω_i = max(0, ω_i / (Δ_i² + ξ)),    Δ_i = w_i(end) − w_i(start)

    The clip at 0 is that of the authors' code. ξ is `cwc.damping`.
    """

    def __init__(self, model: nn.Module, damping: float) -> None:
        self.damping = damping
        self.gradients = [torch.zeros_like(weight) for weight in model.parameters()]  # g(t)
        self.path = [torch.zeros_like(weight) for weight in model.parameters()]  # ω

    def before_step(self, gradients: list[Tensor]) -> None:
        """Copy g(t), before the penalty's gradient is added to it."""
        torch._foreach_copy_(self.gradients, gradients)

    def after_step(self, minus_steps: list[Tensor]) -> None:
        """Add g(t) (w(t) − w(t+1)) to ω."""
        torch._foreach_addcmul_(self.path, self.gradients, minus_steps)

    def estimate(self, moved: list[Tensor]) -> list[Tensor]:
        """Ω at the end of the visit; `moved` is Δ."""
        return [
            (path / (delta.square() + self.damping)).clamp_(min=0)
            for path, delta in zip(self.path, moved, strict=True)
        ]


def fisher_information(
    model: nn.Module, samples: Samples, rng: np.random.Generator
) -> list[Tensor]:
    """The dependence of the trained model's predictions on each parameter.

    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks" (EWC), PNAS 2017,
    arXiv:1612.00796: the diagonal of the Fisher information, with labels y drawn from the model's
    own prediction for each training image x:

        Ω_i = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂w_i)²

    Deviation: the mean is taken over `FISHER_IMAGES` random images at most, one label each.
    """
    model.eval()
    weights = list(model.parameters())
    information = [torch.zeros_like(weight) for weight in weights]
    drawn = rng.permutation(len(samples))[:FISHER_IMAGES]
    for image in samples[torch.from_numpy(drawn).to(samples.labels.device)].images:
        logits = model(image[None])  # [1, K]
        chances = logits.detach().double().softmax(dim=1)[0].cpu().numpy()
        label = torch.tensor([rng.choice(len(chances), p=chances)], device=logits.device)
        loss = functional.cross_entropy(logits, label)
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        torch._foreach_addcmul_(information, gradients, gradients, value=1 / len(drawn))
    return information
