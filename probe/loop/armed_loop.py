"""The C side of an armed training loop: what it is told and asked, and what it holds of the step under way.

Keeps everything alive that C refers to by address. Used by the fast path alone, on the training thread.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..attach.armed_calls import Follower, armed_calls
from ..attach.unseen_updates import MarkedParameter, State
from ..compat import torch_dynamo, torch_engine, torch_memory, torch_modes, torch_symbols
from ..delivery.recorder.ring import Ring
from ..forensics.adopted_capture import FollowedCall, FollowedOutput
from ..forensics.arguments import find_outputs
from ..forensics.capture import generator_states
from ..forensics.loss.loss_terms import LossTerms
from ..incidents.lasting import bad_parts
from ..measure.kernels import hot_binding
from ..measure.kernels.binding import at_death
from ..measure.kernels.hot_binding import (
    AFTER_FORWARD,
    IN_BACKWARD,
    IN_FORWARD,
    KEPT_STEPS,
    MAX_MICRO_STEPS,
    MAX_OUTPUTS,
    HotCall,
    HotMicroStep,
    HotOutput,
    KeptInputs,
)
from ..measure.update_meter import UpdatePlaces
from ..step.clipping import norm_after_clipping
from ..step.losses import apart
from ..step.open_step import LogValue
from ..step.phase_times import PhaseTimes
from .loop_shape import CallShape, CodeSite, LoopShape

Question: TypeAlias = tuple[Callable[..., Any], Any, Any]
"""What C asks of torch, with one argument or none (None), and the answer as it was learned."""
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
    """Whether the generator's state has to be kept at every forward."""
    note_stack: Callable[[], None] | None
    """Called in a forward to which other lines lead than to the one before."""
    glance: Callable[..., Any] | None
    """Looks at (module, args, kwargs) where parameters are measured."""
    on_news: Callable[[], int] | None
    """Called at the end of a backward where there is news; returns when to call it again, ns of
    `time.monotonic_ns`, or 0."""
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
    glanced_elements: int = 0
    """Where an input has more, `glance` does nothing, and is not called."""
    observed_every: int = 0
    """Steps between two at which what modules return is measured; 0 for none. Of these `observe` and
    `end_observation` are called at each forward, `collect` and `add_more` round their records."""
    observe: Callable[..., object] | None = None
    end_observation: Callable[[Any], object] | None = None
    collect: Callable[[], bool] | None = None
    add_more: Callable[[], object] | None = None
    frozen: Sequence[nn.Parameter] = ()
    """Parameters of the model that are to be looked at once they are not frozen any more."""
    marked: MarkedParameter | None = None
    """The parameter that is looked at for updates which no hook tells of."""
    scaler: Any = None
    """The GradScaler that makes the updates, if any."""
    scalars: Callable[[], tuple[float, ...]] | None = None
    """Reads what else a record has to say."""
    scalar_count: int = 0
    look_at_loss: Callable[..., Any] | None = None
    """Is given a loss, what it was before it was scaled, and numbers of nodes; see `hot.h`."""
    take_over: Callable[[], Any] | None = None
    """Has the rest of the step go the slow way."""
    accumulation: float | None = None
    """What losses were divided by when that was the number of micro-steps."""
    replica: nn.parallel.DistributedDataParallel | None = None
    free_since_ns: int = 0
    """When the newest backward or step ended, where other ranks are waited for; else 0."""
    is_distributed: bool = False
    late: LateSteps | None = None
    """Measures and finishes the steps, where C does not read their values."""
    reads_losses: bool = True
    """Whether a loss can be read without waiting for it."""
    phases: PhaseTimes | None = None
    """Adds up what the phases of a step take."""


class LateSteps(Protocol):
    """What measures steps that C follows and does not read; see `followed_late.py`."""

    def measure(self) -> bool:
        """Start to measure the gradients, which are about to be clipped; False for the slow way."""
        ...

    def finish(self, *calls: Any) -> bool:
        """Measure and finish the step that is about to be updated; False for the slow way."""
        ...

    def note_clipping(self, total_norm: Any, max_norm: Any) -> None:
        """Note what torch's clipping has returned, and its limit."""
        ...

    def log(self, step: int, values: dict[str, LogValue]) -> None:
        """Give values to the step of the newest backward."""
        ...


