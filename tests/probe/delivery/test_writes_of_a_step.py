"""On a slow disk each write takes as long as many steps: a step makes one small write at most, an event's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import probe
from probe.compat.torch_dynamo import never_compile
from probe.delivery.journal.account import read_account
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import read_run_json
from probe.delivery.recorder import events_queue, metrics_queue, start_files
from probe.delivery.recorder.recorder import Recorder
from probe.wire import Event, RunEnd, RunStart, decode_record

WRITES = ("write", "writev", "pwrite", "ftruncate", "fsync", "link", "replace")
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
NAN_STEP = 40


class Writes:
    """What the main thread changes below a folder while it is in a step."""

    def __init__(self, folder: Path) -> None:
        self.step: int | None = None
        self._folder = str(folder)
        self.found: list[tuple[int, str]] = []

    def note(self, what: str) -> None:
        if self.step is not None and threading.current_thread() is threading.main_thread():
            self.found.append((self.step, what))

    def audit(self, event: str, given: tuple[Any, ...]) -> None:
        if (event not in CHANGES and event != "open") or not str(given[0]).startswith(self._folder):
            return
        if event != "open" or (isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)):
            self.note(f"{event} {given[0]}")


_counted: list[Writes] = []
"""The one that counts now: an audit hook is there for good."""


def _listen() -> None:
    hook = [lambda event, given: _counted[-1].audit(event, given) if _counted else None]
    never_compile(hook[0])  # or dynamo looks at it in the tests of compiled models behind these
    sys.addaudithook(hook[0])


_listen()


@pytest.fixture
def writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    """Every disk is slow, and what is written in steps is counted."""
    for module in (events_queue, metrics_queue, start_files):
        monkeypatch.setattr(module, "SLOW_S", 0.0)
    counted = Writes(tmp_path)
    for name in WRITES:
        real = getattr(os, name)

        def noted(*given: Any, _name: str = name, _real: Any = real, **options: Any) -> Any:
            counted.note(_name)
            return _real(*given, **options)

        monkeypatch.setattr(os, name, noted)
    _counted.append(counted)
    yield counted
    _counted.clear()


def train(run: probe.Probe, model: torch.nn.Module, optimizer: Any, writes: Writes, fault: str) -> None:
    for step in range(60):
        batch = torch.randn(8, 4)
        if fault == "nan" and step == NAN_STEP:
            batch[0, 0] = float("nan")
        writes.step = step
        try:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if fault == "events" and step % 10 == 5:
                for number in range(3):
                    run.record_event(f"{number} of step {step}", text="x" * 500)
            if fault == "critical" and step % 10 == 5:
                for number in range(3):
                    run.record_event(f"{number} of step {step}", severity="critical")
            if fault == "asked" and step == NAN_STEP:
                run.save_bundle()
        finally:
            writes.step = None


FAULTS = {
    "nan": {NAN_STEP: ["writev"]},
    "events": {},
    "critical": {step: ["writev"] for step in range(5, 60, 10)},
    "asked": {},
}
"""What may be written by the training thread, at which steps."""
BEGINNING = ["open events-00000000000000000000.seg", "writev", "writev", "open ring", "pwrite"]
"""What `watch` does to files before it returns: the first segment with the run's start, and the ring."""


