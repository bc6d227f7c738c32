"""The rule that names an origin: a backward slice over what a replay recorded. Pure; knows nothing of torch.

A replay records every op whose output was non-finite, with the kinds that went in and came out and the
producer of each bad input. The origin is the first op, in the slice that leads to what is bad, that creates
a kind its inputs lack. Infinities written on purpose (masks) come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from .nonfinite_kinds import Kinds

_MIXES: Final = frozenset(
    "mm addmm bmm addmv mv dot linear convolution native_layer_norm native_batch_norm native_group_norm "
    "mkldnn_linear mkldnn_rnn_layer".split()
)
"""Ops in which one infinity spoils the rest: a script that sends -inf into them meant no mask."""
_SCALES: Final = frozenset({"mul", "mul_", "div", "div_"})
"""Ops that leave a mask one only as long as nothing but -inf comes out."""
_CARRIES: Final = frozenset("_to_copy clone copy_ cat stack index contiguous".split())
"""Ops that pass on what they read."""

_CHOOSES: Final = frozenset({"logsumexp", "amax", "max"})
"""Ops over a row in which a mask leaves -inf only where there is nothing but masks in the row."""

Source: TypeAlias = Literal[
    "argument",
    "parameter",
    "buffer",
    "attribute",
    "state",
    "unread",
    "gradient",
    "uninitialised",
    "outside",
]
"""``state``: a buffer or attribute that the forward changes, as the step's own forward left it; ``unread``:
one that it changes without reading it."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One non-finite tensor that something read."""

    kinds: Kinds
    producer: int | None
    """Index of the record that wrote it last; None when no recorded op did."""
    source: Source = "outside"
    """Where it came from when no recorded op made it."""
    name: str = ""
    """Name of the argument, parameter or buffer."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One op with a non-finite output."""

    index: int
    """Position among all ops of the replay: time."""
    kinds: Kinds
    inputs: tuple[Cause, ...]
    constant: bool
    """A non-finite constant stands among its arguments: a mask, or a value planted by the program."""
    is_intended: bool = False
    """The user has said that infinities made there are meant."""
    op: str = ""

    @property
    def creates(self) -> bool:
        """Whether its output holds a kind, NaN or infinity, that none of its inputs held."""
        return bool(self._new_kinds)

    @property
    def created(self) -> str:
        """What it creates in words; what it holds where it creates nothing."""
        return (self._new_kinds or self.kinds).words

    @property
    def _new_kinds(self) -> Kinds:
        before = Kinds.NONE
        for cause in self.inputs:
            before |= cause.kinds
        new = Kinds.NONE
        if not before.coarse[0]:
            new |= self.kinds & Kinds.NAN
        if not before.coarse[1]:
            new |= self.kinds & (Kinds.POSITIVE_INFINITY | Kinds.NEGATIVE_INFINITY)
        return new


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Where the slice ends: an op (`record`), or something that was bad before any op ran (`entry`)."""

    record: int | None = None
    entry: Cause | None = None
    weak: bool = False
    """Infinities written on purpose, which a healthy output may show: only where nothing else is found."""
    is_emptied: bool = False
    """`record` is an op that had nothing but a mask to choose from: it is to blame where that did harm."""


def find_origin(records: Mapping[int, Record], ends: Iterable[Cause]) -> Verdict | None:
    """Return what first made the values in `ends` bad; None when the records do not say.

    Order of preference: parameters, arguments and incoming gradients that were bad from the start; the
    first op that creates a kind, or that reads bad memory which is no mask; the op that had nothing but a
    mask to choose from; the first op that writes an infinite constant; what read a mask.
    """
    ends = tuple(ends)
    reached = slice_backwards(records, ends)
    entries = [cause for cause in _causes(reached, ends) if cause.producer is None]
    mixed = _sent_into_mixing_ops(reached)
    for source in ("parameter", "buffer", "attribute", "argument", "state", "gradient"):
        for cause in entries:
            if cause.source == source and (cause in mixed or not _is_mask(cause)):
                return Verdict(entry=cause)
    emptied = _emptied(records, reached)
    for mask in (False, True):
        if mask and emptied is not None:
            return Verdict(record=emptied, weak=True, is_emptied=True)
        for record in reached:
            begins = record.creates or any(_is_bad_memory(cause, mixed) for cause in record.inputs)
            if begins and (_is_mask_op(record) and record.index not in mixed) == mask:
                return Verdict(record=record.index, weak=mask)
    for mask in (False, True):
        for record in reached:
            if any(cause.producer is None and _is_mask(cause) == mask for cause in record.inputs):
                return Verdict(record=record.index, weak=mask)
    return Verdict(entry=entries[0], weak=_is_mask(entries[0])) if entries else None


def outside_names(record: Record) -> list[str]:
    """Names of what an op read that was bad and came from outside of the replay; "" of what has none."""
    return [c.name for c in record.inputs if c.producer is None and c.source == "outside"]


def already_bad(names: Sequence[str]) -> str:
    """Say that what came from outside was bad already; "" where nothing did."""
    named = list(dict.fromkeys(name for name in names if name))
    return f"{' and '.join(named) or 'what it read'} was already non-finite" if names else ""


def slice_backwards(records: Mapping[int, Record], ends: Iterable[Cause]) -> list[Record]:
    """Return the records that `ends` depend on through non-finite values, in time order."""
    pending = [cause.producer for cause in ends]
    reached: dict[int, Record] = {}
    while pending:
        index = pending.pop()
        if index is None or index in reached or index not in records:
            continue
        reached[index] = records[index]
        pending.extend(cause.producer for cause in records[index].inputs)
    return [reached[index] for index in sorted(reached)]


def descendants(records: Mapping[int, Record], origin: int) -> list[Record]:
    """Return the records that the origin's values went into, in time order, the origin itself left out."""
    tainted = {origin}
    for index in sorted(records):
        if any(cause.producer in tainted for cause in records[index].inputs):
            tainted.add(index)
    return [records[index] for index in sorted(tainted - {origin})]


