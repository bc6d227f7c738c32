"""The ranks of a distributed training: `python ranks.py FOLDER WORLD_SIZE LOOP...`.

`test_setups_distributed` starts it, and says where the modules of the tests are. The ranks are forked from
one process, which imports torch for all of them. Each runs every loop without the probe, with it and no step
followed in C, and with all followed that can be; it leaves in FOLDER what it saw (`LOOP-RANK.pt`) and the
journals (`LOOP/slow`, `LOOP/in_c`).
"""

from __future__ import annotations

import datetime
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer would, on every rank
import torch.distributed as dist
from early_arming import early_arming
from reference import Scene, local
from small_training import small_model
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.multiprocessing import start_processes
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

twins: list[dict[str, Tensor]] = []
"""Per step, this rank's own gradients before any averaging, recomputed in float64."""


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Other inputs on every rank."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(count)
    ]


def quiet_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def recompute(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """This rank's gradients of one batch, from a float64 twin."""
    twin = quiet_model().double()
    twin.load_state_dict(model.state_dict())
    loss = F.cross_entropy(twin(inputs.double()), targets)
    names = [name for name, _ in twin.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(twin.parameters())), strict=True))


def add_to_twin(own: dict[str, Tensor], *, is_first: bool) -> None:
    """Add a micro-step's gradients to those of its step."""
    if is_first:
        twins.append(own)
    else:
        twins[-1] = {name: gradient + own[name] for name, gradient in twins[-1].items()}


def averaged_each_time(scene: Scene) -> nn.Module:
    """Two micro-steps, both averaged: at the second, gradients are sums of averaged ones and own ones."""
    model = quiet_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with scene.watch(ddp, optimizer, features={"own_gradients": 1}):
        for index, (inputs, targets) in enumerate(batches(6)):
            scene.backward(F.cross_entropy(ddp(inputs), targets), samples=8)
            if index % 2:
                scene.note(model, stage="reduced")
                optimizer.step()
                optimizer.zero_grad()
    return model


def scaled(scene: Scene) -> nn.Module:
    """Gradients that a GradScaler has scaled when they are averaged."""
    model = quiet_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with scene.watch(ddp, optimizer, features={"own_gradients": 1}):
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(inputs), targets)
            scene.backward(loss, raw=scaler.scale(loss), samples=8)
            scaler.unscale_(optimizer)
            scene.note(model, stage="unscaled")
            scaler.step(optimizer)
            scaler.update()
    return model


def averaged(
    scene: Scene,
    *,
    bucket_view: bool = False,
    watched: str = "wrapper",
    steps: int = 4,
    features: dict[str, int] | None = None,
    **options: Any,
) -> nn.Module:
    """DistributedDataParallel, the probe given the wrapper or the model inside it."""
    model = quiet_model()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=bucket_view, **options)
    optimizer = torch.optim.AdamW(ddp.parameters())
    twins.clear()
    with scene.watch(ddp if watched == "wrapper" else model, optimizer, features=features or {}):
        for inputs, targets in batches(steps):
            twins.append(recompute(model, inputs, targets))
            optimizer.zero_grad()
            scene.backward(F.cross_entropy(ddp(inputs), targets), samples=8)
            scene.note(model, stage="reduced")
            optimizer.step()
    return model


def accumulated(scene: Scene, *, features: dict[str, int] | None = None) -> nn.Module:
    """Micro-steps without averaging, the last one with it."""
    model = quiet_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    twins.clear()
    with scene.watch(ddp, optimizer, features=features or {}):
        for index, (inputs, targets) in enumerate(batches(12)):
            add_to_twin(recompute(model, inputs, targets), is_first=index % 3 == 0)
            if index % 3 < 2:
                with ddp.no_sync():
                    scene.backward(F.cross_entropy(ddp(inputs), targets), samples=8)
                continue
            scene.backward(F.cross_entropy(ddp(inputs), targets), samples=8)
            scene.note(model, stage="reduced")
            optimizer.step()
            optimizer.zero_grad()
    return model


