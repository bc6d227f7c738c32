"""Models with one known fault each, for the analysis calls."""

import itertools

import torch
from torch import Tensor, nn


def chain(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers 0, 2, 4, ... with an activation between them."""
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), activation()]
    return nn.Sequential(*layers[:-1])


def with_dead_layer() -> nn.Sequential:
    """Layer 4's ReLU never fires: layers 0, 2 and 4 get a gradient of exactly 0."""
    model = chain(6, 6, 6, 6, 2, activation=nn.ReLU)
    with torch.no_grad():
        model[4].bias.fill_(-1e3)
    return model


def with_exploding_layer(factor: float = 1e8) -> nn.Sequential:
    """What lies before layer 4 gets `factor` times the gradient that layer 4 gets."""
    model = chain(6, 6, 6, 6, 2, activation=nn.Identity)
    with torch.no_grad():
        model[4].weight.mul_(factor)
        model[2].weight.div_(factor)
        model[2].bias.zero_()
    return model


class Mixed(nn.Module):
    """A shared parameter (`head.weight` is `table.weight`), a frozen, an unused layer, a loose parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.ones(4))
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.frozen(self.table(tokens)) * self.scale)


def backward(model: nn.Module, inputs: Tensor, *, seed: int = 0) -> Tensor:
    """One forward and backward of a fixed loss; returns the loss."""
    torch.manual_seed(seed)
    loss = model(inputs).square().mean()
    loss.backward()
    return loss.detach()
