"""Records what a Lightning trainer trains, with `lightning` and with `pytorch_lightning`.

    from probe.integrations.lightning import NanscopeCallback
    trainer = Trainer(callbacks=[NanscopeCallback()])

The trainer calls everything here, on the thread that trains. What a step is and what it contains is found by
the session as in any other loop; this file says where training begins, how far it is and how it ends.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from torch import nn
from torch.optim.optimizer import Optimizer

from ..attach.layout import unwrap
from ..compat import torch_ranks
from ..delivery.recorder.run_id import derive_run_id
from ..guard import Guard, let_pass
from ..session import Probe
from ..settings.config import ProbeConfig
from ..watching import watch

# The same trainer comes under two names, whose classes know nothing of each other.
_NAMES: Final = ("lightning.pytorch", "pytorch_lightning")
_installed = [name for name in _NAMES if find_spec(name.partition(".")[0]) is not None] or [*_NAMES]
_name = next((name for name in _installed if name in sys.modules), _installed[0])
Callback: Any = import_module(_name).Callback

_RUN_KEY: Final = "nanscope/run"
_PATIENCE: Final = timedelta(seconds=5)


class NanscopeCallback(Callback):  # type: ignore[misc]  # optional: not followed
    """Watches the LightningModule of every `trainer.fit`, and closes the session however it ends.

    Logs `epoch`, `global_step` and, where there is an end, `max_steps`, as the trainer counts them.

    Args:
        **options: as for `probe.watch`.

    Attributes:
        run: the session of the newest fit; None before the first.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(self, **options: Any) -> None:
        ProbeConfig.resolve(options)
        self.run: Probe | None = None
        self._options = options
        self._guard = Guard()
        self._max_steps: float | None = None
        self._validation: AbstractContextManager[None] | None = None

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Attach: the sanity check is over, the first training batch is next."""
        self._end()
        self._max_steps = self._guard.run("max steps", _steps_in_all, trainer, pl_module)
        optimizers = [item for item in trainer.optimizers if isinstance(item, Optimizer)]
        only_one = optimizers[0] if len(trainer.optimizers) == len(optimizers) == 1 else None
        options = {"run": self._guard.run("run id", _run_of_ranks, trainer), **self._options}
        self.run = watch(_wrapped(trainer, pl_module), only_one, **options)
        self._guard.run("progress", self._start_progress, self.run, trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *batch: Any, **rest: Any) -> None:
        """Log how far training is."""
        if self.run is not None and self.run.active:
            self._guard.run("progress", self._log_progress, self.run, trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Count the epoch: Lightning's own loops need not see the loader run out."""
        if self.run is not None:
            self.run.end_epoch()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Record the exception and detach; a Ctrl-C comes here too."""
        if self.run is not None and self.run.active:
            self._guard.run("end", self.run.__exit__, type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Detach: `fit` is over."""
        self._end()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session out: a copy, in a spawned process say, begins its own."""
        return {**self.__dict__, "run": None, "_validation": None}

    def _end(self) -> None:
        if self.run is not None and self.run.active:
            self._guard.run("end", self.run.close)

    def _start_progress(self, run: Probe, trainer: Any) -> None:
        epochs = trainer.max_epochs if (trainer.max_epochs or 0) > 0 else None
        run.start_training(epochs, None if self._max_steps is None else int(self._max_steps))
        run.update_progress(step=trainer.global_step)

    def on_validation_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """A validation begins, within the training."""
        if self.run is not None and self.run.active and self._validation is None:
            self._validation = self.run.phase("validation")
            self._validation.__enter__()

    def on_validation_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """It is over."""
        validation, self._validation = self._validation, None
        if validation is not None:
            validation.__exit__(None, None, None)

    def _log_progress(self, run: Probe, trainer: Any) -> None:
        values = {"epoch": trainer.current_epoch, "global_step": trainer.global_step}
        if self._max_steps is not None:
            values["max_steps"] = self._max_steps
        run.log(**values)
        run.update_progress(epoch=trainer.current_epoch + 1, step=trainer.global_step)


def _wrapped(trainer: Any, pl_module: nn.Module) -> nn.Module:
    """The module as the strategy calls it: inside DistributedDataParallel, if that is what it does."""
    model = trainer.strategy.model
    return model if isinstance(model, nn.Module) and unwrap(model) is pl_module else pl_module


def _run_of_ranks(trainer: Any) -> str | None:
    """Rank 0's run id, which every rank takes; None for a single process, or where one was chosen.

    A session takes ranks to have a parent in common, but with Lightning's own launcher rank 0 is the parent
    of the others. The group's key-value store is asked, not a collective: where rank 0 records nothing, the
    others wait for `_PATIENCE` once, and each goes its own way.
    """
    store = torch_ranks.default_store()
    if trainer.world_size == 1 or store is None or os.environ.get("NANSCOPE_RUN"):
        return None
    if trainer.global_rank == 0:
        store.set(_RUN_KEY, derive_run_id(os.environ))
    try:
        store.wait([_RUN_KEY], _PATIENCE)
    except RuntimeError as error:
        let_pass(error)
        return None
    return str(store.get(_RUN_KEY).decode())


def _steps_in_all(trainer: Any, pl_module: Any) -> float | None:
    """Optimizer steps until the end of training; None where there is no end, or none is known."""
    # With manual optimisation `global_step` counts the steps of all optimizers, which no estimate does.
    automatic = pl_module.automatic_optimization
    steps = float(trainer.estimated_stepping_batches if automatic else trainer.max_steps)
    return steps if 0 < steps < float("inf") else None
