"""The recorder: what it was given is in the journal, and nothing that goes wrong reaches its caller."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from probe.delivery.helper import helper
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import read_run_json
from probe.delivery.recorder.events_queue import UNWRITTEN_EVENTS
from probe.delivery.recorder.metrics_queue import RING_FRAMES
from probe.delivery.recorder.recorder import Recorder
from probe.delivery.recorder.ring_header import BUSY_AT
from probe.delivery.recorder.schedule import Schedule
from probe.errors import JournalError
from probe.threads import pieces
from probe.wire import (
    Document,
    Event,
    Frame,
    Layout,
    ParameterInfo,
    Record,
    RunEnd,
    RunStart,
    StreamName,
    decode_record,
)

ROOT = Path(__file__).resolve().parents[3]
START = RunStart(run="run", rank=2, incarnation=7, name="train.py", pid=os.getpid(), time=1.0)
LAYOUT = Layout(layout=0, model="net", parameters=[], layers=[])


def frame(step: int) -> Frame:
    return Frame(step=step, time=float(step))


def event(step: int, message: str = "it is not finite") -> Event:
    return Event(
        id=f"{step:016x}", run="run", rank=2, incarnation=7, step=step, time=1.0,
        kind="nonfinite_loss", severity="critical", message=message,
    )  # fmt: skip


def records(folder: Path, stream: StreamName) -> list[Record]:
    return [decode_record(data) for _, data in read_stream(folder, stream)]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path, START, connect="")
    yield recorder
    recorder.close(outcome="finished", last_step=None)
    assert not [thread for thread in threading.enumerate() if thread.name == "nanscope-recorder"]


def test_recorder_begins_with_its_run_start(recorder: Recorder, tmp_path: Path) -> None:
    assert recorder.folder == tmp_path / "run" / "2-7"
    assert records(recorder.folder, "events") == [START]
    assert read_run_json(tmp_path / "run") == START


def test_recorder_event_is_in_the_journal_when_the_call_returns(recorder: Recorder) -> None:
    recorder.event(LAYOUT)
    recorder.event(event(3))
    assert records(recorder.folder, "events") == [START, LAYOUT, event(3)]


def test_recorder_frames_are_written_by_its_thread_in_order(recorder: Recorder) -> None:
    for step in range(300):
        recorder.frame(frame(step))
    deadline = time.monotonic() + 30
    while len(records(recorder.folder, "metrics")) < 300 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert records(recorder.folder, "metrics") == [frame(step) for step in range(300)]


def test_recorder_addition_becomes_one_frame_with_its_step(recorder: Recorder) -> None:
    recorder.frame(frame(1))
    recorder.frame(Frame(step=1, time=1.0, scalars={"log/x": 2.0}), is_addition=True)
    recorder.flush()
    recorder.frame(Frame(step=1, time=1.0, scalars={"log/y": 3.0}), is_addition=True)
    recorder.flush()
    assert records(recorder.folder, "metrics") == [
        Frame(step=1, time=1.0, scalars={"log/x": 2.0}),
        Frame(step=1, time=1.0, scalars={"log/y": 3.0}),
    ]


def test_recorder_larger_layout_begins_another_ring_and_loses_nothing(recorder: Recorder) -> None:
    recorder.frame(frame(0))
    before = recorder.ring
    parameter = ParameterInfo(name="p", shape=[2], dtype="float32", layer=0)
    recorder.event(Layout(layout=1, model="net", parameters=[parameter] * 5000, layers=[]))
    assert recorder.ring is not before and recorder.ring.capacity > before.capacity
    recorder.frame(frame(1))
    recorder.flush()
    assert records(recorder.folder, "metrics") == [frame(0), frame(1)]
    assert [path.name for path in recorder.folder.glob("ring*")] == ["ring-1"]


def test_recorder_close_removes_the_ring(recorder: Recorder) -> None:
    recorder.frame(frame(0))
    assert (recorder.folder / "ring").exists()
    recorder.close(outcome="finished", last_step=0)
    assert not list(recorder.folder.glob("ring*"))


def test_recorder_flush_writes_what_is_in_the_ring(recorder: Recorder) -> None:
    recorder.frame(frame(1))
    recorder.flush()
    assert records(recorder.folder, "metrics") == [frame(1)]


def test_recorder_does_what_is_asked_for_once_on_its_thread(recorder: Recorder) -> None:
    threads: list[str] = []
    recorder.do_once(lambda: threads.append(threading.current_thread().name))
    for _ in range(2):
        recorder.flush()
    assert threads == ["nanscope-recorder"]


def test_recorder_close_writes_the_end_once_and_then_does_nothing(recorder: Recorder) -> None:
    recorder.frame(frame(5))
    recorder.close(outcome="exception", last_step=5)
    recorder.close(outcome="finished", last_step=9)
    recorder.frame(frame(6))
    recorder.event(event(6))
    recorder.flush()
    end = records(recorder.folder, "events")[-1]
    assert isinstance(end, RunEnd)
    assert (end.outcome, end.step, end.lost_before_write) == ("exception", 5, 0)
    assert records(recorder.folder, "metrics") == [frame(5)]


def test_recorder_full_ring_keeps_what_has_no_room_up_to_a_limit(recorder: Recorder) -> None:
    many = 3 * RING_FRAMES
    with recorder._metrics._write_lock:  # the thread cannot write meanwhile, as when the disk hangs
        for step in range(many):
            recorder.frame(frame(step))
        lost = recorder.lost_before_write
    recorder.flush()
    written = records(recorder.folder, "metrics")
    assert 0 < lost < many - RING_FRAMES
    assert len(written) == many - lost
    assert written[-RING_FRAMES:] == [frame(step) for step in range(many - RING_FRAMES, many)]
    recorder.frame(frame(many))
    recorder.flush()
    assert records(recorder.folder, "metrics")[-1] == frame(many)


def test_recorder_record_that_does_not_encode_is_counted(recorder: Recorder) -> None:
    recorder.frame(Frame(step=0, time=0.0, scalars={"loss": object()}))
    recorder.event(msgspec.structs.replace(event(1), severity=object()))
    recorder.flush()
    assert recorder.lost_before_write == 2
    assert recorder.failed is not None
    assert "does not encode" in recorder.failed
    assert records(recorder.folder, "events") == [START]


class _FailingStep:
    """A step whose logged value cannot be read any more."""

    def build(self) -> Frame:
        raise RuntimeError("the device is lost")


def test_recorder_outlives_a_step_that_cannot_be_built(recorder: Recorder) -> None:
    recorder.frame(frame(0))
    recorder.frame(_FailingStep())
    recorder.frame(frame(2))
    until_s = time.monotonic() + 30
    while len(records(recorder.folder, "metrics")) < 2 and time.monotonic() < until_s:
        time.sleep(0.05)
    assert recorder._thread.is_alive()
    assert recorder.lost_before_write == 1
    assert "the device is lost" in str(recorder.failed)
    assert records(recorder.folder, "metrics") == [frame(0), frame(2)]


def test_recorder_reads_the_memory_of_process_and_machine(recorder: Recorder) -> None:
    memory = recorder.memory
    assert memory is not None
    assert 0 < memory.rss_bytes < memory.system_total_bytes
    assert 0 < memory.system_used_bytes < memory.system_total_bytes


def test_recorder_in_a_forked_process_does_nothing(recorder: Recorder) -> None:
    child = os.fork()
    if child == 0:
        recorder.event(event(1))
        recorder.frame(frame(1))
        recorder.flush()
        recorder.close(outcome="finished", last_step=1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    recorder.flush()
    assert (records(recorder.folder, "events"), records(recorder.folder, "metrics")) == ([START], [])


def test_recorder_unusable_spool_raises_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot write the journal in"):
        Recorder(tmp_path / "file", START, connect="")


def test_recorder_without_shipping_starts_no_helper(recorder: Recorder, tmp_path: Path) -> None:
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()] == ["2-7"]


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, "tests/probe/delivery")
from test_recorder import LAYOUT, START, event, frame
from probe.delivery.recorder.recorder import Recorder
count = int(sys.argv[2])
recorder = Recorder(Path(sys.argv[1]), START, connect="")
recorder.frame(frame(0)); recorder.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
for step in range(1, count):
    recorder.frame(frame(step)); recorder.event(event(step)); recorder.flush()
print(recorder.failed)
if sys.argv[3] == "room":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
recorder.close(outcome="finished", last_step=count - 1)
print(recorder.lost_before_write)
"""


