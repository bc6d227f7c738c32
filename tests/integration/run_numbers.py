"""What a run has recorded, in the shape in which tests compare it."""

from pathlib import Path

import numpy as np
from journals import Journal, read_journal

from probe.wire import Frame
from probe.wire.columns import unpack_column


def runs_of(spool: Path) -> list[Journal]:
    """All runs of a spool, in the order of their beginnings."""
    return sorted((read_journal(folder) for folder in spool.iterdir()), key=lambda run: run.start.incarnation)


def run_of(spool: Path) -> Journal:
    """The only run of a spool."""
    (run,) = runs_of(spool)
    return run


def steps_of(run: Journal) -> list[int]:
    """The step of every frame."""
    return [frame.step for frame in run.frames]


def scalars_of(run: Journal, name: str) -> list[float | None]:
    """One scalar of every frame, None where a frame has none."""
    return [frame.scalars.get(name) for frame in run.frames]


def column_of(frame: Frame, name: str) -> np.ndarray:
    """One statistic of every parameter; the frame must have it."""
    return unpack_column(next(column for column in frame.columns if column.name == name))


def norms_of(run: Journal) -> np.ndarray:
    """(steps, parameters) L2 norms of the gradients as recorded."""
    return np.array([column_of(frame, "grad_norm") for frame in run.frames])
