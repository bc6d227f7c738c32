"""What a signal handler raises in the middle of the probe is the user's, and no event is lost by it."""

from __future__ import annotations

import _thread
import functools
import os
import re
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import probe
from probe.actions.analysis.tensor_lives import TrackedTensor
from probe.attach.observation.kernel_step import KernelStep
from probe.attach.observation.modules import ModuleIndex
from probe.attach.process_hooks import ProcessHooks
from probe.attach.root_calls import RootCalls
from probe.compat.weak_tables import WeakTable
from probe.delivery.host_memory import read_memory
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import read_stream
from probe.forensics.capture import RootCapture
from probe.guard import Guard, finish_beside_signals, is_from_signal, outcome_of
from probe.incidents import error_events
from probe.measure.kernels.binding import at_death
from probe.memory.heap_meter import own_bytes
from probe.own_files import OwnFile
from probe.threads.processor_wait import _times_of
from probe.threads.whereabouts import _holds_packages
from probe.wire import Event, decode_record


def of_a_worker(number: int, frame: FrameType | None) -> None:
    """As torch's, which calls what was there before, and C code that raises."""
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed")


def of_an_alarm(*_: object) -> None:
    raise TimeoutError("the step takes too long")


class Handlers:
    """Ways to be a handler."""

    def method(self, number: int, frame: FrameType | None) -> None:
        of_a_worker(number, frame)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise ValueError(number)


HANDLERS: dict[str, Any] = {
    "function": of_a_worker,
    "any arguments": of_an_alarm,
    "method": Handlers().method,
    "object": Handlers(),
    "partial": functools.partial(lambda mine, number, frame: of_a_worker(number, frame), "mine"),
    "lambda": lambda *given: [][given[0]],
}


@pytest.fixture(params=list(HANDLERS))
def strike(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def strike_once() -> Iterator[Callable[[], None]]:
    """A worker dies, the first time."""
    before, left = signal.signal(signal.SIGUSR1, of_a_worker), [signal.SIGUSR1]
    yield lambda: signal.raise_signal(left.pop()) if left else None
    signal.signal(signal.SIGUSR1, before)


def calls(guard: Guard, function: Callable[[], object]) -> list[Callable[[], object]]:
    return [
        functools.partial(guard.run, "part", function),
        functools.partial(guard.run_brief, "part", function),
        functools.partial(guard.attempt, function),
        functools.partial(outcome_of, function),
    ]


@pytest.mark.parametrize("way", range(4))
def test_what_a_signal_handler_raises_passes_through_every_guard(
    strike: Callable[[], None], way: int
) -> None:
    guard = Guard()
    with pytest.raises(Exception) as raised:
        calls(guard, lambda: [strike()])[way]()
    assert is_from_signal(raised.value)
    assert guard.failures == 0 and guard.run("part", lambda: "works") == "works"


@pytest.mark.parametrize("way", range(2))
@pytest.mark.parametrize("place", ["__enter__", "__exit__"])
def test_handler_that_breaks_a_no_grad_of_ours_off_leaves_gradients_on(
    monkeypatch: pytest.MonkeyPatch, way: int, place: str
) -> None:
    switch = getattr(torch.no_grad, place)

    def struck(self: torch.no_grad, *given: object) -> None:
        if place == "__enter__":
            switch(self, *given)
        raise KeyboardInterrupt

    def ours() -> None:
        with torch.no_grad():
            pass

    monkeypatch.setattr(torch.no_grad, place, struck)
    with torch.set_grad_enabled(True), pytest.raises(KeyboardInterrupt):
        try:
            calls(Guard(), ours)[way]()
        finally:
            was_on = torch.is_grad_enabled()
    assert was_on


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize(
    "fails",
    [lambda: of_a_worker(17, None), lambda: of_a_worker(17, sys._getframe(1)), lambda: [].pop()],
    ids=["called", "called with another frame", "of its own"],
)
def test_what_no_signal_handler_raises_does_not(fails: Callable[[], object], way: int) -> None:
    calls(Guard(), fails)[way]()


def test_timeout_of_the_script_is_no_failure_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGALRM, of_an_alarm)
    journal = JournalWriter(tmp_path / "run" / "0-1", run="run", writer="0-1")
    journal.append("events", b"one")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *given: (write(*given), signal.raise_signal(signal.SIGALRM))[0])
        with pytest.raises(TimeoutError, match="too long"):
            journal.append("events", b"two")
    signal.signal(signal.SIGALRM, before)
    # Who wanted to write it still has it: it was not said to be written.
    assert journal.append("events", b"two") == 1
    journal.close()
    assert [data for _, data in read_stream(journal.folder, "events")] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("owner", "name", "ask"),
    [
        (Path, "read_bytes", own_bytes),
        (os, "open", read_memory),
        (os, "fstat", lambda: OwnFile(Path(__file__), os.O_RDONLY).is_removed()),
        (os, "scandir", lambda: _holds_packages("/")),
        (Path, "iterdir", lambda: _times_of(Path("/proc/self/task"))),
    ],
)
def test_timeout_of_the_script_is_no_unreadable_file(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, ask: Callable[[], object]
) -> None:
    """It is an `OSError`, too."""
    before, left = signal.signal(signal.SIGALRM, of_an_alarm), [signal.SIGALRM]
    real = getattr(owner, name)

    def struck(*given: Any) -> object:
        if left and sys._getframe(1).f_code.co_name != "__init__":
            signal.raise_signal(left.pop())
        return real(*given)

    monkeypatch.setattr(owner, name, struck)
    with pytest.raises(TimeoutError, match="too long"):
        ask()
    signal.signal(signal.SIGALRM, before)


