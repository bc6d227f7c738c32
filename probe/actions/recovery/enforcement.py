"""Holds a watched model's in- and outputs to the user's policies, round its outermost calls.

Made with the session where a policy is given; on the training thread. Checks run in the session's guard;
`PolicyError` is raised outside of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from torch import nn

from ...attach.layout import unwrap
from ...detectors.base import Finding
from ...detectors.episodes import EpisodeTracker
from ...errors import PolicyError
from ...guard import Guard
from ...incidents.incidents import IncidentReporter
from ...measure.input_sample import argument_names
from ...settings.policies import InputPolicy, OutputPolicy, Policy
from ...threads.stacks import capture_stack
from ...wire import Event, Severity
from ..step_hooks import StepHooks

if TYPE_CHECKING:
    from .tensor_conditions import Violation

_PART: Final = "policies"
_SUBJECT: Final = "policy: "
_ADVICE: Final = (
    "This input or output violates a policy of the run; the message says how.",
    "Look at this batch and at what prepares it; for an output, at the events before this one.",
    "If the value is fine, widen the policy; its `action` decides whether a violation ends the run.",
)
_SEVERITY: Final[Mapping[str, Severity]] = {"raise": "critical", "event": "warning", "recover": "warning"}


class Enforcement:
    """Both policies of one session."""

    def __init__(
        self,
        inputs: InputPolicy | None,
        outputs: OutputPolicy | None,
        *,
        model: str,
        incidents: IncidentReporter,
        guard: Guard,
    ) -> None:
        self._guard = guard
        self._inputs = None if inputs is None else _Side(inputs, "input", model, incidents)
        self._outputs = None if outputs is None else _Side(outputs, "output", model, incidents)

    def add_to(self, hooks: StepHooks) -> None:
        """Have what there is a policy for checked from now on."""
        if self._inputs is not None:
            hooks.inputs.add(self.check_inputs)
            hooks.evaluation_inputs.add(self.check_inputs)
        if self._outputs is not None:
            hooks.outputs.add(self.check_output)
            hooks.evaluation_outputs.add(self.check_output)
        hooks.close.add(self.close)

    def check_inputs(
        self, called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], step: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check what a model is about to be called with; returns what to call it with.

        Raises:
            PolicyError: the inputs break the policy, and it says to raise.
        """
        side = self._inputs
        if side is None or not side.is_due():
            return args, kwargs
        # What wraps a model takes any arguments; the names are those of its own forward.
        names = [*argument_names(unwrap(called), len(args)), *kwargs]
        named = list(zip(names, (*args, *kwargs.values()), strict=True))
        checked = self._guard.run(_PART, side.check, named, step)
        if checked is None:
            return args, kwargs
        side.raise_if_asked()
        return tuple(checked[: len(args)]), dict(zip(kwargs, checked[len(args) :], strict=True))

    def check_output(self, output: Any, step: int) -> Any:
        """Check what it has returned; returns what to give to the script.

        Raises:
            PolicyError: the output breaks the policy, and it says to raise.
        """
        side = self._outputs
        if side is None or not side.is_due():
            return output
        checked = self._guard.run(_PART, side.check, [("output", output)], step)
        if checked is None:
            return output
        side.raise_if_asked()
        return checked[0]

    def close(self, step: int) -> None:
        """End the episodes that are running."""
        for side in (self._inputs, self._outputs):
            if side is not None:
                self._guard.run(_PART, side.close, step)


def kind_of(violation: Violation, side: str) -> str:
    """Kind of the event of what a tensor breaks; `side` is "input" or "output".

    A form that the policy alone asks for (`ndim`, `shape`, `dtype`) has no kind but `custom`: no value is out
    of its range, and no output is degenerate.
    """
    if violation.condition in ("ndim", "shape", "dtype"):
        return "custom"
    if side == "input":
        return "nonfinite_input" if violation.condition == "finite" else "input_out_of_range"
    return "nonfinite_activation" if violation.condition == "finite" else "output_degenerate"


class _Side:
    """One policy, with its running episodes."""

    def __init__(self, policy: Policy, side: str, model: str, incidents: IncidentReporter) -> None:
        self._policy, self._side = policy, side
        self._model, self._incidents = model, incidents
        self._episodes = EpisodeTracker()
        self._calls = 0
        self._error: PolicyError | None = None

    def is_due(self) -> bool:
        """Count a call; whether it is one to look at."""
        self._calls += 1
        return (self._calls - 1) % self._policy.every == 0

    def raise_if_asked(self) -> None:
        """Raise what the newest check has found; outside of the guard."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def check(self, values: Sequence[tuple[str, Any]], step: int) -> list[Any]:
        """Write what is wrong as events, and return the values, mended where the policy says so."""
        from .tensor_conditions import apply_policy, lasting_violations

        checked, found = apply_policy(self._policy, values)
        self._report(found, step)
        lasting = lasting_violations(self._policy, found)
        if lasting:
            self._error = PolicyError(self._sentence(lasting, step))
        return checked

    def close(self, step: int) -> None:
        for event in self._episodes.close(step, time.time()):
            self._incidents.write(event, is_new=False)

    def _sentence(self, found: list[Violation], step: int) -> str:
        from .tensor_conditions import describe_violations

        return f"{self._side.capitalize()} policy violated at step {step}: {describe_violations(found)}"

    def _report(self, found: list[Violation], step: int) -> None:
        by_kind: dict[str, list[Violation]] = {}
        for violation in found:
            by_kind.setdefault(self._kind(violation), []).append(violation)
        begun: list[Event] = []

        def make_event(finding: Finding) -> Event:
            event = self._incidents.make(finding, step, now, stack=capture_stack(), ended=False)
            if finding.subject.startswith(_SUBJECT):
                event = msgspec.structs.replace(event, advice=list(_ADVICE))
            begun.append(event)
            return event

        now = time.time()
        findings = [self._finding(kind, broken, step) for kind, broken in by_kind.items()]
        states = self._episodes.update(step, now, findings, model=self._model, make_event=make_event)
        for event in states:
            self._incidents.write(event, is_new=any(event.id == new.id for new in begun))

    def _kind(self, violation: Violation) -> str:
        if self._policy.action == "recover" and violation.is_mendable:
            return "recovery"
        return kind_of(violation, self._side)

    def _finding(self, kind: str, found: list[Violation], step: int) -> Finding:
        message = self._sentence(found, step)
        if kind == "recovery":
            whose = "The model gets" if self._side == "input" else "The script gets"
            message += (
                f". {whose} repaired copies, with 0 for NaN and Inf. This hides where the values came from."
            )
        severity = _SEVERITY[self._policy.action]
        if self._policy.action == "recover" and kind != "recovery":
            severity = "critical"
        return Finding(
            kind=kind,
            severity=severity,
            subject=self._side if kind == "recovery" else _SUBJECT + found[0].name,
            message=message,
            value=found[0].value,
            threshold=found[0].threshold,
            affected=tuple(dict.fromkeys(violation.name for violation in found)),
        )
