"""The least that such a recorder adds to a training's process: for `bench_start.py`, beside the probe.

Of the probe's own code it loads none. It imports msgspec, loads the C library that measures, starts a thread,
has a ring of the probe's size in memory and in a file, copies the parameters once into memory of its own, for
the size of an update, and writes a record of the probe's size at each step, which says nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

ROOT: Final = Path(__file__).resolve().parents[2]
LIBRARY: Final = ROOT / "probe" / "measure" / "kernels" / "_kernel.so"
RING_BYTES: Final = 256 * 1024
"""At least; for large models room for so many records:"""
RING_RECORDS: Final = 64
VALUES: Final = 4
"""Numbers of each parameter in a record."""
RECORD_BYTES: Final = 256
"""Of a record, whatever the model is."""
_PERIOD_S: Final = 0.25


class SmallestRecorder:
    """What it has; an object in place of the module's globals.

    Args:
        model: its parameters are copied before the first update.
        optimizer: tells of updates.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        importlib.import_module("msgspec")
        self._library = ctypes.PyDLL(str(LIBRARY))
        self._parameters = list(model.parameters())
        self._copies: list[torch.Tensor] = []
        record = RECORD_BYTES + 4 * VALUES * len(self._parameters)
        self._record = np.zeros(record, dtype=np.uint8)
        self._ring = np.zeros(max(RING_BYTES, RING_RECORDS * record), dtype=np.uint8)
        folder = Path(os.environ["NANSCOPE_SPOOL"])
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / "ring", os.O_CREAT | os.O_RDWR)
        os.ftruncate(self._file, self._ring.nbytes)
        self._head = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._tend, daemon=True)
        self._thread.start()
        optimizer.register_step_pre_hook(self._before_update)

    def _tend(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            pass

    def _before_update(self, *_: Any) -> None:
        if not self._copies:
            with torch.no_grad():
                self._copies = [torch.empty_like(parameter) for parameter in self._parameters]
                torch._foreach_copy_(self._copies, self._parameters)
        size = self._record.nbytes
        start = self._head % (self._ring.nbytes - size)
        self._ring[start : start + size] = self._record
        os.pwrite(self._file, self._record.data, start)
        self._head += size
