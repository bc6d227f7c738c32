"""The front door: `watch` attaches to a model. Used on the thread that trains.

Attaching may raise `ValueError`; what comes after it is the session's (`session.py`).
"""

from __future__ import annotations

import logging
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from .loop.member_series import Made, watched_above
from .session import Probe, running_session
from .settings.config import Level, Mode, ProbeConfig, is_switched_off

_logger = logging.getLogger(__name__)
TESTED_TORCH: Final = ("2.11", "2.12", "2.13", "2.14")


def watch(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    level: Level | None = None,
    name: str | None = None,
    mode: Mode | None = None,
    **options: Any,
) -> Probe:
    """Record the training of `model` from now on, and return the handle.

    Finds the steps by itself: the model's forward, `backward`, gradient clipping and the optimizer's `step`
    are observed; nothing is put on the model. With no dashboard running the run is recorded all the same.

    Args:
        model: the model being trained; may be wrapped by DistributedDataParallel or torch.compile.
        optimizer: the one whose `step` ends a training step, as does that of any other which updates the
            same parameters; None takes every one that updates the model.
        level: "off", "basic" (the default), "advanced" or "extreme". A run that begins at "off" counts its
            steps alone until `run.set_level`, the page or the HTTP API chooses another one.
        name: what the page calls the run; the script's file name by default.
        mode: "detect" (the default), "warn" or "raise".
        **options: the other fields of `ProbeConfig`.

    Returns:
        The session. A second call for the same model returns the one that is running, which takes over
        level, preset, features and overhead limit from its next step on.
        A call of the same line for another model of the same class, made after the one before has been
        trained, records it as a further member of the same run; it has a run of its own where `run` is
        given, the name is another, or the one before is closed.

    Raises:
        ValueError: an option out of range, no module, a model without trainable parameters, or, where the
            model is watched already, another value of an option that cannot change in mid-run.
    """
    made = watched_above({"name": name, **options})
    return watch_made(model, made, optimizer, level=level, name=name, mode=mode, **options)


def watch_made(
    model: nn.Module, made: Made | None, optimizer: Optimizer | None = None, **given: Any
) -> Probe:
    """As `watch`, for a model that may be a further member of a run.

    Args:
        model: as in `watch`, and so are `optimizer` and the options.
        made: where and when what trains it was made; None for a run of its own.
        optimizer: the one whose `step` ends a training step.
        **given: the options; None is "not given".

    Returns:
        The session.

    Raises:
        ValueError: as in `watch`.
    """
    level = given.get("level")
    config = ProbeConfig.resolve(given)
    running = running_session(model) if isinstance(model, nn.Module) else None
    # "off" as an argument can be switched on later; from the environment it is for who wants nothing of us.
    if is_switched_off() or (config.level == "off" and level is None and running is None):
        return Probe.inert(model)
    if not isinstance(model, nn.Module):
        raise ValueError(f"watch() takes a torch.nn.Module, got {type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ValueError(f"watch() takes a torch.optim.Optimizer or None, got {type(optimizer).__name__}")
    if running is not None:
        running.take_options(given, optimizer)
        return running
    if not torch.__version__.startswith(tuple(f"{version}." for version in TESTED_TORCH)):
        _logger.warning(
            "nanscope is tested with torch %s to %s; this is %s: what it lacks is switched off",
            TESTED_TORCH[0],
            TESTED_TORCH[-1],
            torch.__version__,
        )
    return Probe.attached(model, optimizer, config, made)


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Clip a model's gradients to a global L2 norm; see `Probe.clip_gradients`.

    Without a session that watches the model, this is torch.nn.utils.clip_grad_norm_.
    """
    session = running_session(model)
    if session is None:
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return session.clip_gradients(max_norm)
