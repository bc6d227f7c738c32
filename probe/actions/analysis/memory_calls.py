"""Calls of a session about memory. Mixed into `Probe`; what they need is imported when they are called."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.optimizer import Optimizer

from ...delivery.recorder.recorder import Recorder
from ...guard import Guard
from ...memory.run_snapshots import RunSnapshots

if TYPE_CHECKING:
    from .memory_tracking import MemoryProfile, memory_tracking
    from .model_memory import ModelMemoryUse
    from .snapshot_results import Axis, MemorySnapshot, MemoryTrend, Size


class MemoryCalls:
    """Methods of `Probe`. Each is described at the function of the same name."""

    _snapshots: RunSnapshots | None = None

    if TYPE_CHECKING:
        _guard: Guard
        _recorder: Recorder | None
        active: bool

        @property
        def optimizers(self) -> list[Optimizer]:
            """Those that were seen to update the watched model."""
            ...

        def _watched_model(self) -> nn.Module | None:
            """The naming root; None when it is gone or the session is closed."""
            ...

    def take_memory_snapshot(self, label: str = "", *, uss: bool = True) -> MemorySnapshot:
        """See `probe.take_memory_snapshot`; the run keeps it, and the page shows it.

        Called at every step, all of the first 256 are recorded, then every second one, every fourth ...
        """
        from .memory_tracking import take_snapshot
        from .snapshot_results import MemorySnapshot
        from .tensor_lives import alive_now

        snapshots = self._snapshots
        if snapshots is None or not self.active:
            return take_snapshot(label, uss=uss)
        taken = self._guard.run("memory", lambda: snapshots.take(label, uss=uss, tracked=alive_now()))
        return take_snapshot(label, uss=uss) if taken is None else MemorySnapshot.of(taken)

    def memory_snapshots(self) -> tuple[MemorySnapshot, ...]:
        """Return this session's newest 1000 snapshots by time, automatic ones too; also once it is closed."""
        from .snapshot_results import MemorySnapshot

        kept = [] if self._snapshots is None else self._snapshots.kept
        return tuple(MemorySnapshot.of(one) for one in sorted(kept, key=lambda one: one.time))

    def memory_trend(self, *, of: Size = "rss_bytes", against: Axis = "step") -> MemoryTrend:
        """See `probe.memory_trend`; of this session's snapshots."""
        from .snapshot_results import memory_trend

        return memory_trend(self.memory_snapshots(), of=of, against=against)

    def memory_tracking(self, enabled: bool | None = None, *, label: str = "block") -> memory_tracking:
        """See `probe.memory_tracking`; both snapshots are recorded."""
        from .memory_tracking import memory_tracking

        take = partial(self.take_memory_snapshot, uss=False)
        return memory_tracking(enabled, label=label, take=take, known_leaks=self.found_leaks)

    def profile_memory(self, label: str = "") -> MemoryProfile:
        """See `probe.profile_memory`."""
        from .memory_tracking import profile_memory

        return profile_memory(label, known_leaks=self.found_leaks())

    def profile_memory_usage(
        self,
        model: nn.Module | None = None,
        *,
        optimizer: Optimizer | None = None,
        input: Any = None,
    ) -> ModelMemoryUse:
        """See `probe.profile_memory_usage`; of the watched model and its optimizers, if none are given."""
        from .model_memory import no_memory_use, profile_memory_usage

        watched = self._watched_model()
        model = model if model is not None else watched
        if model is None:
            return no_memory_use("no model is watched here")
        used = [optimizer] if optimizer is not None else self.optimizers if model is watched else []
        return profile_memory_usage(model, optimizer=used, input=input)

    def found_leaks(self) -> list[str]:
        """Return a sentence for each `memory_leak` event of this session so far."""
        return [] if self._recorder is None else self._recorder.tally.sentences("memory_leak")
