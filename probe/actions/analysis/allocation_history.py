"""`cuda_memory_history`: which lines of the script hold the memory of CUDA. For a block, when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from ...compat.allocator_history import begin_history, end_history, read_history, why_unavailable
from ...guard import let_pass
from ...memory.allocation_lines import sums_by_line
from . import tables
from .call_results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationLine(Result):
    """What one line of the script has asked for on CUDA."""

    place: str
    """``train.py:26``; what was there before the block has no line."""
    file: str
    line: int
    function: str
    live_bytes: int
    """In use at the end of the block."""
    live_blocks: int
    allocated_bytes: int
    """Asked for within the block in all, as far back as `max_entries` goes."""
    allocations: int


@dataclass(slots=True, kw_only=True)
class AllocationHistory(Result):
    """What `with cuda_memory_history() as history:` gives; filled when the block ends."""

    lines: tuple[AllocationLine, ...] = ()
    """The line that holds most comes first."""
    note: str = ""
    """Why there is nothing."""

    def __str__(self) -> str:
        """A row for each line, or why there is none."""
        if self.note:
            return f"no history of CUDA's memory: {self.note}"
        rows = [
            (
                one.place,
                one.function or "-",
                tables.size(one.live_bytes),
                f"{one.live_blocks:,}",
                tables.size(one.allocated_bytes),
                f"{one.allocations:,}",
            )
            for one in self.lines
        ]
        head = ("line", "function", "holds", "blocks", "asked for", "times")
        return "\n".join(tables.table(head, rows, left=2))


class cuda_memory_history:  # noqa: N801 - used as a function, like torch.no_grad
    """Record where the memory of CUDA is asked for within a block, and sum it by the script's lines.

    About 2 us an allocation, and some kB of memory for each that is kept. Lets exceptions through. Where CUDA
    is not in use when the block begins, or torch keeps no history, `history.note` says so, and nothing is
    done. A history that the script records itself is read and goes on.

    Args:
        enabled: None and True record; False does not.
        max_entries: allocations and releases that are kept, the newest.

    Raises:
        ValueError: `max_entries` is less than 1.
    """

    def __init__(self, enabled: bool | None = None, *, max_entries: int = 100_000) -> None:
        if max_entries < 1:
            raise ValueError(f"max_entries={max_entries!r} must be at least 1")
        self._enabled, self._max_entries = enabled is None or enabled, max_entries
        self._open: list[tuple[AllocationHistory, bool]] = []

    def __enter__(self) -> AllocationHistory:
        history = AllocationHistory(note=why_unavailable() if self._enabled else "it is switched off")
        self._open.append((history, not history.note and begin_history(self._max_entries)))
        return history

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        history, is_ours = self._open.pop()
        if history.note:
            return
        try:
            history.lines = tuple(
                AllocationLine(
                    place=one.place,
                    file=one.file,
                    line=one.line,
                    function=one.function,
                    live_bytes=one.live_bytes,
                    live_blocks=one.live_blocks,
                    allocated_bytes=one.allocated_bytes,
                    allocations=one.allocations,
                )
                for one in sums_by_line(read_history())
            )
        except (RuntimeError, LookupError, TypeError, ValueError) as problem:
            let_pass(problem)
            history.note = f"it cannot be read: {type(problem).__name__}: {problem}"
        finally:
            if is_ours:
                end_history()
