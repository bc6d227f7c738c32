"""Statistics that a helper sends apart and could not send any more are read of the journal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_reference import SMALL, stream_key

from dashboard.ingest.spool import SpoolIngest
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange
from probe.delivery.helper.detail import DetailFollower, SlimFollower
from probe.delivery.helper.resolution import Resolution
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_json import write_run_json
from probe.wire import Frame, RunStart, encode
from probe.wire.columns import pack_column

RUN, RANK, STEPS, SENT = "run-1", 5, 80, 50


def write_journal(spool: Path, world_size: int) -> Path:
    start = RunStart(run=RUN, rank=RANK, incarnation=1000, world_size=world_size)
    folder = spool / RUN / f"{RANK}-1000"
    journal = JournalWriter(folder, run=RUN, writer=folder.name)
    write_run_json(spool / RUN, start)
    journal.append_many("events", [encode(start), encode(SMALL)])
    write_steps(journal, range(STEPS))
    return folder


def write_steps(journal: JournalWriter, steps: range) -> None:
    for step in steps:
        columns = [pack_column("grad_norm", np.array([1.0 + step, 2.0, 3.0]))]
        journal.append("metrics", encode(Frame(step=step, time=1.0, scalars={"loss": 1.0}, columns=columns)))
    journal.close()


def ship(store: DuckStore, folder: Path, *, is_slim: bool, detail: int) -> None:
    """Give the store what a helper has sent before it was killed."""
    metrics = SlimFollower(folder, RANK, is_compared=False)
    metrics.is_slim = is_slim
    chunk = metrics.poll(10**6)
    store.append(stream_key("metrics", rank=RANK), 0, chunk.records[:SENT])
    if detail:
        follower = DetailFollower(metrics, Resolution(folder.parent))
        follower.writer_is_over()
        store.append(stream_key("detail", rank=RANK), 0, follower.poll(10**6).records[:detail])
    store.commit()


@pytest.mark.parametrize("detail", [1, 16, 48])
def test_what_the_helper_left_is_stored_step_by_step(tmp_path: Path, detail: int) -> None:
    store = DuckStore(tmp_path / "data")
    ship(store, write_journal(tmp_path / "spool", 20), is_slim=True, detail=detail)
    ingest = SpoolIngest(store, tmp_path / "spool")
    for _ in range(2):
        ingest.run()
    picture = store.heatmap(RUN, RANK, "grad_norm", StepRange(first=detail), 1000)
    assert picture.steps_per_column == 1 and picture.steps.tolist() == list(range(detail, STEPS))
    assert picture.values[0].tolist() == pytest.approx([np.hypot(1.0 + step, 2.0) for step in picture.steps])
    assert len(store.scalars(RUN, RANK, ["loss"])) == STEPS
    ends = {one.key.stream: (one.next_seq, one.stored) for one in store.positions(RUN)}
    assert ends["metrics"] == (STEPS, STEPS) and ends["detail"] == (SENT, SENT)
    store.close()


def test_what_a_later_helper_left_is_stored_too(tmp_path: Path) -> None:
    """The same reader has read what the one before it had left."""
    store = DuckStore(tmp_path / "data")
    folder = write_journal(tmp_path / "spool", 20)
    ship(store, folder, is_slim=True, detail=16)
    ingest = SpoolIngest(store, tmp_path / "spool")
    ingest.run()
    write_steps(JournalWriter(folder, run=RUN, writer=folder.name), range(STEPS, 2 * STEPS))
    metrics = SlimFollower(folder, RANK, is_compared=False)
    metrics.is_slim = True
    metrics.seek(STEPS)
    store.append(stream_key("metrics", rank=RANK), STEPS, metrics.poll(10**6).records)
    store.commit()
    ingest.run()
    picture = store.heatmap(RUN, RANK, "grad_norm", StepRange(first=STEPS), 1000)
    assert picture.steps.tolist() == list(range(STEPS, 2 * STEPS))
    store.close()


@pytest.mark.parametrize("world_size", [2, 20])
def test_what_was_read_in_full_is_not_given_again(tmp_path: Path, world_size: int) -> None:
    store = DuckStore(tmp_path / "data")
    ship(store, write_journal(tmp_path / "spool", world_size), is_slim=False, detail=0)
    for _ in range(2):
        SpoolIngest(store, tmp_path / "spool").run()
    assert {one.key.stream for one in store.positions(RUN)} == {"events", "metrics"}
    store.close()
