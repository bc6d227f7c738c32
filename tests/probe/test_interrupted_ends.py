"""Ends that something breaks off, or comes between: a Ctrl-C, a signal's handler, the collector, a thread."""

import gc
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_scripts import ForkedScripts
from run_numbers import run_of
from small_training import seeded_model, train
from torch import nn

import probe
from probe import session
from probe.calls.launch.tracebacks import hide_own_frames_of_uncaught
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.recorder.bell import Bell
from probe.delivery.recorder.recorder import Recorder
from probe.guard import Guard
from probe.session import running_session

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 3


def watched() -> tuple[probe.Probe, nn.Module, torch.optim.Optimizer]:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return probe.watch(model, optimizer, overhead_limit=0.0), model, optimizer


def recorder_of(run: probe.Probe) -> Recorder:
    recorder = run._recorder
    assert recorder is not None
    return recorder


def record_event_in_time(run: probe.Probe, message: str) -> None:
    """On a thread of its own: what waits for itself is to fail here, and not to stand still."""
    thread = threading.Thread(target=run.record_event, args=(message,), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


_INTERRUPTED_AMID_ITS_END = """
import signal, sys, threading, time
import torch
import probe
from probe.delivery.journal.journal import JournalWriter

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = probe.watch(model, optimizer, overhead_limit=0.0)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
write, recorder, main, told = JournalWriter.append_many, run._recorder, threading.main_thread().ident, []

def interrupt_and_write(*arguments, **how):
    if recorder._closed and not told:
        told.append(True)
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
    return write(*arguments, **how)

JournalWriter.append_many = interrupt_and_write
"""


@pytest.mark.parametrize("end", ["run.close()", "pass"], ids=["close", "at exit"])
def test_ctrl_c_amid_the_end_loses_nothing(spool: Path, end: str, forked: ForkedScripts) -> None:
    _, _, err = forked.start(["-c", _INTERRUPTED_AMID_ITS_END + end], spool.parent).finish()
    assert "KeyboardInterrupt" in err
    run = run_of(spool)
    assert [frame.step for frame in run.frames] == [0, 1, 2]
    assert run.end is not None
    assert (run.end.outcome, run.end.step) == ("finished", 2)


def test_handler_that_closes_amid_the_write_of_an_event_does_not_wait_for_itself(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model, optimizer = watched()
    train(model, optimizer, STEPS)
    write, told = JournalWriter.append, []

    def close_and_write(journal: JournalWriter, stream: Any, record: bytes, **how: Any) -> int:
        if not told and b"meanwhile" in record:  # and not one of the recorder's own
            told.append(True)
            run.close()
        return write(journal, stream, record, **how)

    monkeypatch.setattr(JournalWriter, "append", close_and_write)
    record_event_in_time(run, "meanwhile")
    run.close()
    recorded = run_of(spool)
    assert len(recorded.frames) == STEPS
    assert recorded.end is not None
    assert told
    assert [event.message for event in recorded.events] == ["meanwhile"]


def test_event_that_comes_amid_the_write_of_another_is_written_after_it(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model, _ = watched()
    write, told = JournalWriter.append, []

    def write_and_be_told(journal: JournalWriter, stream: Any, record: bytes, **how: Any) -> int:
        if not told and b"first" in record:  # and not one of the recorder's own
            told.append(True)
            run.record_event("second")
        return write(journal, stream, record, **how)

    monkeypatch.setattr(JournalWriter, "append", write_and_be_told)
    record_event_in_time(run, "first")
    assert running_session(model) is run
    run.close()
    assert told
    assert [event.message for event in run_of(spool).events] == ["first", "second"]


def test_close_by_the_garbage_collector_on_the_recorders_thread_ends_the_run(spool: Path) -> None:
    run, model, optimizer = watched()
    train(model, optimizer, STEPS)
    recorder = recorder_of(run)
    write = recorder._write_frames

    def close_amid_writing() -> None:
        run.close()
        run.flush()
        write()

    recorder._write_frames = close_amid_writing  # type: ignore[method-assign]
    recorder._thread.join(10)
    assert not recorder._thread.is_alive()
    assert len(run_of(spool).frames) == STEPS
    assert run_of(spool).end is not None


def test_session_that_ends_on_another_thread_amid_a_call_raises_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, model, optimizer = watched()
    train(model, optimizer, 1)
    tracker = run._tracker
    assert tracker is not None
    guarded = run._guard.run

    def close_first(part: str, function: Any, *arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        other = threading.Thread(target=run.close)
        other.start()
        other.join()
        return guarded(part, function, *arguments, **named)

    monkeypatch.setattr(run._guard, "run", close_first)
    run.log(accuracy=0.5)
    assert run._tracker is None
    run.record_event("too late")


def test_ended_session_leaves_the_next_one_of_its_model_alone() -> None:
    run, model, optimizer = watched()
    run.close()
    following = probe.watch(model, optimizer)
    try:
        run._let_go()
        run.close()
        assert running_session(model) is following
        assert following.active
    finally:
        following.close()


def test_no_thread_for_the_recorder_leaves_training_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    run, model, optimizer = watched()
    train(model, optimizer, 1)
    run.close()
    assert not run.active
    assert "this run is not recorded: no thread can be started: can't start new thread" in caplog.text


def test_recorders_thread_outlives_a_folder_that_cannot_be_looked_at(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model, optimizer = watched()
    recorder = recorder_of(run)
    asked = Bell()

    def fail() -> None:
        asked.ring()
        raise PermissionError("the file system is gone")

    monkeypatch.setattr(recorder, "_tend", fail)
    recorder._next_tend_s = 0.0
    assert asked.wait(10)
    train(model, optimizer, STEPS)
    run.close()
    assert recorder.failed == "PermissionError: the file system is gone"
    assert len(run_of(spool).frames) == STEPS


def test_guard_that_a_handler_comes_amid_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard()
    module = sys.modules[Guard.__module__]
    clock, asked = module._clock_ns, []

    def clock_with_a_signal() -> int:
        asked.append(True)
        if len(asked) == 2:  # the end of the outer call: its depth is 0 again
            guard.run("handler", lambda: None)
        return int(clock())

    monkeypatch.setattr(module, "_clock_ns", clock_with_a_signal)
    assert guard.run("outer", lambda: 5) == 5
    assert guard.spent_so_far_ns() == guard.spent_ns


def test_exception_that_the_scripts_own_hook_took_is_recorded_at_exit(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model, optimizer = watched()
    train(model, optimizer, 1)
    # What the interpreter does with one that leaves the script, whatever its hook is.
    monkeypatch.setattr(sys, "last_value", ValueError("3 is too many"), raising=False)
    ours, sys.excepthook = sys.excepthook, lambda *_: None
    try:
        session._process._at_exit()
    finally:
        sys.excepthook = ours
        session._process.release()
    assert not run.active
    assert_ended_by(spool, "ValueError: 3 is too many")


def test_exception_that_never_came_to_our_hook_has_not_left_the_script(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pytest notes what its tests have raised."""
    run, model, optimizer = watched()
    train(model, optimizer, 1)
    monkeypatch.setattr(sys, "last_value", ValueError("of another test"), raising=False)
    session._process._at_exit()
    assert not run.active
    assert run_of(spool).latest_events == []


def test_exception_that_the_console_told_before_the_session_is_not_of_it(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("long ago"), raising=False)
    _run, model, _ = watched()
    session._process._at_exit()
    assert running_session(model) is None
    assert run_of(spool).events == []


def test_exception_that_leaves_a_thread_ends_the_run_that_it_trained(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    run, model, optimizer = watched()

    def fail() -> None:
        train(model, optimizer, 1)
        raise ValueError("3 is too many")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    run.close()
    assert_ended_by(spool, "ValueError: 3 is too many")


def test_exception_of_a_thread_that_trains_something_else_is_not_of_this_run(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    run, model, optimizer = watched()
    train(model, optimizer, 1)
    thread = threading.Thread(target=lambda: 1 // 0)
    thread.start()
    thread.join()
    run.close()
    assert run_of(spool).events == []


def assert_ended_by(spool: Path, text: str) -> None:
    recorded = run_of(spool)
    assert recorded.end is not None
    assert recorded.end.outcome == "exception"
    (event,) = recorded.latest_events
    assert event.kind == "exception"
    assert text in event.message


def test_process_that_exits_because_of_an_exception_has_raised_it(spool: Path) -> None:
    """As torch.multiprocessing ends the processes that it has spawned."""
    _run, model, optimizer = watched()
    train(model, optimizer, 1)
    try:
        try:
            raise ValueError("3 is too many")
        except ValueError:
            sys.exit(1)
    except SystemExit:
        session._process._close_child()
    assert_ended_by(spool, "ValueError: 3 is too many")


def test_uncaught_exception_of_a_thread_shows_no_frame_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", told.append)
    hide_own_frames_of_uncaught()

    def stop() -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=Guard().run, args=("part", stop))
    thread.start()
    thread.join()
    functions = [frame.name for frame in traceback.extract_tb(told[0].exc_traceback)]
    assert functions[-1] == "stop"
    assert Guard.run.__name__ not in functions[2:]


def test_training_that_goes_on_after_a_thread_failed_has_finished(spool: Path) -> None:
    run, model, optimizer = watched()
    train(model, optimizer, 1)
    run._report_exception(ValueError("in a thread"), None)
    train(model, optimizer, 1)
    run.close()
    end = run_of(spool).end
    assert end is not None
    assert end.outcome == "finished"


def test_hook_of_threads_is_put_back() -> None:
    before = threading.excepthook
    run, model, _ = watched()
    assert threading.excepthook != before
    assert probe.watch(model) is run
    run.close()
    assert threading.excepthook is before


def test_bell_may_be_rung_often_and_is_heard_once() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(0.0)
    assert not bell.wait(0.0)


def test_reported_exception_is_not_kept(spool: Path) -> None:
    """It holds the batch and the graph of the step that it ended, whose memory the next try may need."""
    held: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        batch = torch.ones(3)
        held.append(weakref.ref(batch))
        raise RuntimeError("it is over")

    run, model, optimizer = watched()
    with run:
        train(model, optimizer, 1)
        try:
            fail()
        except RuntimeError as error:
            session._report_all(error, error.__traceback__, of_this_thread=True)
            session._report_all(error, error.__traceback__)
        gc.collect()
        assert held[0]() is None
        train(model, optimizer, 1)
    assert [event.kind for event in run_of(spool).latest_events] == ["exception"]


def test_exception_of_a_thread_that_has_not_trained_is_none_of_the_runs(spool: Path) -> None:
    run, model, optimizer = watched()
    with run:
        error = RuntimeError("of a logger, say")
        session._report_all(error, None, of_this_thread=True)
        train(model, optimizer, 1)
    assert run_of(spool).latest_events == []
