"""Loops of other shapes that C follows: micro-steps, losses of their own, containers, a GradScaler, ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from armed_training import Planted, Training
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

Change = Callable[[Tensor], Tensor]


class Accumulating(Training):
    """Several micro-steps; what is planted comes into the second."""

    micro_steps: ClassVar[int] = 4
    planted_at: ClassVar[int] = 1
    divides: ClassVar[bool] = True
    before: Callable[[int], None] = staticmethod(lambda at: None)
    """Called before each micro-step."""

    def step(
        self,
        change: Change = lambda loss: loss,
        *,
        fault: Change | None = None,
        count: int = 0,
        clears: bool = False,
    ) -> Tensor:
        loss = torch.zeros(())
        self.optimizer.zero_grad()
        for at in range(count or self.micro_steps):
            inputs, targets = self.batch()
            is_planted = at == self.planted_at
            self.before(at)
            if clears and is_planted:
                self.optimizer.zero_grad()
            self.planted_in.fault = fault if is_planted else None
            with self.surroundings(at):
                loss = self.loss_of(inputs, targets)
                if self.divides:
                    loss = loss / self.micro_steps
                if is_planted:
                    loss = change(loss)
                self.send_back(loss)
        self.update()
        return loss

    @property
    def planted_in(self) -> Planted:
        assert isinstance(self.model, Planted)
        return self.model

    def surroundings(self, at: int) -> AbstractContextManager[None]:
        return nullcontext()

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs), targets)

    def send_back(self, loss: Tensor) -> None:
        loss.backward()

    def update(self) -> None:
        self.optimizer.step()


class Undivided(Accumulating):
    """Two micro-steps whose losses are added up."""

    micro_steps, divides = 2, False


class Single(Accumulating):
    """One micro-step."""

    micro_steps, planted_at, divides = 1, 0, False


class DividedByItems(Accumulating):
    """Each micro-step's sum is divided by the items of all of them, as a trainer of language models does."""

    micro_steps, divides = 3, False

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        items = torch.tensor(self.micro_steps * len(targets))
        return F.cross_entropy(self.model(inputs), targets, reduction="sum") / items


class OnTwoLines(Accumulating):
    """Losses of the same operation that are added up, as those of a critic are."""

    micro_steps, divides = 2, False

    def send_back(self, loss: Tensor) -> None:
        self.lines = not getattr(self, "lines", False)
        if self.lines:
            loss.backward()
        else:
            loss.backward()


class BesideAnother(Single):
    """Another model of the same class is trained in the same loop."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.other = Planted()
        self.others = torch.optim.SGD(self.other.parameters(), lr=0.1)

    def update(self) -> None:
        super().update()
        inputs = torch.ones(2, 20)
        self.others.zero_grad()
        self.other(inputs).square().mean().backward()
        self.others.step()


class OwnLoss(Single):
    """A loss of nodes that can go wrong in their derivative."""

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        shares = torch.softmax(self.model(inputs), dim=1).gather(1, targets[:, None])
        return -(shares + 1e-6).log().mean() + shares.sum().sqrt() * 1e-3


class Scaled(Single):
    """A GradScaler whose scale grows now and then, and autocast."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().loss_of(inputs, targets)

    def send_back(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


class ScaledAndClipped(Scaled):
    """The same with several micro-steps and clipping."""

    micro_steps, planted_at, divides = 3, 1, True

    def update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        super().update()


class NotScaled(Scaled):
    """A GradScaler that is disabled."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)


@dataclass
class Result:
    """What a model of Hugging Face returns."""

    loss: Tensor
    scores: Tensor
    others: tuple[Tensor, ...]


class Structured(Planted):
    """Is called with a dictionary, or keywords, and returns its loss with the rest."""

    def forward(self, inputs: Tensor, targets: Tensor) -> Result:  # type: ignore[override]
        scores = super().forward(inputs)
        return Result(F.cross_entropy(scores, targets), scores, (scores.detach(), scores * 2))


class OfDictionary(Planted):
    """Is called with containers, and returns one."""

    def forward(self, batch: dict[str, Any], masks: list[Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        scores = super().forward(batch["inputs"] * masks[0])
        return {"scores": scores, "penalty": scores.square().mean()}


class WithResult(Single):
    """`model(**batch).loss.backward()`"""

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.model(inputs=inputs, targets=targets).loss


class WithDictionary(Single):
    """`model(batch)`, whose batch the script empties at once."""

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        batch = {"inputs": inputs, "name": "a batch"}
        masks = [torch.ones(20), torch.ones(1)]
        result: Any = self.model(batch, masks)
        batch.clear()
        masks[0] = torch.zeros(20)
        return F.cross_entropy(result["scores"], targets) + result["penalty"]


class Averaged(Single):
    """One of several ranks."""

    @property
    def planted_in(self) -> Planted:
        inner: Planted = self.model.module
        return inner


class AveragedAtTheEnd(Averaged):
    """Micro-steps of which only the last averages gradients over the ranks."""

    micro_steps, planted_at, divides = 3, 1, True

    def surroundings(self, at: int) -> AbstractContextManager[None]:
        assert isinstance(self.model, DistributedDataParallel)
        return nullcontext() if at == self.micro_steps - 1 else self.model.no_sync()


def averaged_model() -> nn.Module:
    return DistributedDataParallel(Planted())
