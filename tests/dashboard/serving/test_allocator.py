"""What the server frees goes back to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, sys, threading
from dashboard.serving.allocator import give_memory_back
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
if sys.argv[1] == "set":
    assert give_memory_back()
def work():
    largest = bytearray(30_000_000)  # freed, it makes glibc keep all that is smaller
    del largest
    kept, freed = [], []
    for _ in range(300):
        freed.append(bytearray(300_000))
        kept.append(bytearray(3_000))
    del freed
    held.append(kept)
held = []
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(libc.mallinfo2().fordblks)
"""


def free_bytes(how: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", SCRIPT, how]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return int(said.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_server_gives_back_what_it_freed() -> None:
    assert free_bytes("left") > 50_000_000
    assert free_bytes("set") < 10_000_000
