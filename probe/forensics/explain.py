"""Turns what a replay recorded into an origin: forward, then backward, then the loss. No replaying here.

Called by `replay.py` after its first pass; asks `StepReplay` for details of the calls that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec
import torch

from ..detectors.layers import in_words
from ..threads.stacks import RawFrame, format_frames, inner_torch_removed, outer_torch_removed
from ..threads.user_lines import at_op_line
from ..wire import Origin, StackFrame, TensorFacts, is_in_derivative
from .capture import RootCapture
from .loss.loss_gradients import BadGradient
from .loss.loss_origin import LossFinding, only_suspect
from .loss.loss_replay import LossFault
from .made_elsewhere import is_computed_elsewhere
from .nonfinite_kinds import EITHER_KIND
from .op_recorder import OpNote
from .origin import Cause, Verdict, already_bad, descendants, find_origin, outside_names
from .passes import Detail, StepReplay
from .tensor_facts import classify, facts_of

_IN_LOSS: Final = "the bad value arose between the model's outputs and the loss"
_BETWEEN: Final = "the bad value arose outside the model's calls: between two of them, or in the loss code"
_NOT_BY_OUTPUTS: Final = "the bad value came from the loss code, not only from the model's outputs"
_NOT_ONE_OP: Final = "the lines of the loss reproduce it, but no single op in them made it from finite values"
_NO_FORWARD_LINE: Final = "it is not known which line of the forward this operation belongs to"
_UNKNOWN_OUTPUTS: Final = (
    f"{_IN_LOSS}, or its forward returned other outputs in the step than in the replay: those "
    "of the step were "
    "no longer kept"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An origin with what belongs to it, or the reason why there is none."""

    origin: Origin | None = None
    reason: str = ""
    why_no_line: str = ""
    operands: tuple[TensorFacts, ...] = ()
    value_kind: str = EITHER_KIND
    forward: list[StackFrame] = field(default_factory=list)
    backward: list[StackFrame] = field(default_factory=list)
    entered: str = ""
    """That the op only read what was bad already, in words; "" where it made it."""
    modules: tuple[str, ...] = ()
    noticed_in: str | None = None
    """The module whose line `forward` ends in, where that is no origin."""
    call: int | None = None
    """Position of the call that it is about, or that its loss was made of."""


def explain(step: StepReplay, *, stage: str, loss_is_bad: bool | None) -> Explanation:
    """Name the origin of what is bad in a step, after `StepReplay.scan`.

    Args:
        step: the replayed step.
        stage: which gradient tripped; copied to the origin.
        loss_is_bad: whether the newest loss itself is NaN or infinite; None when it is not known.
    """
    bad = [position for position in step.reached() if step.has_bad_ops(position)]
    masks: list[str] = []
    for position in bad:
        verdict = find_origin(step.detail(position).records, step.detail(position).output_causes)
        found = _explained(step, position, verdict, stage=stage, masks=masks)
        if found is not None:
            return replace(found, call=position)
    if step.is_by_lines:
        # What goes back through the outputs is not the whole of it.
        return _in_loss(step, len(step.captures) - 1, stage=stage)
    if loss_is_bad:
        # Whatever a backward made is no cause of it.
        found = _in_loss(step, step.reached()[-1], stage=stage)
        if masks and found.origin is None:
            reason = (
                f"the model returns infinities that are written on purpose, as masks ({masks[0]}), and no op "
                "is known to have made others"
            )
            return replace(found, reason=reason)
        return found
    for position in sorted(bad, key=step.first_backward):
        verdict = find_origin(step.detail(position).records, step.detail(position).gradient_causes)
        if verdict is not None and verdict.entry is not None and verdict.entry.source == "gradient":
            return replace(_in_loss(step, position, stage=stage), call=position)
        found = _explained(step, position, verdict, stage=stage, masks=masks)
        if found is not None:
            return replace(found, call=position)
    if masks:
        return Explanation(reason=f"only infinities written on purpose, as masks, were found ({masks[0]})")
    return Explanation(reason="no value became non-finite inside the model during the replay")


def _explained(
    step: StepReplay, position: int, verdict: Verdict | None, *, stage: str, masks: list[str]
) -> Explanation | None:
    """Explain what is bad in a call; a mask is no explanation, and goes to `masks`."""
    if verdict is None:
        return None
    position, verdict = _followed_back(step, position, verdict)
    if verdict.weak:
        place = None if verdict.record is None else step.detail(position).notes[verdict.record].place
        masks.append("an argument" if place is None else f"{place.op} in {in_words(place.module or '')}")
        return None
    return _present(step, position, verdict, stage=stage)


def _followed_back(step: StepReplay, position: int, verdict: Verdict) -> tuple[int, Verdict]:
    """An argument that an earlier call returned was made bad there."""
    while verdict.entry is not None and verdict.entry.source == "argument":
        maker = step.maker_of(position, verdict.entry.name)
        if maker is None:
            break
        made = find_origin(step.detail(maker).records, step.detail(maker).output_causes)
        if made is None:
            break
        position, verdict = maker, made
    return position, verdict


