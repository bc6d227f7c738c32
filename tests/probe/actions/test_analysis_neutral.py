"""No analysis call changes a training: the same bits with all of them between its statements, and without."""

import random

import torch
from torch import Tensor, nn

import probe


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6), torch.randint(3, (8,))


def look(model: nn.Module, inputs: Tensor, optimizer: torch.optim.Optimizer) -> None:
    probe.inspect_model(model, inputs)
    probe.analyze_tensor(inputs)
    probe.analyze_optimizer(optimizer, model)
    probe.check_model_parameters(model, since=probe.snapshot_parameters(model), optimizer=optimizer)


def train(*, looking: bool) -> tuple[list[bytes], list[float], float]:
    model, optimizer = make()
    torch.manual_seed(4)
    random.seed(4)
    losses = []
    for step in range(5):
        inputs, targets = batch()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        if looking:
            look(model, inputs, optimizer)
        loss.backward()
        if looking:
            look(model, inputs, optimizer)
            probe.check_gradients(model)
            probe.check_gradient_explosion(model)
            probe.check_gradient_vanishing(model)
            probe.analyze_gradient_flow(model)
            probe.monitor_training_step(model, loss, step)
            with probe.debug_context("step"), probe.anomaly_detection():
                probe.get_debug_summary(model)
        optimizer.step()
        losses.append(loss.item())
    return (
        [t.numpy().tobytes() for t in model.state_dict().values()],
        losses,
        random.random() + torch.rand(()).item(),
    )


def test_training_with_every_call_in_between_has_the_same_bits() -> None:
    assert train(looking=True) == train(looking=False)
