"""What the probe's numbers are held against: a loop's own word on every step, in float64, without the probe.

A training loop is a function of a `Scene`. It is run twice from the same seed, without and with the probe; at
the moment that INTERFACES names it calls `scene.note`, which reads `p.grad` itself. `recorded` then proves
that weights, losses and random state are bit-identical, and that every frame says what the plain run saw.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from journals import Journal, read_journal
from torch import Tensor, nn

import probe
from probe.columns import unpack_column
from probe.wire import Frame, Layout

STATISTICS = ("norm", "max_abs", "mean", "std", "nan_count", "inf_count")
_WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(kw_only=True)
class Step:
    """One step as the loop saw it."""

    number: int
    gradients: dict[str, Tensor | None]
    """Copies, by the parameter's name."""
    loss: float | None
    raw: float | None
    samples: int
    stage: str


@dataclass
class Scene:
    """What a loop is given: it attaches through `watch` and says through `note` what each step is."""

    spool: Path | None
    """Where the probe writes; None in the run without it."""
    steps: list[Step] = field(default_factory=list)
    _losses: list[float] = field(default_factory=list)
    _raws: list[float] = field(default_factory=list)
    _samples: int = 0

    @contextlib.contextmanager
    def watch(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any
    ) -> Iterator[probe.Probe | None]:
        """`probe.watch` in the run with the probe, nothing in the other."""
        if self.spool is None:
            yield None
            return
        with probe.watch(model, optimizer, **{"spool": self.spool, "run": "run", **options}) as run:
            yield run

    def backward(self, loss: Tensor, *, samples: int = 0, raw: Tensor | None = None) -> None:
        """Take down one micro-step, and call backward on `raw` (by default the loss itself)."""
        raw = loss if raw is None else raw
        self._losses.append(loss.item())
        self._raws.append(raw.item())
        self._samples += samples
        raw.backward()

    def note(self, model: nn.Module, *, stage: str = "local", number: int | None = None) -> None:
        """Take down a step: gradients are what INTERFACES says they are at this moment."""
        following = self.steps[-1].number + 1 if self.steps else 0
        self.steps.append(
            Step(
                number=following if number is None else number,
                gradients={
                    clean(name): None if p.grad is None else local(p.grad.detach()).clone()
                    for name, p in model.named_parameters()
                    if p.requires_grad
                },
                loss=sum(self._losses) if self._losses else None,
                raw=sum(self._raws) if self._raws else None,
                samples=self._samples,
                stage=stage,
            )
        )
        self._losses, self._raws, self._samples = [], [], 0

    def forget(self) -> None:
        """What was taken down since the last step belongs to no step of the watched model."""
        self._losses, self._raws, self._samples = [], [], 0


def recorded(loop: Callable[[Scene], nn.Module], folder: Path, *, check: bool = True) -> Journal:
    """Run the loop without and with the probe, compare all that can be compared, return the journal.

    Args:
        loop: trains and returns the model that it trained.
        folder: for the journal.
        check: whether the frames are compared too, one by one, in order.
    """
    plain, watched = Scene(None), Scene(folder / "spool")
    states = []
    for scene in (plain, watched):
        torch.manual_seed(7)
        model = loop(scene)
        states.append((model.state_dict(), torch.get_rng_state()))
    assert_same_state(states[0][0], states[1][0])
    assert torch.equal(states[0][1], states[1][1]), "the probe has drawn random numbers"
    assert [step.loss for step in plain.steps] == [step.loss for step in watched.steps] or _has_nan(plain)
    journal = read_journal(folder / "spool" / "run")
    if check:
        assert_frames(journal, plain.steps)
    return journal


def assert_same_state(expected: dict[str, Any], actual: dict[str, Any]) -> None:
    """Weights and buffers are equal to the last bit, NaN included."""
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert value.dtype == actual[name].dtype, name
        same = torch.equal(_bits(value), _bits(actual[name]))
        assert same, f"{name} differs from the run without the probe"


