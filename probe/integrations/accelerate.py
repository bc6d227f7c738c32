"""Records a training loop that uses Accelerate.

    from probe.integrations.accelerate import watch
    run = watch(accelerator, model, optimizer)  # after accelerator.prepare

Used on the thread that trains. The session finds steps and losses as in any other loop; this file adds what
the accelerator knows: its epoch, what `accelerator.log` is given, and the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from accelerate.tracking import GeneralTracker
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from .. import watching
from ..attach.optimizer_steps import listen_to_steps
from ..guard import Guard
from ..measure.kernels.binding import at_death
from ..session import Probe


def watch(
    accelerator: Any,
    model: nn.Module,
    *optimizers: Optimizer,
    max_steps: int | None = None,
    **options: Any,
) -> AcceleratedRun:
    """Record the training of `model` from now on, until `accelerator.end_training()` or `run.close()`.

    Args:
        accelerator: the `accelerate.Accelerator`.
        model: as `accelerator.prepare` returned it.
        *optimizers: those that update it, as `accelerator.prepare` returned them.
        max_steps: optimizer steps until the end of training, for the time left to be shown.
        **options: as for `probe.watch`.

    Returns:
        The session, with what belongs to the accelerator. It logs `epoch` (of the prepared data loader),
        `global_step` (updates of the first optimizer) and `max_steps`.

    Raises:
        ValueError: as `probe.watch` does.
    """
    run = watching.watch(model, optimizers[0] if len(optimizers) == 1 else None, **options)
    return AcceleratedRun(accelerator, run, optimizers, max_steps=max_steps)


class AcceleratedRun:
    """A session and its ties to one accelerator. A context manager: leaving the block closes it.

    Everything that `probe.Probe` has is here too.

    Attributes:
        run: the session.
    """

    def __init__(
        self,
        accelerator: Any,
        run: Probe,
        optimizers: tuple[Optimizer, ...],
        *,
        max_steps: int | None,
    ) -> None:
        self.run = run
        self._accelerator = accelerator
        self._first = getattr(optimizers[0], "optimizer", optimizers[0]) if optimizers else None
        self._max_steps = max_steps
        self._steps = 0
        self._guard = Guard()
        self._undo: list[Callable[[], None]] = []
        if run.active:
            self._attach()

    def __getattr__(self, name: str) -> Any:
        """Hand on what the session itself can do."""
        if name == "run":
            raise AttributeError(name)
        return getattr(self.run, name)

    def close(self) -> None:
        """Stop recording and remove every hook; idempotent."""
        self._detach()
        self.run.close()

    def __enter__(self) -> AcceleratedRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._detach()
        self.run.__exit__(kind, error, trace)

    def _attach(self) -> None:
        tracker = _Tracker(self)
        self._accelerator.trackers.append(tracker)
        self._undo.append(lambda: self._drop(tracker))
        steps = _Steps()
        stop = listen_to_steps(steps)
        steps.run = weakref.ref(self, at_death(stop))
        self._undo.append(stop)

    def _drop(self, tracker: _Tracker) -> None:
        # A new list: the accelerator may be going through this one to end its trackers.
        others = [other for other in self._accelerator.trackers if other is not tracker]
        self._accelerator.trackers = others

    def _detach(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _after_step(self, optimizer: Optimizer) -> None:
        if optimizer is not self._first:
            # Another thread's, perhaps: nothing of this run is touched there.
            return
        if self.run.active:
            self._guard.run("progress", self._log_progress)
        else:
            self._detach()

    def _log_progress(self) -> None:
        self._steps += 1
        loader = self._accelerator.gradient_state.active_dataloader
        epoch = getattr(loader, "iteration", None)
        values = {"epoch": epoch, "global_step": self._steps, "max_steps": self._max_steps}
        self.run.log(**{name: value for name, value in values.items() if value is not None})

    def _log_metrics(self, values: Mapping[str, Any]) -> None:
        # The session sees every step's own loss: a mean under that name must not take its place.
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float | Tensor)}
        self.run.log(**{"logged_loss" if name == "loss" else name: value for name, value in numbers.items()})


class _Steps:
    """Tells a run of the steps of its first optimizer, on whatever thread they are made.

    Weakly: who listens is held, and through the accelerator the model would be held for ever.
    """

    run: Callable[[], AcceleratedRun | None] = staticmethod(lambda: None)

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Nothing is asked of a step that begins."""

    def after(self, optimizer: Optimizer) -> None:
        """A step has been made."""
        run = self.run()
        if run is not None:
            run._after_step(optimizer)


class _Tracker(GeneralTracker):  # type: ignore[misc]  # optional: not followed
    """How an accelerator tells of what it logs, and of the end of training."""

    name = "nanscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run: AcceleratedRun) -> None:
        super().__init__()
        self._run = run

    @property
    def tracker(self) -> AcceleratedRun:
        """What `accelerator.get_tracker("nanscope", unwrap=True)` gives."""
        return self._run

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Take what `accelerator.log` is given, with the step of the most recent backward."""
        self._run._guard.run("metrics", self._run._log_metrics, values)

    def finish(self) -> None:
        """`accelerator.end_training` was called."""
        self._run._guard.run("end", self._run.close)