class FollowedStep(NamedTuple):
    """One finished step that C has followed, of those whose inputs are still held."""

    step: int
    calls: list[tuple[tuple[Any, ...], dict[str, Any], list[int]]]
    """Of each forward: args, kwargs, and the versions of the tensors among them."""


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
        self._marked: MarkedParameter | None = None
        self._mark_place: tuple[int, int] | None = None
        self._learned: Sequence[CallShape] = ()
        self.late: LateSteps | None = None
        self._reads_losses = True
        self._sink: Callable[[int, Tensor], None] | None = None
        self._root: Callable[[], nn.Module | None] = lambda: None
        self._optimizer: Callable[[], Optimizer | None] = lambda: None

    def follow(self, shape: LoopShape, plan: Plan) -> bool:
        """Tell C which loop it is to follow; False where there is no memory for it."""
        loop = hot_binding.HotLoop()
        alive = [loop, shape, plan.ring, *plan.parameters, *plan.frozen]
        for name, thing in _objects(plan).items():
            setattr(loop, name, None if thing is None else id(thing))
            alive.append(thing)
        # Compared with alone: they may be gone.
        loop.root, loop.optimizer = id(plan.root), id(plan.optimizer)
        loop.replica = None if plan.replica is None else id(plan.replica)
        loop.is_distributed = int(plan.is_distributed)
        told_by_keys, others = _ambient(shape)
        for at, (ask, argument, value) in enumerate((*told_by_keys, *others)):
            loop.ambient[at], loop.ambient_value[at] = id(ask), id(value)
            loop.ambient_argument[at] = None if argument is None else id(argument)
            alive += [ask, argument]
        loop.told_by_keys, loop.ambient_count = len(told_by_keys), len(told_by_keys) + len(others)
        loop.dispatch_keys = torch_symbols.dispatch_keys_of_this_thread()
        for at, call in enumerate(shape.calls):
            _describe_call(loop.micro[at], call)
            loop.micro[at].graph_kind, loop.micro[at].line_kind = _kinds_of(at, shape.calls)
            for place in range(at * MAX_OUTPUTS, at * MAX_OUTPUTS + call.outputs):
                loop.receive[place] = id(self.calls.receive(place))
        groups = plan.optimizer.param_groups
        for at, group in enumerate(groups):
            loop.groups[at], loop.group_sizes[at] = id(group), len(group["params"])
        loop.group_count, loop.rate_count = len(groups), len(shape.rates)
        for name, parameters in (("parameter", plan.parameters), ("frozen", plan.frozen)):
            addresses = (ctypes.c_void_p * len(parameters))(*map(id, parameters))
            alive.append(addresses)
            setattr(loop, "parameters" if name == "parameter" else name, ctypes.addressof(addresses))
            setattr(loop, f"{name}_count", len(parameters))
        loop.micro_steps, loop.clips = len(shape.calls), int(shape.clips)
        loop.has_no_update = int(shape.has_no_update)
        loop.scalar_count = plan.scalar_count
        loop.input_limit_bytes, loop.output_limit_bytes = plan.input_limit_bytes, plan.output_limit_bytes
        loop.thread, loop.ring, loop.template_id = threading.get_ident(), plan.ring.address, plan.template
        loop.glanced_elements, loop.reads_losses = plan.glanced_elements, int(plan.reads_losses)
        loop.norms_every, loop.observed_every = plan.norms_every, plan.observed_every
        loop.bad_loss, loop.bad_gradients, loop.bad_parameters = bad_parts(shape.fault)
        if plan.places is not None:
            loop.ratios_every, loop.copies = plan.ratios_every, ctypes.addressof(plan.places.addresses)
            loop.copy_bytes = ctypes.addressof(plan.places.sizes)
            alive.append(plan.places)
        self._marked, self._mark_place = plan.marked, plan.marked.place if plan.marked else None
        if self._marked is not None and self._mark_place is not None:
            loop.marked = id(self._marked.parameter)
            loop.marked_data, loop.marked_bytes = self._mark_place
            alive.append(self._marked.parameter)
        if plan.phases is not None:
            loop.phases = plan.phases.shared.buffer_info()[0]
            loop.waits = None if plan.phases.waits is None else plan.phases.waits.buffer_info()[0]
            alive += [plan.phases.shared, plan.phases.waits]
        if not self.calls.follow(loop):
            return False
        self._learned, state = shape.calls, self.state
        self.late, self._reads_losses = plan.late, plan.reads_losses
        state.accumulation = math.nan if plan.accumulation is None else plan.accumulation
        state.free_since_ns, state.frozen_at = plan.free_since_ns, 0
        self._alive = [*alive, *groups]
        # Something else may come to lie at the address of what is gone.
        self._root = weakref.ref(plan.root, at_death(self.stop))
        self._optimizer = weakref.ref(plan.optimizer, at_death(self.stop))
        return True

    def start(self, follower: Follower, step: int, *, slow_at: int, last_end_ns: int) -> None:
        """Have C follow the steps from `step` on, before `slow_at`."""
        state = self.state
        state.step, state.slow_at, state.last_end_ns = step, slow_at, last_end_ns
        state.attention, state.news, state.news_at_ns, state.sink = 0, 0, 0, None
        state.steps, state.own_ns, state.step_own_ns = 0, 0, 0
        self._sink = None
        state.armed = 1
        calls = self.calls
        armed_calls.follower = follower
        armed_calls.begin_forward, armed_calls.end_forward = calls.begin_forward, calls.end_forward
        armed_calls.begin_backward, armed_calls.end_backward = calls.begin_backward, calls.end_backward
        armed_calls.after_scale, armed_calls.after_scaler_step = calls.after_scale, calls.after_scaler_step
        armed_calls.before_clip, armed_calls.after_clip = calls.before_clip, self._after_clip
        armed_calls.before_clearing = calls.before_clearing
        armed_calls.before_step, armed_calls.after_step = calls.before_step, calls.after_step

    def count(self, optimizer: Optimizer, step: int) -> None:
        """Have C count the steps of an optimizer from `step` on, and do nothing else."""
        loop = hot_binding.HotLoop()
        loop.optimizer, loop.thread = id(optimizer), threading.get_ident()
        self.calls.follow(loop)
        self._alive, self._root = [loop], lambda: None
        self._optimizer = weakref.ref(optimizer, at_death(self.stop))
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
        self.state.sink = self._sink = self._marked = None
        self._alive = []
        # A reference that is gone calls nothing: at the end of the interpreter there may be nothing to call.
        self._root = self._optimizer = lambda: None

    def send_gradients_to(self, sinks: Sequence[Sequence[Callable[[Tensor], None]]]) -> None:
        """Give dL/d(output) of the step under way to `sinks`, by forward and output, when it comes by."""
        by_number = {
            at * MAX_OUTPUTS + position: sink
            for at, of_call in enumerate(sinks)
            for position, sink in enumerate(of_call)
        }

        def send(number: int, gradient: Tensor) -> None:
            sink = by_number.get(number)
            if sink is not None:
                sink(gradient)

        self._sink = send
        self.state.sink = id(send)

    def _after_clip(self, total_norm: Any, max_norm: Any) -> None:
        if self.late is not None:
            self.late.note_clipping(total_norm, max_norm)
            return
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
    def is_late(self) -> bool:
        """Whether C does not read the values of the steps."""
        return self.late is not None

    @property
    def root(self) -> nn.Module | None:
        """Whose forward is followed; None once it is gone."""
        return self._root()

    @property
    def scaling(self) -> tuple[Tensor, Tensor] | None:
        """What a GradScaler was given, and what it made of it, for a backward that has not begun."""
        scaled = hot_binding.object_at(self.state.scaled)
        return None if scaled is None else (hot_binding.object_at(self.state.unscaled), scaled)

    @property
    def mark(self) -> tuple[MarkedParameter, State] | None:
        """What a parameter was after the newest backward of the step under way."""
        state = self.state
        if self._marked is None or self._mark_place is None or not state.is_marked:
            return None
        address, size = self._mark_place
        return self._marked, (int(state.mark_version), address, bytes(state.mark[:size]))

    def forwards(self, stood: int) -> list[FollowedCall]:
        """What is held of the forwards of the step under way, and of their backwards.

        Args:
            stood: where the step stands.
        """
        is_open = stood in (IN_FORWARD, AFTER_FORWARD, IN_BACKWARD)
        count = self.state.micro_step + is_open
        calls = zip(self.calls.open_calls[:count], self._learned, strict=False)
        return [self._forward(*call) for call in calls]

    def _forward(self, call: HotCall, learned: CallShape) -> FollowedCall:
        held = hot_binding.object_at
        inputs = KeptInputs.from_address(call.inputs)
        noted = held(call.noted)
        return FollowedCall(
            args=held(inputs.args),
            kwargs=held(inputs.kwargs),
            versions=list(inputs.versions),
            samples=int(call.samples),
            generators=_both(held(inputs.random)),
            outputs=[_output(call.outputs[at]) for at in range(call.output_count)],
            boundary=held(call.boundary),
            loss=held(call.loss),
            is_finite=self._reads_losses,
            unscaled=held(call.unscaled),
            terms=LossTerms(node=learned.loss_core) if noted is None else noted[3],
            graph=None if noted is None else noted[4],
            task=-1 if call.task is None else held(call.task),
        )

    def finished_steps(self, *, before: int) -> Iterator[FollowedStep]:
        """What is held of the inputs of finished steps, the oldest first."""
        found: dict[int, FollowedStep] = {}
        micro_steps = len(self._learned)
        for at in range(KEPT_STEPS * micro_steps):
            step, call = divmod(at, micro_steps)
            inputs = self.calls.kept[step * MAX_MICRO_STEPS + call]
            if inputs.args and inputs.step < before:
                finished = found.setdefault(int(inputs.step), FollowedStep(int(inputs.step), []))
                args, kwargs = hot_binding.object_at(inputs.args), hot_binding.object_at(inputs.kwargs)
                finished.calls.append((args, kwargs, list(inputs.versions)))
        return iter([found[number] for number in sorted(found)])