def assert_frames(journal: Journal, steps: list[Step], *, rtol: float = 1e-5) -> None:
    """Every frame has the numbers of its step, and there are no others."""
    assert [frame.step for frame in journal.frames] == [step.number for step in steps]
    layouts = {layout.layout: layout for layout in journal.layouts}
    for frame, step in zip(journal.frames, steps, strict=True):
        assert "probe_failures" not in frame.scalars, f"a part of the probe failed at step {frame.step}"
        assert_gradients(frame, layouts[frame.layout], step.gradients, rtol=rtol)
        for name, value in (("loss", step.loss), ("loss_raw", step.raw), ("samples", step.samples or None)):
            found = frame.scalars.get(name)
            assert (found is None) == (value is None), f"step {frame.step}: {name} {found}, not {value}"
            if value is not None:
                np.testing.assert_allclose(found, value, rtol=1e-6, err_msg=f"step {frame.step}: {name}")
        assert frame.stage == step.stage, f"step {frame.step}: stage {frame.stage}, not {step.stage}"


def assert_gradients(
    frame: Frame, layout: Layout, gradients: dict[str, Tensor | None], *, rtol: float = 1e-5
) -> None:
    """All statistics, the missing flags and the total norm of one frame are those of `gradients`."""
    names = [parameter.name for parameter in layout.parameters]
    expected = [statistics_of(gradients.get(name)) for name in names]
    flags = np.unpackbits(np.frombuffer(frame.missing, dtype=np.uint8))[: len(names)].tolist()
    missing = [bool(flag) for flag in flags] or [False] * len(names)
    assert dict(zip(names, missing, strict=True)) == {
        name: row is None for name, row in zip(names, expected, strict=True)
    }, f"missing flags of step {frame.step}"
    columns = {column.name: unpack_column(column) for column in frame.columns}
    for position, statistic in enumerate(STATISTICS):
        found = columns.get(f"grad_{statistic}", np.zeros(len(names)))
        wanted = [0.0 if row is None else row[position] for row in expected]
        # A mean may cancel: what it may be off by is measured by the elements that it is the mean of.
        slack = [0.0 if row is None or not math.isfinite(row[1]) else 1e-6 * row[1] for row in expected]
        for name, got, want, allowed in zip(names, found, wanted, slack, strict=True):
            np.testing.assert_allclose(
                got, want, rtol=rtol, atol=allowed, err_msg=f"step {frame.step}: {statistic} of {name}"
            )
    norms = [row[0] for row in expected if row is not None]
    total = frame.scalars.get("grad_norm")
    assert (total is None) == (not norms), f"step {frame.step}: total norm {total}"
    if norms:
        np.testing.assert_allclose(total, math.sqrt(sum(norm * norm for norm in norms)), rtol=rtol)


def statistics_of(gradient: Tensor | None) -> tuple[float, ...] | None:
    """Norm, largest, mean, deviation, NaN and Inf counts of all elements in float64; None without any."""
    if gradient is None or gradient.numel() == 0:
        return None
    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    modulus = dense.abs().double().cpu().numpy().reshape(-1)
    elements = (torch.view_as_real(dense) if dense.is_complex() else dense).double().cpu().numpy().reshape(-1)
    with np.errstate(all="ignore"):
        norm = np.sqrt(np.sum(modulus * modulus))
        counts = (float(np.isnan(elements).sum()), float(np.isinf(elements).sum()))
        return float(norm), float(modulus.max()), float(elements.mean()), float(elements.std()), *counts


def local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor that is distributed over several."""
    part = getattr(tensor, "_local_tensor", tensor)
    assert isinstance(part, Tensor)
    return part


def clean(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def small_model() -> nn.Sequential:
    """A little of everything: BatchNorm buffers, dropout's random numbers, two sizes of tensors."""
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(8, 6) inputs and (8,) classes, the same ones every time."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def layer(model: nn.Module, index: int) -> Any:
    """One child of a Sequential."""
    assert isinstance(model, nn.Sequential)
    return model[index]


def _bits(tensor: Tensor) -> Tensor:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(widths[tensor.element_size()])


def _has_nan(scene: Scene) -> bool:
    return any(step.loss is not None and math.isnan(step.loss) for step in scene.steps)
