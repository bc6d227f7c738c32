"""Puts the frames of finished steps into the recorder's ring, and what is added to them later.

The last of the three that take a step in turn: measure, judge, write. On the training thread, but for a step
that was late. What the user logged may be on its way from a device still: it follows when it is here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..attach.watched_model import WatchedModel
from ..delivery.recorder.recorder import Recorder
from ..measure.statistics.masked import MaskedValues
from ..step.frames import MeasuredStep, pack_sampled
from ..step.log_values import is_at_hand
from ..step.open_step import LogValue
from ..wire import Frame


class StepWriter:
    """Writes the steps of one session."""

    def __init__(self, model: WatchedModel, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder
        self._late_logs: list[tuple[int, int, Mapping[str, LogValue]]] = []
        """Of written steps: number, layout, and what the user logged that is still on its way."""

    def write(self, measured: MeasuredStep) -> None:
        """Put the frame of a step into the ring."""
        late = {name: read for name, read in measured.logged.items() if not is_at_hand(read)}
        self._recorder.frame(measured)
        if late:
            self._late_logs.append((measured.step, measured.layout.record.layout, late))

    def write_modules(self, measured: MeasuredStep) -> None:
        """Name the rows of what was measured of the modules, where they are others than before."""
        if measured.modules is not None and (layout := self._model.note_modules(measured.modules.modules)):
            self._recorder.event(layout)
            measured.layout = self._model.layout

    def add_columns(self, measured: MeasuredStep) -> None:
        """Write the gradients' columns of a step that was written without them."""
        self._recorder.frame(measured.build_columns(), is_addition=True)

    def add_sampled(
        self,
        step: int,
        sampled: Mapping[str, MaskedValues],
        scalars: dict[str, float],
        *,
        is_addition: bool,
    ) -> None:
        """Write statistics of parameters that are measured after the update."""
        self._recorder.frame(
            Frame(
                step=step,
                time=time.time(),
                layout=self._model.layout.record.layout,
                scalars=scalars,
                parameter_columns=pack_sampled(sampled),
            ),
            is_addition=is_addition,
        )

    def add(self, step: int, values: Mapping[str, LogValue]) -> None:
        """Write more of a step whose record is in the ring, or is about to be."""
        self._add(step, self._model.layout.record.layout, values)

    def _add(self, step: int, layout: int, values: Mapping[str, LogValue]) -> None:
        """Write more of a step that is written already: what is at hand now, the rest later."""
        here = {name: read() for name, read in values.items() if is_at_hand(read)}
        if here:
            frame = Frame(step=step, time=time.time(), layout=layout, scalars=here)
            self._recorder.frame(frame, is_addition=True)
        if len(here) < len(values):
            left = {name: read for name, read in values.items() if name not in here}
            self._late_logs.append((step, layout, left))

    def write_late_logs(self) -> None:
        """Write what was logged and has arrived since."""
        if self._late_logs:
            late, self._late_logs = self._late_logs, []
            for step, layout, values in late:
                self._add(step, layout, values)

    def close(self) -> None:
        """Write what was logged; waits for what is on its way."""
        for step, layout, values in self._late_logs:
            scalars = {name: read() for name, read in values.items()}
            self._recorder.frame(Frame(step=step, time=time.time(), layout=layout, scalars=scalars))
        self._late_logs = []

    def forget(self) -> None:
        """Drop what has not been written."""
        self._late_logs = []
