"""Training is the same to the last bit, whatever is measured of it and however its steps are followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from early_arming import early_arming
from thinned import some
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]
STEPS = 120
"""More than a hundred: weights, gradients and modules are looked at more closely by then."""


class Recurrent(nn.Module):
    """Tokens, an LSTM, a bfloat16 head; some rows of the embedding get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(30, 8), nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(inputs.abs().mul(7).long() % 30))
        with torch.autocast("cpu", torch.bfloat16):
            scores: Tensor = self.head(hidden[:, -1])
        return scores.float()


class Attending(nn.Module):
    """Attention with dropout, weights that are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(self.layer(inputs[..., None].expand(-1, -1, 12))).mean(1))
        return scores


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(20, 4)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 12)),
        nn.Conv1d(1, 6, 3),
        nn.BatchNorm1d(6),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(60, 4),
    ),
    "recurrent": Recurrent,
    "attention": Attending,
}


def trained(make: Callable[[], nn.Module], spool: Path | None, level: str) -> list[Tensor]:
    """Train for a while, clipped, with a validation now and then; return all that the training has left."""
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watching = nullcontext()
    if spool is not None:
        watching = probe.watch(model, optimizer, spool=spool, level=level, overhead_limit=0.0)
    with watching:
        for _ in range(STEPS):
            inputs, targets = torch.randn(8, 12), torch.randint(4, (8,))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [*left_by(model, optimizer), loss.detach(), torch.get_rng_state()]


def left_by(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    yield from model.state_dict().values()
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter.grad
        yield from (value for value in optimizer.state[parameter].values())


@pytest.mark.parametrize("name", some([*MODELS][::-1], 2))
def test_training_is_the_same_at_every_level_with_its_steps_followed(tmp_path: Path, name: str) -> None:
    alone = trained(MODELS[name], None, "off")
    for level in ("off", "basic", "advanced", "extreme"):
        with early_arming(in_c=True) as followed:
            watched = trained(MODELS[name], tmp_path / level, level)
        assert [torch.equal(one, other) for one, other in zip(watched, alone, strict=True)] == [True] * len(
            alone
        ), level
        if level == "basic":
            assert followed.steps > STEPS / 2