def on_full_disk(spool: Path, count: int, then: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(spool), str(count), then],
        cwd=ROOT, capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip


def run_on_full_disk(spool: Path, count: int, then: str) -> list[str]:
    return on_full_disk(spool, count, then).stdout.splitlines()


def test_recorder_full_disk_is_told_once_with_the_number_of_lost_records(tmp_path: Path) -> None:
    count = UNWRITTEN_EVENTS + 20
    first, last = on_full_disk(tmp_path, count, "no room").stderr.splitlines()
    assert first.startswith("nanscope: training goes on, but its recording has a problem: ")
    # The events alone: the frames are in the ring, whose file stays.
    assert last == f"nanscope: {count - 1} records of this run could not be written and are lost"


def test_recorder_full_disk_with_room_again_loses_nothing_and_says_so_once(tmp_path: Path) -> None:
    assert on_full_disk(tmp_path, 20, "room").stderr.count("\n") == 1


def test_recorder_full_disk_keeps_what_it_can_until_there_is_room(tmp_path: Path) -> None:
    reason, lost = run_on_full_disk(tmp_path, 20, "room")
    folder = tmp_path / "run" / "2-7"
    assert "cannot write to" in reason
    assert lost == "0"
    assert records(folder, "metrics") == [frame(step) for step in range(20)]
    assert records(folder, "events")[1:-1] == [event(step) for step in range(1, 20)]


