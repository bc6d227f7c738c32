"""Blocks of CUDA's allocator summed by line: of what torch's snapshot looks like, and of a real one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import probe
from probe.compat import allocator_history
from probe.memory.allocation_lines import sums_by_line

TORCH_FRAME = {"filename": torch.__file__, "line": 7, "name": "ones"}
MODEL = [TORCH_FRAME, {"filename": "/home/a/model.py", "line": 12, "name": "forward"}]
SCRIPT = [*MODEL[:1], {"filename": "/home/a/train.py", "line": 3, "name": "<module>"}]


def block(size: int, frames: list[dict[str, Any]], state: str = "active_allocated") -> dict[str, Any]:
    return {"size": size, "state": state, "frames": frames}


HISTORY: dict[str, Any] = {
    "segments": [
        {"blocks": [block(100, MODEL), block(30, MODEL), block(999, SCRIPT, "inactive")]},
        {"blocks": [block(500, SCRIPT), block(7, []), {"size": 8, "state": "active_allocated"}]},
    ],
    "device_traces": [
        [
            {"action": "alloc", "size": 130, "frames": [*MODEL, *SCRIPT[1:]]},
            {"action": "free_requested", "size": 130, "frames": MODEL},
        ],
        [{"action": "alloc", "size": 20, "frames": MODEL}],
    ],
}


def test_blocks_and_allocations_are_those_of_the_innermost_line_of_the_script() -> None:
    assert [
        (one.place, one.live_bytes, one.live_blocks, one.allocated_bytes, one.allocations)
        for one in sums_by_line(HISTORY)
    ] == [
        ("train.py:3", 500, 1, 0, 0),
        ("model.py:12", 130, 2, 150, 2),
        ("before, or without a line", 15, 2, 0, 0),
    ]
    assert sums_by_line({}) == []


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch is asked for, on a machine that has CUDA in use."""
    asked: list[Any] = []
    monkeypatch.setattr(allocator_history, "cuda_is_initialised", lambda: True)
    monkeypatch.setattr(allocator_history, "_record", lambda **options: asked.append(options["enabled"]))
    monkeypatch.setattr(allocator_history, "_snapshot", lambda: HISTORY)
    monkeypatch.setattr(allocator_history, "_is_enabled", lambda: False)
    return asked


def test_history_is_recorded_for_the_block_alone(recording: list[Any]) -> None:
    with pytest.raises(KeyError), probe.cuda_memory_history() as history:
        assert (recording, history.lines) == (["all"], ())
        raise KeyError
    assert recording == ["all", None]
    assert history.lines[0].to_dict()["live_bytes"] == 500
    assert "model.py:12" in str(history) and "130 B" in str(history)


def test_history_of_the_scripts_own_goes_on(recording: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_history, "_is_enabled", lambda: True)
    with probe.cuda_memory_history() as history:
        pass
    assert recording == [] and len(history.lines) == 3


def test_history_that_cannot_be_read_ends_and_says_so(
    recording: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator_history, "_snapshot", lambda: {"device_traces": [[{"action": "alloc"}]]})
    with probe.cuda_memory_history() as history:
        pass
    assert recording == ["all", None]
    assert history.lines == () and "it cannot be read: KeyError" in str(history)


def test_history_that_is_not_wanted_or_cannot_be_had_says_so(recording: list[Any]) -> None:
    with probe.cuda_memory_history(enabled=False) as history:
        pass
    assert recording == [] and "switched off" in str(history)
    with pytest.raises(ValueError, match="max_entries=0 must be at least 1"):
        probe.cuda_memory_history(max_entries=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA may be in use here")
def test_history_without_cuda_is_empty() -> None:
    with probe.cuda_memory_history() as history:
        torch.ones(10)
    assert history.lines == () and "does not use CUDA" in str(history)


@pytest.mark.gpu
@pytest.mark.capability(39, 44)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_history_finds_the_line_that_holds_memory() -> None:
    torch.ones(1, device="cuda")
    with probe.cuda_memory_history() as history:
        kept = torch.ones(2**22, device="cuda")
    (line,) = [one for one in history.lines if one.live_bytes == kept.nbytes]
    assert line.place.startswith("test_allocation_lines.py:") and line.allocations == 1
