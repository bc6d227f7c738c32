"""The C side of an armed training loop: what it is told and asked, and what it holds of the step under way.

Keeps everything alive that C refers to by address. Used by the fast path alone, on the training thread.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..attach.armed_calls import Follower, armed_calls
from ..compat import torch_dynamo, torch_private
from ..delivery.recorder.ring import Ring
from ..forensics.adopted_capture import FollowedForward
from ..measure.kernels import hot_binding
from ..measure.kernels.hot_binding import KeptInputs
from ..measure.update_meter import UpdatePlaces
from ..step.clipping import norm_after_clipping
from .loop_shape import CodeSite, LoopShape

_HOOK_KEY: Final = -1
"""Of our hook among an output's; those of torch are counted from 0."""


class HookTable(dict[int, Any]):
    """The hooks of an output; weak references to it tell whether the graph still lives."""

    __slots__ = ("__weakref__",)


class Plan(NamedTuple):
    """What C has to know besides the shape of the loop."""

    root: nn.Module
    optimizer: Optimizer
    parameters: Sequence[nn.Parameter]
    draws: bool
    """Whether the generator's state has to be kept at every step."""
    glance: Callable[..., Any] | None
    """Looks at (module, args, kwargs) where parameters are measured."""
    on_news: Callable[[], bool | None] | None
    """Called at the end of a backward where there is news; True for the next one too."""
    norms_every: int
    """Steps between two measurements of the parameters; 0 for none."""
    ratios_every: int
    """Steps between two looks at an update; 0 for none."""
    places: UpdatePlaces | None
    """Where parameters are copied to for that."""
    input_limit_bytes: int
    output_limit_bytes: int
    ring: Ring
    """Where the records go."""
    template: int


class FollowedStep(NamedTuple):
    """One finished step that C has followed, of those whose inputs are still held."""

    step: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: list[int]


class FollowedSteps(NamedTuple):
    """What C has followed since it was armed."""

    finished: int
    """How many steps."""
    next_step: int
    own_ns: int
    """In the callbacks, those of the step under way included."""
    ended_ns: int
    """When the newest of them ended."""
    held: list[FollowedStep]


