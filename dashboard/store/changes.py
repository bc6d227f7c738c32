"""What has changed in the catalog since the last commit, and the rows that the next one saves of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from probe.wire import StreamKey

from .edge import GapRow


@dataclass(slots=True)
class Changes:
    """What has changed since the last commit, besides the edge."""

    streams: dict[StreamKey, None] = field(default_factory=dict)
    incarnations: dict[tuple[str, int, int], None] = field(default_factory=dict)
    layouts: list[tuple[str, int, int, int, int, bytes]] = field(default_factory=list)
    timelines: list[tuple[int, str, int, bytes]] = field(default_factory=list)
    series: list[tuple[int, int, str, str]] = field(default_factory=list)
    gaps: dict[tuple[str, str, str, int], None] = field(default_factory=dict)

    def followed_by(self, later: Changes) -> Changes:
        """Return the union: what a failed commit leaves for the next one."""
        return Changes(
            streams=self.streams | later.streams,
            incarnations=self.incarnations | later.incarnations,
            layouts=self.layouts + later.layouts,
            timelines=self.timelines + later.timelines,
            series=self.series + later.series,
            gaps=self.gaps | later.gaps,
        )

    def without(self, run: str, timelines: Collection[int]) -> Changes:
        """Return what is left without a run, whose timelines are these."""
        return Changes(
            streams={key: None for key in self.streams if key.run != run},
            incarnations={key: None for key in self.incarnations if key[0] != run},
            layouts=[row for row in self.layouts if row[0] != run],
            timelines=[row for row in self.timelines if row[1] != run],
            series=[row for row in self.series if row[1] not in timelines],
            gaps={key: None for key in self.gaps if key[0] != run},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRows:
    """The rows of a commit's catalogue part, copied so that appends may go on meanwhile."""

    streams: list[tuple[StreamKey, tuple[int, int, int, int]]]
    incarnations: list[tuple[str, int, int, bytes, bytes]]
    layouts: list[tuple[str, int, int, int, int, bytes]]
    timelines: list[tuple[int, str, int, bytes]]
    series: list[tuple[int, int, str, str]]
    gaps: list[GapRow]
    known: list[tuple[int, int]]
    """How much the state of each of the incarnations knows of frames, and beside them."""
    part: int = 0
    """Of the store's: the one that the commit is of."""


class PartChanges:
    """The changes of each part of a store since its last commit."""

    def __init__(self) -> None:
        self.part = 0
        """Whose stream is being taken, or committed. What changes is saved with it."""
        self._of_part: dict[int, Changes] = {}

    @property
    def now(self) -> Changes:
        """What of the part has changed since its last commit."""
        return self._of_part.setdefault(self.part, Changes())

    @now.setter
    def now(self, changes: Changes) -> None:
        self._of_part[self.part] = changes

    def forget_run(self, run: str, timelines: Collection[int]) -> None:
        """Drop what is of a run, whose timelines are these."""
        self._of_part = {part: changes.without(run, timelines) for part, changes in self._of_part.items()}
