"""A folder that is removed while it is written: a new one is made, and what was in the old one is counted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_recorder import START, frame, records

from dashboard.ingest.spool import ingest_spool
from dashboard.store.duck import DuckStore
from probe.delivery.journal.account import read_account
from probe.delivery.journal.run_folders import read_run_json
from probe.delivery.recorder.gap_watch import GapWatch
from probe.delivery.recorder.recorder import Recorder
from probe.wire import Event, Frame, Layout, RunEnd, RunStart

LAYOUT = Layout(layout=0, model="net", parameters=[], layers=[])

REMOVALS: dict[str, Callable[[Path], object]] = {
    "the spool": lambda folder: shutil.rmtree(folder.parents[1]),
    "the writer's folder": shutil.rmtree,
    "its files": lambda folder: [path.unlink() for path in folder.iterdir() if path.is_file()],
    "the metrics": lambda folder: [path.unlink() for path in folder.glob("metrics-*")],
}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "spool", START, connect="")
    watch = GapWatch(START, "net", recorder=recorder, last_step=lambda: 30)
    recorder.look_with(watch)
    recorder.event(LAYOUT)
    yield recorder
    recorder.close(outcome="finished", last_step=None)


@pytest.mark.parametrize("what", REMOVALS)
def test_removed_files_are_told_and_counted(recorder: Recorder, tmp_path: Path, what: str) -> None:
    for step in range(20):
        recorder.frame(frame(step))
    recorder.flush()
    REMOVALS[what](recorder.folder)
    recorder.do_once(recorder._tend)
    recorder.flush()
    for step in range(20, 30):
        recorder.frame(frame(step))
    recorder.flush()
    recorder.close(outcome="finished", last_step=30)
    written = records(recorder.folder, "events")
    assert [type(one) for one in written if isinstance(one, RunStart | Layout)][-2:] == [RunStart, Layout]
    assert isinstance(written[-1], RunEnd)
    (event,) = [one for one in written if isinstance(one, Event)]
    assert (event.kind, event.severity) == ("data_gap", "warning")
    assert (
        event.evidence.value in (22.0, 23.0) and "was removed, or its disk unmounted, while" in event.message
    )
    steps = [one.step for one in records(recorder.folder, "metrics") if isinstance(one, Frame)]
    assert steps == list(range(20, 30))
    assert read_run_json(recorder.folder.parent) == START
    account = read_account(recorder.folder)
    assert account is not None and account.metrics == written[-1].metrics_written and account.is_closed
    store = DuckStore(tmp_path / "data")
    report = ingest_spool(store, tmp_path / "spool")
    (gap,) = store.gaps(START.run)
    assert gap.count == 20 and report.missing >= 20
    store.close()


def test_removed_spool_that_cannot_be_made_anew_is_counted_and_tried_again(
    recorder: Recorder, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    recorder.frame(frame(0))
    recorder.flush()
    shutil.rmtree(spool)
    spool.touch()
    recorder.do_once(recorder._tend)
    recorder.flush()
    for step in range(1, 11):
        recorder.frame(frame(step))
    recorder.flush()
    assert recorder.blocked is not None and recorder.waiting == 10 and recorder.metrics_end == 1
    spool.unlink()
    recorder.do_once(recorder._tend)
    recorder.flush()
    recorder.close(outcome="finished", last_step=10)
    steps = [one.step for one in records(recorder.folder, "metrics") if isinstance(one, Frame)]
    assert steps == list(range(1, 11)) and recorder.lost_before_write == 0


def test_removed_spool_that_stays_away_is_a_count_at_the_end(
    recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(tmp_path / "spool")
    (tmp_path / "spool").touch()
    recorder.do_once(recorder._tend)
    recorder.flush()
    for step in range(10):
        recorder.frame(frame(step))
    recorder.close(outcome="finished", last_step=10)
    assert recorder.lost_before_write == 10
    assert "nanscope: 10 records of this run could not be written and are lost" in caplog.messages
