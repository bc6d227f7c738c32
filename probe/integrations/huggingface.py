"""Records what a Hugging Face `Trainer` trains, or any trainer that inherits from it.

    from probe.integrations.huggingface import NanscopeCallback
    trainer = Trainer(model, args, train_dataset=data, callbacks=[NanscopeCallback()])

The trainer calls everything here, on the thread that trains. It tells its callbacks of an end, but not of an
exception: so `Trainer.train` is wrapped for as long as a callback of ours lives.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import nn
from torch.optim.optimizer import Optimizer
from transformers import Trainer, TrainerCallback

from ..actions.watched_session import Session
from ..attach.layout import unwrap
from ..guard import Guard
from ..measure.kernels.binding import at_death
from ..session import Probe
from ..settings.config import ProbeConfig, is_switched_off
from ..watching import watch

_NOT_OF_THE_MODEL: Final = ("_runtime", "_per_second", "_time", "epoch")
"""How the names end of what the trainer adds to a model's metrics: its own speed, and the progress again."""


class NanscopeCallback(TrainerCallback):  # type: ignore[misc]  # optional: not followed
    """Watches the model of every `trainer.train`, and closes the session however it ends.

    Logs `epoch`, `global_step` and `max_steps` as the trainer counts them, and what an evaluation during
    training gives. The loss is the one on which `backward` was called: it is NaN when that is NaN, whatever
    `logging_nan_inf_filter` makes of it.

    Args:
        **options: as for `probe.watch`.

    Attributes:
        run: the session of the newest training; None before the first.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(self, **options: Any) -> None:
        ProbeConfig.resolve(options)
        self.run: Probe | None = None
        self._options = options
        self._guard = Guard()
        self._trainer: Callable[[], Any] = _nobody
        if not is_switched_off():
            _train_calls.add(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Attach: everything is prepared, the first batch is next."""
        self._end()
        optimizer = objects.get("optimizer")
        model = _wrapped(self._trainer(), objects["model"])
        self.run = watch(model, optimizer if isinstance(optimizer, Optimizer) else None, **self._options)
        self._guard.run("progress", _start_progress, self.run, args, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Log how far training is."""
        if self.run is not None and self.run.active:
            self._guard.run("progress", _log_progress, self.run, state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Count the epoch, whose last batch was loaded a step ago."""
        if self.run is not None:
            self.run.end_epoch()

    def on_evaluate(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Log the metrics of an evaluation with the step after which it was made."""
        if self.run is not None and self.run.active:
            self._guard.run("metrics", _log_metrics, self.run, objects.get("metrics") or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Detach."""
        self._end()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session out: a copy begins its own."""
        return {**self.__dict__, "run": None, "_trainer": _nobody}

    def _begin(self, trainer: Trainer) -> None:
        """`trainer.train` has been called."""
        self._trainer = weakref.ref(trainer)

    def _end(self, error: BaseException | None = None) -> None:
        """Training is over, through `error` if there is one."""
        if self.run is None or not self.run.active:
            return
        trace = None if error is None else error.__traceback__
        self._guard.run("end", self.run.__exit__, None if error is None else type(error), error, trace)


class _TrainCalls:
    """Wraps `Trainer.train` while any callback of ours lives: nothing else sees an exception leave it."""

    def __init__(self) -> None:
        self._living: dict[int, weakref.ref[NanscopeCallback]] = {}
        self._original: Any = None
        self._wrapper: Any = None
        # The garbage collector may end a callback in between, on the same thread.
        self._lock = threading.RLock()

    def add(self, callback: NanscopeCallback) -> None:
        with self._lock:
            key = id(callback)
            self._living[key] = weakref.ref(callback, at_death(functools.partial(self._remove, key)))
            if self._original is None:
                self._original = Trainer.train
                self._wrapper = Trainer.train = _observed(Trainer.train)

    def _remove(self, key: int) -> None:
        with self._lock:
            self._living.pop(key, None)
            # Someone else may have wrapped ours in the meantime: then theirs stays, and ours with it.
            if not self._living and Trainer.train is self._wrapper:
                Trainer.train, self._original = self._original, None


def _observed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = [item for item in self.callback_handler.callbacks if isinstance(item, NanscopeCallback)]
        for callback in ours:
            callback._begin(self)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            for callback in ours:
                callback._end(error)
            raise

    return train


def _nobody() -> None:
    """Stands for the trainer until there is one."""


def _wrapped(trainer: Any, model: nn.Module) -> nn.Module:
    """The model as the trainer calls it: inside DistributedDataParallel, if that is what it does."""
    wrapped = getattr(trainer, "model_wrapped", None)
    return wrapped if isinstance(wrapped, nn.Module) and unwrap(wrapped) is unwrap(model) else model


def _start_progress(run: Probe, args: Any, state: Any) -> None:
    """Tell how long the training will be; an end that is not a whole epoch has no number of epochs."""
    epochs = math.ceil(args.num_train_epochs) if args.max_steps <= 0 else None
    run.start_training(epochs, state.max_steps if state.max_steps > 0 else None)
    run.update_progress(step=state.global_step)


def _log_progress(run: Probe, state: Any) -> None:
    run.log(epoch=state.epoch, global_step=state.global_step, max_steps=state.max_steps)
    # The epoch under way, counted from 1; it ends at a whole number.
    run.update_progress(epoch=max(1, math.ceil(state.epoch)), step=state.global_step)


def _log_metrics(run: Session, metrics: Mapping[str, Any]) -> None:
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    run.log(**{name: value for name, value in numbers.items() if not name.endswith(_NOT_OF_THE_MODEL)})


_train_calls = _TrainCalls()
