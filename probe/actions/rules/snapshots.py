"""Writes a snapshot: one step's frame with the numbers of every parameter, as a JSON file of its own.

The journal drops its oldest metrics, and the store thins them out; what a watchpoint asked to keep stays,
under ``SPOOL/<run>/snapshots/<event id>.json``. Called on the training thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...guard import let_pass
from ...measure.statistics.statistics import TensorStatistics
from ...settings.places import write_private_file
from ...step.frames import MeasuredStep, module_sample
from ...wire import VERSION, Event
from ...wire.event_json import event_json, jsonable

MOST: Final = 100
"""Snapshots of a run."""
FOLDER: Final = "snapshots"


class SnapshotWriter:
    """Writes the snapshots of one rank.

    Args:
        run_folder: `SPOOL/<run>`.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER

    def write(self, event: Event, measured: MeasuredStep, parameters: TensorStatistics) -> str:
        """Write one; return what the event's message is to say of it.

        Args:
            event: what asked for it; its id names the file.
            measured: the step.
            parameters: statistics of the parameters as they are now.
        """
        path = self._folder / f"{event.id}.json"
        if self._folder.is_dir() and sum(1 for _ in self._folder.glob("*.json")) >= MOST:
            return f"No snapshot: this run has {MOST} already."
        document = describe_step(event, measured, parameters)
        try:
            write_private_file(path, json.dumps(document, allow_nan=False).encode())
        except OSError as error:
            let_pass(error)
            return f"No snapshot was written in {self._folder}: {error.strerror or error}."
        return f"Snapshot of {len(measured.layout.names):,} parameters: {path}"


def describe_step(event: Event, measured: MeasuredStep, parameters: TensorStatistics) -> dict[str, Any]:
    """Return everything that is known of a step as one JSON object; missing is null."""
    frame = measured.build()
    gradients = measured.gradients
    columns: dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]] = {
        "grad_norm": (gradients.norm, gradients.missing),
        "grad_max_abs": (gradients.max_abs, gradients.missing),
        "grad_mean": (gradients.mean, gradients.missing),
        "grad_std": (gradients.std, gradients.missing),
        "grad_nan_count": (gradients.nan_count, gradients.missing),
        "grad_inf_count": (gradients.inf_count, gradients.missing),
        "parameter_norm": (parameters.norm, parameters.missing),
        "parameter_max_abs": (parameters.max_abs, parameters.missing),
        "parameter_mean": (parameters.mean, parameters.missing),
        "parameter_std": (parameters.std, parameters.missing),
        "parameter_nan_count": (parameters.nan_count, parameters.missing),
    }
    columns |= {
        name: (one.values, one.missing) for name, one in measured.sampled.items() if name not in columns
    }
    layout = measured.layout.record
    modules = None if measured.modules is None else module_sample(measured.modules)
    return {
        "v": VERSION,
        "event": event_json(event),
        "step": measured.step,
        "time": measured.time,
        "model": layout.model,
        "stage": measured.stage,
        "scalars": jsonable(frame.scalars),
        "parameters": [
            {
                "name": info.name,
                "shape": info.shape,
                "dtype": info.dtype,
                "layer": layout.layers[info.layer].name,
                **{
                    name: None if missing[row] else jsonable(float(values[row]))
                    for name, (values, missing) in columns.items()
                },
            }
            for row, info in enumerate(layout.parameters)
        ],
        "modules": None
        if modules is None
        else [
            {
                "name": name,
                "type": modules.types[row],
                **{
                    column: None if np.isnan(values[row]) else jsonable(float(values[row]))
                    for column, values in modules.columns.items()
                },
            }
            for row, name in enumerate(modules.names)
        ],
    }
