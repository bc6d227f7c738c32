"""Watches whether every parameter that is to be trained is: reached by gradients, in an optimizer, stepped.

Used by the early watch on the training thread, inside the guard. In a healthy run it is
over after a few steps; what it finds suspicious it looks at more closely, once or twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..attach.layout import ModelLayout, module_names
from ..attach.watched_model import WatchedModel
from ..compat import all_objects, torch_ranks
from ..detectors.layers import topmost_modules
from ..detectors.not_updated import NotUpdatedDetector
from ..detectors.updates import UpdateRatioDetector
from ..detectors.wiring import WiringDetector
from ..guard import Guard
from ..measure.statistics.statistics import Floats, tensor_norms
from ..threads.stacks import RawFrame, inner_torch_removed, raw_stack
from .calls_without_gradients import CallsWithoutGradients
from .reach_look import ReachLook, place_of, user_frame

if TYPE_CHECKING:
    from .stray_modules import StrayModule

_LOOKS: Final = frozenset({3, 9, 19, 49, 99, 199, 499, 999})
"""Steps with a backward before the forwards that are looked at: calls may depend on the data."""
_GIVE_UP: Final = 1200
_AGAIN: Final = 50
"""Steps between two looks at what was found to be in no optimizer."""
_FRUITLESS: Final = 5
"""Backwards that leave nothing but zeros: then nobody has cleared them."""
_DECOUPLED: Final = frozenset({"SGD", "AdamW"})
"""Optimizers whose decay is a share of the weights, whatever the gradient."""
_STACK_FRAMES: Final = 64
_MARK_AFTER: Final = 4
"""Steps before what stands still is measured for the first time."""


class WiringWatch:
    """Follows one model's steps until nothing is suspicious any more.

    Args:
        model: the watched one.
        detector: is told what was seen.
        optimizers: gives those that were seen to update the model.
        updates: is told what weight decay takes.
        not_updated: is told what belongs to optimizers that have not made a step yet.
        guard: runs what is called in the middle of a forward; what calls this one has it already.

    Attributes:
        wants_calls: whether the next forward is to be followed (`begin_call`, `end_call`).
        wants_backward: whether `after_backward` is to be called.
        ungraded: follows calls with gradients disabled, while there are no others.
    """

    def __init__(
        self,
        model: WatchedModel,
        detector: WiringDetector,
        optimizers: Callable[[], list[Optimizer]],
        *,
        updates: UpdateRatioDetector,
        not_updated: NotUpdatedDetector,
        guard: Guard,
    ) -> None:
        self._guard = guard
        self._model, self._detector, self._optimizers = model, detector, optimizers
        self._updates, self._not_updated = updates, not_updated
        self._names: tuple[str, ...] = ()
        self._look: ReachLook | None = None
        self._is_over = self.wants_calls = self.wants_backward = False
        self._had_gradients = False
        self._marks: dict[str, tuple[int, float]] = {}
        self._idle_marks: dict[str, tuple[int, float]] = {}
        self._idle = self._empty = self._fruitless = self._cut_off = 0
        self._stack: list[RawFrame] = []
        """Of a call of the model that no backward follows."""
        self.ungraded = CallsWithoutGradients(self._is_trained)
        self._strays: list[StrayModule] | None = None
        """None until a forward has been looked at."""

    def is_over(self, layout: ModelLayout) -> bool:
        """Whether there is nothing left to see with these parameters."""
        return self._is_over and layout.names is self._names

    @property
    def wants_evaluations(self) -> bool:
        """Whether `ungraded` is to be told of evaluations and of others' backwards."""
        return not (self._detector.steps or self.ungraded.is_over)

    def _is_trained(self, leaf: Tensor) -> bool:
        return id(leaf) in _parameters_of(self._optimizers())

    # -- round forward and backward

    def begin_call(self, called: nn.Module, args: Any, kwargs: Any) -> bool:
        """A root's forward begins; whether `end_call` is to be called."""
        if self._cut_off:
            self._stack = inner_torch_removed(raw_stack(sys._getframe(1), limit=_STACK_FRAMES))
            self.wants_calls = False
            return False
        if self._look is None:
            missing = np.zeros(len(self._names), dtype=np.bool_)
            missing[self._suspects()] = True
            groups = topmost_modules(self._names, missing)
            root = self._model.root
            self._look = ReachLook(root, groups, module_names(root), guard=self._guard)
        return self._look.begin(called, args, kwargs)

    def end_call(self, output: Any = None, *, raised: bool = False) -> None:
        """It has returned, or raised."""
        if self._look is not None:
            self._look.end(output, raised=raised)

    def after_backward(self) -> None:
        """A backward has ended: does it leave any gradient?"""
        gradients = (parameter.grad for parameter in self._model.layout.parameters)
        self._had_gradients = any(gradient is not None and bool(gradient.any()) for gradient in gradients)

    # -- every step

    def note_step(
        self,
        step: int,
        missing: Any,
        *,
        layout: ModelLayout,
        had_backward: bool,
        is_called: bool,
        is_update: bool,
        is_zero: bool,
        missed: int = 0,
    ) -> None:
        """Account for a finished step.

        Args:
            step: its number.
            missing: (parameters,) which had no gradient.
            layout: of the parameters.
            had_backward: whether a backward of the watched model belongs to it.
            is_called: whether the model was called with gradients enabled.
            is_update: whether an optimizer is about to make use of the gradients.
            is_zero: whether all gradients that there are hold nothing but zeros.
            missed: steps before it that have no frame: others were updated, and this model was not.
        """
        if layout.names is not self._names:
            self._begin(layout.names)
        is_ungraded = self.ungraded.take() and not is_called
        if not had_backward:
            is_cut_off = is_update and (is_called or is_ungraded) and bool(missing.all())
            self._note_cut_off(step, is_cut_off=is_cut_off, is_ungraded=is_ungraded)
            return
        self._cut_off = 0
        self._note_empty(step, is_empty=is_update and (is_zero or bool(missing.all())))
        if not is_update and not self._optimizers():
            self._note_idle(step, 1 + missed)
        if not missing.all():
            self._detector.note_gradients(step, missing)
            self._follow(step)
        self.wants_backward = self._empty > 1 and self._fruitless < _FRUITLESS

    def _begin(self, names: tuple[str, ...]) -> None:
        self._names, self._is_over, self.wants_calls = names, False, False
        self._marks.clear()
        self._look = None
        self._detector.begin(names)

    def _follow(self, step: int) -> None:
        """Look at what is suspicious, at a few steps."""
        steps = self._detector.steps
        look, self._look = self._look, None
        if look is not None:
            self._detector.note_parts(look.parts())
            self._strays = look.strays() if self._strays is None else self._strays
            self.wants_calls = False
        if steps in _LOOKS and (self._strays is None or self._suspects()):
            self._note_wrapper()
            self.wants_calls = True
        is_due = steps in (_MARK_AFTER, self._detector.patience)
        orphans = self._orphans() if is_due else []
        if is_due:
            self._note_decay(step)
        if self._strays and steps == self._detector.patience and (found := _all_optimizers()) is not None:
            updated = _parameters_of(found)
            judged = [stray.judge(updated) for stray in self._strays]
            self._detector.note_strays([stray for stray in judged if stray is not None])
        if steps == _MARK_AFTER:
            self._marks = self._measured(orphans, steps)
        elif steps == self._detector.patience and self._marks:
            self._judge_orphans(orphans)
        if (
            self._marks
            and self._detector.has_orphans
            and steps > self._detector.patience
            and not steps % _AGAIN
        ):
            updated = _parameters_of(self._optimizers())
            parameters = self._model.layout.parameters
            known = [row for row, name in enumerate(self._names) if name in self._marks]
            self._judge_orphans([row for row in known if id(parameters[row]) not in updated])
        waits = len(self._detector.unreached) and (steps < _GIVE_UP or self._detector.has_parts)
        self._is_over = steps > self._detector.patience and not (
            waits or self._empty or self._detector.has_orphans
        )

    # -- parameters without a gradient

    def _suspects(self) -> list[int]:
        """Rows that were never reached though an optimizer that steps has them and they are to be trained."""
        updated = _parameters_of(self._optimizers())
        parameters = self._model.layout.parameters
        return [
            row
            for row in self._detector.unreached.tolist()
            if parameters[row].requires_grad and id(parameters[row]) in updated
        ]

    def _note_wrapper(self) -> None:
        """Parts may be unused for long where the script says so itself."""
        if not torch_ranks.is_distributed():
            return
        wrapper = torch_ranks.data_parallel_around(self._model.root)
        if wrapper is not None and wrapper.find_unused_parameters:
            self._detector.note_conditional()

    # -- parameters in no optimizer

    def _orphans(self) -> list[int]:
        """Rows that have a gradient, though no optimizer in the whole process has them."""
        stepping = self._optimizers()
        parameters = self._model.layout.parameters
        updated = _parameters_of(stepping)
        rows = [
            row
            for row, parameter in enumerate(parameters)
            if id(parameter) not in updated and parameter.requires_grad and parameter.grad is not None
        ]
        is_teacher = len(rows) == len(parameters) and not self._model.has_stray_optimizer
        if not stepping or not rows or is_teacher:
            return []
        # Another one may take its turn later.
        optimizers = _all_optimizers()
        if optimizers is None:
            return []
        others = _parameters_of(optimizers)
        orphans = [row for row in rows if id(parameters[row]) not in others]
        self._not_updated.note_waiting(frozenset(self._names[row] for row in rows if row not in orphans))
        return orphans

    def _measured(self, rows: Iterable[int], steps: int) -> dict[str, tuple[int, float]]:
        chosen = list(rows)
        norms = self._norms(chosen)
        return {self._names[row]: (steps, float(norm)) for row, norm in zip(chosen, norms, strict=True)}

    def _norms(self, rows: list[int]) -> Floats:
        parameters = self._model.layout.parameters
        return tensor_norms([parameters[row] for row in rows]) if rows else np.zeros(0)

    def _judge_orphans(self, rows: list[int]) -> None:
        """Something else may update them: what has not changed at all since the first measurement counts."""
        norms = self._norms(rows)
        names = self._names
        still = [
            row
            for row, norm in zip(rows, norms, strict=True)
            if names[row] in self._marks and self._marks[names[row]][1] == norm
        ]
        is_backbone = len(names) > len(still) > len(names) / 2 and still[-1] == len(still) - 1
        self._detector.note_orphans([names[row] for row in still], are_backbone=is_backbone)

    # -- the model as a whole

    def _note_decay(self, step: int) -> None:
        """Tell what the group with the strongest weight decay loses at each step."""
        shares = [
            _decay_of(optimizer, group)
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
        ]
        share, how = max(shares, default=(0.0, ""))
        self._updates.note_decay(step, share, how=how)

    def _note_idle(self, step: int, steps: int) -> None:
        """So many steps without an update: has an optimizer been forgotten?"""
        self._idle += steps
        patience = self._detector.patience
        if self._idle >= _MARK_AFTER and self._idle - steps < _MARK_AFTER:
            self._idle_marks = self._measured(range(len(self._names)), self._idle)
        elif self._idle >= patience and (self._idle - patience) % patience == 0 and self._idle_marks:
            now = self._measured(range(len(self._names)), self._idle)
            same = all(now[name][1] == norm for name, (_, norm) in self._idle_marks.items() if name in now)
            if same and self._model.find_optimizer():
                self._detector.note_idle(step, self._idle)
            elif same and _has_look_alike(self._model.layout.parameters):
                self._detector.note_orphans(self._names, are_backbone=False)

    def _note_cut_off(self, step: int, *, is_cut_off: bool, is_ungraded: bool) -> None:
        """Updates since the first step for which no backward has reached the model: is the graph cut?"""
        self.ungraded.wants_stack = is_cut_off and self._cut_off + 1 >= _MARK_AFTER
        if self._detector.steps or not is_cut_off:
            self._cut_off = 0
            return
        self._cut_off += 1
        if self._cut_off == _MARK_AFTER:
            self._marks = self._measured(range(len(self._names)), self._cut_off)
            self.wants_calls = True
        elif self._cut_off >= self._detector.least_patience and self._marks:
            now = self._measured(range(len(self._names)), self._cut_off)
            if all(now[name][1] == norm for name, (_, norm) in self._marks.items() if name in now):
                where = self._switched_off_line() if is_ungraded else self._cut_line()
                self._detector.note_cut_off(step, self._cut_off, where=where, is_ungraded=is_ungraded)
            else:
                self._marks.clear()  # Something else trains it: evolution strategies have no gradients.

    def _cut_line(self) -> str:
        """Where the graph is cut; empty where that is not known."""
        stack, self._stack = self._stack, []
        if not stack:
            return ""
        from ..forensics.cut_line import find_cut

        return find_cut(stack) or ""

    def _switched_off_line(self) -> str:
        """Where gradients are switched off round the call, else where it is made; empty if unknown."""
        stack = self.ungraded.take_stack()
        frame = user_frame(stack)
        if frame is None:
            return ""
        from ..forensics.cut_line import find_switched_off

        return find_switched_off(stack) or place_of(frame)

    def _note_empty(self, step: int, *, is_empty: bool) -> None:
        """Gradients that backward has left are gone at the update: cleared in between."""
        self._empty = self._empty + 1 if is_empty else 0
        had, self._had_gradients = self._had_gradients, False
        if self._empty and self.wants_backward and not had:
            self._empty, self._fruitless = 1, self._fruitless + 1
        if self._fruitless < _FRUITLESS and (self._empty > 1 or self._detector.empty_steps):
            self._detector.note_empty(step, max(self._empty - 1, 0))


