"""Wiring: parameters that no gradient reaches, that no optimizer has, or whose gradients come to nothing.

Numbers and names only; `probe/loop/wiring_watch.py` tells of every step, and of how the modules were called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ..wire import Severity
from .base import Finding
from .cause_advice import CUT, MEANT, NO_GRADIENT, NOT_CALLED, NOT_IN_OPTIMIZER, STEP, ZERO_GRAD_ORDER
from .layers import in_words, topmost_modules
from .sample import Sample
from .sampled_thresholds import SampledThresholds

Flags = npt.NDArray[np.bool_]
Reason = Literal["never_called", "no_grad", "no_graph", "cut_off", "unused", "unknown"]
CERTAIN: Final = frozenset({"no_grad", "no_graph", "cut_off"})
"""The calls themselves show the cut: half of the patience is enough."""
CERTAIN_FACTOR: Final = 0.5
UNCERTAIN_FACTOR: Final = 5
"""A branch may be waiting for its turn ..."""
CONDITIONAL_FACTOR: Final = 50
"""... for longer where gradients come and go: experts, or one head for each task."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A module none of whose parameters is reached by gradients, though an optimizer is to update them."""

    name: str
    parameters: tuple[str, ...]
    reason: Reason
    where: str = ""
    """Where it is called, for instance ``train.py:21 in forward``; empty when unknown."""
    goes_into: str = ""
    """The module that takes its output without the graph."""
    is_library: bool = False
    """Whether the code that is to call it is none of the user's: a pooler that is not used is no mistake."""


class Stray(msgspec.Struct, frozen=True, kw_only=True):
    """A module that the model calls and does not have: it gets gradients, and nothing updates it."""

    type_name: str
    where: str
    """As in `Part`."""
    parameters: int


