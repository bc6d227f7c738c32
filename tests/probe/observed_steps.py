"""Drives a `ModuleObserver` through steps as the step tracker does; what the observation tests share."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from probe.attach.observation.module_statistics import ModuleStatistics
from probe.attach.observation.observer import ModuleObserver
from probe.guard import Guard

EVERYTHING = ("activations", "activation_gradients", "module_times", "module_memory", "histograms")
PLAIN_CALL = nn.Module.__call__


class Watched:
    """A model with its observer."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.model, self.guard = model, Guard()
        self.observer = ModuleObserver(model, guard=self.guard, **options)
        self.observer.start()

    def forward(self, *args: Any, due: Collection[str] = EVERYTHING, model: Any = None, **kwargs: Any) -> Any:
        """Run one observed training forward."""
        called = self.model if model is None else model
        self.observer.begin_forward(due, called, args, kwargs)
        try:
            output = PLAIN_CALL(called, *args, **kwargs)
        except BaseException:
            self.observer.end_forward(raised=True)
            raise
        self.observer.end_forward(output)
        return output

    def step(
        self, *args: Any, loss: Callable[[Any], Tensor] = lambda output: output.square().sum(), **options: Any
    ) -> ModuleStatistics:
        """Run forward and backward, and return what was observed."""
        loss(self.forward(*args, **options)).backward()
        self.observer.end_backward()
        return self.collect()

    def collect(self) -> ModuleStatistics:
        """Return the statistics, which must be there and have cost no failure."""
        statistics = self.observer.collect()
        assert self.guard.failures == 0
        assert statistics is not None
        return statistics


def hooked_outputs(model: nn.Module, run: Callable[[], Any]) -> dict[str, list[Tensor]]:
    """Run with plain forward hooks; returns float64 copies of every module's outputs, by name."""
    outputs: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            while not isinstance(output, Tensor):
                output = output[0]
            outputs.setdefault(name, []).append(output.detach().double().clone())

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    run()
    for handle in handles:
        handle.remove()
    return outputs


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    """Make something from the same random numbers every time."""
    torch.manual_seed(seed)
    return make()
