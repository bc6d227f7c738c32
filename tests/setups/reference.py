"""What the probe's numbers are held against: a loop's own word on every step, in float64, without the probe.

A training loop is a function of a `Scene`. `recorded` runs it twice from the same seed, without and with the
probe; when the gradients are those that a frame is about it calls `scene.note`, which reads `p.grad` itself.
`Recording.differences` says in what weights, losses and random state are not bit-identical, and where a frame
does not say what the run without the probe saw.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from journals import Journal, read_journal
from torch import Tensor, nn

import probe
from probe.wire import Frame, Layout
from probe.wire.columns import unpack_column

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
    _losses: dict[str, list[float]] = field(default_factory=dict)
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

    def backward(
        self, loss: Tensor, *, samples: int = 0, raw: Tensor | None = None, kind: str = "loss"
    ) -> None:
        """Take down one micro-step, and call backward on `raw` (by default the loss itself).

        Those of one `kind` are an accumulation, of which the script would print the mean.
        """
        raw = loss if raw is None else raw
        self._losses.setdefault(kind, []).append(loss.item())
        self._raws.append(raw.item())
        self._samples += samples
        raw.backward()

    def losses(self, *losses: Tensor, raw: Sequence[Tensor] | None = None, samples: int = 8) -> None:
        """Take down losses that the script adds up; `raw` is what it calls backward on."""
        self._losses = {str(at): [loss.item()] for at, loss in enumerate(losses)}
        self._raws = [one.item() for one in raw or losses]
        self._samples = samples

    def note(self, model: nn.Module, *, stage: str = "local", number: int | None = None) -> None:
        """Take down a step: its frame is about the gradients of this moment."""
        following = self.steps[-1].number + 1 if self.steps else 0
        self.steps.append(
            Step(
                number=following if number is None else number,
                gradients={
                    clean(name): None if p.grad is None else local(p.grad.detach()).clone()
                    for name, p in model.named_parameters()
                    if p.requires_grad
                },
                loss=sum(map(statistics.fmean, self._losses.values())) if self._losses else None,
                raw=sum(self._raws) if self._raws else None,
                samples=self._samples,
                stage=stage,
            )
        )
        self._losses, self._raws, self._samples = {}, [], 0

    def forget(self) -> None:
        """What was taken down since the last step belongs to no step of the watched model."""
        self._losses, self._raws, self._samples = {}, [], 0


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a run with the probe left, beside what the same run without it had."""

    journal: Journal
    steps: list[Step]
    """As the run without the probe saw them."""
    disturbances: list[str]
    """In what the run with the probe was another one: weights, buffers, losses, random state."""

    def differences(self, *, frames: int) -> list[str]:
        """Everything that is not as it must be: the run itself, and every number of its frames.

        Args:
            frames: how many there must be, in the test's own words.
        """
        found = [] if len(self.steps) == frames else [f"{len(self.steps)} steps noted, not {frames}"]
        return found + self.disturbances + frame_differences(self.journal, self.steps)


def recorded(loop: Callable[[Scene], nn.Module], folder: Path) -> Recording:
    """Run the loop without and with the probe.

    Args:
        loop: trains and returns the model that it trained.
        folder: for the journal.
    """
    plain, watched = Scene(None), Scene(folder / "spool")
    states, random_states = [], []
    for scene in (plain, watched):
        torch.manual_seed(7)
        states.append(loop(scene).state_dict())
        random_states.append(torch.get_rng_state())
    disturbances = state_differences(*states)
    if not torch.equal(*random_states):
        disturbances.append("the probe has drawn random numbers")
    if not np.array_equal(_losses_of(plain), _losses_of(watched), equal_nan=True):
        disturbances.append("losses differ from the run without the probe")
    journal = read_journal(folder / "spool" / "run")
    return Recording(journal=journal, steps=plain.steps, disturbances=disturbances)


