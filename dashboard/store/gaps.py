"""Holes of streams: records that never came, or came without what their rows are."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from .changes import PartChanges
from .edge import GapRow
from .limits import RunLimits


class Gaps:
    """Not thread-safe: the store's lock guards it."""

    def __init__(self, changes: PartChanges, limits: RunLimits) -> None:
        """Make it without any.

        Args:
            changes: Takes the keys of rows that are new or have changed.
            limits: Counts them by run.
        """
        self._changes = changes
        self._limits = limits
        self._rows: dict[tuple[str, str, str, int], GapRow] = {}
        """By run, writer, source and first sequence number."""
        self._open: dict[tuple[str, str], GapRow] = {}
        """By run and writer: the newest hole, until a frame comes after it."""
        self._unnamed: dict[tuple[str, str], GapRow] = {}
        """By run and writer: the newest steps whose layout is not known."""

    def rows(self) -> Collection[GapRow]:
        """Return all of them; not to be changed."""
        return self._rows.values()

    def row(self, key: tuple[str, str, str, int]) -> GapRow:
        """Return the one of a run, a writer, a source and a first sequence number."""
        return self._rows[key]

    def add(self, row: GapRow) -> None:
        """Note a hole; one that continues the stream's open one extends it."""
        previous = self._open.get((row.run, row.writer))
        if row.source == "skip" and previous is not None and previous.end_seq == row.first_seq:
            row = dataclasses.replace(previous, end_seq=row.end_seq)
        key = (row.run, row.writer, row.source, row.first_seq)
        if row.source in ("skip", "journal") and (known := self._rows.get(key)) is not None:
            row = dataclasses.replace(row, first_step=known.first_step)  # said again
        if key not in self._rows and not self._limits.has_room(row.run, "gaps"):
            self._limits.leave_out(row.run, self._limits.reason("gaps"))
            return
        self._keep(row)
        self._changes.now.gaps[row.run, row.writer, row.source, row.first_seq] = None

    def add_unnamed(self, run: str, writer: str, *, seq: int, steps: Sequence[int]) -> None:
        """Note steps that are stored without their tensors: nobody has said what their rows are."""
        row = self._unnamed.get((run, writer)) or GapRow(
            run=run, writer=writer, source="layout", first_seq=seq, end_seq=seq,
            reason="", first_step=min(steps), last_step=max(steps),
        )  # fmt: skip
        first, last = row.first_step, row.last_step
        self.add(
            dataclasses.replace(
                row,
                end_seq=row.end_seq + len(steps),
                first_step=min(steps if first is None else (*steps, first)),
                last_step=max(steps if last is None else (*steps, last)),
            )
        )

    def end_unnamed(self, run: str, writer: str) -> None:
        """Note that steps have a layout again."""
        self._unnamed.pop((run, writer), None)

    def of_writer(self, run: str, writer: str, source: str) -> list[GapRow]:
        """Return the holes of a writer's metrics that are told in one way."""
        return [row for key, row in self._rows.items() if key[:3] == (run, writer, source)]

    def open_runs(self, writer: str, *, before: int) -> list[str]:
        """Return the ids under which a writer of this name has a hole that a frame is the first behind.

        Args:
            writer: of the frame.
            before: its sequence number; one that is sent again may lie in front of the hole.
        """
        return [run for (run, name), row in self._open.items() if name == writer and row.end_seq <= before]

    def close(self, run: str, writer: str, step: int, *, of: str) -> None:
        """Note the step of the first frame after a hole; one `of` another model ends the hole in both."""
        row = self._open.pop((run, writer))
        if of == run:
            self.add(dataclasses.replace(row, last_step=step))
            return
        # How many of these steps are of either is not known.
        last = (row.first_step or 0) + row.end_seq - row.first_seq + 1
        self.add(dataclasses.replace(row, last_step=last))
        self.add(dataclasses.replace(row, run=of, first_step=None, last_step=step))

    def _keep(self, row: GapRow) -> None:
        key = (row.run, row.writer, row.source, row.first_seq)
        if key not in self._rows:
            self._limits.add(row.run, "gaps")
        self._rows[key] = row
        if row.source == "skip" and row.last_step is None:
            self._open[row.run, row.writer] = row
        elif row.source == "skip":
            if self._open.get((row.run, row.writer), row).first_seq == row.first_seq:
                self._open.pop((row.run, row.writer), None)
        elif row.source == "layout":
            self._unnamed[row.run, row.writer] = row

    def load(self, row: GapRow) -> None:
        """Take one that the database has, unless more is known of it here."""
        held = self._rows.get((row.run, row.writer, row.source, row.first_seq))
        if held is None or held.known() <= row.known():
            self._keep(row)

    def forget_run(self, run: str) -> None:
        """Drop those of a run."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] != run}
        self._open = {key: row for key, row in self._open.items() if key[0] != run}
        self._unnamed = {key: row for key, row in self._unnamed.items() if key[0] != run}
