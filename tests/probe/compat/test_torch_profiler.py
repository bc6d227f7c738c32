"""What is used of torch.profiler beside its public calls is there, and does what it is for."""

from __future__ import annotations

import sys
import threading

import torch
from torch.profiler import profile

from probe.compat import torch_profiler


def test_all_private_symbols_are_there() -> None:
    assert all(torch_profiler.available().values()), torch_profiler.available()


def test_running_profiler_is_seen() -> None:
    assert not torch_profiler.is_running()
    seen: list[bool] = []
    with profile():
        assert torch_profiler.is_running()
        other = threading.Thread(target=lambda: seen.append(torch_profiler.is_running()))
        other.start()
        other.join()
    assert seen == [True]
    assert not torch_profiler.is_running()


def test_next_profiler_is_told_of_once_and_nothing_stays() -> None:
    told: list[bool] = []
    before = torch.autograd.profiler.profile._prepare_trace
    others = torch_profiler.OtherProfilers(lambda: told.append(torch_profiler.is_running()))
    others.watch()
    for _ in range(2):
        with profile():
            pass
    others.stop()
    assert told == [False]
    assert torch.autograd.profiler.profile._prepare_trace is before


def test_calls_have_qualified_names_and_the_lines_that_call() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    line = sys._getframe().f_lineno + 2
    with profile(with_stack=True) as recorded:
        model(torch.ones(1, 2))
    names = {id(module): name for name, module in model.named_modules()}
    calls = torch_profiler.read_python_calls(recorded, names)
    assert set(calls.modules.values()) == {"", "0"}
    assert line in calls.calling_lines.values()
