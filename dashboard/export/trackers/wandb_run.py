"""Writes a run as an offline run of Weights & Biases, which `wandb sync` takes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from probe.wire import Event

from ...errors import DashboardError
from .tracked_run import StepNumbers, TrackedRun, events_by_kind

_MOST_TAG: Final = 64


def write_wandb(run: TrackedRun, folder: Path, *, project: str) -> Path:
    """Write the run below `folder`/wandb and return its own folder.

    Raises:
        DashboardError: wandb refuses.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    try:
        written = wandb.init(
            project=project,
            id=_id(run),
            name=run.name,
            group=run.run.start.group or None,
            tags=sorted({f"nanscope {event.severity}"[:_MOST_TAG] for event in run.events}),
            config={**run.parameters(), "nanscope": run.facts()},
            settings=_settings(wandb, folder),
        )
        place = Path(written.dir).parent
        _log(written, run)
        for kind, text in events_by_kind(run.events).items():
            written.summary[f"nanscope/{kind}"] = text
        written.finish(exit_code=int(run.has_failed))
    except wandb.Error as error:
        raise DashboardError(f"wandb refuses: {error}") from error
    finally:
        wandb.teardown()
    return place


def _id(run: TrackedRun) -> str:
    """The run's own, so that an export again is the same run there."""
    return f"{run.run.run}-rank{run.rank.rank}" if run.rank.rank else run.run.run


def _settings(wandb: Any, folder: Path) -> Any:
    """Nothing of this process is recorded: it is not the training."""
    return wandb.Settings(
        mode="offline",
        root_dir=str(folder),
        console="off",
        silent=True,
        save_code=False,
        disable_code=True,
        disable_git=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
    )


def _log(written: Any, run: TrackedRun) -> None:
    """Steps in order, with the time at which the training made them; events count at their step."""
    waiting = _event_steps(run.events)
    for numbers in run.steps():
        while waiting and waiting[0].step < numbers.step:
            _log_step(written, run, waiting.popleft())
        events = waiting.popleft().values if waiting and waiting[0].step == numbers.step else {}
        numbers.values.update(events)
        _log_step(written, run, numbers)
    for rest in waiting:
        _log_step(written, run, rest)


def _event_steps(events: Sequence[Event]) -> deque[StepNumbers]:
    found: dict[int, StepNumbers] = {}
    for event in events:
        entry = found.setdefault(event.step, StepNumbers(step=event.step, time=event.time, values={}))
        name = f"events/{event.kind}"
        entry.values[name] = entry.values.get(name, 0) + 1
    return deque(found[step] for step in sorted(found))


def _log_step(written: Any, run: TrackedRun, numbers: StepNumbers) -> None:
    clock = {"_timestamp": numbers.time, "_runtime": max(0.0, numbers.time - run.run.started)}
    written.log({**numbers.values, **clock}, step=numbers.step)