@pytest.mark.parametrize("fault", FAULTS)
def test_step_makes_one_small_write_at_most(tmp_path: Path, writes: Writes, fault: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    writes.step = -1
    run = probe.watch(model, optimizer, spool=tmp_path, connect="", quiet=True)
    writes.step = None
    train(run, model, optimizer, writes, fault)
    run.close()
    found: dict[int, list[str]] = {}
    for step, what in writes.found:
        found.setdefault(step, []).append("writev" if what == "write" else what)
    (writer,) = tmp_path.glob("*/0-*")
    began = [what.replace(f"{writer}/", "") for what in found.pop(-1) if "mkdir" not in what]
    assert (began, found) == (BEGINNING, FAULTS[fault])
    assert read_run_json(writer.parent).run == run.run
    records = [decode_record(data) for _, data in read_stream(writer, "events")]
    assert isinstance(records[-1], RunEnd) and records[-1].events_written == len(records)
    events = [record for record in records if isinstance(record, Event)]
    custom = [event.message for event in events if event.kind == "custom" and event.step in range(60)]
    if fault in ("events", "critical"):
        assert custom == [f"{number} of step {step}" for step in range(5, 60, 10) for number in range(3)]
    else:
        (bundle,) = tmp_path.glob("*/bundles/*")
        newest = {event.id: event for event in events}[bundle.name]
        assert newest.message.splitlines()[-1] == f"Bundle for dashboard replay: {bundle}"


def critical_event(step: int) -> Event:
    return Event(
        id=f"{step:016x}", run="run", rank=0, incarnation=7, step=step, time=1.0,
        kind="nonfinite_loss", severity="critical", message="NaN",
    )  # fmt: skip


def test_critical_event_waits_for_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = RunStart(run="run", rank=0, incarnation=7, name="train.py", time=1.0)
    recorder = Recorder(tmp_path, start, connect="")
    recorder.flush()
    begun, end, was_ended = threading.Event(), threading.Event(), list[bool]()
    write = os.pwrite

    def hang(*given: Any) -> int:
        if recorder.is_own_thread:
            begun.set()
            was_ended.append(end.wait(3.0))
        return write(*given)

    monkeypatch.setattr(events_queue, "SLOW_S", 0.0)
    monkeypatch.setattr(os, "pwrite", hang)
    recorder.event(msgspec.structs.replace(critical_event(1), severity="info"))
    assert begun.wait(10.0)
    recorder.event(critical_event(2))
    found = [decode_record(data) for _, data in read_stream(recorder.folder, "events")]
    assert [record.step for record in found if isinstance(record, Event)] == [1, 2]
    end.set()
    recorder.close(outcome="finished", last_step=None)
    assert was_ended[0]
    account = read_account(recorder.folder)
    assert account is not None and account.events == len(found) + 1


SCRIPT = """
import os, sys, time, torch, probe
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
run = probe.watch(model, optimizer, quiet=True, connect="")
for step in range(120):
    batch = torch.randn(16, 20)
    if step == 100:
        batch[0, 0] = float("nan")
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if step == 100 and "killed" in sys.argv:
        os.kill(os.getpid(), 9)
print("trained")
"""


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("milliseconds", [200, 2000])
@pytest.mark.parametrize("way", ["ends", "killed"])
def test_slow_disk_makes_no_hang_and_loses_no_critical_event(
    tmp_path: Path, milliseconds: int, way: str
) -> None:
    source = Path(__file__).with_name("slow_disk.c")
    library, spool, script = tmp_path / "slow_disk.so", tmp_path / "spool", tmp_path / "train.py"
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "SLOW_DIR": str(spool),
        "SLOW_MS": str(milliseconds),
        "NANSCOPE_SPOOL": str(spool),
    }
    done = subprocess.run(
        [sys.executable, script, way], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == ((-9, "") if way == "killed" else (0, "trained\n"))
    (writer,) = spool.glob("*/0-*")
    records = [decode_record(data) for _, data in read_stream(writer, "events")]
    newest = {record.id: record for record in records if isinstance(record, Event)}
    (nan,) = (event for event in newest.values() if event.kind == "nonfinite_loss")
    assert (nan.step, nan.severity) == (100, "critical")
    assert not any(event.kind == "hang" for event in newest.values())
    if way == "ends":
        assert isinstance(records[-1], RunEnd) and records[-1].outcome == "finished"
        said = nan.message.splitlines()[-1]
        there = [path for path in spool.glob("*/bundles/*") if not path.name.startswith(".")]
        assert said.startswith("Bundle for dashboard replay: ") if there else "No bundle yet" in said
        assert "nanscope: the disk is slow (the newest write took" in done.stderr
        assert there or "nanscope: bundles that are not complete at the end of the run: 1" in done.stderr
