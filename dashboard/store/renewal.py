"""What became of a database file that could not be used, and what came back of it: the words for it.

Made by `DuckStore` when it opens a file or replaces one; read by `serve`, for the page and the terminal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from probe.delivery.visible_text import visible_text

from .damage import Said

_MOST_NAMES: Final = 8


class Renewal:
    """A store that has lost runs, or all of them; says which come back.

    Args:
        problem: What has happened; sentences.
        runs: Runs that the store had: id -> name.
        said: What people had written.
    """

    def __init__(self, problem: str, runs: Mapping[str, str], said: Said | None) -> None:
        self.problem = problem
        self._runs = dict(runs)
        self._said = said
        self._journals: frozenset[str] | None = None
        self._told = ""

    def note_journals(self, runs: Collection[str]) -> None:
        """All journals have been read, or are shipped by a helper: these runs have some."""
        self._journals = frozenset(runs)

    def text(self, present: Collection[str]) -> str:
        """Return what the user must know now.

        Args:
            present: Ids of the runs that the store has.
        """
        return " ".join(part for part in (self.problem, self._runs_text(present), self._said_text()) if part)

    def news(self, present: Collection[str]) -> str | None:
        """Return the text when it is final and has not been given yet."""
        text = self.text(present)
        is_final = self._journals is not None and not (self._journals & self._runs.keys()) - set(present)
        if not is_final or text == self._told:
            return None
        self._told = text
        return text

    def _runs_text(self, present: Collection[str]) -> str:
        if not self._runs:
            return "It had no runs that are known." if self.problem else ""
        back = [run for run in self._runs if run in present]
        total = f"{len(self._runs):,} {'run' if len(self._runs) == 1 else 'runs'}"
        text = f"Of {total}, {len(back):,} came back from {'its' if len(back) == 1 else 'their'} journals"
        if self._journals is None:
            return f"{text} so far; the journals are being read."
        coming = [run for run in self._runs if run in self._journals and run not in present]
        lost = [run for run in self._runs if run not in present and run not in self._journals]
        if coming:
            text += f", {len(coming):,} are being read"
        if not lost:
            return f"{text}."
        return f"{text}; {len(lost):,} did not, they have no journals any more: {self._names(lost)}."

    def _names(self, runs: list[str]) -> str:
        shown = [f"{run} ({self._runs[run]})" if self._runs[run] not in ("", run) else run for run in runs]
        more = [f"{len(runs) - _MOST_NAMES:,} more"] if len(runs) > _MOST_NAMES else []
        return visible_text(", ".join([*shown[:_MOST_NAMES], *more]))

    def _said_text(self) -> str:
        if self._said is None:
            return ""
        if self._said.marks is None or self._said.notes is None:
            return "Notes and stars that people gave could not be read out of it."
        return "Notes and stars that people gave were kept." if self._said.marks or self._said.notes else ""
