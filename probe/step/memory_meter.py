"""What a frame says of memory: the readings of the process, the machine and CUDA, and what the memory is for.

Used by the measures and beside steps that C follows, on the training thread, where the gradients are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch.optim.optimizer import Optimizer

from ..attach.observation.module_statistics import ModuleStatistics
from ..attach.watched_model import WatchedModel
from ..guard import Guard
from ..measure.memory_kinds import MemoryKinds
from .step_meters import StepMeters


class MemoryMeter:
    """Reads for one model.

    Args:
        model: the watched one.
        meters: read memory.
        guard: runs what may fail.
        optimizers: gives those that update the model.
    """

    def __init__(
        self,
        model: WatchedModel,
        meters: StepMeters,
        *,
        guard: Guard,
        optimizers: Callable[[], Iterable[Optimizer]],
    ) -> None:
        self._model, self._meters, self._guard, self._optimizers = model, meters, guard, optimizers
        self._kinds = MemoryKinds()

    def read(self) -> dict[str, float]:
        """Memory in bytes and what it is for, where there is a new reading; nothing otherwise."""
        memory = self._meters.read_memory()
        return memory | (self._guard.run("memory", self._read_kinds, memory) or {}) if memory else memory

    def _read_kinds(self, memory: dict[str, float]) -> dict[str, float]:
        model = self._model
        return self._kinds.read(
            model.layout.parameters,
            all_parameters=lambda: [*model.layout.parameters, *model.frozen_parameters()],
            optimizers=self._optimizers(),
            memory=memory,
        )

    def note_modules(self, modules: ModuleStatistics | None, *, micro_steps: int) -> None:
        """Modules were measured: their forwards have kept so much, of several micro-steps the mean."""
        if modules is not None and (saved := modules.columns.get("saved_bytes")) is not None:
            self._kinds.note_activations(float(saved.sum()) / max(micro_steps, 1))