def never_averaged(scene: Scene) -> nn.Module:
    """Local SGD: every step is this rank's own."""
    model = quiet_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with scene.watch(ddp, optimizer):
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            with ddp.no_sync():
                scene.backward(F.cross_entropy(ddp(inputs), targets), samples=8)
            scene.note(model, stage="local")
            optimizer.step()
    return model


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x: Tensor, chosen: int) -> Tensor:
        result: Tensor = self.experts[chosen](x)
        return result


def unused(scene: Scene) -> nn.Module:
    """Two ranks use two of the three experts; the third has no gradient anywhere."""
    model = Experts()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with scene.watch(ddp, optimizer):
        for index, (inputs, targets) in enumerate(batches(4)):
            optimizer.zero_grad()
            chosen = (index + dist.get_rank()) % 3
            scene.backward(F.cross_entropy(ddp(inputs, chosen), targets), samples=8)
            scene.note(model, stage="reduced")
            optimizer.step()
    return model


def uneven(scene: Scene) -> nn.Module:
    """The second rank has fewer batches, and only follows the other one's averaging after that."""
    model = quiet_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with scene.watch(ddp, optimizer), Join([ddp]):
        for inputs, targets in batches(5 - 2 * dist.get_rank()):
            optimizer.zero_grad()
            scene.backward(F.cross_entropy(ddp(inputs), targets), samples=8)
            scene.note(model, stage="reduced")
            optimizer.step()
    return model


