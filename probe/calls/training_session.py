"""`debug_training_session`: watches a training, and writes a report of it at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from torch import nn
from torch.optim.optimizer import Optimizer

from ..actions.analysis.anomaly_mode import anomaly_detection
from ..actions.analysis.parameters import snapshot_parameters
from ..guard import Guard
from ..session import Probe, running_session
from ..watching import watch

_PROBE_LOGGER: Final = "probe"


@contextmanager
def debug_training_session(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    report: str | Path | None = None,
    anomaly: bool = False,
    logger: logging.Logger | None = None,
    **options: Any,
) -> Iterator[Probe]:
    """Watch a training; write a report when the block ends, exception or not.

    Everything that `watch` finds is recorded as usual; the report adds what a person wants in one place:
    series, events, gradients by layer, parameters that never moved, regions. An exception is recorded and
    passes through. A model that is being watched already stays so after the block.

    Args:
        model: as for `watch`.
        optimizer: as for `watch`.
        report: the file, as for `Probe.save_debug_report`; `nanscope-<run id>.json` in the working
            directory by default. Of several ranks, each but the first adds its number.
            Where it cannot be written, one line on stderr says so.
        anomaly: autograd's anomaly mode for the whole block: 1.1-8 times the time, rarely worth it.
        logger: gets what the probe would log to the logger "probe" of its own, from debug to error.
        **options: the other options of `watch`: level, name, mode, ...

    Yields:
        The session.

    Raises:
        ValueError: as `watch`.
    """
    is_running = isinstance(model, nn.Module) and running_session(model) is not None
    run = watch(model, optimizer, **options)
    guard = Guard()
    with ExitStack() as stack:
        if logger is not None:
            stack.enter_context(_forwarded(logger))
        if run.active:
            since = guard.run("snapshot", snapshot_parameters, model, keep_values=False)
            stack.callback(run.report_at_end, report, model=model, since=since, optimizer=optimizer)
        if not is_running:
            stack.enter_context(run)
        if anomaly:
            stack.enter_context(anomaly_detection())
        yield run


@contextmanager
def _forwarded(logger: logging.Logger) -> Iterator[None]:
    """Hand the probe's log records to `logger`, in place of the handlers above the probe's own logger."""
    ours = logging.getLogger(_PROBE_LOGGER)
    handler, propagated, level = _Forward(logger), ours.propagate, ours.level
    ours.addHandler(handler)
    ours.propagate = False
    ours.setLevel(logger.getEffectiveLevel())
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = propagated
        ours.setLevel(level)


class _Forward(logging.Handler):
    """Passes records on to another logger."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        """Let the other logger's level and handlers decide."""
        if self._target.isEnabledFor(record.levelno):
            self._target.handle(record)
