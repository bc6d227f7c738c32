"""Which session hears of what a call of the user's recovered from, and whether an update had begun in it."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from ..actions.recovery.kept_state import renormalised_weights, versions
from ..actions.recovery.update_skip import parameters_of
from ..actions.watched_session import Session
from ..attach.optimizer_steps import listen_to_steps
from ..compat import all_objects, torch_engine, torch_memory
from ..compat.weak_tables import WeakTable
from ..detectors.base import Finding
from ..session import running_sessions

_logger = logging.getLogger("probe.actions.recovery")
_counts: WeakTable[Session, Counter[str]] = WeakTable()
_LEVELS: Final = {"critical": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def session_of(optimizer: Optimizer | None, among: Sequence[Session] | None = None) -> Session | None:
    """The session that an optimizer belongs to; without one, the only one of this thread.

    Args:
        optimizer: that is asked about, if any.
        among: these sessions; all that are running by default.
    """
    sessions = running_sessions() if among is None else among
    if optimizer is not None:
        return next((session for session in sessions if session.is_updated_by(optimizer)), None)
    here = [session for session in sessions if session.is_of_this_thread]
    return here[0] if len(here) == 1 else None


def known_parameters(optimizer: Optimizer | None) -> Iterable[Tensor]:
    """Those of an optimizer; without one, of the only model that is watched on this thread, if any."""
    if optimizer is not None:
        return parameters_of(optimizer)
    session = session_of(None)
    model = None if session is None else session.watched_model
    return () if model is None else model.parameters()


def tell(session: Session | None, finding: Finding) -> None:
    """Write an event to its session; without one, a line in the log.

    What comes again under one name is numbered: several may fall into one step, each an event of its own.
    """
    if session is None:
        _logger.log(_LEVELS[finding.severity], "nanscope: %s", finding.message)
        return
    counts = _counts.setdefault(session, Counter())
    counts[finding.subject] += 1
    count = counts[finding.subject]
    if finding.kind == "recovery" or count > 1:
        finding = dataclasses.replace(finding, subject=f"{finding.subject} {count}")
    session.record_finding(finding)


class UpdateWatch:
    """Whether anybody on this thread has updated parameters since the block was entered.

    Args:
        parameters: that are looked at in any case: no hook tells of a compiled optimizer.step, or of an
            update by hand.
    """

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self._before: list[tuple[Optimizer, Mapping[int, object]]] = []
        self._thread = threading.get_ident()
        self._known = {id(parameter): parameter for parameter in parameters if not is_lazy(parameter)}
        self._versions = self._known_versions()

    def __enter__(self) -> UpdateWatch:
        self._end = listen_to_steps(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Remember what an optimizer's parameters are before the first step that it makes."""
        if self._is_ours(optimizer) and not any(known is optimizer for known, _ in self._before):
            self._before.append((optimizer, versions(parameters_of(optimizer))))

    def after(self, optimizer: Optimizer) -> None:
        """Nothing is asked of what a step has done before the block ends."""

    def _is_ours(self, optimizer: Optimizer) -> bool:
        if threading.get_ident() == self._thread:
            return True
        # Of a model on a device the backward runs on a thread of autograd's, the same one for all threads.
        return torch_engine.in_backward() and not all(p.is_cpu for p in parameters_of(optimizer))

    def _known_versions(self) -> dict[int, int | None]:
        return {key: torch_memory.version_of(parameter) for key, parameter in self._known.items()}

    @property
    def has_begun(self) -> bool:
        """Whether parameters are others than before."""
        now = self._known_versions()
        moved = {key for key, version in self._versions.items() if now[key] != version}
        if moved and not self._were_renormalised(moved):
            return True
        return any(versions(parameters_of(one)) != before for one, before in self._before)

    @staticmethod
    def _were_renormalised(moved: set[int]) -> bool:
        """Whether forwards of embeddings have changed these; not, where they cannot be looked for."""
        # All of the process: what updates them need not be watched. Asked for after a failure alone.
        embeddings = all_objects.faults.instances((nn.Embedding, nn.EmbeddingBag))
        return embeddings is not None and moved <= renormalised_weights(embeddings)
