"""`profiling`: a block under torch.profiler, with its tables, what stands out in them, and a Chrome trace."""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from ...errors import WireError
from ...guard import let_pass
from ...wire.profiles import ProfileBody
from ..analysis import tables
from .profile_body import MadeProfile, make_profile
from .profile_desk import running_desks
from .recording import Recording

_logger = logging.getLogger(__name__)
_ROWS: Final = 12
_UNWRITTEN: Final = "nanscope: the profile is lost: %s"
Keep = Callable[[MadeProfile, "Path | None"], None]


class profiling:  # noqa: N801 - used like a function, as `torch.no_grad` is
    """Profile a block: CPU, and CUDA where there is any, with memory, shapes and Python functions.

    At the block's end `report` has the tables and the findings, and `print(profile)` shows them. Python runs
    several times as long as without a profiler; with `stacks=False` it is little. Exceptions of the block
    pass through.

    Args:
        output_file: gets the Chrome trace, for https://ui.perfetto.dev; compressed where it ends in ".gz".
            Missing folders are made.
        enabled: None and True profile; False does nothing.
        steps: that the block runs, by which the findings' numbers are divided; counted as calls of an
            optimizer's `step` by default.
        memory: whether allocations are recorded.
        shapes: whether the trace has the shapes of what operations get.
        stacks: whether Python functions are recorded; without them there are no modules and no lines.

    Raises:
        ValueError: another profiler runs in this process.
        OSError: `output_file` cannot be written; not where the block has raised already.
    """

    def __init__(
        self,
        output_file: str | os.PathLike[str] | None = None,
        enabled: bool | None = None,
        *,
        steps: int | None = None,
        memory: bool = True,
        shapes: bool = True,
        stacks: bool = True,
        keep: Keep | None = None,
    ) -> None:
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
            raise ValueError(f"steps={steps!r} must be a whole number, at least 1")
        self._path = None if output_file is None else Path(output_file).expanduser()
        self._enabled = enabled is None or enabled
        self._steps = steps
        self._record = partial(Recording, memory=memory, shapes=shapes, stacks=stacks)
        self._keep = keep
        self._unmark: list[Callable[[], None]] = []
        self._recording: Recording | None = None
        self._report: ProfileBody | None = None

    @property
    def report(self) -> ProfileBody | None:
        """Tables and findings; None before the block's end, and where nothing was profiled."""
        return self._report

    def __enter__(self) -> profiling:
        if self._recording is not None:
            raise ValueError("this profiling() is running already; make another one")
        self._report = None
        if self._enabled:
            self._recording = self._record()
            self._unmark = [desk.mark_block() for desk in running_desks()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        for unmark in self._unmark:
            unmark()
        try:
            recording.end_step()
            recording.stop()
            self._take(recording)
        except (OSError, RuntimeError, WireError) as problem:
            let_pass(problem)
            # The exception of the block is the one that matters.
            if error is None and isinstance(problem, OSError):
                raise
            _logger.warning(_UNWRITTEN, problem)

    def _take(self, recording: Recording) -> None:
        made = make_profile(
            recording.take([desk.root for desk in running_desks()]),
            first_step=None,
            asked_steps=None,
            asked_by="run.profiling()" if self._keep else "probe.profiling()",
            steps=self._steps,
        )
        self._report = made.body
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            is_packed = self._path.suffix == ".gz"
            self._path.write_bytes(gzip.compress(made.trace, 6) if is_packed else made.trace)
        if self._keep is not None:
            self._keep(made, self._path)

    def __str__(self) -> str:
        """What was found, then the dearest operations."""
        return "nothing is profiled yet" if self._report is None else describe(self._report)


def describe(body: ProfileBody) -> str:
    """Write a profile for a terminal."""
    time = "self CUDA" if body.has_cuda else "self CPU"
    header = ("operation", "calls", time, "MiB", "line")
    rows = [
        (
            row.name,
            f"{row.calls:,}",
            f"{(row.self_cuda_s if body.has_cuda else row.self_cpu_s) * 1e3:,.2f} ms",
            f"{row.allocated_bytes / 2**20:,.1f}",
            row.line or "",
        )
        for row in body.ops[:_ROWS]
    ]
    steps = "" if body.steps == 1 else f" of {body.steps} steps"
    found = [f"- {finding.message}" for finding in body.findings]
    table = tables.table(header, rows) if rows else ["no operations"]
    return "\n".join([f"profile{steps}: {body.wall_s:.3g} s", *found, *body.notes, *table])
