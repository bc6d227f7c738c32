"""Encodes the records of one writer; frames get the member of the run whose layout they name. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ...guard import outcome_of
from ...wire import (
    MAX_RECORD_BYTES,
    MEMBERS_IN_FULL,
    Document,
    Event,
    Frame,
    Layout,
    Record,
    RunStart,
    encode,
    encode_record,
    member_number,
)


class FrameSource(Protocol):
    """A step that knows its frame."""

    def build(self) -> Frame:
        """Return the frame."""
        ...


class RecordEncoder:
    """Makes bytes of records; what has none is told and counted.

    Args:
        note: is told, in one sentence, what goes wrong.
        count_lost: counts a record that is not written.

    Attributes:
        encoded: grows with each record.
    """

    def __init__(self, note: Callable[[str], None], count_lost: Callable[[], None]) -> None:
        self._note, self._count_lost = note, count_lost
        self.encoded = 0
        self._member_of: dict[int, int] = {}
        """Layout -> member; only of those that are not the first."""

    def note_layout(self, layout: Layout) -> None:
        """Frames that name this layout are of its member."""
        if member := member_number(layout.member):
            self._member_of[layout.layout] = member

    def encode(self, record: Record | FrameSource) -> bytes | None:
        """Encode a record; one that cannot be encoded, or is too large for the journal, is counted."""
        # Building reads the script's tensors, and ends no thread.
        encoded, error = outcome_of(self._bytes_of, record)
        if encoded is None:
            problem = f"a {type(record).__name__} does not encode: {error}"
        else:
            self.encoded += 1
            if len(encoded) <= MAX_RECORD_BYTES:
                return encoded
            problem = f"a {type(record).__name__} takes {len(encoded)} bytes; {MAX_RECORD_BYTES} are allowed"
        self._note(problem)
        self._count_lost()
        return None

    def _bytes_of(self, record: Record | FrameSource) -> bytes:
        if isinstance(record, Event | Layout | Document | RunStart):
            return encode_record(record)
        return encode(self._with_member(record if isinstance(record, Record) else record.build()))

    def _with_member(self, record: Record) -> Record:
        if not isinstance(record, Frame) or not (member := self._member_of.get(record.layout, 0)):
            return record
        if member < MEMBERS_IN_FULL:
            return msgspec.structs.replace(record, member=member)
        # Its layout is not written either.
        return Frame(
            step=record.step,
            time=record.time,
            layout=record.layout,
            stage=record.stage,
            scalars=record.scalars,
            member=member,
        )
