"""A watched training whose journal has many small segments; notes each finished step, as a person would.

Arguments: spool, log file, run, steps, how it ends (close, kill).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import probe
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.recorder import recorder

SEGMENT_BYTES = 12_000


def main() -> None:
    spool, log, name, steps, how = sys.argv[1:6]
    # What a long training fills in hours.
    JournalWriter.__init__.__kwdefaults__["segment_bytes"] = SEGMENT_BYTES
    recorder.WRITE_S = 0.05
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    run = probe.watch(model, optimizer, spool=Path(spool), connect="", run=name, hang_seconds=1000)
    finished = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in range(int(steps)):
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        os.write(finished, f"{step}\n".encode())
        if step % 8 == 0:
            probe.record_event(f"step {step} is done")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    run.close()


if __name__ == "__main__":
    main()
