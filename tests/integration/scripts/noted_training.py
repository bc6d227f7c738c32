"""A watched training that notes what it has done, as a person would who trusts nobody.

All it does is asked for in the environment:
NOTED_LOG        file for `step RANK STEP LOSS` once a step is finished, `event NAME` once an event was
                 recorded, and at the end `failed WRITES` and `weights SHA256`; one `os.write` each
NOTED_FIRST      number of the first step
NOTED_STEPS      number of steps; 0 trains until killed
NOTED_PAUSE_S    pause after each step
NOTED_LAYERS     layers of the model
NOTED_EVENTS     an event after so many steps
NOTED_AT_STEP    what happens in the middle of the steps: gil, stop, fork, forkserver, spawn
NOTED_WRITES     fail the Nth write into the spool, from this step on: `N`, or `N-` for all after it
NOTED_RANKS      1: DistributedDataParallel over gloo
NOTED_DIES       `RANK STEP RESTART`: where a rank kills itself
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import multiprocessing
import os
import signal
import time
from typing import Any

import torch

import probe

asked = os.environ.get
RANK = int(asked("RANK", "0"))
FIRST, STEPS = int(asked("NOTED_FIRST", "0")), int(asked("NOTED_STEPS", "0"))
RESTARTS = int(asked("TORCHELASTIC_RESTART_COUNT", "0"))
WIDTH = 8


class FailingWrites:
    """`os.write` and its siblings, of which the Nth into the spool finds a full disk."""

    def __init__(self, which: str) -> None:
        self.first, self.is_lasting = int(which.rstrip("-")), which.endswith("-")
        self.seen = self.failed = 0
        self.spool = os.path.realpath(os.environ["NANSCOPE_SPOOL"])
        for name in ("write", "writev", "pwrite"):
            setattr(os, name, self.guarded(getattr(os, name)))

    def guarded(self, real: Any) -> Any:
        def write(descriptor: int, *arguments: Any) -> int:
            if os.path.realpath(f"/proc/self/fd/{descriptor}").startswith(self.spool):
                self.seen += 1
                if self.seen == self.first or (self.is_lasting and self.seen > self.first):
                    self.failed += 1
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, *arguments)

        return write


def nothing() -> None:
    """What a child does."""


def disturb(what: str) -> None:
    """Do in mid-training what disturbs threads and processes."""
    if what == "gil":
        ctypes.PyDLL(None).usleep(3_000_000)  # unlike CDLL, it keeps the lock
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what:
        context = multiprocessing.get_context(what)
        children = [context.Process(target=nothing) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0


def make_model() -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model, and what is called in its place."""
    layers = int(asked("NOTED_LAYERS", "2"))
    model = torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)), torch.nn.Linear(WIDTH, 1)
    )
    if not asked("NOTED_RANKS"):
        return model, model
    # In the agent's own store eight ranks that start again find old addresses, without the probe too.
    store = f"file://{os.path.abspath(asked('NOTED_LOG', 'log'))}-store-{RESTARTS}"
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=RANK, world_size=int(os.environ["WORLD_SIZE"])
    )
    return model, torch.nn.parallel.DistributedDataParallel(model)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(FIRST)
    model, called = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = probe.watch(called, optimizer, first_step=FIRST, hang_seconds=1000)
    real_write = os.write
    log = os.open(asked("NOTED_LOG", "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*words: object) -> None:
        real_write(log, (" ".join(map(str, words)) + "\n").encode())

    failing = FailingWrites(which) if (which := asked("NOTED_WRITES")) else None
    pause_s, events = float(asked("NOTED_PAUSE_S", "0")), int(asked("NOTED_EVENTS", "10"))
    step = FIRST
    while not STEPS or step < FIRST + STEPS:
        generator = torch.Generator().manual_seed(1000 * RANK + step)
        loss = called(torch.randn(4, WIDTH, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        note("step", RANK, step, loss.item())
        if step % events == 0:
            name = f"noted {RANK} {step} {RESTARTS}"
            run.record_event(name)
            note("event", name)
        step += 1
        if step == FIRST + STEPS // 2:
            disturb(asked("NOTED_AT_STEP", ""))
        if asked("NOTED_DIES") == f"{RANK} {step - FIRST} {RESTARTS}":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pause_s)
    run.close()
    note("failed", 0 if failing is None else failing.failed)
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    note("weights", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
