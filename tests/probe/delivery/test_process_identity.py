"""Whether the process of a run's start is gone: by its boot and its start, never by its id alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import msgspec

from probe.delivery.recorder.process_identity import is_gone, own_identity
from probe.wire import RunStart


def start_of(pid: int, boot: int = 0, ticks: int = 0, **fields: object) -> RunStart:
    known = {"host": socket.gethostname(), "time": time.time()} | fields
    return RunStart(run="run", rank=0, incarnation=1, pid=pid, boot=boot, started_ticks=ticks, **known)


def own_start() -> RunStart:
    owner = own_identity()
    return start_of(owner.pid, owner.boot, owner.started_ticks)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_process_that_lives_is_not_gone() -> None:
    assert is_gone(own_start()) is False
    assert is_gone(start_of(os.getpid())) is False


def test_process_that_has_ended_is_gone_whether_or_not_it_has_told_its_boot() -> None:
    pid = dead_pid()
    assert is_gone(msgspec.structs.replace(own_start(), pid=pid)) is True
    assert is_gone(start_of(pid)) is True


def test_other_process_of_the_same_id_is_another_one() -> None:
    own = own_start()
    assert is_gone(msgspec.structs.replace(own, started_ticks=own.started_ticks - 1)) is True
    assert is_gone(start_of(os.getpid(), time=1.0)) is True


def test_clock_that_was_set_since_says_nothing_of_a_process() -> None:
    for since_s in (-1e6, 1e6):
        assert is_gone(msgspec.structs.replace(own_start(), time=time.time() + since_s)) is False


def test_process_that_waits_to_be_waited_for_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(start_of(process.pid)) is True
    process.wait()


def test_other_machine_or_boot_cannot_be_seen_from_here() -> None:
    own = own_start()
    assert is_gone(msgspec.structs.replace(own, boot=own.boot + 1, pid=dead_pid())) is None
    assert is_gone(start_of(dead_pid(), host="elsewhere")) is None
    assert is_gone(start_of(0)) is None