def _causes(reached: Iterable[Record], ends: tuple[Cause, ...]) -> list[Cause]:
    return [*(cause for record in reached for cause in record.inputs), *ends]


def _is_mask(cause: Cause) -> bool:
    """-inf alone, in what came from outside, is an attention mask until nothing else is left."""
    return cause.source != "gradient" and cause.kinds == Kinds.NEGATIVE_INFINITY


def _sent_into_mixing_ops(reached: Iterable[Record]) -> set[Cause | int]:
    """What began as a mask, and went as it was into an op that no mask goes into.

    Causes from outside of the replay, and indices of records that wrote a constant.
    """
    carried: dict[int, set[Cause | int]] = {}
    mixed: set[Cause | int] = set()
    for record in reached:
        read: set[Cause | int] = {cause for cause in record.inputs if cause.producer is None}
        for cause in record.inputs:
            read |= carried.get(-1 if cause.producer is None else cause.producer, set())
        if record.op in _MIXES or (record.op in _SCALES and record.kinds != Kinds.NEGATIVE_INFINITY):
            mixed |= read
        elif record.op in _CARRIES:
            carried[record.index] = read
        if _is_mask_op(record) and not record.is_intended:
            carried[record.index] = {record.index}
    return mixed


def _emptied(records: Mapping[int, Record], reached: Iterable[Record]) -> int | None:
    """The first op that had nothing but masks to choose from, if all masks in the slice went through it."""
    chosen: set[int] = set()
    first: int | None = None
    for record in reached:
        kinds = {record.kinds, *(cause.kinds for cause in record.inputs)}
        if first is None and record.op in _CHOOSES and kinds == {Kinds.NEGATIVE_INFINITY}:
            first = record.index
            chosen = {first, *(before.index for before in slice_backwards(records, record.inputs))}
    begun = (r for r in reached if _is_mask_op(r) or any(cause.producer is None for cause in r.inputs))
    return first if all(record.index in chosen for record in begun) else None


def _is_bad_memory(cause: Cause, mixed: set[Cause | int]) -> bool:
    """Memory of unknown origin that held NaN, or an infinity that was no mask; not garbage."""
    if cause.producer is not None or cause.source != "outside":
        return False
    return bool(cause.kinds & Kinds.NAN) or cause in mixed


def _is_mask_op(record: Record) -> bool:
    """Makes infinities on purpose; a NaN constant that reaches the end was never a mask."""
    return (record.constant or record.is_intended) and not record.kinds & Kinds.NAN
