"""Series for the detector tests: synthetic ones, and norms of small models that are really trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from probe.detectors import (
    Detector,
    DetectorThresholds,
    Finding,
    Observation,
    ObservationBatch,
    default_detectors,
)


def observe_norms(
    step: int,
    norms: Sequence[float] | np.ndarray,
    *,
    loss: float | None = None,
    missing: np.ndarray | None = None,
    per_layer: int = 1,
    rate: float | None = None,
) -> Observation:
    """One step of a model with `per_layer` parameters in each layer; NaN norms hold one NaN element."""
    values = np.asarray(norms, dtype=np.float64)
    count = len(values)
    absent = np.zeros(count, dtype=np.bool_) if missing is None else missing
    present = values[~absent]
    return Observation(
        step=step,
        loss=loss,
        total_grad_norm=float(math.sqrt(float((present**2).sum()))) if len(present) else None,
        grad_norm=values,
        grad_max_abs=values / 2.0,
        grad_nan_count=np.isnan(values).astype(np.float64),
        grad_inf_count=np.isinf(values).astype(np.float64),
        missing=absent,
        parameter_norm=None,
        parameter_names=tuple(f"layers.{i // per_layer}.p{i % per_layer}" for i in range(count)),
        layer_names=tuple(f"layers.{i}" for i in range(math.ceil(count / per_layer))),
        layer_of=np.arange(count, dtype=np.intp) // per_layer,
        lowest_rate=rate,
        highest_rate=rate,
    )


def as_batch(steps: Sequence[Observation]) -> ObservationBatch:
    """Put successive observations of one layout into a batch."""
    first = steps[0]
    missing = np.array([step.missing for step in steps])
    return ObservationBatch(
        steps=[step.step for step in steps],
        losses=[step.loss for step in steps],
        total_grad_norms=[step.total_grad_norm for step in steps],
        grad_norm=np.array([step.grad_norm for step in steps]),
        grad_max_abs=np.array([step.grad_max_abs for step in steps]),
        missing=missing if missing.any() else None,
        parameter_norms=[step.parameter_norm for step in steps],
        parameter_names=first.parameter_names,
        layer_names=first.layer_names,
        layer_of=first.layer_of,
        lowest_rates=[step.lowest_rate for step in steps],
        highest_rates=[step.highest_rate for step in steps],
    )


def run_detectors(
    observations: Iterable[Observation], detectors: list[Detector] | None = None
) -> list[tuple[int, Finding]]:
    """Return every (step, finding) of the default detectors (or of these)."""
    active = default_detectors(DetectorThresholds()) if detectors is None else detectors
    return [
        (observation.step, finding)
        for observation in observations
        for detector in active
        for finding in detector.observe(observation)
    ]


def describe(findings: list[tuple[int, Finding]]) -> str:
    """Messages for an assertion."""
    return "\n".join(finding.message for _, finding in findings)


# ------------------------------------------------------------------------------------------ real training


Training = Callable[[int], list[Observation]]


def on_one_thread(train: Training) -> Training:
    """Train on one thread (the bits depend on their number), and leave torch's random state as it was."""

    def run(seed: int) -> list[Observation]:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]):
                return train(seed)
        finally:
            torch.set_num_threads(before)

    return run


class Recorder:
    """Turns a model's gradients into observations, with plain torch and in float64."""

    def __init__(self, *models: nn.Module) -> None:
        named = [
            (f"{index}.{name}" if len(models) > 1 else name, parameter)
            for index, model in enumerate(models)
            for name, parameter in model.named_parameters()
        ]
        self._parameters = [parameter for _, parameter in named]
        self._names = tuple(name for name, _ in named)
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in self._names))
        self._layers = tuple(layers)
        self._layer_of = np.array([layers.index(n.rpartition(".")[0]) for n in self._names], dtype=np.intp)
        self.observations: list[Observation] = []

    def record(self, loss: float) -> None:
        """Record the gradients as they are now."""
        grads = [parameter.grad for parameter in self._parameters]
        flat = [None if grad is None else grad.double() for grad in grads]
        norm = np.array([0.0 if grad is None else float(grad.norm()) for grad in flat])
        absent = np.array([grad is None for grad in flat])
        self.observations.append(
            Observation(
                step=len(self.observations),
                loss=loss,
                total_grad_norm=float(np.sqrt((norm**2).sum())),
                grad_norm=norm,
                grad_max_abs=np.array([0.0 if grad is None else float(grad.abs().max()) for grad in flat]),
                grad_nan_count=np.array(
                    [0.0 if grad is None else float(grad.isnan().sum()) for grad in flat]
                ),
                grad_inf_count=np.array(
                    [0.0 if grad is None else float(grad.isinf().sum()) for grad in flat]
                ),
                missing=absent,
                parameter_norm=np.array([float(p.detach().double().norm()) for p in self._parameters]),
                parameter_names=self._names,
                layer_names=self._layers,
                layer_of=self._layer_of,
            )
        )


