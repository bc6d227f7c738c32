"""Train one of these loops, plain or watched: `run_loop.py NAME [--steps N] [--spool FOLDER]`.

Prints as JSON the hash of the weights that it ended with. A loop is a function `train(steps, watch, tick)`:
it calls `watch(model, optimizer)` when both are there, what that returns when their training has ended, and
`tick()` after each step; it returns the models that it has trained.
"""

import argparse
import hashlib
import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent
NEEDED = {
    "hf_trainer": "transformers",
    "trl_sft": "trl",
    "lora": "peft",
    "accelerate_loop": "accelerate",
    "lightning_loop": "lightning",
    "optuna_trials": "optuna",
    "sb3_ppo": "stable_baselines3",
    "skorch_net": "skorch",
}
"""Packages without which a loop cannot run."""
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "run_loop")


def seed():
    """Make what is drawn the same in every run."""
    torch.set_num_threads(1)
    for one in (torch.manual_seed, random.seed, np.random.seed):
        one(7)


def load(name):
    """Return the module of a loop."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def weights_of(models):
    """A hash over all parameters and buffers, to the bit."""
    digest = hashlib.sha256()
    for model in models:
        for value in model.state_dict().values():
            digest.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--spool", type=Path)
    options = parser.parse_args()
    loop, sessions = load(options.name), []

    def watch(model, optimizer):
        if options.spool is None:
            return lambda: None
        import probe

        # As many names as models: runs of one name would be incarnations of it.
        run = f"{options.name}-{len(sessions)}"
        session = probe.watch(model, optimizer, run=run, spool=options.spool, connect="tcp://127.0.0.1:9")
        sessions.append(session)
        return session.close

    seed()
    models = loop.train(options.steps or loop.STEPS, watch, lambda: None)
    for session in sessions:
        session.close()
    print(json.dumps({"weights": weights_of(models)}))


if __name__ == "__main__":
    main()