def _output(output: HotOutput) -> FollowedOutput:
    held = hot_binding.object_at
    return FollowedOutput(
        held=held(output.held),
        version=int(output.version),
        number=held(output.number),
        life=held(output.life),
        is_droppable=bool(output.is_droppable),
        gradient=held(output.gradient),
    )


def _objects(plan: Plan) -> dict[str, object]:
    """What C calls, by the name of the member that it stands in."""
    return {
        "hook_table": HookTable,
        "hook_key": _HOOK_KEY,
        "task": torch_engine.graph_task_id,
        "find_outputs": find_outputs,
        "random_state": _generators() if plan.draws else None,
        "note_stack": plan.note_stack,
        "glance": plan.glance,
        "observe": plan.observe,
        "end_observation": plan.end_observation,
        "collect": plan.collect,
        "add_more": plan.add_more,
        "on_news": plan.on_news,
        "look_at_loss": plan.look_at_loss,
        "scalars": plan.scalars,
        "take_over": plan.take_over,
        "scaler": plan.scaler,
        "measure": None if plan.late is None else plan.late.measure,
        "finish": None if plan.late is None else plan.late.finish,
    }


def _generators() -> Callable[[], Any]:
    """What reads the generators that a forward may draw from."""
    return generator_states if torch_memory.cuda_is_initialised() else torch.default_generator.get_state


