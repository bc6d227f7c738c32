"""Two gloo ranks of which one gets a bad batch, with a recovery: `recovered_ranks.py FOLDER`.

Leaves `LOOP-RANK.pt` with the parameters after each step, and the journals in `LOOP/spool`. At the end the
process that started them, which has imported torch for all, runs `memory_limited_step`.
"""

import contextlib
import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import memory_limited_step
import torch
import torch._dynamo  # the first optimizer would, on every rank
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import GradientState
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

import probe
from probe.integrations import accelerate as probe_accelerate

BAD = 2
STEPS = 4
LOOPS = ("averaged", "bad loss alone", "never averaged", "rolled back")
SHARDED: dict[str, Any] = {
    "left alone": None,
    "skip": "skip",
    "zero": "zero",
    "clip": probe.Recovery(nonfinite="clip", max_norm=1.0),
    "rollback": probe.Recovery(nonfinite="rollback", keep_state_every=1),
}
"""FSDP2 without and with each recovery."""


def main(rank: int, folder: str) -> None:
    """Run every loop on one rank."""
    torch.set_num_threads(1)
    # What Accelerate asks for; the group itself is made here.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for loop in LOOPS:
        torch.save(train(loop, rank, Path(folder)), f"{folder}/{loop}-{rank}.pt")
        dist.barrier()
    for name, recovery in SHARDED.items():
        torch.save(train_sharded(recovery, rank, Path(folder) / name), f"{folder}/{name}-{rank}.pt")
        dist.barrier()
    for name, recovery in SHARDED.items():
        if recovery is not None:
            torch.save(
                accumulate(recovery, Path(folder) / f"accelerate {name}"),
                f"{folder}/accelerate {name}-{rank}.pt",
            )
    if dist.is_initialized():
        # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
        time.sleep(0.1)
        dist.destroy_process_group()


def train(loop: str, rank: int, folder: Path) -> list[list[torch.Tensor]]:
    """Return the parameters after each step."""
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(4, 2)
    wrapped = model if loop == "never averaged" else DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    states = []
    options = {"spool": folder / loop / "spool", "run": "ranks", "connect": "", "replay": False, "bundles": 0}
    recovery = probe.Recovery(nonfinite="rollback" if loop == "rolled back" else "skip", keep_state_every=1)
    with probe.watch(wrapped, optimizer, recovery=recovery, **options):
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = wrapped(torch.full((3, 4), 0.1 + rank + step)).square().mean()
            if rank == 1 and step == BAD:
                # A constant has no gradient: of this loss the ranks see nothing in each other's.
                loss = loss + math.inf if loop == "bad loss alone" else loss * math.nan
            if rank == 1 and step == BAD - 1 and loop == "rolled back":
                loss = loss + math.inf
            loss.backward()
            optimizer.step()
            states.append([parameter.detach().clone() for parameter in model.parameters()])
        if loop == "bad loss alone":
            run_out_of_memory(optimizer, wrapped)
    return states


def train_sharded(recovery: Any, rank: int, folder: Path) -> list[torch.Tensor]:
    """Return this rank's part; one row of the weight, which rank 1 holds, gets a NaN at step BAD."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    options = {"spool": folder / "spool", "run": "ranks", "connect": "", "replay": False, "bundles": 0}
    with probe.watch(model, optimizer, recovery=recovery, **options):
        for step in range(STEPS):
            optimizer.zero_grad()
            output = model(torch.full((3, 4), 0.1 + rank + step))
            factor = torch.tensor([1.0, math.nan if step == BAD else 1.0])
            # The loss stays finite: only what goes back to the second row does not.
            output.register_hook(lambda gradient, factor=factor: gradient * factor)
            output.square().mean().backward()
            optimizer.step()
            if step == BAD:
                break
    return [parameter.detach().to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]


def accumulate(recovery: Any, folder: Path) -> list[list[torch.Tensor]]:
    """Accelerate: of two micro-steps the second is averaged; rank 1's first one is bad at step BAD."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rank = accelerator.process_index
    torch.manual_seed(0)
    inner = nn.Linear(4, 2)
    model, optimizer = accelerator.prepare(inner, torch.optim.Adam(inner.parameters(), lr=0.1))
    options = {"spool": folder / "spool", "run": "ranks", "connect": "", "replay": False, "bundles": 0}
    states = []
    with probe_accelerate.watch(accelerator, model, optimizer, recovery=recovery, **options):
        for index in range(2 * STEPS):
            with accelerator.accumulate(model):
                loss = model(torch.full((3, 4), 0.1 + rank + index)).square().mean()
                accelerator.backward(loss * math.nan if rank == 1 and index == 2 * BAD else loss)
                optimizer.step()
                optimizer.zero_grad()
            states.append([parameter.detach().clone() for parameter in inner.parameters()])
    GradientState._reset_state()
    return states[1::2]


def run_out_of_memory(optimizer: torch.optim.Optimizer, wrapped: nn.Module) -> None:
    """Fail as torch's CPU allocator does: what would be skipped by one process has to reach the script."""
    calls = []

    def fail(*_: Any) -> None:
        calls.append(1)
        torch.empty(2**50)

    handle = wrapped.module.register_forward_pre_hook(fail)  # type: ignore[union-attr, operator]
    for attempt in (
        lambda: probe.robust_training_step(fail, optimizer=optimizer),
        lambda: probe.safe_inference(wrapped, torch.ones(3, 4), retries=3).unwrap(),
    ):
        with contextlib.suppress(RuntimeError):
            attempt()
            raise AssertionError("one rank alone has gone on")
    handle.remove()
    assert len(calls) == 2


if __name__ == "__main__":
    start_processes(main, args=(sys.argv[1],), nprocs=2, start_method="fork")
    memory_limited_step.main()