class ArmedLoop:
    """Speaks to the callbacks of the kernel."""

    def __init__(self, calls: hot_binding.HotCalls) -> None:
        self.calls, self.state = calls, calls.state
        self._alive: list[object] = []
        self._sink: Callable[[Tensor], None] | None = None
        self._root: Callable[[], nn.Module | None] = lambda: None
        self._optimizer: Callable[[], Optimizer | None] = lambda: None

    def follow(self, shape: LoopShape, plan: Plan) -> bool:
        """Tell C which loop it is to follow; False where there is no memory for it."""
        loop = hot_binding.HotLoop()
        parameters = (ctypes.c_void_p * len(plan.parameters))(*map(id, plan.parameters))
        number_of_next = torch_private.sequence_number
        alive: list[object] = [loop, shape, plan.ring, parameters, *plan.parameters, _HOOK_KEY]
        loop.root, loop.optimizer = id(plan.root), id(plan.optimizer)
        loop.receive, loop.hook_table, loop.hook_key = id(self.calls.receive), id(HookTable), id(_HOOK_KEY)
        loop.loss_node, loop.number_of_next = id(shape.loss_node), id(number_of_next)
        random_state = torch.default_generator.get_state if plan.draws else None
        loop.random_state = None if random_state is None else id(random_state)
        loop.glance = None if plan.glance is None else id(plan.glance)
        loop.on_news = None if plan.on_news is None else id(plan.on_news)
        alive += [shape.loss_node, number_of_next, random_state, plan.glance, plan.on_news]
        for at, (ask, argument, value) in enumerate(_ambient(shape)):
            loop.ambient[at], loop.ambient_value[at] = id(ask), id(value)
            loop.ambient_argument[at] = None if argument is None else id(argument)
            loop.ambient_count = at + 1
            alive += [ask, argument]
        for place, site in (
            (loop.forward_site, shape.forward_site),
            (loop.backward_site, shape.backward_site),
        ):
            for at, (code, instruction) in enumerate(site):
                place.code[at], place.instruction[at] = id(code), instruction
        groups = plan.optimizer.param_groups
        loop.groups[: len(groups)] = list(map(id, groups))
        loop.group_count, loop.rate_count = len(groups), len(shape.rates)
        loop.parameters, loop.parameter_count = ctypes.addressof(parameters), len(plan.parameters)
        loop.argument_count, loop.keyword_count = shape.arguments, shape.keywords
        loop.tensor_count, loop.micro_steps, loop.clips = shape.tensors, 1, int(shape.clips)
        loop.input_limit_bytes, loop.output_limit_bytes = plan.input_limit_bytes, plan.output_limit_bytes
        loop.thread, loop.ring, loop.template_id = threading.get_ident(), plan.ring.address, plan.template
        loop.norms_every, loop.loss_factor = plan.norms_every, 1.0
        if plan.places is not None:
            loop.ratios_every, loop.copies = plan.ratios_every, ctypes.addressof(plan.places.addresses)
            alive.append(plan.places)
        if not self.calls.follow(loop):
            return False
        self._alive = [*alive, *groups]
        # Something else may come to lie at the address of what is gone.
        self._root = weakref.ref(plan.root, lambda _: self.stop())
        self._optimizer = weakref.ref(plan.optimizer, lambda _: self.stop())
        return True

    def start(self, follower: Follower, step: int, *, slow_at: int, last_end_ns: int) -> None:
        """Have C follow the steps from `step` on, before `slow_at`."""
        state = self.state
        state.step, state.slow_at, state.last_end_ns = step, slow_at, last_end_ns
        state.attention, state.news, state.sink = 0, 0, None
        state.steps, state.own_ns, state.step_own_ns = 0, 0, 0
        self._sink = None
        state.armed = 1
        calls = self.calls
        armed_calls.follower = follower
        armed_calls.begin_forward, armed_calls.end_forward = calls.begin_forward, calls.end_forward
        armed_calls.begin_backward, armed_calls.end_backward = calls.begin_backward, calls.end_backward
        armed_calls.before_clip, armed_calls.after_clip = calls.before_clip, self._after_clip
        armed_calls.before_step, armed_calls.after_step = calls.before_step, calls.after_step

    def count(self, optimizer: Optimizer, step: int) -> None:
        """Have C count the steps of an optimizer from `step` on, and do nothing else."""
        loop = hot_binding.HotLoop()
        loop.optimizer, loop.thread = id(optimizer), threading.get_ident()
        self.calls.follow(loop)
        self._alive, self._root = [loop], lambda: None
        self._optimizer = weakref.ref(optimizer, lambda _: self.stop())
        state = self.state
        state.step, state.steps, state.own_ns, state.attention = step, 0, 0, 0
        armed_calls.before_step, armed_calls.after_step = self.calls.count_step, self.calls.pass_step

    def stop(self) -> None:
        """Have C follow nothing more; what it holds is still there."""
        self.state.armed = 0
        armed_calls.disarm()

    def forget_step(self) -> None:
        """Let go of everything that is held of steps; the loop is remembered."""
        self.calls.forget()

    def release(self) -> None:
        """Let go of the loop too."""
        self.stop()
        self.calls.forget()
        self.state.sink = self._sink = None
        self._alive, self._root = [], lambda: None

    def send_gradient_to(self, sink: Callable[[Tensor], None]) -> None:
        """Give dL/d(output) of the step under way to `sink`, when its backward comes by."""
        self._sink = sink
        self.state.sink = id(sink)

    def _after_clip(self, total_norm: Any, max_norm: Any) -> None:
        self.note_clipped(self.state.before_clip, total_norm, max_norm)

    def note_clipped(self, before: float, total_norm: Any, max_norm: Any) -> None:
        """Note what torch's clipping has left; where its numbers do not tell, the step goes the slow way."""
        after = None
        if isinstance(total_norm, Tensor | float) and isinstance(max_norm, int | float | Tensor):
            after = norm_after_clipping(before, float(total_norm), float(max_norm))
        if after is None:
            self.state.armed = 0
        else:
            self.state.after_clip = after

    # -- what it holds

    @property
    def root(self) -> nn.Module | None:
        """Whose forward is followed; None once it is gone."""
        return self._root()

    @property
    def loss(self) -> Tensor | None:
        """What backward was called on in the step under way."""
        found: Tensor | None = hot_binding.object_at(self.state.loss)
        return found

    @property
    def output_gradient(self) -> Tensor | None:
        """What dL/d(output) is of the step under way, once its backward has come by."""
        found: Tensor | None = hot_binding.object_at(self.state.output_gradient)
        return found

    @property
    def has_hook(self) -> bool:
        """Whether the output of the step under way has C's hook."""
        return bool(self.state.life)

    def forward(self) -> FollowedForward:
        """What is held of the forward of the step under way."""
        state = self.state
        inputs = KeptInputs.from_address(state.inputs)
        held = hot_binding.object_at(state.output)
        return FollowedForward(
            args=hot_binding.object_at(inputs.args) or (),
            kwargs=hot_binding.object_at(inputs.kwargs) or {},
            versions=list(inputs.versions),
            rng_cpu=hot_binding.object_at(inputs.random),
            output=held() if state.is_weak and held is not None else held,
            is_held=not state.is_weak,
            output_version=state.output_version,
            output_number=state.output_number,
            boundary=state.boundary,
            life=hot_binding.object_at(state.life),
        )

    def finished_steps(self, *, before: int) -> Iterator[FollowedStep]:
        """What is held of the inputs of finished steps, the oldest first."""
        for inputs in sorted(self.calls.kept, key=lambda one: int(one.step)):
            if inputs.args and inputs.step < before:
                args = hot_binding.object_at(inputs.args)
                kwargs = hot_binding.object_at(inputs.kwargs) or {}
                yield FollowedStep(int(inputs.step), args, kwargs, list(inputs.versions))


def _describe_site(place: hot_binding.CallSite, site: CodeSite) -> None:
    for at, (code, instruction) in enumerate(site):
        place.code[at], place.instruction[at] = id(code), instruction


def _ambient(shape: LoopShape) -> list[tuple[Callable[..., Any], Any, Any]]:
    """Questions of one argument or none, and the answers that are as they were learned."""
    has_autocast = bool(shape.autocast[0])
    return [
        (torch.is_autocast_enabled, "cpu", has_autocast),
        (torch_private.is_jit_tracing, None, False),
        (torch_dynamo.dynamo_callback, None, None),
        (torch_private.transform_level, None, None),
    ]
