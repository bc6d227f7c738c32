"""Trials of Optuna, each with a new model and optimizer; some are pruned."""

import optuna
import torch
from torch import nn

STEPS = 200


def train(steps, watch, tick):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    x, y = torch.randn(8, 32, 16), torch.randint(4, (8, 32))
    kept = []

    def objective(trial):
        width = trial.suggest_int("width", 16, 64)
        model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-2, log=True))
        end = watch(model, optimizer)
        for step in range(20):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[step % 8]), y[step % 8])
            loss.backward()
            optimizer.step()
            tick()
        kept[:] = [model]
        end()
        return loss.item()

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=7))
    study.optimize(objective, n_trials=steps // 20)
    return kept
