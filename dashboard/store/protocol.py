"""The seam between what writes and reads a run's data and how it is kept.

`DuckStore` is a file of one dashboard; `ClickStore` a database that several share. All returned arrays are
read-only. A store is thread-safe: one thread writes, any thread reads.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe.wire import Document, Event, Layout, RunStart, StreamKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """Delivery account of one stream: `next_seq == stored + gaps + dropped`, always."""

    key: StreamKey
    next_seq: int
    stored: int
    gaps: int
    """Sequence numbers that the journal no longer had when they were to be shipped."""
    dropped: int
    """Records that arrived but do not decode or break a limit: counted, shown, never fatal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """Latest state of one rank of a run (its newest incarnation)."""

    rank: int
    incarnation: int
    state: str
    """running, finished, exception, killed or silent."""
    first_step: int | None
    last_step: int | None
    last_time: float | None
    """UNIX seconds of the newest frame."""
    lost_before_write: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """One incarnation of a rank, and which steps it has written."""

    incarnation: int
    time: float
    """UNIX seconds of its start."""
    first_step: int | None
    last_step: int | None
    """Of its newest frame."""
    returns: tuple[tuple[int, int], ...] = ()
    """(step, newest step before) wherever its numbers went back, oldest first; the newest ones of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of the run selector."""

    run: str
    name: str
    start: RunStart
    started: float
    ranks: tuple[RankSummary, ...]
    event_counts: dict[str, int]
    """Severity -> events."""
    member: int | None = None
    """Which of the models that one run makes one after the other; None where there is one."""

    @property
    def recorded_as(self) -> str:
        """Id of the run whose journal it is in: that of a member's run, else its own."""
        return self.start.run

    @property
    def series(self) -> str | None:
        """Id of the run that makes several models one after the other; None for a run of one model."""
        return None if self.member is None else self.recorded_as


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Half-open range of steps; None is open-ended."""

    first: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap:
    """A (rows x columns) picture of one statistic. Each cell pools `steps_per_column` steps by maximum."""

    rows: tuple[str, ...]
    """Layer names in model order, or the parameter names of the unfolded layers between them; of a statistic
    of modules those of the modules that have a value, in model order."""
    row_kinds: tuple[str, ...]
    """`layer`, `parameter` or `module` for each row."""
    steps: npt.NDArray[np.int64]
    """(columns,) first step of each column."""
    steps_per_column: int
    values: npt.NDArray[np.float32]
    """(rows, columns) largest finite value; NaN where nothing finite was measured."""
    flags: npt.NDArray[np.uint8]
    """(rows, columns) bit 0: measured, bit 1: some step was NaN, bit 2: some step was Inf."""
    came_pooled: bool = False
    """Columns are wider than asked for, as nobody watched the rank when some of it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeries:
    """One scalar of all ranks of a run, on common columns: (ranks, columns) arrays."""

    mean: npt.NDArray[np.float64]
    """Of the finite values in a cell; NaN where there is none."""
    largest: npt.NDArray[np.float64]
    """Of the finite values in a cell; NaN where there is none."""
    flags: npt.NDArray[np.uint8]
    """As in `Heatmap`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankScalars:
    """Scalars of all ranks of a run, pooled to the same steps."""

    ranks: tuple[int, ...]
    """In order; those that the run must have by its world size, too."""
    hosts: tuple[str, ...]
    """Of the newest start of each rank; empty where it is not known."""
    stages: tuple[str | None, ...]
    """Which gradient each rank's `grad_norm` is (see `probe.wire.Frame.stage`); None where nothing tells."""
    present: tuple[bool, ...]
    """Whether a rank has sent any scalar."""
    steps: npt.NDArray[np.int64]
    """(columns,) first step of each column."""
    steps_per_column: int
    series: dict[str, RankSeries]
    """By name, one for each name that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeHistogram:
    """Elements counted by magnitude, of one tensor or of several together, at one step."""

    name: str
    """`gradient`, `parameter` or `activation`, see `probe.wire.module_frames.HISTOGRAMS`."""
    step: int
    tensors: int
    """How many parameters it counts; 1 for the output of a module."""
    counts: npt.NDArray[np.int64]
    """(BINS,), see `probe.wire.magnitude_bins`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramColumns:
    """All stored histograms of one kind, of one tensor or of several together, in order of arrival."""

    name: str
    """As in `MagnitudeHistogram`."""
    tensors: int
    """How many parameters the newest one counts; 1 for the output of a module."""
    steps: npt.NDArray[np.int64]
    """(columns,); after a restart steps begin again."""
    counts: npt.NDArray[np.int64]
    """(columns, BINS)."""

    @property
    def newest(self) -> MagnitudeHistogram:
        """Return the last one; there is always one."""
        return MagnitudeHistogram(
            name=self.name, step=int(self.steps[-1]), tensors=self.tensors, counts=self.counts[-1]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTrack:
    """One statistic of one parameter, layer or module over steps, pooled as a row of a `Heatmap` is."""

    name: str
    """As `Store.heatmap` takes it, or a statistic that only parameters have."""
    kind: str
    """`parameter`, `layer` or `module`."""
    steps: npt.NDArray[np.int64]
    """(columns,) first step of each column."""
    steps_per_column: int
    values: npt.NDArray[np.float32]
    """(columns,) largest finite value; NaN where nothing finite was measured."""
    flags: npt.NDArray[np.uint8]
    """(columns,) bit 0: measured, bit 1: some step was NaN, bit 2: some step was Inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRange:
    """Steps between which data is known to be missing: drawn as a grey band."""

    rank: int
    first_step: int | None
    last_step: int | None
    count: int
    reason: str
    is_partial: bool = False
    """The steps are there; what was measured of each parameter is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """A document and whose it is."""

    run: str
    rank: int
    incarnation: int
    document: Document

    @property
    def identity(self) -> tuple[str, int, int, str, str]:
        """What a later one replaces it by."""
        return self.run, self.rank, self.incarnation, self.document.kind, self.document.key


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """What a person has said of a run."""

    note: str = ""
    starred: bool = False
    """It is kept: the spool's cap passes it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNote:
    """What a person has written at a step of a run."""

    id: str
    step: int
    text: str
    time: float
    """When it was written first; UNIX seconds."""


class Looks(Protocol):
    """What the pages of a dashboard show; see `WatchedRanks`."""

    def here(self, within_s: float) -> list[tuple[str, int]]:
        """Run and rank of what its own pages have been shown within so many seconds."""
        ...

    def note_elsewhere(self, run: str, rank: int, ago_s: float) -> None:
        """A page of another dashboard has been shown a rank, so many seconds ago."""
        ...


class Store(Protocol):
    """Durable home of every run. `append` and `skip` are idempotent by sequence number."""

    def position(self, key: StreamKey) -> StreamPosition:
        """Where this stream continues; zeros for one never seen."""
        ...

    def next_seqs(self, keys: Collection[StreamKey]) -> dict[StreamKey, int]:
        """The `next_seq` of each of these positions, all asked for at once.

        Those that are on a server that is away are left out.
        """
        ...

    def refuses(self, key: StreamKey) -> str | None:
        """Why a stream is not taken, for its sender; None where it is. See `limits.py`."""
        ...

    def positions(self, run: str) -> list[StreamPosition]:
        """The delivery account of every stream of a run."""
        ...

    def generation(self) -> int:
        """How often positions have gone back: the database was replaced, what was acknowledged is gone.

        Who delivers then forgets what it knew and begins each writer anew, events first.
        """
        ...

    def append(
        self, key: StreamKey, first_seq: int, records: list[bytes], *, generation: int | None = None
    ) -> int:
        """Queue encoded records for the next commit and return the stream's next expected sequence number.

        Records below the expected number are ignored (a resend); a batch that starts above it is ignored
        whole (go-back-N), and so is one of another generation than the store's, if that is given. What does
        not decode is counted as dropped. Durable only after `commit`.
        """
        ...

    def skip(self, key: StreamKey, first_seq: int, end_seq: int, reason: str) -> int:
        """Count `[first_seq, end_seq)` as a gap under the same rules as `append`."""
        ...

    def commit(self) -> dict[StreamKey, int]:
        """Write everything queued in one transaction; return the durable next sequence numbers that moved."""
        ...

    def remove_run(self, run: str) -> None:
        """Delete all that is known of a run, durably; what its writers still send is thrown away.

        A new incarnation of the run begins anew. An unknown run is none.
        """
        ...

    def revision(self, run: str | None = None) -> int:
        """A number that changes whenever reads of the run may show something new; None is any run.

        It changes after the new state can be read: what is read later than the number is at least as new.
        Counted in this process, from 0.
        """
        ...

    def view(self) -> AbstractContextManager[None]:
        """Have all reads of this thread inside the block see one state: that of its beginning.

        Names, events and gaps may be one append newer: the state has no values for what they tell of then.
        Not for long: other reads wait meanwhile.
        """
        ...

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        ...

    def run_start(self, run: str, rank: int = 0) -> RunStart | None:
        """The newest incarnation's description; None for an unknown run."""
        ...

    def starts(self, run: str, rank: int = 0) -> list[RankStart]:
        """All incarnations of a rank that have a step, oldest first."""
        ...

    def layout(self, run: str, rank: int = 0) -> Layout | None:
        """The newest layout of the newest incarnation."""
        ...

    def scalar_names(self, run: str, rank: int = 0) -> list[str]:
        """Names of all scalar series of the rank, sorted."""
        ...

    def scalars(
        self, run: str, rank: int, names: list[str], steps: StepRange = StepRange(), max_points: int = 1000
    ) -> pd.DataFrame:
        """Series as a frame with columns `name, step, time, min, mean, max, nan, inf, pooled`.

        One row per point: `pooled` is the number of steps in it (1 = raw), `step` its first step; `min`,
        `mean`, `max` are over finite values (NaN when there are none), `nan`/`inf` count the others.
        At most `max_points` rows per name; includes what is not yet committed (the live edge).
        """
        ...

    def rank_scalars(
        self, run: str, names: list[str], steps: StepRange = StepRange(), max_columns: int = 1000
    ) -> RankScalars:
        """Scalars of all ranks on common columns, at most `max_columns`; no rows for an unknown run."""
        ...

    def heatmap(
        self,
        run: str,
        rank: int,
        statistic: str = "grad_norm",
        steps: StepRange = StepRange(),
        max_columns: int = 1000,
        unfolded: tuple[str, ...] = (),
    ) -> Heatmap | None:
        """Pool a statistic to at most `max_columns` columns; None before the first layout."""
        ...

    def statistic_names(self, run: str, rank: int = 0) -> list[str]:
        """Names of the statistics that `heatmap` has values for, sorted."""
        ...

    def histograms(
        self, run: str, rank: int, subject: str, steps: StepRange = StepRange()
    ) -> list[MagnitudeHistogram]:
        """The newest histogram of each kind that was measured in these steps; empty where none was.

        Args:
            run: The run.
            rank: Its rank.
            subject: A parameter's name, or a module's: then of its output, and of the gradients and values of
                all parameters that it owns directly, counted together.
            steps: Newest is what arrived last of these steps. Only the newest ones of a run are kept.
        """
        ...

    def gradient_stage(self, run: str, rank: int = 0) -> str:
        """Which gradients the newest statistics are of, as `Frame.stage` says; empty where there are none."""
        ...

    def histogram_columns(
        self, run: str, rank: int, subject: str, steps: StepRange = StepRange()
    ) -> list[HistogramColumns]:
        """Every stored histogram of each kind that counted anything of the subject; see `histograms`.

        As many columns as a run keeps at most, which fit on any screen.
        """
        ...

    def tensor_tracks(
        self, run: str, rank: int, subject: str, steps: StepRange = StepRange(), max_columns: int = 256
    ) -> list[TensorTrack]:
        """All statistics of a parameter, layer or module, sorted by kind and name; those of one kind share
        their columns, at most `max_columns`. What was never measured in these steps is left out."""
        ...

    def histogram_subjects(self, run: str, rank: int = 0) -> list[str]:
        """Names of what `histograms` can be asked for, in model order; empty where there are none."""
        ...

    def histogram_mark(self, run: str, rank: int = 0) -> int | None:
        """A number that changes with every new histogram; None where there are none."""
        ...

    def events(self, run: str, rank: int | None = None) -> list[Event]:
        """Events in their latest state, by step; includes uncommitted ones."""
        ...

    def event(self, run: str, event_id: str) -> Event | None:
        """One event; None if there is none."""
        ...

    def run_of_event(self, event_id: str) -> str | None:
        """The run that has an event, by the event's id alone; None where none has it."""
        ...

    def documents(self, run: str, kind: str, rank: int | None = None) -> list[StoredDocument]:
        """The newest document of each key, by time; includes uncommitted ones."""
        ...

    def documents_mark(self, run: str) -> int:
        """A number that changes with every document of the run; 0 before the first of this process."""
        ...

    def document_kinds(self, run: str) -> list[str]:
        """Kinds of which `documents` has some, sorted."""
        ...

    def marks(self) -> dict[str, RunMark]:
        """Run -> what a person has said of it, of the runs that have a mark."""
        ...

    def mark_run(self, run: str, *, note: str | None = None, starred: bool | None = None) -> RunMark:
        """Change a run's note or star, durably, and return both; None leaves one as it is."""
        ...

    def notes(self, run: str) -> list[StepNote]:
        """What people have written at steps of a run, by step; cheap."""
        ...

    def write_note(self, run: str, note: StepNote) -> None:
        """Keep a note, durably, in place of the one with its id."""
        ...

    def remove_note(self, run: str, note_id: str) -> bool:
        """Delete a note, durably; False where there is none of that id."""
        ...

    def gaps(self, run: str, rank: int | None = None) -> list[GapRange]:
        """Known holes of the metrics streams."""
        ...

    def close(self) -> None:
        """Commit what is queued and release the files. Idempotent."""
        ...