def _both(read: Any) -> tuple[Tensor, tuple[int, Tensor] | None] | None:
    return (read, None) if isinstance(read, Tensor) else read


def _describe_call(place: HotMicroStep, call: CallShape) -> None:
    place.argument_count, place.keyword_count = call.arguments, call.keywords
    place.tensor_count, place.output_count = call.tensors, call.outputs
    place.loss_node, place.looks_at_loss = id(call.loss_node), int(call.looks_at_loss)
    place.loss_core = id(call.loss_core)
    place.synchronises = id(call.synchronises)
    _describe_site(place.forward_site, call.forward_site)
    _describe_site(place.backward_site, call.backward_site)


def _kinds_of(at: int, calls: Sequence[CallShape]) -> tuple[int, int]:
    """The first micro-step with a loss of such a graph, and the first one of those from the same line."""
    core = calls[at].loss_core
    of_graph = [(place, call.loss_site) for place, call in enumerate(calls) if call.loss_core is core]
    return of_graph[0][0], next(of_line[0] for of_line in apart(of_graph) if at in of_line)


def _describe_site(place: hot_binding.CallSite, site: CodeSite) -> None:
    for at, (code, instruction) in enumerate(site):
        place.code[at], place.instruction[at] = id(code), instruction


def _ambient(shape: LoopShape) -> tuple[list[Question], list[Question]]:
    """What is asked of torch: what the thread's dispatch keys tell as well, and what they do not."""
    autocast = dict(shape.autocast[0])
    told_by_keys: list[Question] = [
        (torch.is_autocast_enabled, "cpu", "cpu" in autocast),
        (torch_modes.is_jit_tracing, None, False),
        (torch_modes.transform_level, None, None),
    ]
    others: list[Question] = [(torch_dynamo.dynamo_callback, None, None)]
    if torch_memory.cuda_is_initialised():
        told_by_keys.append((torch.is_autocast_enabled, "cuda", "cuda" in autocast))
        others.append((torch.cuda.is_current_stream_capturing, None, False))
        if "cuda" in autocast:
            others.append((torch.get_autocast_dtype, "cuda", autocast["cuda"]))
    return told_by_keys, others
