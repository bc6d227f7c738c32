"""Turns what a replay recorded into an origin: forward, then backward, then the loss. No replaying here.

Called by `replay.py` after its first pass; asks `StepReplay` for details of the calls that need them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..wire import Origin, StackFrame
from .loss_graph import likely_origin
from .origin import Cause, Verdict, descendants, find_origin
from .passes import Detail, StepReplay
from .recorder import OpNote
from .stacks import RawFrame, format_frames, inner_torch_removed, outer_torch_removed

_IN_LOSS = "it went wrong between the outputs of the model and the loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An origin with what belongs to it, or the reason why there is none."""

    origin: Origin | None = None
    reason: str = ""
    operands: tuple[str, ...] = ()
    value_kind: str = "NaN or Inf"
    forward: list[StackFrame] = field(default_factory=list)
    backward: list[StackFrame] = field(default_factory=list)
    modules: tuple[str, ...] = ()


def explain(step: StepReplay, *, stage: str, loss_is_bad: bool) -> Explanation:
    """Name the origin of what is bad in a step, after `StepReplay.scan`.

    Args:
        step: the replayed step.
        stage: which gradient tripped; copied to the origin.
        loss_is_bad: whether the loss itself is NaN or infinite.
    """
    weak: Explanation | None = None
    for position, forward in _order(step):
        detail = step.detail(position)
        verdict = find_origin(detail.records, detail.output_causes if forward else detail.gradient_causes)
        if verdict is None:
            continue
        if verdict.entry is not None and verdict.entry.source == "gradient":
            return _in_loss(step, position, stage=stage)
        found = _present(step, position, verdict, stage=stage)
        if not verdict.weak:
            return found
        weak = weak or found
    if loss_is_bad:
        return _in_loss(step, 0, stage=stage)
    return weak or Explanation(reason="nothing became non-finite inside the model during the replay")


def _order(step: StepReplay) -> list[tuple[int, bool]]:
    """(call, forward?) in the order of time: forwards first, backwards from the last call to the first."""
    bad = [position for position in range(len(step.captures)) if step.has_bad_ops(position)]
    return [*((position, True) for position in bad), *((position, False) for position in reversed(bad))]


def _present(step: StepReplay, position: int, verdict: Verdict, *, stage: str) -> Explanation:
    detail, site = step.detail(position), step.captures[position].call_site
    if verdict.record is None:
        assert verdict.entry is not None
        return _from_entry(step, position, verdict.entry, stage=stage)
    note = detail.notes[verdict.record]
    origin = Origin(
        phase="backward" if note.backward else "forward",
        op=_op_name(note),
        module=note.place.module,
        stage=stage,
    )
    backward: list[StackFrame] = []
    if note.backward:
        backward = format_frames([*_backward_site(step, position), *outer_torch_removed(list(note.frames))])
    return Explanation(
        origin=origin,
        reason="an infinity was written on purpose, as a mask, and nothing else was found"
        if verdict.weak
        else "",
        operands=note.operands,
        value_kind=detail.records[verdict.record].created,
        forward=format_frames([*site, *note.place.frames]) if note.place.frames else [],
        backward=backward,
        modules=_modules_after(detail, verdict.record),
    )


def _op_name(note: OpNote) -> str:
    if note.node is None:
        return note.place.op
    # An in-place op on a view: the node does not say which.
    return f"{note.node} ({note.place.op})" if note.node == "CopySlices" else note.node


def _from_entry(step: StepReplay, position: int, entry: Cause, *, stage: str) -> Explanation:
    """Something was bad before the first op ran."""
    capture = step.captures[position]
    if entry.source == "argument":
        name = capture.argument_name(entry.name)
        summary = step.detail(position).input_summaries.get(entry.name)
        return Explanation(
            origin=Origin(phase="input", op="input", module=step.tracker.name_of(capture.root), stage=stage),
            reason=f"the argument {name} of forward was non-finite",
            operands=(f"{name}: {summary}",) if summary else (),
            value_kind=entry.kinds.words,
            forward=format_frames(capture.call_site),
        )
    if entry.source in ("parameter", "buffer"):
        return Explanation(
            reason=f"the {entry.source} {entry.name} was already non-finite before the forward"
        )
    return Explanation(reason="something that no op of the replay made was non-finite")


def _backward_site(step: StepReplay, position: int) -> list[RawFrame]:
    """Frames of the backward that went through a call: noted on that call or on the next one."""
    sites = (capture.backward_site for capture in step.captures[position:] if capture.backward_site)
    return inner_torch_removed(next(sites, []))


def _in_loss(step: StepReplay, position: int, *, stage: str) -> Explanation:
    nodes = next((capture.loss_nodes for capture in step.captures[position:] if capture.loss_nodes), ())
    node = likely_origin(nodes)
    backward = format_frames(_backward_site(step, position))
    if node is None:
        made_of = ", ".join(node.name for node in nodes[-8:])
        return Explanation(reason=f"{_IN_LOSS} ({made_of})" if made_of else _IN_LOSS, backward=backward)
    return Explanation(
        origin=Origin(phase="loss", op=node.name, module=None, stage=stage),
        reason=_IN_LOSS,
        backward=backward,
    )


def _modules_after(detail: Detail, origin: int) -> tuple[str, ...]:
    """Modules that the bad values went on to, each once, in order; the origin's own left out."""
    own = detail.notes[origin].place.module
    names = (detail.notes[record.index].place.module for record in descendants(detail.records, origin))
    return tuple(dict.fromkeys(name for name in names if name and name != own))
