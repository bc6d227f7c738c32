"""Which session hears of what a call of the user's recovered from, and whether an update had begun in it."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ..detectors.base import Finding
from ..session import Probe, running_sessions
from .kept_state import versions

_logger = logging.getLogger("probe.recovery")
_counts: weakref.WeakKeyDictionary[Probe, Counter[str]] = weakref.WeakKeyDictionary()
_LEVELS: Final = {"critical": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def session_of(optimizer: Optimizer | None) -> Probe | None:
    """The running session that an optimizer belongs to; without an optimizer, the only one there is."""
    sessions = running_sessions()
    if optimizer is not None:
        return next((session for session in sessions if session._is_updated_by(optimizer)), None)
    return sessions[0] if len(sessions) == 1 else None


def tell(session: Probe | None, finding: Finding) -> None:
    """Write an event to its session; without one, a line in the log.

    Actions of a session are numbered: several may fall into one step, and each is an event of its own.
    """
    if session is None:
        _logger.log(_LEVELS[finding.severity], "nanscope: %s", finding.message)
        return
    if finding.kind == "recovery":
        counts = _counts.setdefault(session, Counter())
        counts[finding.subject] += 1
        finding = dataclasses.replace(finding, subject=f"{finding.subject} {counts[finding.subject]}")
    session._record_finding(finding)


class UpdateWatch:
    """Whether any optimizer has written to its parameters since the block was entered."""

    def __init__(self) -> None:
        self._before: list[tuple[Optimizer, Mapping[int, object]]] = []

    def __enter__(self) -> UpdateWatch:
        self._handle = register_optimizer_step_pre_hook(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.remove()

    def _note(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or any(known is optimizer for known, _ in self._before):
            return
        self._before.append((optimizer, versions(optimizer)))

    @property
    def has_begun(self) -> bool:
        """Whether parameters are others than before their optimizer's step."""
        return any(versions(optimizer) != before for optimizer, before in self._before)
