"""Gradients of a model as autograd delivers them, in float64: a reference apart from the probe."""

import numpy as np
import torch
from torch import Tensor, nn


class GradientSums:
    """Notes what every backward adds to the parameters' gradients, through tensor hooks of its own."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._added: list[list[Tensor]] = [[] for _ in self._parameters]
        for parameter, added in zip(self._parameters, self._added, strict=True):
            parameter.register_hook(lambda gradient, added=added: added.append(gradient.detach().double()))

    def norms(self, per_step: int = 1) -> np.ndarray:
        """(steps, parameters) L2 norms of the sums over `per_step` backwards, the last may be of fewer."""
        columns = []
        for added in self._added:
            groups = [added[i : i + per_step] for i in range(0, len(added), per_step)]
            columns.append([torch.stack(group).sum(0).norm().item() for group in groups])
        return np.array(columns).T