def test_recorder_full_disk_to_the_end_counts_every_record(tmp_path: Path) -> None:
    count = UNWRITTEN_EVENTS + 20
    _, lost = run_on_full_disk(tmp_path, count, "no room")
    assert records(tmp_path / "run" / "2-7", "metrics") == [frame(step) for step in range(count)]
    assert int(lost) == count - 1


def test_recorder_close_starts_a_helper_when_the_last_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = [123]
    started: list[Path] = []
    monkeypatch.setattr(helper, "lock_owner", lambda _: owners[0] if owners else None)
    monkeypatch.setattr(helper, "start_helper", lambda folder, connect: started.append(folder))
    recorder = Recorder(tmp_path, START, connect=None)
    assert started == []
    owners.clear()
    recorder.close(outcome="finished", last_step=None)
    assert started == [recorder.folder.parent]


def test_recorder_without_a_ring_file_says_so_once_and_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run" / "2-7"
    (folder / "ring").mkdir(parents=True)  # as where the disk is full: no file can be made
    recorder = Recorder(tmp_path, START, connect="")
    for step in range(3):
        recorder.frame(frame(step))
        recorder.event(LAYOUT)
    recorder.flush()
    assert records(folder, "metrics") == [frame(step) for step in range(3)]
    assert len([text for text in caplog.messages if "may lose its newest steps" in text]) == 1
    recorder.close(outcome="finished", last_step=2)
    assert recorder.lost_before_write == 0


def test_recorder_has_c_code_append_nothing_while_records_wait_beside_the_ring(recorder: Recorder) -> None:
    busy = recorder.ring._numbers[BUSY_AT // 8 : BUSY_AT // 8 + 1]
    assert busy[0] == 0
    with recorder._metrics._write_lock:
        while not recorder._metrics._beside:
            recorder.frame(frame(0))
        assert busy[0] == 1
    recorder.flush()
    assert busy[0] == 0


class Lull:
    """A stand-in: begins when the test says so."""

    is_on = False

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None] | None] = []
        self.goes_on, self._asked = True, 0

    @property
    def beats(self) -> int:
        self._asked += 1
        return self._asked if self.goes_on else 0

    def call_at_next(self, ring: Callable[[], None] | None) -> None:
        """Keep who waits."""
        self.waiting.append(ring)


class Looks:
    """A `Watch` that notes when it was done."""

    period_s = 0.25

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def look(self) -> list[Event]:
        self.at_s.append(time.monotonic())
        return []

    def close(self) -> list[Event]:
        return []


