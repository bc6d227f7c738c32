"""A run of many ranks: real journals and helper, sockets and `serve`; what is pooled, and what is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from page_clients import PageClients
from trial import Trial, wait_for
from trial_fixtures import trial as trial

from dashboard.errors import DashboardError
from dashboard.ingest import collector, peers
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import Heatmap, StepRange
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path, start_helper
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_json import write_run_json
from probe.wire import (
    Challenge,
    Event,
    Frame,
    LayerInfo,
    Layout,
    ParameterInfo,
    RunEnd,
    RunStart,
    encode,
    event_id,
)
from probe.wire.columns import pack_column

RUN = "wide"
RANKS = 18
"""More than are sent in full."""
LAYERS = 4
STEPS = 640
EVENT_AT = 300


class WideRun:
    """Journals of a run of many ranks, whose values are known."""

    def __init__(self, spool: Path) -> None:
        self.folder = spool / RUN
        self.steps = 0
        self.values = np.exp(np.random.default_rng(5).normal(size=(STEPS, RANKS, LAYERS))).astype(np.float32)
        self.incarnation = time.time_ns()
        self.journals = []
        for rank in range(RANKS):
            start = RunStart(
                run=RUN, rank=rank, incarnation=self.incarnation, world_size=RANKS, pid=os.getpid(),
                time=self.incarnation / 1e9,
            )  # fmt: skip
            writer = f"{rank}-{self.incarnation}"
            journal = JournalWriter(self.folder / writer, run=RUN, writer=writer)
            write_run_json(self.folder, start)
            journal.append_many("events", [encode(start), encode(LAYOUT)])
            self.journals.append(journal)

    def write(self, steps: int) -> None:
        """So many more steps of all ranks."""
        for step in range(self.steps, self.steps + steps):
            for rank, journal in enumerate(self.journals):
                values = self.values[step, rank].astype(np.float64)
                columns = [pack_column("grad_norm", values), pack_column("parameter_norm", values)]
                scalars = {"loss": 1 / (1 + step), "grad_norm": float(np.sqrt(np.square(values).sum()))}
                # Parts of one model: nobody compares them.
                frame = Frame(step=step, time=time.time(), stage="shard", scalars=scalars, columns=columns)
                journal.append("metrics", encode(frame))
        self.steps += steps

    def event(self, rank: int, step: int, severity: str = "critical") -> None:
        """An event of a rank."""
        facts: dict = {"kind": "custom", "severity": severity, "message": "odd", "time": time.time()}
        named = event_id(
            run=RUN, rank=rank, incarnation=self.incarnation, model="", kind="custom", subject="", step=step
        )
        found = Event(id=named, run=RUN, rank=rank, incarnation=self.incarnation, step=step, **facts)
        self.journals[rank].append("events", encode(found))

    def end(self) -> None:
        """All ranks end."""
        for journal in self.journals:
            ended = RunEnd(time=time.time(), step=self.steps - 1, outcome="finished")
            journal.append("events", encode(ended))
            journal.close()


LAYOUT = Layout(
    layout=0,
    model="net",
    parameters=[
        ParameterInfo(name=f"blocks.{index}.weight", shape=[8, 8], dtype="float32", layer=index)
        for index in range(LAYERS)
    ],
    layers=[LayerInfo(name=f"blocks.{index}", type="Linear") for index in range(LAYERS)],
)


def shown(store: DuckStore, rank: int, first: int, end: int) -> Heatmap:
    picture = store.heatmap(RUN, rank, "grad_norm", StepRange(first=first, end=end), 1000)
    assert picture is not None
    return picture


def is_in_full(picture: Heatmap, run: WideRun, rank: int, first: int, end: int) -> bool:
    """Whether a picture has every step of a range; what it has is right in any case."""
    width = picture.steps_per_column
    assert width in (1, 16)
    for column, step in enumerate(picture.steps.tolist()):
        whole = run.values[max(step, 0) : min(step + width, STEPS), rank]
        assert np.array_equal(picture.values[:, column], whole.max(axis=0)), (rank, step, width)
    assert picture.steps[0] <= first and picture.steps[-1] + width >= min(end, STEPS)
    return width == 1


def test_ranks_that_nobody_looks_at_come_pooled_and_others_in_full(trial: Trial, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", trial.environment["XDG_STATE_HOME"])
    trial.start_server()
    run = WideRun(trial.spool)
    start_helper(run.folder, None)
    run.write(256)
    wait_for(lambda: reached(trial, "metrics") >= 256, "the metrics do not arrive")
    page = PageClients(lambda: (trial.client().url, trial.token()), 1, run=RUN, rank=9)
    page.start()
    try:
        # What waits of a rank comes at once when it is watched, however near the newest step it is.
        wait_for(lambda: reached(trial, "detail", rank=9) >= 256, "the watched rank does not arrive")
        assert reached(trial, "detail", rank=5) < 256
        run.event(3, EVENT_AT)
        run.event(4, 20, severity="info")
        run.write(STEPS - 256)
        run.end()
        wait_for(lambda: reached(trial, "detail") >= STEPS, "the detail does not arrive")
        trial.settle()
    finally:
        page.stop()
    trial.close()
    store = DuckStore(trial.data)
    assert is_in_full(shown(store, 0, 0, STEPS), run, 0, 0, STEPS)
    for rank in (1, 5, RANKS - 1):
        assert not is_in_full(shown(store, rank, 0, 96), run, rank, 0, 96)
        near = EVENT_AT - 200, EVENT_AT + 200
        assert is_in_full(shown(store, rank, *near), run, rank, *near)
        assert not is_in_full(shown(store, rank, 544, STEPS), run, rank, 544, STEPS)
    assert is_in_full(shown(store, 9, 256, STEPS), run, 9, 256, STEPS)
    scalars = store.scalars(RUN, 5, ["loss"], max_points=STEPS)
    assert scalars["mean"].tolist() == [1 / (1 + step) for step in range(STEPS)]
    assert not any(one.gaps or one.dropped for one in store.positions(RUN))
    store.close()


def reached(trial: Trial, stream: str, *, rank: int | None = None) -> int:
    """Up to which record all ranks, or one, are stored."""
    try:
        positions = trial.client()._json("GET", f"api/v1/runs/{RUN}/delivery")["positions"]
    except DashboardError:
        return 0  # no record of the run has come yet
    ends = {one["writer"]: one["next_seq"] for one in positions if one["stream"] == stream}
    mine = [end for writer, end in ends.items() if rank is None or writer.startswith(f"{rank}-")]
    return min(mine) if len(mine) == (RANKS if rank is None else 1) else 0


def test_kills_of_helper_and_dashboard_lose_nothing_and_pool_nothing_wrong(trial: Trial, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", trial.environment["XDG_STATE_HOME"])
    trial.start_server()
    run = WideRun(trial.spool)
    start_helper(run.folder, None)
    for number, steps in enumerate((250, 130, 130, 130)):
        before = reached(trial, "detail", rank=5)
        run.write(steps)
        wait_for(lambda before=before: reached(trial, "detail", rank=5) > before, "no detail arrives")
        if number < 3:
            trial.kill_helper(RUN)
            wait_for(lambda: trial.helper_pid(RUN) is None, "the helper lives")
            start_helper(run.folder, None)
        if number == 1:
            trial.kill_server()
            trial.start_server()
    run.end()
    wait_for(lambda: reached(trial, "detail") >= STEPS, "the detail does not arrive")
    trial.settle()
    trial.close()
    store = DuckStore(trial.data)
    for rank in range(RANKS):
        assert is_in_full(shown(store, rank, 0, STEPS), run, rank, 0, STEPS) == (rank == 0)
        assert len(store.scalars(RUN, rank, ["loss"], max_points=STEPS)) == STEPS
    ranks = [one for one in store.positions(RUN) if one.key.stream in ("metrics", "detail")]
    assert {(one.stored, one.gaps, one.dropped) for one in ranks} == {(STEPS, 0, 0)}
    store.close()


def test_an_older_dashboard_is_sent_all_in_full(tmp_path: Path, monkeypatch):
    """One that does not say that it takes the stream `detail` gets no such stream, and no pooled value."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NANSCOPE_SECRET", "ab" * 16)
    monkeypatch.setattr(peers, "Challenge", lambda **fields: Challenge(**fields | {"takes_detail": False}))
    store = DuckStore(tmp_path / "data")
    receiving = collector.Collector(
        store, endpoint="tcp://127.0.0.1:0", secret=bytes.fromhex("ab" * 16), on_change=lambda: None
    )
    run = WideRun(tmp_path / "spool")
    run.write(64)
    run.end()
    try:
        start_helper(run.folder, receiving.start())
        lock = lock_path(host_folder(run.folder))
        wait_for(lambda: lock.exists() and lock_owner(lock) is None, "the helper does not leave")
    finally:
        receiving.stop()
    assert {one.key.stream for one in store.positions(RUN)} == {"events", "metrics", "host"}
    for rank in (0, 5):
        assert is_in_full(shown(store, rank, 0, 64), run, rank, 0, 64)
    store.close()