def _decay_of(optimizer: Optimizer, group: dict[str, Any]) -> tuple[float, str]:
    """Share of the weights that decay takes at a step in the long run, where it is a share; and of what."""
    is_share = type(optimizer).__name__ in _DECOUPLED or bool(group.get("decoupled_weight_decay"))
    rate, decay, momentum = (group.get(name, 0.0) for name in ("lr", "weight_decay", "momentum"))
    if not is_share or not all(isinstance(value, int | float) for value in (rate, decay, momentum)):
        return 0.0, ""
    how = f"learning rate {rate:g} times weight_decay {decay:g}"
    if momentum <= 0.0 or momentum >= 1.0:
        return rate * decay, how
    return rate * decay / (1.0 - momentum), f"{how}, over 1 - momentum {momentum:g}"


def _all_optimizers() -> list[Optimizer] | None:
    """Those of the whole process, also such as have not made a step yet; None: not looked for."""
    return all_objects.training.instances(Optimizer)


def _has_look_alike(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether an optimizer holds others of the same shapes, in vain: the model was made anew after it."""
    shapes = [parameter.shape for parameter in parameters]
    for optimizer in _all_optimizers() or ():
        held = [item for group in getattr(optimizer, "param_groups", ()) for item in group["params"]]
        if [item.shape for item in held] == shapes and all(item.grad is None for item in held):
            return True
    return False


def _parameters_of(optimizers: Iterable[Optimizer]) -> frozenset[int]:
    """Identities of what these optimizers update."""
    return frozenset(
        id(parameter)
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", ())
        for parameter in group["params"]
    )