def test_dead_worker_is_no_gradient_that_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, strike_once: Callable[[], None]
) -> None:
    monkeypatch.setattr(RootCapture, "_receive", lambda *_, **__: [strike_once()])
    model = torch.nn.Linear(2, 1)
    capture = RootCapture(model, size_cap_bytes=1, parameter_stamp=None)
    output = 2 * model(torch.ones(1, 2))
    capture._hold(output)
    with pytest.raises(RuntimeError, match="worker"):
        output.backward()
    assert not capture.declined


def end_of_a_root() -> Callable[[], bool]:
    dying = [torch.nn.Linear(2, 1)]
    calls = RootCalls()
    calls.add(dying[0], None)  # type: ignore[arg-type]
    calls._wrappers.unwrap_every_module()
    calls._wrappers.unwrap_classes()
    assert calls._related and calls._found and calls._alive

    def end() -> bool:
        dying.clear()
        return not (calls._related or calls._found or calls._alive)

    return end


def end_of_a_tracked_tensor() -> Callable[[], bool]:
    dying = [torch.ones(2)]
    tracked = TrackedTensor(dying[0], "x")

    def end() -> bool:
        dying.clear()
        return len(tracked._noted) == 1

    return end


def end_of_a_step_in_the_kernel() -> Callable[[], bool]:
    model = torch.nn.Linear(2, 1)
    index = ModuleIndex()
    index.refresh(model)
    step = KernelStep.begin({"activations"}, index, guard=Guard(), device=torch.device("cpu"))
    if step is None:
        pytest.skip("there is no kernel")
    dying = [step]
    del step

    def end() -> bool:
        dying.clear()
        return KernelStep._newest is not None and KernelStep._newest() is None

    return end


def end_of_a_key() -> Callable[[], bool]:
    dying, table = [torch.nn.Linear(2, 1)], WeakTable[torch.nn.Module, int]()
    table[dying[0]] = 1
    assert dying[0] in table and list(table.items()) == [(dying[0], 1)]

    def end() -> bool:
        dying.clear()
        return not table._held

    return end


@pytest.mark.parametrize(
    "kind", [end_of_a_root, end_of_a_tracked_tensor, end_of_a_step_in_the_kernel, end_of_a_key]
)
def test_nothing_of_ours_that_dies_runs_python_in_which_a_handler_could_raise(
    kind: Callable[[], Callable[[], bool]],
) -> None:
    """Python prints what is raised in there, and goes on."""
    end, called = kind(), list[str]()
    ours = str(Path(probe.__file__).parent)

    def note(frame: FrameType, event: str, _: object) -> None:
        # Dynamo has callbacks of its own on modules that it has seen.
        if event == "call" and (frame.f_code is end.__code__ or frame.f_code.co_filename.startswith(ours)):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    is_done = end()
    sys.setprofile(None)
    assert is_done and called == ["end"]


def test_no_weak_table_or_finalizer_has_a_callback_in_python() -> None:
    folder = Path(probe.__file__).parent
    theirs = re.compile(r"\bfinalize\(|\bWeak\w*(Dictionary|Set|Method)\b|weakref\.ref\([^()]*, lambda")
    assert [path.name for path in folder.rglob("*.py") if theirs.search(path.read_text())] == []


def test_what_a_handler_raises_where_an_object_dies_reaches_the_script(
    strike_once: Callable[[], None],
) -> None:
    done: list[str] = []
    dying = [Handlers()]
    reference = weakref.ref(dying[0], at_death(lambda: [strike_once(), done.append("work")]))
    with pytest.raises(RuntimeError, match="worker") as raised:
        dying.clear()
        done.append("the script goes on")
    assert is_from_signal(raised.value) and done == ["work"] and reference() is None


