"""python docs/launchers/ray_train.py [--steps N]: a Ray Train loop whose workers are the ranks of one run.

Ray gives the workers RANK, WORLD_SIZE and the master's address; `NANSCOPE_RUN` makes them one run on several
machines too, and after a failure the new workers new incarnations of it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import probe


def train_loop(config: dict[str, Any]) -> None:
    """What each worker runs."""
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer):
        for _ in range(config["steps"]):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()


def fit(loop: Callable[[dict[str, Any]], None], *, steps: int, workers: int, storage: str | None) -> None:
    """Start or find a cluster, and train there; a worker that fails has all started again, once.

    Args:
        loop: what each worker runs.
        steps: of each worker.
        workers: how many.
        storage: where Ray keeps results and checkpoints; None is its own place.
    """
    # What workers have to be told, wherever they run; the keys' file has to be on their machines.
    told = {name: value for name, value in os.environ.items() if name.startswith("NANSCOPE_")}
    told.setdefault("NANSCOPE_RUN", f"ray-{time.strftime('%Y%m%d-%H%M%S')}")
    ray.init(runtime_env={"env_vars": told})
    TorchTrainer(
        loop,
        train_loop_config={"steps": steps},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--storage", help="where Ray keeps results and checkpoints")
    fit(train_loop, **vars(parser.parse_args()))
