"""Memory as the operating system tells it, against psutil."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from probe.delivery import host_memory

MIB = 2**20


def test_memory_is_what_psutil_reads() -> None:
    block = bytearray(os.urandom(64)) * MIB  # 64 MiB that are really there
    sample = host_memory.read_memory()
    assert sample is not None
    machine = psutil.virtual_memory()
    assert sample.system_total_bytes == machine.total
    # Other processes go on meanwhile.
    assert abs(sample.system_used_bytes - (machine.total - machine.available)) < 0.1 * machine.total
    assert abs(sample.rss_bytes - psutil.Process().memory_info().rss) < 8 * MIB
    assert sample.rss_bytes > len(block)


def test_memory_without_those_files_is_asked_of_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_OWN", "/nonexistent/statm")
    monkeypatch.setattr(host_memory, "_MACHINE", "/nonexistent/meminfo")
    sample = host_memory.read_memory()
    assert sample is not None
    assert sample.system_total_bytes == psutil.virtual_memory().total
    assert abs(sample.rss_bytes - psutil.Process().memory_info().rss) < 8 * MIB


def test_swap_is_what_psutil_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    used = psutil.swap_memory().used
    assert abs(host_memory.read_swap() - used) <= 8 * MIB
    monkeypatch.setattr(host_memory, "_MACHINE", "/nonexistent/meminfo")
    assert abs(host_memory.read_swap() - used) <= 8 * MIB


def test_memory_that_nobody_tells_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(host_memory, "_MACHINE", "/nonexistent/meminfo")
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert host_memory.read_memory() is None


def test_swap_in_use_is_what_is_not_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:  40 kB\nSwapTotal:  30 kB\nSwapFree:  10 kB\n")
    monkeypatch.setattr(host_memory, "_MACHINE", str(file))
    assert host_memory.read_swap() == 20 * 1024
    assert host_memory.machine_bytes() == (100 * 1024, 40 * 1024)


def test_unique_memory_is_what_psutil_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    block = bytearray(os.urandom(64)) * MIB
    unique = host_memory.unique_bytes()
    assert abs(unique - psutil.Process().memory_full_info().uss) < 8 * MIB
    assert len(block) < unique <= host_memory.resident_bytes() + 8 * MIB
    monkeypatch.setattr(host_memory, "_OWN_PAGES", "/nonexistent/smaps_rollup")
    assert abs(host_memory.unique_bytes() - unique) < 8 * MIB
