"""Has C follow the healthy steps of a training loop once enough of them were equal; takes the others back.

While it is *armed* the wrappers of forward, backward, clipping and the optimizer's step ask C first. Where
anything is not as it was learned C answers "no" before it has done anything, and the step goes the slow way:
what C holds of it is given to the training loop, as if that had followed it from the beginning. So nothing is
missed.

One session of a process can be armed. Used on the training thread; `ask_for_a_look` and `tell_news` on any.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..attach.armed_calls import armed_calls
from ..compat import torch_ranks
from ..forensics.adopted_capture import (
    FollowedCall,
    UsualCall,
    adopt_forward,
    adopt_gradients,
    adopt_loss,
    adopt_outputs,
)
from ..forensics.capture import RootCapture, has_drawn_since
from ..guard import Guard
from ..incidents.lasting import LastingFault
from ..measure.kernels import hot_binding
from ..measure.kernels.hot_binding import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
    CLIPPED,
    IN_BACKWARD,
    IN_FORWARD,
)
from ..step.clipping import clip_by_norm, clip_coefficient
from ..step.losses import LossSite
from ..step.open_step import FinishedStep, LogValue
from ..threads.pieces import process
from ..threads.watchdog import pulse
from .armed_loop import ArmedLoop, FollowedSteps, LateSteps, Plan
from .backward_lull import BackwardLull
from .loop_shape import CodeSite, LoopShape, SeenCalls, shape_of, site_of_call, usual_call

ARMED_AFTER: Final = 20
"""So many equal healthy steps in a row have to be seen."""
_LONGEST_WAIT: Final = 1280
_PAID_OFF: Final = 8
"""Where so many times as many steps as had to be seen were followed, the next time begins anew."""
_SCRIPT_FRAMES: Final = 2
"""A line is told from others by itself and by the line that called its function, as in `CallSites`."""
_IN_CALL: Final = (IN_FORWARD, AFTER_FORWARD)
_HAS_BACKWARD: Final = (IN_BACKWARD, AFTER_BACKWARD, CLIPPED)
_FOLLOWS: Final = (*_IN_CALL, *_HAS_BACKWARD)


class Followed(Protocol):
    """The session's side: what arming depends on, and who takes a step over. See `followed_training.py`."""

    @property
    def has_news(self) -> bool:
        """Whether the training thread has something to do at the end of the next backward."""
        ...

    @property
    def next_look_ns(self) -> int:
        """When it has something to do though there is no news, ns of `time.monotonic_ns`; 0 for never."""
        ...

    def plan_for(
        self,
        shape: LoopShape,
        root: nn.Module,
        optimizer: Optimizer,
        *,
        draws: bool,
        take_over: Callable[[], object],
    ) -> Plan | None:
        """Return what C has to know of such steps; None where somebody has to be told of every step."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether the newest step was allowed to be judged after its update."""
        ...

    def next_unusual_step(self, step: int) -> int:
        """The first step from `step` on at which more is measured than C does."""
        ...

    def rate_names(self) -> tuple[str, ...]:
        """Names of the learning rates' series; empty where C cannot read them."""
        ...

    def begin(self) -> int:
        """Steps are about to be followed; returns when the newest one ended, in ns."""
        ...

    def take_back(self, account: FollowedSteps) -> None:
        """Steps were followed; the slow way goes on."""
        ...

    def count_up_to(self, step: int) -> None:
        """Steps up to this one were counted, and nothing of them was looked at."""
        ...

    def adopt_forward(self, capture: RootCapture, samples: int, *, is_reduced: bool) -> None:
        """The step under way has had this forward; whether its backward averages gradients over the ranks."""
        ...

    def adopt_backward(self, call: FollowedCall, site: LossSite, *, is_over: bool) -> None:
        """It has had a backward of this call's loss from this line, which has returned or is under way."""
        ...

    def end_backward(self, tensors: Any) -> None:
        """The backward that was adopted has returned."""
        ...

    def adopt_rest(self, loop: ArmedLoop) -> None:
        """What else C has noted since the newest step ended."""
        ...

    def log(self, values: dict[str, LogValue]) -> None:
        """Keep what was logged of the step under way, which has had a backward."""
        ...

    def adopt_clipping(self, before: float, after: float) -> None:
        """Its gradients have been clipped."""
        ...

    def end_forward(self, output: Any = None, *, raised: bool = False) -> None:
        """A forward that C has followed up to now has returned, or raised."""
        ...

    def end_phase(self) -> None:
        """A forward or backward that was taken back from C has returned."""
        ...

    def forget_forward(self, capture: RootCapture, error: BaseException) -> None:
        """Its forward has raised."""
        ...


