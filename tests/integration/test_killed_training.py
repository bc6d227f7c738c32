"""A training that is killed has lost nothing that a finished step had recorded."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delivery import assert_delivered
from forked_scripts import ForkedScript, ForkedScripts

from dashboard.ingest.spool import ingest_spool
from dashboard.store.duck import DuckStore
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.delivery.helper.ring_taker import take_ring
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.ring_rest import read_ring
from probe.delivery.journal.run_folders import list_writers
from probe.delivery.recorder.ring_format import record_bytes
from probe.delivery.recorder.ring_header import HEADER_BYTES, read_counters
from probe.wire import Event, Frame, decode_record

SCRIPT = Path(__file__).with_name("scripts") / "killed.py"
STEPS = 70


Start = Callable[..., ForkedScript]


@pytest.fixture
def start(forked: ForkedScripts) -> Iterator[Start]:
    """Start the script; what still runs at the end is killed."""
    started: list[ForkedScript] = []

    def run(spool: Path, how: str, where: str, *, connect: str = "", is_mapped: bool = True) -> ForkedScript:
        spool.mkdir(parents=True, exist_ok=True)
        command = [str(SCRIPT), str(spool), str(spool.parent / "log"), how, where, connect]
        environment = {"NANSCOPE_LINGER_S": "1"} | ({} if is_mapped else {"UNMAPPED": "1"})
        started.append(forked.start(command, spool.parent, environment))
        return started[-1]

    yield run
    for script in started:
        script.kill()
        script.wait()


def finished_steps(spool: Path) -> list[int]:
    log = spool.parent / "log"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def frames_of(spool: Path) -> list[Frame]:
    (writer,) = (folder for folder in list_writers(spool / "killed") if not folder.name.startswith("host"))
    records = [decode_record(data) for _, data in read_stream(writer, "metrics")]
    return [record for record in records if isinstance(record, Frame)]


def writer_of(spool: Path) -> Path:
    (writer,) = (folder for folder in list_writers(spool / "killed") if not folder.name.startswith("host"))
    return writer


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def assert_nothing_lost(spool: Path) -> None:
    frames = frames_of(spool)
    logged = [step for frame in frames if "log/mine" in frame.scalars for step in [frame.step]]
    losses = [frame.step for frame in frames if "loss" in frame.scalars]
    assert finished_steps(spool) == list(range(STEPS)) == losses == logged


@pytest.mark.parametrize("where", ["step", "evaluation", "checkpoint"])
@pytest.mark.parametrize("how", ["kill", "exit", "segfault"])
def test_killed_training_has_lost_no_finished_step(start: Start, spool: Path, how: str, where: str) -> None:
    process = start(spool, how, where)
    assert process.wait() == {"kill": -signal.SIGKILL, "exit": 3, "segfault": -signal.SIGSEGV}[how]
    assert_nothing_lost(spool)


@pytest.mark.parametrize("how", ["kill", "segfault"])
def test_killed_training_has_lost_no_step_where_no_file_is_mapped(
    start: Start, spool: Path, how: str
) -> None:
    process = start(spool, how, "step", is_mapped=False)
    assert process.wait() in (-signal.SIGKILL, -signal.SIGSEGV)
    image = read_ring(writer_of(spool) / "ring")
    assert image is not None and read_counters(image.path.read_bytes()).descriptor >= 0
    assert_nothing_lost(spool)


def test_fault_of_the_newest_step_is_told_though_no_other_step_comes(start: Start, spool: Path) -> None:
    process = start(spool, "sleep", "fault")
    wait_until(lambda: len(finished_steps(spool)) == STEPS, "the training does not get on")
    wait_until(lambda: "gradient_explosion" in kinds_of(spool), "the fault is not told")
    process.kill()
    process.wait()
    assert_nothing_lost(spool)


def kinds_of(spool: Path) -> set[str]:
    return {event.kind for event in events_of(spool)}


def test_helper_takes_the_ring_of_a_killed_trainer_once(start: Start, spool: Path) -> None:
    process = start(spool, "kill", "step", connect="tcp://127.0.0.1:9")
    process.wait()
    wait_until(lambda: not list(writer_of(spool).glob("ring*")), "nobody takes the ring")
    lock = lock_path(host_folder(spool / "killed"))
    wait_until(lambda: lock_owner(lock) is None, "the helper does not leave")
    assert_nothing_lost(spool)
    assert take_ring(writer_of(spool))
    assert_nothing_lost(spool)


@pytest.mark.parametrize("first", ["reader", "taker"])
def test_reader_and_taker_give_the_same_records(
    start: Start, spool: Path, tmp_path: Path, first: str
) -> None:
    start(spool, "kill", "step").wait()
    before = list(read_stream(writer_of(spool), "metrics"))
    store = DuckStore(tmp_path / "data")
    try:
        if first == "reader":
            ingest_spool(store, spool)
        assert take_ring(writer_of(spool)) and take_ring(writer_of(spool))
        assert list(read_stream(writer_of(spool), "metrics")) == before
        ingest_spool(store, spool)
        assert_delivered(spool, "killed", store)
    finally:
        store.close()


def tear_newest(spool: Path) -> bool:
    """Change a bit of the ring's newest record; False where the journal has all of them."""
    (ring,) = writer_of(spool).glob("ring*")
    image = read_ring(ring)
    assert image is not None
    records = list(image.following(image.mark.end, image.mark.end_seq))
    if records:
        begin = records[-1].end - record_bytes(len(records[-1].payload))
        data = bytearray(image.data)
        data[HEADER_BYTES + begin % image.counters.capacity] ^= 1
        ring.write_bytes(data)
    return bool(records)


def events_of(spool: Path) -> list[Event]:
    records = [decode_record(data) for _, data in read_stream(writer_of(spool), "events")]
    return [record for record in records if isinstance(record, Event)]


def test_torn_record_is_told_and_the_accounts_balance(start: Start, tmp_path: Path) -> None:
    for attempt in range(5):
        spool = tmp_path / f"attempt-{attempt}" / "spool"
        start(spool, "kill", "step").wait()
        if tear_newest(spool):
            break
    else:
        pytest.fail("the recorder's thread had always taken everything")
    writer = writer_of(spool)
    told = [event for event in events_of(spool) if event.kind == "data_gap"]
    assert [(event.subject, event.evidence.value) for event in told] == [("torn", 1.0)]
    store = DuckStore(tmp_path / "data")
    try:
        ingest_spool(store, spool)
        assert take_ring(writer)
        ingest_spool(store, spool)
        assert_delivered(spool, "killed", store)
    finally:
        store.close()
    assert [event for event in events_of(spool) if event.kind == "data_gap"] == told


def test_jump_whose_verdict_waits_is_an_event_of_a_killed_training(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    script = SCRIPT.with_name("killed_after_a_jump.py")
    forked.start([str(script), str(tmp_path / "spool")], tmp_path).finish()
    (writer,) = list_writers(tmp_path / "spool" / "jump")
    records = [decode_record(data) for _, data in read_stream(writer, "events")]
    (event,) = (one for one in records if isinstance(one, Event) and one.kind == "loss_spike")
    assert (event.step, event.severity, event.ended) == (100, "info", False)
    assert "fault or a new task" in event.message
