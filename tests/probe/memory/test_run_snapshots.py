"""The snapshots of a run: at a cadence, at the end of epochs, thinned; read beside the training."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probe.memory import process_memory
from probe.memory.run_snapshots import RunSnapshots, Thinning
from probe.wire import Document
from probe.wire.documents import read_body
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, MemorySnapshot


class Recorder:
    """Stands for the recorder: what is to be done once waits for `work`."""

    def __init__(self) -> None:
        self.written: list[Document] = []
        self.waiting: list[Callable[[], None]] = []

    def document(self, document: Document) -> None:
        self.written.append(document)

    def do_once(self, task: Callable[[], None]) -> None:
        self.waiting.append(task)

    def work(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Run:
    """Snapshots of a run whose newest step is `step`."""

    def __init__(self, every: int = 0) -> None:
        self.step: int | None = None
        self.now_s = 0.0
        self.recorder = Recorder()
        self.snapshots = RunSnapshots(
            self.recorder,  # type: ignore[arg-type]
            every=every,
            last_step=lambda: self.step,
            clock=lambda: self.now_s,
        )

    def look_at(self, *steps: int | None) -> list[int | None]:
        """The steps at which a look has taken a snapshot."""
        taken = []
        for self.step in steps:
            taken += [document.step for document in self.snapshots.look()]
        return taken


def test_cadence_takes_one_after_every_so_many_steps() -> None:
    run = Run(every=10)
    assert run.look_at(None, 3, 8, 9, 10, 18, 47, 48, 49) == [9, 47, 49]
    assert [one.label for one in run.snapshots.kept] == ["step 9", "step 47", "step 49"]


def test_cadence_begins_again_where_steps_restart() -> None:
    assert Run(every=10).look_at(35, 2, 8, 9) == [35, 9]


def test_no_cadence_takes_none_and_looks_rarely() -> None:
    assert Run().look_at(*range(100)) == []
    assert (Run().snapshots.period_s, Run(every=5).snapshots.period_s) == (1.0, 0.25)


def test_epochs_are_read_on_the_recorders_thread() -> None:
    run = Run()
    for epoch, run.step in enumerate((9, 19), start=1):
        run.snapshots.end_epoch(epoch)
        assert len(run.recorder.written) == epoch - 1
        run.recorder.work()
    assert [(one.key, one.step, one.kind) for one in run.recorder.written] == [
        ("epoch 1", 9, MEMORY_SNAPSHOT),
        ("epoch 2", 19, MEMORY_SNAPSHOT),
    ]
    body = read_body(run.recorder.written[0], MemorySnapshot)
    assert body.cause == "epoch" and body.uss_bytes and body.rss_bytes and body.uss_bytes <= body.rss_bytes


def test_epoch_at_the_very_end_is_taken_by_the_close() -> None:
    run = Run()
    run.snapshots.end_epoch(1)
    assert [document.key for document in run.snapshots.close()] == ["epoch 1"]
    run.recorder.work()
    assert run.recorder.written == [] and run.snapshots.close() == []


def test_epochs_that_end_all_the_time_take_their_share_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run, read = Run(), process_memory.read_snapshot

    def slow(*args: object, **options: object) -> MemorySnapshot:
        run.now_s += 0.09
        return read(*args, **options, uss=False)  # type: ignore[arg-type, misc]

    monkeypatch.setattr(process_memory, "read_snapshot", slow)
    for epoch in range(1, 61):
        run.now_s += 1.0
        run.snapshots.end_epoch(epoch)
        run.recorder.work()
    # The first 16 whatever they cost, then one in five seconds.
    assert [one.label for one in run.snapshots.kept][14:] == [
        f"epoch {number}" for number in (15, 16, 21, 26, 31, 36, 41, 46, 51, 56)
    ]


def test_calls_are_kept_by_label_and_step() -> None:
    run = Run()
    run.snapshots.take("first")
    run.step = 1200
    run.snapshots.take("second", tracked=(2, 80))
    run.snapshots.take("")
    assert [one.key for one in run.recorder.written] == ["first", "second, step 1,200", "step 1,200"]
    assert read_body(run.recorder.written[1], MemorySnapshot).tracked_bytes == 80


def test_thinning_lets_all_of_the_first_through_and_bounds_the_rest() -> None:
    thinning = Thinning(4)
    taken = [number for number in range(40) if thinning.wants()]
    assert taken == [0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32]
    many = Thinning()
    assert sum(many.wants() for _ in range(200_000)) < 800
