"""The least that the work of sampled steps can be, for overhead_floor.py: reads, copy and comparison in C.

On a model of its own, in the same loop as the others, and as often as the probe does it: the parameters are
read at every 10th step, copied before and compared behind the update of every 50th, and what each module
returns is read at every 100th. Nothing is counted, checked, recorded or sent; float32 on the CPU alone.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_pass import compile_smallest
from torch import Tensor, nn
from torch.optim import Optimizer


class SmallestSampled:
    """What it takes, by the step in which the probe accounts for the same.

    Attributes:
        spent_us: by step; none where nothing was sampled.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        self.spent_us: dict[int, float] = {}
        self._step = 0
        self._library = compile_smallest(folder)
        self._model, self._parameters = model, [parameter.detach() for parameter in model.parameters()]
        self._memory = _memory_of(self._parameters)
        self._places = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._copies = _memory_of(self._places)
        self._results = np.zeros(len(self._parameters))
        self._hooks: list[Any] = []
        optimizer.register_step_post_hook(lambda *_: self._after_update())

    def before_update(self) -> None:
        """A step has had its backward."""
        step, count = self._step, ctypes.c_int64(len(self._parameters))
        pointers, sizes = (_address(array) for array in self._memory)
        if step % 10 == 0:
            self._time(step, self._library.read_only, count, pointers, sizes)
        if step % 50 == 0:
            self._time(step + 1, self._library.copy_all, count, pointers, sizes, _address(self._copies[0]))
        while self._hooks:
            self._hooks.pop().remove()
        if (step + 1) % 100 == 0:
            self._hooks = [module.register_forward_hook(self._read) for module in self._model.modules()]

    def _after_update(self) -> None:
        step, count = self._step, ctypes.c_int64(len(self._parameters))
        self._step += 1
        if step % 50 == 0:
            pointers, sizes = (_address(array) for array in self._memory)
            places, results = _address(self._copies[0]), _address(self._results)
            self._time(step + 1, self._library.compare_all, count, pointers, sizes, places, results)

    def _read(self, module: nn.Module, args: Any, output: Any) -> None:
        # What contains others returns what they have: that is read once.
        if isinstance(output, Tensor) and output.dtype is torch.float32 and not list(module.children()):
            pointers, sizes = _memory_of([output])
            one = ctypes.c_int64(1)
            self._time(self._step, self._library.read_only, one, _address(pointers), _address(sizes))

    def _time(self, step: int, function: Callable[..., object], *arguments: object) -> None:
        started = time.perf_counter_ns()
        function(*arguments)
        self.spent_us[step] = self.spent_us.get(step, 0.0) + (time.perf_counter_ns() - started) / 1e3


def _memory_of(tensors: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Addresses and sizes."""
    addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.uint64)
    return addresses, np.array([tensor.numel() for tensor in tensors], dtype=np.int64)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