def sharded(scene: Scene, *, when: str = "before", micro_steps: int = 1, replicas: int = 1) -> nn.Module:
    """FSDP2, sharded before or after the probe is attached, over all ranks or in several replicas."""
    torch.manual_seed(0)
    model = small_model()
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard"))
    mesh = mesh if replicas > 1 else mesh["shard"]

    def shard() -> None:
        for layer in (model[0], model[4]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    if when == "before":
        shard()
    optimizer = torch.optim.AdamW(model.parameters()) if when == "before" else None
    with scene.watch(model, optimizer):
        if when == "after":
            shard()
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        for index, (inputs, targets) in enumerate(batches(3 * micro_steps)):
            scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
            if index % micro_steps == micro_steps - 1:
                scene.note(model, stage="shard")
                wholes.append(whole_norm(model))
                optimizer.step()
                optimizer.zero_grad()
    return local_copy(model)


wholes: list[float] = []
"""Norms of the whole gradient, put together from all ranks by torch."""


def whole_norm(model: nn.Module) -> float:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    full = [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients]
    return math.sqrt(sum(g.double().square().sum().item() for g in full))


def local_copy(model: nn.Module) -> nn.Module:
    """This rank's parts as plain tensors, for the comparison."""
    parts = nn.ParameterDict()
    for name, p in model.named_parameters():
        parts[name.replace(".", "-")] = local(p.detach()).clone()
    return parts


def split(scene: Scene, *, is_normalised: bool = False) -> nn.Module:
    """Tensor parallel: the first layer by columns, the second by rows; its bias is whole on both ranks.

    Where a part of the inputs is normalised on each rank, the gradients of that weight are terms of a sum.
    """
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = quiet_model()
    plan: dict[str, ParallelStyle] = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    if is_normalised:
        model = nn.Sequential(*model, nn.LayerNorm(3))
        plan |= {
            "2": RowwiseParallel(output_layouts=Shard(0)),
            "3": SequenceParallel(sequence_dim=0, use_local_output=True),
        }
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(5)
    with scene.watch(model, optimizer):
        for _ in range(3):
            inputs, targets = torch.randn(8, 6, generator=generator), torch.tensor([0, 1, 2, 0] * 2)
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = F.cross_entropy(outputs, targets[: len(outputs)])
            scene.backward(loss, samples=8)
            scene.note(model, stage="shard")
            wholes.append(whole_norm(model))
            optimizer.step()
    return local_copy(model)


def replicated(scene: Scene) -> nn.Module:
    """DTensors of which every rank has the whole: nothing is sharded."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Linear(6, 3, bias=False)
    with torch.no_grad():
        torch.manual_seed(0)
        model.weight = nn.Parameter(distribute_tensor(torch.randn(3, 6), mesh))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with scene.watch(model, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            inputs = distribute_tensor(torch.ones(4, 6), mesh)
            output = model(inputs)
            scene.backward(output.square().mean().to_local(), samples=4)
            scene.note(model)
            optimizer.step()
    return local_copy(model)


def bad_on_one_rank(scene: Scene) -> nn.Module:
    """FSDP2 with a NaN loss on rank 0 alone: a replay there would wait for the other rank for ever."""
    torch.manual_seed(0)
    model = quiet_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with scene.watch(model, optimizer):
        for index, (inputs, targets) in enumerate(batches(3)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if index == 1 and dist.get_rank() == 0 else loss).backward()
            if index != 1:
                optimizer.step()
    return local_copy(model)


LOOPS: dict[str, Callable[[Scene], nn.Module]] = {
    "averaged": averaged,
    "bucket views": lambda scene: averaged(scene, bucket_view=True),
    "inner": lambda scene: averaged(scene, watched="inner"),
    "static graph": lambda scene: averaged(scene, static_graph=True),
    "accumulated": accumulated,
    "never averaged": never_averaged,
    "unused": unused,
    "uneven": uneven,
    "sharded": sharded,
    "sharded later": lambda scene: sharded(scene, when="after"),
    "sharded and accumulated": lambda scene: sharded(scene, micro_steps=2),
    "sharded in replicas": lambda scene: sharded(scene, replicas=2),
    "split": split,
    "split, normalised": lambda scene: split(scene, is_normalised=True),
    "replicated": replicated,
    "bad on one rank": bad_on_one_rank,
    "own gradients": lambda scene: averaged(scene, features={"own_gradients": 1}),
    "own gradients now and then": lambda scene: averaged(scene, steps=8, features={"own_gradients": 5}),
    "own gradients, accumulated": lambda scene: accumulated(scene, features={"own_gradients": 1}),
    "own gradients in bucket views": lambda scene: averaged(
        scene, bucket_view=True, features={"own_gradients": 1}
    ),
    "own gradients, averaged each time": averaged_each_time,
    "own gradients, scaled": scaled,
}


class _Lines(logging.Handler):
    """What the user is told."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run(name: str, folder: Path) -> None:
    """Run one loop in all ways, and leave what this rank saw of it."""
    plain = Scene(None)
    wholes.clear()
    ways: dict[str, dict[str, Any]] = {"plain": once(name, plain)}
    for way in ("slow", "in_c"):
        with early_arming(in_c=way == "in_c") as followed:
            ways[way] = once(name, Scene(folder / name / way))
        ways[way]["followed"] = followed.steps
    seen = {"steps": plain.steps, "ways": ways, "twins": list(twins), "wholes": wholes[: len(wholes) // 3]}
    torch.save(seen, folder / f"{name}-{dist.get_rank()}.pt")


def once(name: str, scene: Scene) -> dict[str, Any]:
    """Run one loop; returns the weights and the state of the random numbers after it, and what was told."""
    handler = _Lines()
    logging.getLogger("probe").addHandler(handler)
    torch.manual_seed(7)
    weights = LOOPS[name](scene).state_dict()
    logging.getLogger("probe").removeHandler(handler)
    return {"weights": weights, "random": torch.get_rng_state(), "told": handler.lines}


def be_rank(rank: int, world_size: int, folder: Path, names: list[str]) -> None:
    """Join the group, run the loops, leave."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    for name in names:
        run(name, folder)
        dist.barrier()
    # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    size = int(sys.argv[2])
    start_processes(be_rank, (size, Path(sys.argv[1]), sys.argv[3:]), nprocs=size, start_method="fork")
