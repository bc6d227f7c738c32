"""Watches the worker processes of DataLoaders: are they started at each step, does their memory grow?

Listens to passes over DataLoaders, on the training thread: work is done where one begins or ends, at no step.
The workers' memory is read from outside.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..actions.step_hooks import StepHooks
from ..attach.loader_passes import loader_passes
from ..compat.torch_training import LoaderWorkers, kept_iterator, samples_given, workers_of
from ..compat.weak_tables import WeakTable
from ..delivery.host_memory import private_bytes_of
from ..detectors.loader_workers import GrowingWorkers, RestartedWorkers
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..memory.leak_reports import stack_to
from ..memory.reachable import attributes, user_frames, variables
from .attention import Attention

if TYPE_CHECKING:
    from ..memory.growth_lines import GrowthLine

_PART: Final = "loader workers"
_CONTAINERS: Final = (dict, list, set)
_MOST_NAMES: Final = 32


class LoaderWatch:
    """Follows the loaders of one training loop.

    Args:
        incidents: writes what is found.
        attention: knows whether what this thread does belongs to the training loop.
        last_step: gives the number of the newest finished step; None before the first.
        hooks: say when the session ends.
        guard: isolates what fails.
    """

    def __init__(
        self,
        incidents: IncidentReporter,
        attention: Attention,
        *,
        last_step: Callable[[], int | None],
        hooks: StepHooks,
        guard: Guard,
    ) -> None:
        self._incidents, self._attention = incidents, attention
        self._last_step, self._guard = last_step, guard
        self._restarted = RestartedWorkers()
        self._growing: WeakTable[object, GrowingWorkers] = WeakTable()
        """Of iterators whose workers go on from pass to pass, which are one object in all passes."""
        loader_passes.add(self)
        self._guard.run(_PART, self._find_begun)
        hooks.stop.add(lambda: loader_passes.remove(self))

    def _find_begun(self) -> None:
        """Take note of passes that are under way: a script is watched from its first step on."""
        for value, _ in variables(user_frames(sys._getframe(1))):
            if (iterator := kept_iterator(value)) is not None:
                self._begin(iterator)

    def begin_pass(self, iterator: object) -> None:
        """An iterator was made, or begins anew."""
        if not self._attention.is_elsewhere:
            self._guard.run(_PART, self._begin, iterator)

    def end_pass(self, iterator: object) -> None:
        """It has run out."""
        if not self._attention.is_elsewhere:
            self._guard.run(_PART, self._end, iterator)

    def _begin(self, iterator: object) -> None:
        workers = workers_of(iterator)
        if workers is None:
            return
        if workers.are_persistent:
            if iterator not in self._growing:
                self._growing[iterator] = GrowingWorkers(len(workers.pids))
                self._judge_memory(iterator, workers)
            return
        step, took_ns = self._last_step(), loader_passes.took_ns
        finding = self._restarted.begin(step, workers=len(workers.pids), took_ns=took_ns)
        if finding is not None:
            stack = stack_to(None, sys._getframe(3))
            self._incidents.report(finding, step or 0, time.time(), stack=stack)

    def _end(self, iterator: object) -> None:
        workers = workers_of(iterator)
        if workers is not None and iterator in self._growing:
            self._judge_memory(iterator, workers)
        elif workers is not None:
            self._restarted.end()

    def _judge_memory(self, iterator: object, workers: LoaderWorkers) -> None:
        sizes = [private_bytes_of(pid) for pid in workers.pids]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return
        step = self._last_step() or 0
        finding = self._growing[iterator].note(step, float(sum(known)), samples=samples_given(iterator))
        if finding is None:
            return
        name, line = next(_growth_in(workers.dataset), ("", None))
        if line is not None:
            finding = replace(finding, message=f"{finding.message}: `{name}` grows at {line.at()}")
        stack = stack_to(line, sys._getframe(4))
        self._incidents.report(finding, step, time.time(), stack=stack)


def _growth_in(dataset: object) -> Iterator[tuple[str, GrowthLine]]:
    """Yield the containers of a dataset that its own file adds to, each with the line."""
    from ..memory.growth_lines import find_growth

    kind = type(dataset)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if not isinstance(file, str):
        return
    names = [name for name, value in attributes(dataset, {}) if issubclass(type(value), _CONTAINERS)]
    for name in names[:_MOST_NAMES]:
        line = find_growth(name, file)
        if line is not None:
            yield f"{kind.__name__}.{name}", line
