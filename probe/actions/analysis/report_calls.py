"""Calls of a session that write a report, and that clear what was found. A base of `Probe`."""

from __future__ import annotations

import logging
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.optimizer import Optimizer

from ...delivery.recorder.recorder import Recorder
from ...delivery.stderr import say
from ...guard import outcome_of
from ...settings.config import ProbeConfig

if TYPE_CHECKING:
    from .parameters import ParameterSnapshot
    from .summary import DebugSummary

_logger = logging.getLogger(__name__)


class ReportCalls:
    """Methods of `Probe`."""

    if TYPE_CHECKING:
        _recorder: Recorder | None
        _config: ProbeConfig | None
        active: bool
        run: str

        def _watched_model(self) -> nn.Module | None:
            """The naming root; None when it is gone or the session is closed."""
            ...

        def flush(self) -> None:
            """Wait until everything recorded so far is in the journal."""
            ...

        def _debug_summary(self, model: nn.Module | None, *, is_whole: bool) -> DebugSummary:
            """See `SummaryCalls`."""
            ...

        def _forget_found(self) -> None:
            """Forget what was found, and write the event from which on counts begin anew."""
            ...

    def save_debug_report(
        self,
        path: str | Path | None = None,
        *,
        model: nn.Module | None = None,
        since: ParameterSnapshot | None = None,
        optimizer: Optimizer | None = None,
    ) -> Path:
        """Write a report of the run so far: summary, events, gradients, memory, regions, steps, settings, ...

        Args:
            path: the file. Its ending says in which form: ``.json``, ``.txt``, or ``.html`` for one page with
                pictures that needs nothing else; a name without an ending gets ``.json``, a folder the
                default name, ``nanscope-<run id>.json``, which is also written to the working directory
                where None is given. Missing folders are made. Ranks above 0 add ``-rank<number>``.
            model: the watched one, where the session is closed already.
            since: tells which parameters have changed since then.
            optimizer: tells which parameters it updates.

        Returns:
            The file.

        Raises:
            ValueError: this handle records nothing.
            OSError: the file cannot be written.
        """
        from .report_files import report_path, write_report
        from .run_report import read_report

        if self._recorder is None:
            raise ValueError("there is no run to report on: this handle records nothing")
        if self.active:
            self.flush()
        model = model if model is not None else self._watched_model()
        extra = self._report_extra(model, since=since, optimizer=optimizer)
        report = read_report(self._recorder.folder, extra=extra)
        return write_report(report, report_path(path, run=report.run, rank=report.rank))

    def clear(self, *, report: str | Path | bool | None = None) -> Path | None:
        """Forget what was found so far: summaries, counts and rates begin anew. What is stored stays stored.

        A report is written first. Where it cannot be, one line on stderr says so, and the rest is done.

        Args:
            report: as `path` of `save_debug_report`; None and True are the default name, False writes none.

        Returns:
            The report's file; None where none was written.
        """
        if self._recorder is None:
            return None
        path = None if report is False else self.report_at_end(None if report is True else report)
        self._forget_found()
        return path

    def clear_debug_history(
        self, model: nn.Module | None = None, *, report: str | Path | bool | None = None
    ) -> Path | None:
        """See `clear`; the monitored steps of another model, where one is given, are forgotten too."""
        if model is not None:
            from .monitoring import forget_monitor

            forget_monitor(model)
        return self.clear(report=report)

    def clear_debug_data(self, *, report: str | Path | bool | None = None) -> Path | None:
        """See `clear`."""
        return self.clear(report=report)

    def report_at_end(self, path: str | Path | None, **about: Any) -> Path | None:
        """Write a report, as `save_debug_report` does; where it cannot be, one line on stderr says so."""
        written, error = outcome_of(self.save_debug_report, path, **about)
        if error is not None:
            sentence = f"the report of run {self.run} could not be written: {type(error).__name__}: {error}"
            if self._config is not None and self._config.quiet:
                _logger.warning("nanscope: %s", sentence)
            else:
                say(sentence)
        else:
            _logger.info("nanscope: the report of run %s is in %s", self.run, written)
        return written

    def _report_extra(
        self, model: nn.Module | None, *, since: ParameterSnapshot | None, optimizer: Optimizer | None
    ) -> dict[str, Any]:
        """What the journal does not say. A part that fails is named, and the rest is there."""
        from ...compat.torch_cuda import cuda_facts
        from .inspection import inspect_model
        from .parameters import check_model_parameters

        extra: dict[str, Any] = {"settings": settings_of(self._config)}
        parts: dict[str, tuple[Any, ...]] = {
            "summary": (lambda: self._debug_summary(model, is_whole=True),),
            "cuda": (cuda_facts,),
        }
        if model is not None:
            parts["parameters"] = (lambda: check_model_parameters(model, since=since, optimizer=optimizer),)
            parts["model"] = (inspect_model, model)
        for title, (call, *arguments) in parts.items():
            found, error = outcome_of(call, *arguments)
            extra[title] = found if error is None else {"problem": f"{type(error).__name__}: {error}"}
        return extra


def settings_of(config: ProbeConfig | None) -> dict[str, Any]:
    """The options of `watch` as builtins; what is no plain value is a text."""
    if config is None:
        return {}
    return {item.name: _plain(getattr(config, item.name)) for item in fields(config)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    return str(value) if isinstance(value, Path) else repr(value)
