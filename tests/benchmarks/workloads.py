"""Five models to measure overhead on, from 6 tensors to 2,000; each with random data and the loss of a step.

Batches make steps of about 13, 340, 420, 44 and 58 ms on one CPU thread, in the order of `WORKLOADS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

ComputeLoss = Callable[[], Tensor]


def make_adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """What most of them are trained with."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def make_sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """For the many tensors, so slowly that nothing happens: a deep net of that kind soon explodes."""
    return torch.optim.SGD(parameters, lr=1e-6, momentum=0.9)


@dataclass(frozen=True, slots=True)
class Workload:
    """A model to train, under a short name."""

    name: str
    title: str
    tensors: int
    """Parameter tensors of the model."""
    make: Callable[[torch.device], tuple[nn.Module, ComputeLoss]]
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = make_adamw


def make_mlp(device: torch.device) -> tuple[nn.Module, ComputeLoss]:
    """0.54 M parameters in 6 tensors, as for small images."""
    model = nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    ).to(device)
    inputs, targets = torch.randn(384, 784, device=device), torch.randint(10, (384,), device=device)
    return model, lambda: F.cross_entropy(model(inputs), targets)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and the shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            convolution = nn.Conv2d(inside, outside, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inside, height, width) to (batch, outside, height / stride, width / stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def make_resnet(device: torch.device) -> tuple[nn.Module, ComputeLoss]:
    """ResNet-18 as on small images, at five eighths of its width: 4.4 M parameters in 62 tensors."""
    stages, inside = [], 40
    for outside in (40, 80, 160, 320):
        stages += [ResidualBlock(inside, outside, 1 + (outside > inside)), ResidualBlock(outside, outside, 1)]
        inside = outside
    stem = (nn.Conv2d(3, 40, 3, padding=1, bias=False), nn.BatchNorm2d(40), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 10))
    model = nn.Sequential(*stem, *stages, *head).to(device)
    inputs, targets = torch.randn(20, 3, 32, 32, device=device), torch.randint(10, (20,), device=device)
    return model, lambda: F.cross_entropy(model(inputs), targets)


class GptBlock(nn.Module):
    """Causal attention and a feed-forward layer, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A decoder-only transformer with learned positions."""

    def __init__(self, *, width: int, heads: int, layers: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, time) token ids to (batch, time, vocabulary) logits."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def make_gpt(device: torch.device) -> tuple[nn.Module, ComputeLoss]:
    """6 layers of width 320: 8.1 M parameters in 77 tensors."""
    model = Gpt(width=320, heads=5, layers=6, vocabulary=1024, context=128).to(device)
    ids = torch.randint(1024, (6, 129), device=device)
    return model, lambda: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class ManyTensors(nn.Module):
    """500 times Linear(32) and LayerNorm(32)."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(500))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(500))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 32) to the same."""
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(linear(x))
        return x


def make_many(device: torch.device) -> tuple[nn.Module, ComputeLoss]:
    """0.56 M parameters in 2,000 tensors of 32 or 1,024 elements."""
    model = ManyTensors().to(device)
    inputs = torch.randn(16, 32, device=device)
    return model, lambda: model(inputs).square().mean()


class Tagger(nn.Module):
    """An embedding of 50,000 words, one LSTM layer, one label per sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50_000, 128)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, time) word ids to (batch, 10) logits."""
        states, _ = self.lstm(self.words(ids))
        logits: Tensor = self.head(states[:, -1])
        return logits


def make_lstm(device: torch.device) -> tuple[nn.Module, ComputeLoss]:
    """6.5 M parameters in 7 tensors, 6.4 M of them in one."""
    model = Tagger().to(device)
    ids, labels = torch.randint(50_000, (16, 32), device=device), torch.randint(10, (16,), device=device)
    return model, lambda: F.cross_entropy(model(ids), labels)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlp", "MLP", 6, make_mlp),
        Workload("resnet", "ResNet-18", 62, make_resnet),
        Workload("gpt", "GPT, 6 layers", 77, make_gpt),
        Workload("many", "tiny tensors", 2000, make_many, make_sgd),
        Workload("lstm", "embedding + LSTM", 7, make_lstm),
    )
}