def _present(step: StepReplay, position: int, verdict: Verdict, *, stage: str) -> Explanation:
    detail, site = step.detail(position), step.captures[position].call_site
    if verdict.record is None:
        assert verdict.entry is not None
        return _from_entry(step, position, verdict.entry, stage=stage)
    note = detail.notes[verdict.record]
    origin = Origin(
        phase="backward" if note.backward else "forward",
        op=op_name(note),
        module=note.place.module,
        stage=stage,
    )
    backward: list[StackFrame] = []
    if note.asked:
        backward = format_frames([*site, *inner_torch_removed(list(note.asked))])
    elif note.backward:
        backward = format_frames([*_backward_site(step, position), *outer_torch_removed(list(note.frames))])
    return Explanation(
        origin=origin,
        operands=note.operands,
        value_kind=detail.records[verdict.record].created,
        entered=already_bad(outside_names(detail.records[verdict.record])),
        forward=format_frames([*site, *note.place.frames]) if note.place.frames else [],
        backward=backward,
        why_no_line="" if note.place.frames or is_in_derivative(origin, backward) else _NO_FORWARD_LINE,
        modules=_modules_after(detail, verdict.record),
    )


def op_name(note: OpNote) -> str:
    """What an origin calls an op, or the node of one in backward."""
    if note.node is None:
        return note.place.op
    if note.in_hook is not None:
        return f"{note.node} (hook: {note.in_hook})"
    # An in-place op on a view: the node does not say which.
    return f"{note.node} ({note.place.op})" if note.node == "CopySlices" else note.node


def _from_entry(step: StepReplay, position: int, entry: Cause, *, stage: str) -> Explanation:
    """Something was bad before the first op ran."""
    capture = step.captures[position]
    if entry.source == "argument":
        name = capture.argument_name(entry.name)
        held = None if capture.arguments is None else capture.arguments.tensor(entry.name)
        if held is not None and not held.is_computed:
            held.is_computed = is_computed_elsewhere(held.alias)
        if held is not None and held.is_computed:
            return Explanation(
                reason=f"the argument `{name}` of forward was non-finite; it was computed before that "
                "forward, outside of what was replayed"
            )
        facts = step.detail(position).bad_inputs.get(entry.name)
        return Explanation(
            origin=Origin(phase="input", op="input", module=step.tracker.name_of(capture.root), stage=stage),
            reason=f"the argument `{name}` of forward was non-finite",
            operands=(msgspec.structs.replace(facts, name=name),) if facts else (),
            value_kind=entry.kinds.words,
            forward=format_frames(capture.call_site),
        )
    if entry.source == "state":
        return Explanation(
            reason=f"`{entry.name}`, which the forward itself changes, is non-finite now; what it was before "
            "is not noted in a model's first calls"
        )
    if entry.source in ("parameter", "buffer", "attribute"):
        reason = f"the {entry.source} `{entry.name}` was already non-finite before the forward"
        state = step.state_of(position, entry.name)
        known = () if state is None else (facts_of(state, role=entry.source, name=entry.name),)
        return replace(_with_first_use(step, position, entry, reason), operands=known)
    return Explanation(reason="a value that no op of the replay made was non-finite")


def _with_first_use(step: StepReplay, position: int, entry: Cause, reason: str) -> Explanation:
    """Say where something that was bad before the forward was read first."""
    detail = step.detail(position)
    readers = (
        detail.notes[index].place
        for index, record in sorted(detail.records.items())
        for cause in record.inputs
        if cause.producer is None and (cause.source, cause.name) == (entry.source, entry.name)
    )
    place = next((place for place in readers if place.frames), None)
    if place is None:
        return Explanation(reason=reason)
    forward = format_frames([*step.captures[position].call_site, *place.frames])
    used = f"{in_words(place.module or '')}{at_op_line(forward)}, by {place.op}"
    return Explanation(
        reason=f"{reason}; it was first used in {used}",
        forward=forward,
        noticed_in=place.module,
    )


def _backward_site(step: StepReplay, position: int) -> list[RawFrame]:
    """Frames of the backward that went through a call: noted on that call or on the next one."""
    sites = (capture.backward_site for capture in step.captures[position:] if capture.backward_site)
    return inner_torch_removed(next(sites, []))