class WiringDetector:
    """Emits `parameter_not_updated`: a warning; information on unused parts of libraries and on backbones."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._patience = thresholds.stuck_steps
        self._names: tuple[str, ...] = ()
        self._reached: Flags = np.zeros(0, dtype=np.bool_)
        self._reached_before: frozenset[str] = frozenset()
        """What was reached in earlier layouts, by name."""
        self._parts: Sequence[Part] = ()
        self._orphans: tuple[str, ...] = ()
        self._orphans_are_backbone = False
        self._strays: Sequence[Stray] = ()
        self._is_conditional = False
        self._reported: frozenset[str] = frozenset()
        self._step = 0
        self.steps = 0
        """With a backward, since the layout is what it is."""
        self.idle_steps = 0
        """With a backward and no update, while there never was one."""
        self.empty_steps = 0
        """Updates in a row for which no parameter had a gradient any more."""
        self.cut_off_steps = 0
        """Updates since the first step, none of which a backward of the model belonged to."""
        self._cut_line = ""
        self._is_ungraded = False

    # -- what the watch tells

    def begin(self, names: tuple[str, ...]) -> None:
        """The parameters are these from now on; what was reached before counts."""
        self._reached_before = ever = self._ever_reached()
        self._names = names
        self._reached = np.array([name in ever for name in names], dtype=np.bool_)
        self._parts, self._orphans, self._strays = (), (), ()
        self.steps = self.idle_steps = self.empty_steps = self.cut_off_steps = 0
        self._reported = frozenset()

    def note_gradients(self, step: int, missing: Flags) -> None:
        """Account for a step with a backward: which parameters had no gradient, (parameters,)."""
        self._step = step
        self.steps += 1
        if not self._reached.all() or missing.any():
            self._is_conditional |= bool((self._reached & missing).any())
            new = ~missing & ~self._reached
            if new.any():
                self._reached |= new
                if self._parts:
                    ever = self._ever_reached()
                    self._parts = [part for part in self._parts if ever.isdisjoint(part.parameters)]

    def _ever_reached(self) -> frozenset[str]:
        """Names of what was reached; made when asked for, as a set of thousands takes 0.1 MiB."""
        return self._reached_before.union(self._names[row] for row in np.flatnonzero(self._reached))

    def note_conditional(self) -> None:
        """The script itself says that some parts may be unused (`find_unused_parameters`)."""
        self._is_conditional = True

    def note_parts(self, parts: Sequence[Part]) -> None:
        """Take what a look at one step's calls has shown of the parameters that were never reached."""
        self._parts = parts

    def note_orphans(self, names: Sequence[str], *, are_backbone: bool) -> None:
        """These have gradients, are in no optimizer, and have not changed for the patience of steps."""
        self._orphans, self._orphans_are_backbone = tuple(names), are_backbone

    def note_strays(self, strays: Sequence[Stray]) -> None:
        """The model calls these, they get gradients, and they have not changed for the patience of steps."""
        self._strays = strays

    def note_idle(self, step: int, count: int) -> None:
        """So many steps had a backward and no update; there is an optimizer, which never made a step."""
        self._step, self.idle_steps = step, count

    def note_empty(self, step: int, count: int) -> None:
        """So many updates in a row found nothing of the gradients that backward had left."""
        self._step, self.empty_steps = step, count

    def note_cut_off(self, step: int, count: int, *, where: str, is_ungraded: bool = False) -> None:
        """The model was called, and no backward has reached it at any of so many updates, all there were.

        Args:
            step: the newest of them.
            count: how many.
            where: the line that cuts the graph; empty when unknown.
            is_ungraded: whether the model was called with gradients disabled alone.
        """
        self._step, self.cut_off_steps, self._cut_line = step, count, where or self._cut_line
        self._is_ungraded = is_ungraded

    # -- what the watch asks

    @property
    def patience(self) -> int:
        """Steps for which a parameter must stand still."""
        return self._patience

    @property
    def least_patience(self) -> int:
        """The same where what was seen is certain."""
        return math.ceil(self._patience * CERTAIN_FACTOR)

    @property
    def unreached(self) -> npt.NDArray[np.intp]:
        """Rows that never had a gradient while others had one."""
        return np.flatnonzero(~self._reached)

    @property
    def has_orphans(self) -> bool:
        """Whether parameters are known to be in no optimizer."""
        return bool(self._orphans)

    @property
    def has_parts(self) -> bool:
        """Whether parts are known that gradients do not reach."""
        return bool(self._parts)

    @property
    def has_news(self) -> bool:
        """Whether something is found that `observe` has not told yet."""
        return not self._known() <= self._reported

    # -- SampleDetector

    def observe(self, sample: Sample) -> list[Finding]:
        """Return at most one finding: of what is wrong, that which explains the most."""
        self._reported = self._known()
        if self._is_cut_off:
            return [self._whole_model(self._cut_off())]
        if self._is_cleared:
            return [self._whole_model(self._cleared())]
        if self._never_steps:
            return [self._whole_model(self._never_stepped())]
        late = [part for part in self._parts if self._is_late(part)]
        if late:
            return [self._unreached(late)]
        if self._orphans:
            return [self._orphaned()]
        return [self._strayed()] if self._strays else []

    def _known(self) -> frozenset[str]:
        """What is found now, by name."""
        counts = self.idle_steps or self.empty_steps or self.cut_off_steps
        if not (self._parts or self._orphans or self._strays or counts):
            return frozenset()
        parts = [part.name for part in self._parts if self._is_late(part)]
        whole = (
            ["cut off"] * self._is_cut_off
            + ["cleared"] * self._is_cleared
            + ["never stepped"] * self._never_steps
        )
        return frozenset(
            [*parts, *self._orphans, *whole, *(f"stray {stray.where}" for stray in self._strays)]
        )

    @property
    def _is_cut_off(self) -> bool:
        return self.cut_off_steps >= self.least_patience and not self.steps

    @property
    def _is_cleared(self) -> bool:
        return self.empty_steps >= self._patience * CERTAIN_FACTOR

    @property
    def _never_steps(self) -> bool:
        return self.idle_steps >= self._patience

    def _is_late(self, part: Part) -> bool:
        if part.reason in CERTAIN:
            return self.steps >= self._patience * CERTAIN_FACTOR
        factor = CONDITIONAL_FACTOR if self._is_conditional else UNCERTAIN_FACTOR
        return self.steps >= self._patience * factor

    # -- findings

    def _unreached(self, parts: Sequence[Part]) -> Finding:
        order = sorted(parts, key=lambda part: (part.is_library, part.reason not in CERTAIN))
        first, count = order[0], sum(len(part.parameters) for part in parts)
        others = ", ".join(in_words(part.name) for part in order[1:4])
        more = f"; the same of {others}{' and others' if len(order) > 4 else ''}" if others else ""
        severity: Severity = "info" if first.is_library else "warning"
        return self._finding(
            subject=first.name,
            severity=severity,
            message=f"{in_words(first.name)} ({_parameters(len(first.parameters))}) got no gradient in any "
            f"of the {self.steps} steps up to step {self._step}: {_why(first)}{more}",
            steps=self.steps,
            affected=tuple(name for part in order for name in part.parameters),
            value=float(count),
            advice=_ADVICE.get(first.reason, CUT) + MEANT,
        )

    def _orphaned(self) -> Finding:
        names = self._orphans
        chosen = np.isin(np.array(self._names), np.array(names))
        tops = list(topmost_modules(self._names, chosen))
        groups = [in_words(name) for name in tops]
        more = f", the same of {', '.join(groups[1:4])}{' and others' if len(groups) > 4 else ''}"
        return self._finding(
            subject=tops[0],
            severity="info" if self._orphans_are_backbone else "warning",
            message=f"{groups[0]} gets gradients, but no optimizer has it: {_parameters(len(names))} did not "
            f"change in the {self.steps} steps up to step {self._step}{more if len(groups) > 1 else ''}",
            steps=self.steps,
            affected=names,
            value=float(len(names)),
            advice=NOT_IN_OPTIMIZER + MEANT,
        )

    def _strayed(self) -> Finding:
        first, count = self._strays[0], sum(stray.parameters for stray in self._strays)
        others = len(self._strays) - 1
        more = f" and {others} more" if others else ""
        where = f", called at {first.where}," if first.where else ""
        return self._finding(
            subject=first.type_name,
            severity="warning",
            message=f"`{first.type_name}`{more}{where} {'are' if others else 'is'} no part of the model, and "
            f"no optimizer has {'them' if others else 'it'}: {_parameters(count)} got gradients and did not "
            f"change in the {self.steps} steps up to step {self._step} (in a plain list or dictionary?)",
            steps=self.steps,
            affected=(),
            value=float(count),
            advice=NOT_IN_OPTIMIZER,
        )

    def _never_stepped(self) -> _Told:
        steps = self.idle_steps
        return (
            f"No parameter has changed in the {steps} steps up to step {self._step}: backward runs and the "
            "gradients are cleared, but the optimizer's step() is never called",
            steps,
            STEP,
        )

    def _cut_off(self) -> _Told:
        steps = self.cut_off_steps
        if self._is_ungraded:
            at = f" ({self._cut_line})" if self._cut_line else ""
            return (
                f"No gradient has reached any parameter at the {steps} updates up to step {self._step}: the "
                f"model is called with gradients switched off{at}, so the loss that backward is called on "
                "depends on no parameter. Call the model outside of torch.no_grad() and inference_mode()",
                steps,
                CUT,
            )
        why = "a detach(), .data or item() on the way, or a loss made anew from numbers"
        how = f": the graph is cut at {self._cut_line}" if self._cut_line else f" ({why})"
        return (
            f"No gradient has reached any parameter at the {steps} updates up to step {self._step}: the "
            f"model is called, and no loss that backward is called on depends on what it returns{how}",
            steps,
            CUT if self._cut_line else NO_GRADIENT,
        )

    def _cleared(self) -> _Told:
        steps = self.empty_steps
        return (
            f"At the last {steps} updates up to step {self._step} no parameter had a gradient, though "
            "backward had run: the gradients are cleared between backward() and step()",
            steps,
            ZERO_GRAD_ORDER,
        )

    def _whole_model(self, told: _Told) -> Finding:
        message, steps, advice = told
        return self._finding(
            subject=self._names[0],
            severity="warning",
            message=message,
            steps=steps,
            affected=self._names,
            value=float(len(self._names)),
            advice=advice,
        )

    def _finding(
        self,
        *,
        subject: str,
        severity: Severity,
        message: str,
        steps: int,
        affected: tuple[str, ...],
        value: float,
        advice: tuple[str, ...],
    ) -> Finding:
        return Finding(
            kind="parameter_not_updated",
            severity=severity,
            subject=subject,
            message=message,
            value=value,
            threshold=0.0,
            baseline={"steps": float(steps)},
            affected=affected,
            advice=advice,
        )


_Told = tuple[str, int, tuple[str, ...]]
"""Message, number of steps, and what to do."""
_ADVICE: Final[dict[Reason, tuple[str, ...]]] = {
    "never_called": NOT_CALLED,
    "unused": NO_GRADIENT,
    "unknown": NO_GRADIENT,
}
_REASONS: Final[dict[Reason, str]] = {
    "never_called": "it was not called in a forward with gradients",
    "no_grad": "it is called{where} with gradients switched off (torch.no_grad, or a reentrant checkpoint "
    "whose inputs need none)",
    "no_graph": "it is called{where}, but what it returns carries no graph: something in it detaches",
    "cut_off": "what it returns{where} goes into {goes_into} without its graph: a detach() on the way",
    "unused": "it is called{where}, but what it returns does not reach the loss: detached, or not used",
    "unknown": "the loss does not depend on it",
}


def _why(part: Part) -> str:
    where = f" at {part.where}" if part.where else ""
    return _REASONS[part.reason].format(where=where, goes_into=in_words(part.goes_into))


def _parameters(count: int) -> str:
    return f"{count} parameter{'' if count == 1 else 's'}"
