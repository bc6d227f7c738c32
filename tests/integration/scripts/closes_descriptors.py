"""A training that closes descriptors, as daemons do: stdin, stdout and stderr first, all others later.

Arguments: spool, and the file for what it says of its descriptors. With UNMAPPED in the environment the
ring's file is written with `pwrite`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection
from pathlib import Path

import torch

import probe
from probe.delivery.recorder import ring

if os.environ.get("UNMAPPED"):
    ring.map_written_file = lambda descriptor, size: None


def descriptors(*, but: Collection[int] = ()) -> dict[int, str]:
    """Return those that are open, of whatever kind, and where they lead."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        # The list itself is one.
        if int(name) not in but and not target.startswith("/proc/"):
            found[int(name)] = target
    return found


def main() -> None:
    spool, said = sys.argv[1:3]
    os.closerange(0, 3)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = descriptors()
    run = probe.watch(model, optimizer, spool=spool, run="closes", quiet=True)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()

    train(300)
    time.sleep(0.3)
    looks = [descriptors(but=before)]
    os.closerange(0, 256)
    mine = [os.open(f"{said}-{number}", os.O_RDWR | os.O_CREAT) for number in range(100)]
    for number in mine:
        os.write(number, b"U" * 1000)
    train(300)
    time.sleep(1.2)
    train(100)
    run.close()
    looks.append(descriptors())
    for number in mine:
        os.fstat(number)
    Path(said).write_text(json.dumps(looks))


if __name__ == "__main__":
    main()
