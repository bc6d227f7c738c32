"""A trainer that is gone without an exit: the kind `killed`, its signal, and what the kernel says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from probe.delivery.helper import census as census_module
from probe.delivery.helper.census import Trainer
from probe.delivery.helper.oom_record import Death, kernel_log, memory_events_of, oom_kills, oom_record
from probe.delivery.helper.process_end import ProcessEnd
from probe.delivery.helper.trainer_watch import TrainerWatch, cause_of
from probe.delivery.journal.journal import JournalWriter
from probe.threads.hang_events import OUT_OF_MEMORY
from probe.wire import Event, RunStart, encode

LOG = (
    "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=4242,uid=0\n"
    "3,2,3,-;Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:8kB\n"
    "3,3,4,-;Out of memory: Killed process 77 (other) total-vm:1kB\n"
)


def start(pid: int = 4242) -> RunStart:
    return RunStart(run="run", rank=0, incarnation=1, pid=pid, time=time.time(), host="")


NOTHING_KNOWN = Death()


def die(folder: Path, status: int | None, death: Death = NOTHING_KNOWN) -> list[Event]:
    return TrainerWatch(folder, start()).die(status, death, [])


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGSEGV | 0x80, "SIGSEGV"),
        (signal.SIGTERM, "SIGTERM"),
        (3 << 8, "exit code 3"),
        (None, "unknown"),
    ],
)
def test_death_is_killed_with_its_cause(status: int | None, cause: str, tmp_path: Path) -> None:
    (event,) = die(tmp_path, status)
    assert (event.kind, event.subject, event.severity, event.ended) == ("killed", cause, "critical", True)
    assert cause_of(status) == cause
    how, why = "is gone without an exit", cause
    if status is None:
        how, why = "ended without saying so", "killed, crashed, or left through `os._exit`"
    assert event.message == f"Process 4242 {how} before its first step was finished: {why}"


def test_exit_with_0_is_no_event(tmp_path: Path) -> None:
    assert die(tmp_path, 0) == []


@pytest.mark.parametrize("status", [None, signal.SIGKILL])
def test_kernel_record_names_the_cause(status: int | None, tmp_path: Path) -> None:
    (event,) = die(tmp_path, status, Death(oom_record=oom_record(4242, LOG), is_memory=True))
    assert event.subject == "SIGKILL"
    assert event.message.splitlines()[0].endswith(": SIGKILL, by the kernel for want of memory")
    assert "Killed process 4242 (python) total-vm:9kB" in event.message.splitlines()[1]
    assert event.advice == list(OUT_OF_MEMORY)


def test_crash_while_memory_was_short_is_a_crash(tmp_path: Path) -> None:
    (event,) = die(tmp_path, signal.SIGSEGV, Death(is_memory=True))
    assert "faulthandler" in event.advice[0]


@pytest.mark.parametrize(("pid", "found"), [(4242, True), (77, True), (424, False), (1, False)])
def test_kernel_record_is_of_that_process_alone(pid: int, found: bool) -> None:
    assert bool(oom_record(pid, LOG)) == found


def test_kernel_log_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    assert kernel_log(tmp_path / "missing") == ""
    (tmp_path / "log").write_text(LOG)
    assert kernel_log(tmp_path / "log") == LOG


def test_kills_are_counted_over_all_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("low 0\noom_kill 2\noom_group_kill 9\n")
    (tmp_path / "b").write_text("oom_kill 3\n")
    assert oom_kills((tmp_path / "a", tmp_path / "b", tmp_path / "missing")) == 5
    assert memory_events_of(os.getpid())[0] == Path("/proc/vmstat")


def test_census_reads_the_kernel_record_of_a_killed_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = [1]
    monkeypatch.setattr(census_module, "oom_kills", lambda files: kills[0])
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(census_module, "kernel_log", lambda: LOG.replace("4242", str(child.pid)))
    folder = tmp_path / "run" / "0-1"
    journal = JournalWriter(folder, run="run", writer="0-1")
    for member in (msgspec.UNSET, 1, 2):
        journal.append("events", encode(msgspec.structs.replace(start(child.pid), member=member)))
    journal.close()
    trainer = Trainer(folder)
    trainer.observe()
    child.kill()
    child.communicate(timeout=30)
    kills[0] = 2
    trainer.observe()
    (event,) = trainer.news
    assert (event.kind, event.subject) == ("killed", "SIGKILL")
    assert f"Killed process {child.pid} (python)" in event.message
    assert event.member == 2, "the newest of its models"


def test_end_of_a_process_that_lives_is_unknown() -> None:
    end = ProcessEnd(os.getpid())
    assert end.status() is None
    end.close()
    end.close()


@pytest.mark.parametrize("is_reaped", [True, False])
def test_end_of_a_killed_process_is_its_signal(is_reaped: bool) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end = ProcessEnd(child.pid)
    child.send_signal(signal.SIGTERM)
    if is_reaped:
        child.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while (status := end.status()) is None and not is_reaped and time.monotonic() < deadline:
        time.sleep(0.01)
    # Before Linux 6.15 nobody can tell once the parent has waited.
    assert status == signal.SIGTERM or (is_reaped and status is None)
    end.close()
    child.communicate(timeout=30)