class FastPath:
    """Arms and disarms for one session; a `Follower` of the wrappers.

    Attributes:
        is_engaged: whether C follows or counts the steps, or holds something of the one under way.
        is_counting: whether it only counts them.
    """

    def __init__(self, followed: Followed, guard: Guard, *, size_cap_bytes: int) -> None:
        self.is_engaged = self.is_counting = False
        self._followed, self._guard, self._size_cap_bytes = followed, guard, size_cap_bytes
        self._loop: ArmedLoop | None = None
        self._shape: LoopShape | None = None
        self._usual: list[UsualCall] = []
        self._seen = SeenCalls()
        self._root: Callable[[], nn.Module | None] = lambda: None
        self._equal, self._needed, self._in_a_row = 0, ARMED_AFTER, 0
        self._open_capture: RootCapture | None = None
        """Of a forward that is still running, where it was left in the middle."""
        self._is_off = False
        self._draws = False

    # -- what the slow way sees

    def note_output(self, root: nn.Module, capture: RootCapture) -> None:
        """A training forward has returned."""
        if self._is_off:
            return
        self._root = weakref.ref(root)
        site = site_of_call(sys._getframe(1), frames=_SCRIPT_FRAMES)
        self._seen.note_forward(capture.order, site, synchronises=torch_ranks.synchronises(root))
        if capture.state is not None and not self._draws:
            self._draws = has_drawn_since(capture.state)

    def note_loss(
        self, captures: dict[RootCapture, int], tensors: Any, grad_tensors: Any, site: CodeSite
    ) -> None:
        """A backward is about to begin on this line, after these forwards."""
        if not self._is_off and captures:
            self._seen.note_loss(next(reversed(captures)).order, tensors, grad_tensors, site)

    def consider(
        self,
        optimizer: Optimizer,
        finished: FinishedStep | None,
        fault: LastingFault | None,
        *,
        has_no_update: bool = False,
    ) -> None:
        """A step has gone the slow way, and ended: have C follow the next ones if enough were equal."""
        if finished is not None and not self._is_off:
            self._guard.run("fast_path", self._consider, optimizer, finished, fault, has_no_update)

    def _consider(
        self, optimizer: Optimizer, finished: FinishedStep, fault: LastingFault | None, has_no_update: bool
    ) -> None:
        root, seen, self._seen = self._root(), self._seen, SeenCalls()
        shape, rates, is_late = None, self._followed.rate_names(), self._followed.is_late
        if root is not None:
            shape = shape_of(
                finished,
                seen,
                root,
                optimizer,
                rates=rates,
                is_late=is_late,
                fault=fault,
                has_no_update=has_no_update,
            )
        if shape is None or shape != self._shape:
            self._shape, self._equal = shape, 0
        self._equal += 1
        if shape is None or root is None or self._equal < self._needed:
            return
        limit, captures = self._size_cap_bytes, finished.opened.captures
        self._usual = [usual_call(capture, size_cap_bytes=limit) for capture in captures]
        self._arm(shape, root, optimizer, finished.step + 1)

    def _arm(self, shape: LoopShape, root: nn.Module, optimizer: Optimizer, step: int) -> None:
        loop = self._loop or self._bound_loop()
        unusual = self._followed.next_unusual_step(step)
        if loop is None or unusual <= step + 1:
            return
        plan = self._followed.plan_for(shape, root, optimizer, draws=self._draws, take_over=self.leave)
        if plan is None or not loop.follow(shape, plan):
            return
        self.is_engaged, self._open_capture = True, None
        loop.start(self, step, slow_at=unusual, last_end_ns=self._followed.begin())
        # A series of looks that was begun in the slow way goes on.
        loop.state.news = int(self._followed.has_news)
        loop.state.news_at_ns = self._followed.next_look_ns

    def count(self, optimizer: Optimizer, step: int) -> None:
        """Nothing is looked at any more: have C count the steps from `step` on, until a look is asked for."""
        loop = self._loop or self._bound_loop()
        if loop is not None and not self.is_engaged and not armed_calls.is_armed:
            self.is_engaged = self.is_counting = True
            loop.count(optimizer, step)

    def _bound_loop(self) -> ArmedLoop | None:
        calls = hot_binding.status().calls
        self._is_off = calls is None
        if calls is not None:
            state = calls.state
            self._loop, pulse.in_c = ArmedLoop(calls), lambda: int(state.beats)
            process.lull = BackwardLull(calls)
        return self._loop

    # -- taking back

    def ask_for_a_look(self) -> None:
        """Have the next step go the slow way: there is a command, a suspicion, a question. Any thread."""
        loop = self._loop
        if loop is not None and self.is_engaged:
            loop.state.attention = 1

    def tell_news(self) -> None:
        """Have the training thread look about at the end of the next backward. Any thread."""
        loop = self._loop
        if loop is not None and self.is_engaged:
            loop.state.news = 1

    @property
    def late(self) -> LateSteps | None:
        """What measures the steps that C follows, where C does not read their values."""
        return None if self._loop is None else self._loop.late

    @property
    def next_step(self) -> int | None:
        """Number of the step that C follows; None where it follows none."""
        loop = self._loop
        return int(loop.state.step) if loop is not None and self.is_engaged else None

    @property
    def step_of_newest_backward(self) -> int | None:
        """Number of the step that the newest backward belongs to; None where C follows none."""
        loop = self._loop
        if loop is None or not self.is_engaged:
            return None
        return int(loop.state.step) - (0 if _has_had_backward(loop.state) else 1)

    @property
    def has_open_backward(self) -> bool:
        """Whether the step that C follows has had a backward, and no update."""
        loop = self._loop
        return self.is_engaged and loop is not None and _has_had_backward(loop.state)

    def log(self, values: dict[str, LogValue]) -> bool:
        """Give values to the step that C follows; False where it has had no backward yet."""
        loop = self._loop
        if loop is None or not _has_had_backward(loop.state):
            return False
        self._followed.log(values)
        loop.state.has_logged = 1
        return True

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor | None:
        """Clip the gradients of the step that C follows, by the norm that it is measured by.

        Returns:
            The norm before; None where C follows no such step, or does not know it: then nothing is done.
        """
        loop = self._loop
        if loop is None or not self.is_engaged or loop.is_late or not loop.calls.before_clip():
            return None
        before = loop.state.after_clip = float(loop.state.before_clip)
        if not math.isfinite(before):
            is_known = self._shape is not None and self._shape.has_bad_gradients
            return torch.tensor(before) if is_known else None  # clipping would spread it
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        clip_by_norm(gradients, total_norm=before, max_norm=max_norm)
        loop.state.after_clip = before * clip_coefficient(before, max_norm)
        return torch.tensor(before)

    def leave(self) -> RootCapture | None:
        """Go on in the slow way, with what C holds of the step under way; returns its capture, if any."""
        loop = self._loop
        if loop is None or not self.is_engaged:
            return None
        self.is_engaged = False
        loop.stop()
        if self.is_counting:
            self.is_counting = False
            self._followed.count_up_to(int(loop.state.step) - 1)
            return None
        return self._guard.run("fast_path", self._take_back, loop)

    def _take_back(self, loop: ArmedLoop) -> RootCapture | None:
        state = loop.state
        step, stood = int(state.step), int(state.state)
        was_expected = bool(state.attention) or step >= state.slow_at
        steps, own_ns = int(state.steps), int(state.own_ns)
        self._in_a_row += steps
        if not was_expected:
            has_paid_off = self._in_a_row >= _PAID_OFF * self._needed
            self._needed = ARMED_AFTER if has_paid_off else min(2 * self._needed, _LONGEST_WAIT)
            self._equal = self._in_a_row = 0
        own_ns += int(state.step_own_ns)
        held = list(loop.finished_steps(before=step))
        self._followed.take_back(FollowedSteps(steps, step, own_ns, int(state.last_end_ns), held))
        try:
            capture = self._adopt(loop, stood) if stood in _FOLLOWS else None
            self._followed.adopt_rest(loop)
            return capture
        finally:
            loop.forget_step()

    def _adopt(self, loop: ArmedLoop, stood: int) -> RootCapture | None:
        root, shape, sinks, capture = loop.root, self._shape, [], None
        assert root is not None and shape is not None
        self._open_capture = None
        calls = loop.forwards(stood)
        for call, usual, learned in zip(calls, self._usual, shape.calls, strict=False):
            is_newest = call is calls[-1]
            capture = adopt_forward(root, call, usual)
            self._followed.adopt_forward(capture, call.samples, is_reduced=learned.synchronises)
            if is_newest and stood == IN_FORWARD:
                self._open_capture = capture
            elif call.outputs:
                sinks.append(adopt_outputs(capture, call))
            if call.loss is not None:
                adopt_loss(capture, call, usual)
                is_over = not (is_newest and stood == IN_BACKWARD)
                self._followed.adopt_backward(call, learned.loss_site, is_over=is_over)
                adopt_gradients(capture, call)
        loop.send_gradients_to(sinks)
        if stood == CLIPPED:
            self._followed.adopt_clipping(loop.state.before_clip, loop.state.after_clip)
        return capture

    # -- Follower

    def forward_was_odd(self, output: Any) -> None:
        """The forward returned something that only the slow way can hold."""
        self._followed.end_forward(output)
        capture = self.leave() or self._open_capture
        self._followed.end_phase()
        if capture is not None and not capture.outputs:
            self._guard.run("capture", capture.finish, output)

    def forward_raised(self, error: BaseException) -> None:
        """The forward has raised."""
        self._followed.end_forward(raised=True)
        capture = self.leave() or self._open_capture
        if capture is not None:
            self._guard.run("capture", self._followed.forget_forward, capture, error)

    def backward_was_odd(self, tensors: Any) -> None:
        """The backward has returned, and no gradient came by the output, or one that cannot be held."""
        self.leave()
        self._followed.end_phase()
        self._guard.run("step", self._followed.end_backward, tensors)

    def backward_raised(self, tensors: Any) -> None:
        """The backward has raised."""
        self.leave()

    # -- ends

    def stop(self) -> None:
        """Follow nothing any more and let go of everything; idempotent."""
        self.leave()
        self._is_off = True
        if self._loop is not None:
            self._loop.release()

    def abandon(self) -> None:
        """In a forked child: nothing of the parent's is touched."""
        if self._loop is not None:
            self._loop.stop()
        self.is_engaged, self._is_off = False, True


def _has_had_backward(state: hot_binding.HotState) -> bool:
    """Whether a backward of the step under way has begun, or has ended."""
    return state.state in _HAS_BACKWARD or (state.state in _IN_CALL and state.micro_step > 0)