def train_mlp(seed: int) -> list[Observation]:
    """Classification of two noisy rings by a ReLU network with batch norm; Adam; interpolates its data."""
    torch.manual_seed(seed)
    angle, label = torch.rand(512) * 6.28, torch.randint(0, 2, (512,))
    radius = 1.0 + label + 0.1 * torch.randn(512)
    data = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    model = nn.Sequential(
        nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        pick = torch.randint(0, 512, (16,))
        return nn.functional.cross_entropy(model(data[pick]), label[pick])

    return _train(model, optimizer, loss_of, 300)


class _Block(nn.Module):
    """Pre-norm attention with separate projections (the key bias has no gradient) and a zero-init gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        mixed = nn.functional.scaled_dot_product_attention(
            self.query(y), self.key(y), self.value(y), is_causal=True
        )
        x = x + self.out(mixed)
        return x + self.gate * self.feed(self.norm2(x))


class _Transformer(nn.Module):
    def __init__(self, width: int = 32, tokens: int = 40) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(tokens, width), nn.Embedding(24, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train_transformer(seed: int) -> list[Observation]:
    """Next token of random text with skewed frequencies; AdamW, warm-up from 0, cosine decay."""
    torch.manual_seed(seed)
    text = torch.multinomial(1.0 / torch.arange(1.0, 41.0), 4000, replacement=True)
    text[1::2] = (text[::2] * 7 + 3) % 40
    model = _Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(s / 30, 0.5 + 0.5 * math.cos(math.pi * s / 300))
    )

    def loss_of(step: int) -> torch.Tensor:
        start = torch.randint(0, 3900, (8,))
        ids = torch.stack([text[s : s + 25] for s in start.tolist()])
        return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return _train(model, optimizer, loss_of, 250, after=schedule.step)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(ids))[0][:, -1])


def train_lstm(seed: int) -> list[Observation]:
    """Parity-like label of padded random sequences; SGD with momentum; stepwise learning rate."""
    torch.manual_seed(seed)
    model = _Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 70, gamma=0.1)

    def loss_of(step: int) -> torch.Tensor:
        ids = torch.randint(1, 60, (8, 12))
        ids[:, :3] *= torch.randint(0, 2, (8, 1))
        return nn.functional.cross_entropy(model(ids), (ids[:, -1] > 30).long())

    return _train(model, optimizer, loss_of, 200, after=schedule.step)


def train_gan(seed: int) -> list[Observation]:
    """A GAN in which one optimiser steps at a time, so that the other half has no gradients: two of three
    steps train the discriminator. One observation a step over both models."""
    torch.manual_seed(seed)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    steps_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    steps_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    recorder = Recorder(generator, critic)
    soft = nn.functional.softplus
    for step in range(300):
        fake = generator(torch.randn(32, 4))
        is_generator = step % 3 == 2
        real = 0.3 * torch.randn(32, 2) + torch.tensor([2.0, -1.0])
        loss = soft(-critic(fake)).mean()
        if not is_generator:
            loss = soft(critic(fake.detach())).mean() + soft(-critic(real)).mean()
        optimizer = steps_g if is_generator else steps_c
        for each in (steps_g, steps_c):
            each.zero_grad(set_to_none=True)
        loss.backward()
        if is_generator:
            steps_c.zero_grad(set_to_none=True)
        recorder.record(loss.item())
        optimizer.step()
    return recorder.observations


class _Experts(nn.Module):
    """Four experts, the router sends a whole batch to one; the rest get None (or exact zeros)."""

    def __init__(self, *, dense: bool) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 1)
        self._dense = dense

    def forward(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        if not self._dense:
            return self.head(torch.relu(self.experts[expert](x)))
        mixed = sum(float(i == expert) * e(x) for i, e in enumerate(self.experts))
        return self.head(torch.relu(torch.as_tensor(mixed)))


def train_experts(seed: int, *, dense: bool = False) -> list[Observation]:
    """A mixture of experts, the last one used in one of 20 steps."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    model = _Experts(dense=dense)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        expert = int(random.choice(4, p=[0.4, 0.3, 0.25, 0.05]))
        return (model(x, expert) - x.sum(1, keepdim=True) * (expert + 1)).square().mean()

    return _train(model, optimizer, loss_of, 300)


def train_to_convergence(seed: int) -> list[Observation]:
    """Full-batch gradient descent on least squares: loss and gradients fall to rounding noise."""
    torch.manual_seed(seed)
    x = torch.randn(64, 8)
    y = x @ torch.randn(8, 1) + 0.5
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _train(model, optimizer, lambda step: (model(x) - y).square().mean(), 300)


def train_past_convergence(seed: int, *, steps: int, wrong_target_at: int | None = None) -> list[Observation]:
    """Full-batch least squares with NAdam until second moments are noise; it bursts by factors of 1,000."""
    torch.manual_seed(seed)
    x = torch.randn(64, 8)
    y = x @ torch.randn(8, 1) + 0.5
    model = nn.Linear(8, 1)
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)

    def loss_of(step: int) -> torch.Tensor:
        return (model(x) - (-y if step == wrong_target_at else y)).square().mean()

    return _train(model, optimizer, loss_of, steps)


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[int], torch.Tensor],
    steps: int,
    *,
    after: Callable[[], None] = lambda: None,
) -> list[Observation]:
    recorder = Recorder(model)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(step)
        loss.backward()
        recorder.record(loss.item())
        optimizer.step()
        after()
    return recorder.observations


TRAININGS: dict[str, Training] = {
    name: on_one_thread(train)
    for name, train in {
        "mlp": train_mlp,
        "transformer": train_transformer,
        "lstm": train_lstm,
        "gan": train_gan,
        "experts": train_experts,
        "dense_experts": lambda seed: train_experts(seed, dense=True),
        "converged": train_to_convergence,
    }.items()
}


# -------------------------------------------------------------------------------------------- synthetic


def lognormal(seed: int, *, steps: int, layers: int = 12, sigma: float = 0.3) -> Iterator[np.ndarray]:
    """Norms with a different level for each layer and independent noise."""
    random = np.random.default_rng(seed)
    level = np.exp(random.normal(0.0, 2.0, layers))
    for _ in range(steps):
        yield level * np.exp(sigma * random.standard_normal(layers))
