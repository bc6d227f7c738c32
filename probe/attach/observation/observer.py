"""Observes the modules of one watched model in sampled steps: what the step tracker talks to.

All methods are called on the training thread, inside the tracker's guard or not: none raises. Between a
sampled forward's begin and end `nn.Module.__call__` is replaced; at all other times nothing of this is
installed anywhere, but hooks on the graph of the sampled step, which go with the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import torch
from torch import nn

from ...compat import torch_memory
from ...guard import Guard
from ...measure.kernels import call_binding
from ...measure.kernels.call_binding import CallFunctions
from ...wire import ModuleInfo
from ..layout import unwrap
from .dead_units import DEAD_AFTER, DeadUnits
from .kernel_step import KernelStep
from .module_calls import module_calls
from .module_statistics import ModuleStatistics, build_statistics
from .modules import ModuleIndex, ModuleTraits
from .outputs import is_small

if TYPE_CHECKING:
    from .call_clock import CallClock, CudaClock
    from .observed_step import ObservedStep

FEATURES: Final = frozenset({"activations", "activation_gradients", "module_times", "module_memory"})
"""Of `levels.Features`, those that need the calls; "histograms" and "module_calls" add to them."""
_LOOK_EVERY: Final = 16
"""Sampled steps between two looks at the model's modules: 1 us for each of them."""
_PART: Final = "module observation"

Token: TypeAlias = "tuple[ObservedStep, int, ModuleTraits] | int"
"""Of a call; a number where the kernel follows the step."""