def test_recorder_looks_at_once_with_what_comes_while_it_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a training that hangs in its first second has left no sign of life, and nobody tells of it."""
    monkeypatch.setattr(Schedule, "wait_s", 3600.0)
    recorder, looks = Recorder(tmp_path, START, connect=""), Looks()
    try:
        recorder.look_with(looks)
        deadline_s = time.monotonic() + 20.0
        while not looks.at_s and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert looks.at_s
    finally:
        recorder.close(outcome="finished", last_step=None)


def test_recorder_looks_between_two_tasks_that_are_done_once(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Schedule, "is_due", lambda *_: True)
    looks, seen = Looks(), list[int]()
    recorder.look_with(looks)
    for _ in range(3):
        recorder.do_once(lambda: seen.append(len(looks.at_s)))
    deadline_s = time.monotonic() + 20.0
    while len(seen) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert len(set(seen)) == len(seen) == 3


def test_recorder_works_when_a_lull_begins_and_else_when_it_is_due(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lull, looks = Lull(), Looks()
    monkeypatch.setattr(pieces.process, "lull", lull)
    recorder.look_with(looks)
    deadline_s = time.monotonic() + 20.0
    while len(looks.at_s) < 4 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert len(looks.at_s) >= 4, "it is done though no lull comes"
    assert lull.waiting[1::2] == [None] * (len(lull.waiting) // 2), "a wait that is over is taken back"
    while lull.waiting[-1:] == [None] and time.monotonic() < deadline_s:
        time.sleep(0.001)
    done = len(looks.at_s)
    ring = lull.waiting[-1]
    assert ring is not None
    ring()
    while len(looks.at_s) == done and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert len(looks.at_s) > done


def test_recorder_waits_for_no_lull_of_a_training_that_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lull, looks = Lull(), Looks()
    lull.goes_on = False
    # Before the recorder begins: what it knew of earlier would be of another training.
    monkeypatch.setattr(pieces.process, "lull", lull)
    recorder = Recorder(tmp_path, START, connect="")
    try:
        recorder.look_with(looks)
        deadline_s = time.monotonic() + 20.0
        while len(looks.at_s) < 5 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert len(looks.at_s) >= 5 and lull.waiting == []
    finally:
        recorder.close(outcome="finished", last_step=None)


def test_documents_are_written_up_to_their_number_and_the_rest_is_told(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.delivery.recorder.events_queue.MAX_DOCUMENTS", 2)
    for number in range(3):
        recorder.document(Document(kind="snapshot", key=str(number), time=1.0, body=b"{}"))
    written = [one.key for one in records(recorder.folder, "events") if isinstance(one, Document)]
    assert written == ["0", "1"]
    assert recorder.failed is not None and "more than 2 snapshots" in recorder.failed


class Snapshots:
    """A watch that has a document at each look, and one at the end."""

    period_s = 0.01

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> list[Document]:
        self.looks += 1
        return [Document(kind="snapshot", key=f"look {self.looks}", time=1.0, body=b"{}")]

    def close(self) -> list[Document]:
        return [Document(kind="snapshot", key="end", time=1.0, body=b"{}")]


@pytest.mark.parametrize(
    ("most", "written"), [(2, ["look 1", "look 2"]), (4096, ["look 1", "look 2", "look 3"])]
)
def test_documents_of_a_watch_are_written_up_to_their_number(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, most: int, written: list[str]
) -> None:
    monkeypatch.setattr("probe.delivery.recorder.events_queue.MAX_DOCUMENTS", most)
    watch = Snapshots()
    recorder.look_with(watch)
    deadline_s = time.monotonic() + 20.0
    while watch.looks < 4 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    recorder.close(outcome="finished", last_step=None)
    found = [one.key for one in records(recorder.folder, "events") if isinstance(one, Document)]
    assert found[:3] == written and (found[-1] == "end") == (most > 2)


def test_document_of_the_threads_own_task_is_written_while_it_closes(recorder: Recorder) -> None:
    begun, closing = threading.Event(), threading.Event()

    def task() -> None:
        begun.set()
        closing.wait(20.0)
        recorder.document(Document(kind="snapshot", key="late", time=1.0, body=b"{}"))

    recorder.do_once(task)
    assert begun.wait(20.0)
    closer = threading.Thread(target=recorder.close, kwargs={"outcome": "finished", "last_step": None})
    closer.start()
    while recorder.is_open:
        time.sleep(0.001)
    closing.set()
    closer.join(20.0)
    written = [one for one in records(recorder.folder, "events") if isinstance(one, Document | RunEnd)]
    assert [type(one) for one in written] == [Document, RunEnd]