@pytest.mark.usefixtures("strike_once")
def test_handler_at_the_first_bytecode_where_an_object_dies_leaves_nothing_undone() -> None:
    done: list[str] = []
    dying = [Handlers()]
    # The newer one is called first, without a bytecode.
    trip = functools.partial(dict.fromkeys, map(_thread.interrupt_main, [signal.SIGUSR1]))
    references = [weakref.ref(dying[0], at_death(lambda: done.append("work"))), weakref.ref(dying[0], trip)]
    with pytest.raises(RuntimeError, match="worker"):
        dying.clear()
        done.append("the script goes on")
    assert done == ["work"] and references[0]() is None


def test_model_that_goes_while_a_worker_dies_ends_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strike_once: Callable[[], None]
) -> None:
    model = [torch.nn.Linear(2, 1)]
    if dynamo := sys.modules.get("torch._dynamo.mutation_guard"):
        # It has every module in a table, whose callback would take what is raised.
        dynamo.GenerationTracker.generation_values.clear()
    run = probe.watch(model[0], spool=tmp_path, connect="", quiet=True)
    monkeypatch.setattr(run, "_stop_watching", lambda: [strike_once(), type(run)._stop_watching(run)])
    with pytest.raises(RuntimeError, match="worker"):
        model.clear()
        calls(Guard(), list)  # the script goes on
    assert not run.active
    run.close()


def test_failure_of_ours_where_an_object_dies_is_printed_and_not_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: printed.append(failure.exc_type))
    dying = [Handlers()]
    reference = weakref.ref(dying[0], at_death([].pop))
    dying.clear()
    assert printed == [IndexError] and reference() is None


def test_report_that_a_handler_breaks_off_is_begun_again(strike_once: Callable[[], None]) -> None:
    told: list[object] = []

    def report(error: BaseException, *_: object, **__: object) -> None:
        strike_once()
        told.append(error)

    printed: list[object] = []
    hooks = ProcessHooks(report=report, close=lambda: None, abandon=lambda: None)
    hooks._previous_hook = lambda *given: printed.append(given[1])
    error = KeyError("loss")
    hooks._excepthook(KeyError, error, None)
    assert told == [error] and printed == [error]


def test_handler_that_ends_the_script_ends_it_after_the_report() -> None:
    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(5)

    before, left, told = signal.signal(signal.SIGTERM, end), [signal.SIGTERM], []

    def report(error: BaseException, *_: object, **__: object) -> None:
        if left:
            signal.raise_signal(left.pop())
        told.append(error)

    hooks = ProcessHooks(report=report, close=lambda: None, abandon=lambda: None)
    hooks._previous_hook = lambda *_: None
    with pytest.raises(SystemExit) as ended:
        hooks._excepthook(KeyError, KeyError(), None)
    signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 5 and len(told) == 1


def test_failure_that_no_handler_raised_is_not_begun_again() -> None:
    begun: list[int] = []

    def fails() -> None:
        begun.append(1)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        finish_beside_signals(fails)
    assert begun == [1]


@pytest.mark.parametrize("place", ["describe_failure", "write"])
def test_exception_has_one_event_where_a_worker_dies_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strike_once: Callable[[], None], place: str
) -> None:
    model = torch.nn.Linear(2, 1)
    run = probe.watch(
        model, torch.optim.SGD(model.parameters(), lr=0.1), spool=tmp_path, connect="", quiet=True
    )
    if place == "write":
        event = run._recorder.event  # type: ignore[union-attr]
        monkeypatch.setattr(run._recorder, "event", lambda record: (event(record), strike_once())[0])
    else:
        describe = error_events.describe_failure

        def describe_beside(*given: Any, **options: Any) -> dict[str, Any]:
            strike_once()
            return describe(*given, **options)

        monkeypatch.setattr(error_events, "describe_failure", describe_beside)
    error: BaseException | None = None
    try:
        model(torch.ones(1, 3))
    except RuntimeError as caught:
        error = caught
    with pytest.raises(RuntimeError, match="worker"), run:
        raise error  # type: ignore[misc]
    records = [decode_record(data) for _, data in read_stream(next(tmp_path.glob("*/0-*")), "events")]
    events = [record for record in records if isinstance(record, Event)]
    assert {event.kind for event in events} == {"exception"} and len({event.id for event in events}) == 1
    assert "shapes cannot be multiplied" in events[-1].message
