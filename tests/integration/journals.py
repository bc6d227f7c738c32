"""Reads what a run left in its spool, for tests."""

from dataclasses import dataclass
from pathlib import Path

from probe import wire
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.recorder.ring_format import merged


@dataclass(frozen=True)
class Journal:
    """Decoded records of the (single) rank of a run."""

    start: wire.RunStart
    layouts: list[wire.Layout]
    events: list[wire.Event]
    end: wire.RunEnd | None
    frames: list[wire.Frame]

    @property
    def latest_events(self) -> list[wire.Event]:
        """Each event once, in its last state, in the order of their beginnings."""
        return list({event.id: event for event in self.events}.values())


def read_journal(run_folder: Path, rank: int = 0) -> Journal:
    """Read the newest incarnation of one rank."""
    writer = max(run_folder.glob(f"{rank}-*"), key=lambda path: path.name)
    events = [wire.decode_record(payload) for _, payload in read_stream(writer, "events")]
    frames = [wire.decode_record(payload) for _, payload in read_stream(writer, "metrics")]
    start = events[0]
    assert isinstance(start, wire.RunStart)
    return Journal(
        start=start,
        layouts=[record for record in events if isinstance(record, wire.Layout)],
        events=[record for record in events if isinstance(record, wire.Event)],
        end=next((record for record in events if isinstance(record, wire.RunEnd)), None),
        frames=_whole([record for record in frames if isinstance(record, wire.Frame)]),
    )


def events_so_far(run_folder: Path, rank: int = 0) -> list[wire.Event]:
    """Return what a rank has reported while it runs: nothing before it has a journal with a first record."""
    writer = max(run_folder.glob(f"{rank}-*"), key=lambda path: path.name, default=None)
    if writer is None:
        return []
    records = (wire.decode_record(payload) for _, payload in read_stream(writer, "events"))
    return [record for record in records if isinstance(record, wire.Event)]


def _whole(frames: list[wire.Frame]) -> list[wire.Frame]:
    """Put what was added to a step after its frame was written with it, as every reader does."""
    whole: list[wire.Frame] = []
    for frame in frames:
        is_addition = not frame.columns and "loss" not in frame.scalars and "samples" not in frame.scalars
        if whole and is_addition and whole[-1].step == frame.step:
            whole[-1] = merged(whole[-1], frame)
        else:
            whole.append(frame)
    return whole
