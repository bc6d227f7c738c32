"""Counts the hooks on a model's modules now and then, on the recorder's thread: do they pile up?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import nn

from ..attach.layout import modules_with_names
from ..attach.watched_model import WatchedModel
from ..compat.torch_modules import registered_hooks
from ..detectors.hook_counts import HookCounts
from ..guard import Guard, let_pass
from ..incidents.incidents import IncidentReporter
from ..threads.notebook_cells import shown_name
from ..threads.pieces import give_way
from ..wire import Event

_PERIOD_S: Final = 1.0
_LONGEST_S: Final = 64.0
_TOGETHER: Final = 200
"""Modules that are counted in a row."""


class HookWatch:
    """A `Watch` of the recorder's thread.

    Args:
        model: the watched one.
        incidents: writes what is found.
        last_step: gives the number of the newest finished step, on any thread; None before the first.
        guard: of the training thread; its own one runs all of it.
    """

    def __init__(
        self,
        model: WatchedModel,
        incidents: IncidentReporter,
        *,
        last_step: Callable[[], int | None],
        guard: Guard,
    ) -> None:
        self._model, self._incidents, self._last_step = model, incidents, last_step
        self._guard = guard.for_thread()
        self._counts = HookCounts()
        self._period_s = _PERIOD_S

    @property
    def period_s(self) -> float:
        """Seconds until the next look: twice as long each time, as long as there are no more hooks."""
        return self._period_s

    def look(self) -> Sequence[Event]:
        """Count them; what is found is written at once."""
        step = self._last_step()
        if step is not None:
            self._guard.run("hooks", self._count, step)
            more_s = min(2.0 * self._period_s, _LONGEST_S)
            self._period_s = _PERIOD_S if self._counts.are_rising else more_s
        return ()

    def close(self) -> Sequence[Event]:
        """Nothing is left to be written."""
        return ()

    def _count(self, step: int) -> None:
        modules = self._named()
        counts: dict[str, int] = {}
        for number, (name, module) in enumerate(modules.items()):
            if not number % _TOGETHER:
                give_way()
            counts[name] = sum(map(len, registered_hooks(module)))
        worst = self._counts.note(step, counts)
        if worst is not None:
            finding = self._counts.finding(worst, step, newest=_newest_of(modules[worst]))
            self._incidents.report(finding, step, time.time(), stack=())

    def _named(self) -> dict[str, nn.Module]:
        try:
            return dict(modules_with_names(self._model.root))
        except RuntimeError as error:  # the script adds a module meanwhile
            let_pass(error)
            return {}


def _newest_of(module: nn.Module) -> str:
    """Where the function of the hook that was registered last is."""
    longest: dict[Any, Any] = max(registered_hooks(module), key=len)
    hook = next(reversed(longest.values()), None)
    code = getattr(getattr(hook, "func", hook), "__code__", None)
    return "" if code is None else f"{shown_name(code.co_filename)}:{code.co_firstlineno} in {code.co_name}"