def state_differences(expected: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    """Weights and buffers that are not equal to the last bit, NaN included."""
    if expected.keys() != actual.keys():
        return [f"the state has {list(actual)}, not {list(expected)}"]
    return [
        f"{name} differs from the run without the probe"
        for name, value in expected.items()
        if value.dtype != actual[name].dtype or not torch.equal(_bits(value), _bits(actual[name]))
    ]


def frame_differences(journal: Journal, steps: list[Step]) -> list[str]:
    """Every number of every frame that is not its step's; and frames too few or too many."""
    # What a device says of an update later has a frame of its own, without columns of gradients.
    frames = [frame for frame in journal.frames if frame.columns or "update_ratio" not in frame.scalars]
    numbers, expected = [frame.step for frame in frames], [step.number for step in steps]
    if numbers != expected:
        return [f"frames of the steps {numbers}, not {expected}"]
    layouts = {layout.layout: layout for layout in journal.layouts}
    found = []
    for frame, step in zip(frames, steps, strict=True):
        if "probe_failures" in frame.scalars:
            found.append(f"step {frame.step}: a part of the probe failed")
        if frame.stage != step.stage:
            found.append(f"step {frame.step}: stage {frame.stage}, not {step.stage}")
        found += gradient_differences(frame, layouts[frame.layout], step.gradients)
        for name, value in (("loss", step.loss), ("loss_raw", step.raw), ("samples", step.samples or None)):
            found += _scalar_differences(frame, name, value, rtol=1e-6)
    return found


def gradient_differences(
    frame: Frame, layout: Layout, gradients: dict[str, Tensor | None], *, rtol: float = 1e-5
) -> list[str]:
    """Statistics, missing flags and the total norm of one frame that are not those of `gradients`."""
    names = [parameter.name for parameter in layout.parameters]
    expected = [statistics_of(gradients.get(name)) for name in names]
    flags = np.unpackbits(np.frombuffer(frame.missing, dtype=np.uint8))[: len(names)].tolist()
    missing = [bool(flag) for flag in flags] or [False] * len(names)
    found = [
        f"step {frame.step}: {name} is {'' if flag else 'not '}missing"
        for name, flag, row in zip(names, missing, expected, strict=True)
        if flag != (row is None)
    ]
    columns = {column.name: unpack_column(column) for column in frame.columns}
    for position, statistic in enumerate(STATISTICS):
        values = columns.get(f"grad_{statistic}", np.zeros(len(names)))
        for name, value, row in zip(names, values, expected, strict=True):
            wanted = 0.0 if row is None else row[position]
            # A mean may cancel: what it may be off by is measured by the elements that it is the mean of.
            slack = 0.0 if row is None or not math.isfinite(row[1]) else 1e-6 * row[1]
            if not np.isclose(value, wanted, rtol=rtol, atol=slack, equal_nan=True):
                found.append(f"step {frame.step}: {statistic} of {name} {value}, not {wanted}")
    norms = [row[0] for row in expected if row is not None]
    total = math.sqrt(sum(norm * norm for norm in norms)) if norms else None
    return found + _scalar_differences(frame, "grad_norm", total, rtol=rtol)


def _scalar_differences(frame: Frame, name: str, wanted: float | None, *, rtol: float) -> list[str]:
    """None is a scalar that the frame must not have."""
    value = frame.scalars.get(name)
    if value is None or wanted is None:
        agree = value is wanted
    else:
        agree = bool(np.isclose(value, wanted, rtol=rtol, atol=0.0, equal_nan=True))
    return [] if agree else [f"step {frame.step}: {name} {value}, not {wanted}"]


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


def layer(model: nn.Module, index: int) -> Any:
    """One child of a Sequential."""
    assert isinstance(model, nn.Sequential)
    return model[index]


def _bits(tensor: Tensor) -> Tensor:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(widths[tensor.element_size()])


def _losses_of(scene: Scene) -> np.ndarray:
    """NaN for a step without one too: which steps have a loss does not depend on the probe."""
    return np.array([math.nan if step.loss is None else step.loss for step in scene.steps])
