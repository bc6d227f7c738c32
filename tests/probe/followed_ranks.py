"""Two ranks whose steps C follows, and the same that go the slow way: `python followed_ranks.py FOLDER`."""

from __future__ import annotations

import datetime
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer would, on every rank
import torch.distributed as dist
from armed_training import watched_training
from followed_kinds import Accumulating, Averaged, AveragedAtTheEnd, averaged_model
from torch import Tensor
from torch.multiprocessing import start_processes

KINDS: dict[str, type[Accumulating]] = {"averaged": Averaged, "averaged-at-the-end": AveragedAtTheEnd}


def infinite(hidden: Tensor) -> Tensor:
    return hidden + math.inf * (hidden == hidden.max())


def train(folder: Path, rank: int, name: str, *, in_c: bool) -> None:
    """Some healthy steps, one that is bad on the second rank, and some after it."""
    spool, followed = folder / f"{name}-{rank}-{'c' if in_c else 'slow'}", 0
    with watched_training(in_c=in_c, kind=KINDS[name], model=averaged_model, spool=spool) as training:
        training.generator.manual_seed(1 + rank)
        for _ in range(30):
            training.step()
            followed += training.is_followed
        assert isinstance(training, Accumulating)
        training.step(fault=infinite if rank == 1 else None)
        training.steps(3)
        torch.save([*training.model.state_dict().values()], f"{spool}.pt")
        assert followed >= (20 if in_c else 0)


def be_rank(rank: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    for name in KINDS:
        for in_c in (True, False):
            train(folder, rank, name, in_c=in_c)
            dist.barrier()
    # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    start_processes(be_rank, (Path(sys.argv[1]),), nprocs=2, start_method="fork")
