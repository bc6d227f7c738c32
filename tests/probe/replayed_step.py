"""One training step, captured as the session captures it, for the tests of the replay."""

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from probe.forensics.capture import RootCapture, begin_capture
from probe.forensics.replay import Replay, locate_origin
from probe.wire import StackFrame


@dataclass
class CapturedStep:
    """What the session knows at a trip."""

    model: nn.Module
    captures: list[RootCapture] = field(default_factory=list)
    loss: Tensor | None = None
    limit_bytes: int = 1 << 30

    def call(self, *args: Any, root: nn.Module | None = None, **kwargs: Any) -> Any:
        """Call the model as a captured root."""
        root = root or self.model
        capture = begin_capture(root, args, kwargs, size_cap_bytes=self.limit_bytes)
        self.captures.append(capture)
        output = root(*args, **kwargs)
        capture.finish(output)
        return output

    def backward(self, loss: Tensor) -> "CapturedStep":
        """Send a loss back."""
        self.loss = loss
        self.captures[-1].note_backward([loss])
        loss.backward()
        return self

    def gradients(self) -> dict[str, Tensor | None]:
        return {name: parameter.grad for name, parameter in self.model.named_parameters()}

    def replay(self, **changes: Any) -> Replay:
        arguments: dict[str, Any] = {
            "parameters": dict(self.model.named_parameters()),
            "gradients": self.gradients(),
            "loss": self.loss,
            "stage": "local",
        }
        return locate_origin(self.model, self.captures, **{**arguments, **changes})


def run_step(
    model: nn.Module, *args: Any, loss: Callable[[Any], Tensor] = lambda output: output.mean(), **kwargs: Any
) -> CapturedStep:
    """One forward and backward of `model`."""
    step = CapturedStep(model)
    return step.backward(loss(step.call(*args, **kwargs)))


def source_line(frame: StackFrame) -> str:
    """The source line that a frame points at, read from the file itself."""
    return linecache.getline(frame.file, frame.line).strip()


class Lambda(nn.Module):
    """A module that runs a function, between the layers of a test."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


def around(function: Callable[..., Tensor], *, width: int = 8) -> nn.Sequential:
    """`Linear -> function -> Linear`; module "1" is the function's."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), Lambda(function), nn.Linear(width, 3))


def batch(rows: int = 6, columns: int = 4) -> Tensor:
    """Normal values, the same every time."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