def _in_loss(step: StepReplay, position: int, *, stage: str) -> Explanation:
    """What came back into a call from the loss was bad, or the loss is bad and the forwards are not."""
    site = _backward_site(step, position)
    together = step.with_the_same_backward(position)
    backward = format_frames(site)
    if (fault := step.loss_fault(position)) is not None:
        reason = _IN_LOSS if len(together) == 1 else _BETWEEN
        callers = _callers_of(fault, [step.captures[position].call_site, site])
        return _from_loss_fault(fault, callers, site, stage=stage, reason=reason)
    if step.ruined is not None:
        reason = f"{step.ruined} was already non-finite"
        return Explanation(reason=reason, backward=backward)
    if step.is_by_lines:
        return Explanation(reason=_NOT_ONE_OP, backward=backward)
    finding = _finding(step, position, is_alone=len(together) == 1)
    if not finding.is_proven and not all(step.outputs_of(call).is_complete for call in together):
        return Explanation(reason=_UNKNOWN_OUTPUTS, backward=backward)
    if finding.op is None or not all(step.outputs_of(call).is_finite for call in together):
        # What came out of a later call of the same backward was good: it need not have been the loss.
        reason = _IN_LOSS if finding.is_closed else _NOT_BY_OUTPUTS
        reason = reason if position == together[-1] else _BETWEEN
        details = finding.note or ", ".join(finding.candidates)
        reason = f"{reason} ({details})" if details else reason
        return Explanation(reason="; ".join(filter(None, [reason, step.why_no_lines])), backward=backward)
    return Explanation(
        origin=Origin(phase="loss", op=finding.op, module=None, stage=stage),
        reason=f"{_IN_LOSS}; {finding.note}" if finding.note else _IN_LOSS,
        operands=finding.operands,
        value_kind=finding.value_kind,
        entered=finding.note if finding.is_from_outside else "",
        why_no_line=step.why_no_lines or _NOT_ONE_OP,
        backward=backward,
    )


def _callers_of(fault: LossFault, sites: Sequence[list[RawFrame]]) -> list[RawFrame]:
    """The frames outside of the function whose lines were run."""
    run, _ = fault.note.place.frames[0]
    place = run.co_filename, run.co_qualname
    for site in sites:
        for position in range(len(site) - 1, -1, -1):
            if (site[position][0].co_filename, site[position][0].co_qualname) == place:
                return site[:position]
    return sites[-1][:-1]


def _from_loss_fault(
    fault: LossFault, callers: list[RawFrame], site: list[RawFrame], *, stage: str, reason: str
) -> Explanation:
    """The lines of the loss were run again, and one op of them went wrong."""
    note = fault.note
    forward = format_frames([*callers, *note.place.frames])
    inside = outer_torch_removed(list(note.frames)) if note.backward else []
    backward = [*callers, *inner_torch_removed(list(note.asked))] if note.asked else [*site, *inside]
    phase: Literal["forward", "backward"] = "backward" if note.backward else "forward"
    module = note.place.module
    return Explanation(
        origin=Origin(
            phase="loss" if module is None else phase, op=op_name(note), module=module, stage=stage
        ),
        reason=reason if module is None else "",
        operands=note.operands,
        value_kind=fault.value_kind,
        entered=fault.entered,
        forward=forward,
        backward=format_frames(backward) if note.backward or module is None else [],
        modules=fault.after,
    )


def _finding(step: StepReplay, position: int, *, is_alone: bool) -> LossFinding:
    """What is certain about the loss that a call's backward came from."""
    capture = step.captures[step.with_the_same_backward(position)[-1]]
    if any(bool(classify(tensor)) for back in capture.passes[:-1] for tensor in back.by_output.values()):
        # What was noted is of the newest backward, and an earlier one was bad already.
        return LossFinding()
    if capture.loss_finding is not None:
        return capture.loss_finding
    graph = capture.loss_graph
    is_finite = capture.loss_is_finite
    noted = _noted(capture) if is_finite else None
    if noted is not None:
        op = noted.makers[0] if len(set(noted.makers)) == 1 else None
        candidates, value_kind = tuple(dict.fromkeys(noted.makers)), noted.value_kind
    else:
        is_half = any(
            tensor.dtype == torch.float16 for back in capture.passes for tensor in back.by_output.values()
        )
        op, candidates = only_suspect(graph.nodes, is_loss_finite=is_finite and not is_half)
        op, value_kind = op if capture.starts_from_one else None, EITHER_KIND
    return LossFinding(
        op=op if graph.is_closed and is_alone else None,
        candidates=candidates,
        value_kind=value_kind,
        is_closed=graph.is_closed,
    )


def _noted(capture: RootCapture) -> BadGradient | None:
    """What the nodes of the loss sent back in the backward that went through a call."""
    gradients = capture.loss_graph.gradients
    if gradients is None or not capture.passes or gradients.task != capture.passes[-1].task:
        return None
    return gradients.bad_gradient(capture.passes[-1].by_output.values())


def _modules_after(detail: Detail, origin: int) -> tuple[str, ...]:
    """Modules that the bad values went on to, each once, in order; the origin's own left out."""
    own = detail.notes[origin].place.module
    names = (detail.notes[record.index].place.module for record in descendants(detail.records, origin))
    return tuple(dict.fromkeys(name for name in names if name and name != own))
