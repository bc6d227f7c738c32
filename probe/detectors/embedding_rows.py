"""An embedding of which every batch hits the same single row: the indices are wrong, nothing is told apart.

All words unknown, ids divided until they are 0, numbers between 0 and 1 cut off to integers. Told by
`probe/loop/embedding_looks.py` which rows got a gradient in the first steps.
"""

from __future__ import annotations

from typing import Final

from .base import Finding
from .cause_advice import ONE_ROW
from .sample import Sample

LOOKS: Final = 10
"""Steps in a row, from the first one on, in which it must have been the same row."""
MIN_ROWS: Final = 8
"""Of the table: token types and flags are often all 0."""


class EmbeddingRowsDetector:
    """Emits `parameter_not_updated`, a warning, once for all such tables."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        """Of each table that may be wrong, the row."""
        self._sizes: dict[str, int] = {}
        self._looks = 0
        self._is_reported = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be told."""
        return self._looks >= LOOKS or (self._looks > 0 and not self._rows)

    @property
    def has_news(self) -> bool:
        """Whether something is found that `observe` has not told yet."""
        return self._looks >= LOOKS and bool(self._rows) and not self._is_reported

    def note(self, rows: dict[str, tuple[int, int]]) -> None:
        """Take a step's tables with a gradient in one row: that row and the number of rows, by name."""
        if not self._looks:
            self._rows = {name: row for name, (row, size) in rows.items() if size >= MIN_ROWS}
            self._sizes = {name: size for name, (_, size) in rows.items()}
        else:
            self._rows = {name: row for name, row in self._rows.items() if rows.get(name, (-1, 0))[0] == row}
        self._looks += 1

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding once enough steps have hit the same row."""
        if not self.has_news:
            return []
        self._is_reported = True
        name, row = next(iter(self._rows.items()))
        others = ", ".join(f"`{other}`" for other in list(self._rows)[1:4])
        more = f"; the same of {others}" if others else ""
        return [
            Finding(
                kind="parameter_not_updated",
                severity="warning",
                subject=name,
                message=f"Of the {self._sizes[name]} rows of `{name}` only row {row} got a gradient in each "
                f"of the first {LOOKS} steps{more}: every index is {row}, or a mask lets only that row "
                "through",
                value=1.0,
                threshold=None,
                baseline={"rows": float(self._sizes[name])},
                affected=tuple(self._rows),
                advice=ONE_ROW,
            )
        ]
