"""A training under a limit of its address space: one batch too large is skipped, the next one trains."""

import resource

import torch
from torch import nn

import probe


def main() -> None:
    """Print what became of each batch."""
    torch.set_num_threads(1)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(rows: int) -> int:
        optimizer.zero_grad()
        model(torch.ones(rows, 64)).square().mean().backward()
        optimizer.step()
        return rows

    step(1024)
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    limit = used + 512 * 1024**2
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, rows in (("small", 1024), ("large", 4 * 1024**2), ("small", 1024)):
        result = probe.robust_training_step(step, rows, optimizer=optimizer, skipped="skipped")
        print(name, result, flush=True)