class ModuleObserver:
    """Statistics of every module below a naming root, at the steps that ask for them.

    A training forward is followed on its own thread only, from its outermost call; recomputations inside a
    backward are not, modules that are called without gradient inside it are (their outputs have no gradient
    then). Where watched models nest, the one whose forward began last sees the calls.

    Args:
        root: the naming root, held weakly.
        guard: catches what fails here; the part that failed stays off.
        dead_after: sampled steps without activity after which a unit counts as dead.
        host_clock: makes the clock for modules that do not run on CUDA.
    """

    def __init__(
        self,
        root: nn.Module,
        *,
        guard: Guard,
        dead_after: int = DEAD_AFTER,
        host_clock: Callable[[], CallClock] | None = None,
    ) -> None:
        self._root = weakref.ref(unwrap(root))
        self._guard = guard
        self._host_clock = host_clock
        self._cuda_clock: CudaClock | None = None
        self._index = ModuleIndex()
        self._dead = DeadUnits(dead_after)
        self._step: ObservedStep | KernelStep | None = None
        self._outermost: Token | None = None
        self._has_met_unknown = False
        self._steps_until_look = 0
        self._is_on = False
        self._is_forward_open = False

    @property
    def modules(self) -> tuple[ModuleInfo, ...]:
        """Names and types of the rows, for a layout; known once a step has been sampled."""
        return self._index.infos

    @property
    def is_observing(self) -> bool:
        """Whether some forward of the step under way was sampled."""
        return self._step is not None

    def start(self) -> None:
        """Allow sampling; installs nothing yet. Idempotent."""
        self._is_on = True
        if (root := self._root()) is not None:
            # Here, not in the first step: 10 ms where there are 2,500 modules, and 0.5 for the functions.
            self._guard.run(_PART, self._index.refresh, root)
            self._guard.run(_PART, call_binding.functions)

    def stop(self) -> None:
        """Put everything back and forget the step under way. Idempotent."""
        self._is_on = False
        module_calls.end(self)
        self._is_forward_open = False
        self._drop_step()
        self._dead.forget()

    # -- the step tracker's calls

    def begin_forward(
        self,
        features: Collection[str],
        called: nn.Module | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        is_settled: bool = False,
    ) -> None:
        """Observe the training forward that begins now, if `features` names any of `FEATURES`.

        Args:
            features: names of `levels.Features`; "histograms" adds those of the outputs, "module_calls" makes
                every call a row of its own.
            called: the outermost module, where its call does not come through `nn.Module.__call__` (the
                watched root's own class has another by then); with its arguments.
            is_settled: see `ModuleCalls.begin`.
        """
        if self._is_on and not FEATURES.isdisjoint(features):
            self._guard.run(_PART, self._begin_forward, features, called, (args, kwargs), is_settled)

    def end_forward(self, output: Any = None, *, raised: bool = False) -> None:
        """The forward is over: with the outermost call's output, or by an exception."""
        if self._is_forward_open:
            module_calls.end(self)
            # Behind it: a signal's handler may raise before, and then it is done again.
            self._is_forward_open = False
            self._guard.run(_PART, self._end_forward, output, raised)

    def end_backward(self) -> None:
        """A backward has ended: what follows is no module's time."""
        if self._step is not None:
            self._guard.run("module times", self._step.switch, -1)

    def collect(self) -> ModuleStatistics | None:
        """Return what the step that ends now has told, and begin anew; None where nothing was observed.

        Waits for the device: one copy brings all numbers to the host.
        """
        step, self._step = self._step, None
        if step is None:
            return None
        if isinstance(step, KernelStep):
            self._has_met_unknown |= step.has_met_unknown
        step.close()
        return self._guard.run(_PART, build_statistics, step, self._index, self._dead)

    # -- CallObserver

    @property
    def callbacks(self) -> CallFunctions | None:
        """The kernel's functions that stand for the three below, where it follows the step."""
        return self._step.functions if isinstance(self._step, KernelStep) else None

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> object | None:
        """A module is called, inside the observed forward."""
        if isinstance(self._step, KernelStep):
            return self._step.functions.enter(module, args, kwargs)
        return self._guard.run_brief(_PART, self._enter, module, args, kwargs)

    def leave(self, token: Token, output: Any) -> None:
        """The call has returned."""
        if isinstance(token, int):
            if isinstance(self._step, KernelStep):
                self._step.functions.leave(token, output)
            return
        run = self._guard.run_brief if is_small(output) else self._guard.run
        run(_PART, self._leave, token, output)

    def abandon(self, token: Token) -> None:
        """The call has raised."""
        if isinstance(token, int):
            if isinstance(self._step, KernelStep):
                self._step.functions.abandon(token)
            return
        self._guard.run(_PART, token[0].abandon, token[1])

    # -- parts

    def _begin_forward(
        self, features: Collection[str], called: nn.Module | None, arguments: Any, is_settled: bool
    ) -> None:
        # An earlier forward may have raised without anyone telling.
        module_calls.end(self)
        root = self._root()
        # While a CUDA graph is captured, events and reductions of ours would become part of it.
        if root is None or _is_capturing():
            return
        is_new = self._step is None
        if self._step is None:
            self._step = self._open_step(root, features)
        if not module_calls.begin(self, is_settled=is_settled):
            if is_new:
                self._drop_step()
            return
        self._is_forward_open = True
        self._step.begin_forward()
        self._outermost = None
        if called is not None:
            self._outermost = self._enter_outermost(self._step, called, arguments)

    def _open_step(self, root: nn.Module, features: Collection[str]) -> ObservedStep | KernelStep:
        if self._has_met_unknown or self._steps_until_look <= 0:
            self._steps_until_look, self._has_met_unknown = _LOOK_EVERY, False
            if self._index.refresh(root):
                self._dead.forget()
        self._steps_until_look -= 1
        first = next(iter(root.parameters()), None)
        device = torch.device("cpu") if first is None else first.device
        if (step := KernelStep.begin(features, self._index, guard=self._guard, device=device)) is not None:
            return step
        from .observed_step import ObservedStep

        return ObservedStep(features, guard=self._guard, clock=self._clock_for(device), device=device)

    def _clock_for(self, device: torch.device) -> CallClock:
        from .call_clock import CudaClock, HostClock

        if device.type != "cuda":
            return (self._host_clock or HostClock)()
        if self._cuda_clock is None:
            self._cuda_clock = CudaClock(device)
        self._cuda_clock.restart()
        return self._cuda_clock

    def _enter_outermost(
        self, step: ObservedStep | KernelStep, called: nn.Module, arguments: Any
    ) -> Token | None:
        inner = unwrap(called)
        if isinstance(step, KernelStep):
            return step.enter_outermost(inner)
        traits = self._index.find(inner)
        if traits is None:
            return None
        # What it wraps, or it itself where its class calls on, must not count a second time.
        number = step.enter(msgspec.structs.replace(traits, is_wrapper=True), called, arguments)
        return None if number is None else (step, number, traits)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Token | None:
        traits, step = self._index.find(module), self._step
        if traits is None or step is None or isinstance(step, KernelStep):
            self._has_met_unknown = True
            return None
        number = step.enter(traits, module, (args, kwargs))
        return None if number is None else (step, number, traits)

    def _leave(self, token: tuple[ObservedStep, int, ModuleTraits], output: Any) -> None:
        step, number, traits = token
        if not step.is_closed:
            step.leave(number, traits, output)

    def _end_forward(self, output: Any, raised: bool) -> None:
        step, root = self._step, self._root()
        outermost, self._outermost = self._outermost, None
        if step is None or root is None:
            return
        if outermost is not None and raised:
            self.abandon(outermost)
        elif outermost is not None:
            self.leave(outermost, output)
        if isinstance(step, KernelStep):
            step.end_forward()
            # The callbacks run outside of the guard.
            self._guard.spent_ns += step.take_own_ns()
            return
        storages: frozenset[int] = frozenset()
        if step.measures_memory:
            from .module_memory import storages_of

            storages = storages_of(root)
        step.end_forward(output, storages)

    def _drop_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.close()


def _is_capturing() -> bool:
    return torch_memory.cuda_is_initialised() and torch.cuda.is_current_stream_capturing()
