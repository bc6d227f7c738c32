"""`debug_backward_pass`: one real backward of the user's, with what it gave to each parameter."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...attach.layout import clean_name
from ...compat import torch_nodes
from ...measure.statistics.statistics import tensor_statistics
from . import tables
from .call_results import Result
from .gradient_checks import require_module


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafGradient(Result):
    """The gradient that one leaf has after the backward. Statistics are None where it has none."""

    name: str
    """Of the parameter; ``leaf[3]`` where no model says it."""
    shape: tuple[int, ...]
    norm: float | None
    """L2 norm."""
    max_abs: float | None
    nan_count: int
    inf_count: int
    accumulated: bool
    """There was a gradient before, to which this backward added."""

    @property
    def is_finite(self) -> bool:
        """Neither NaN nor Inf among the elements."""
        return not self.nan_count and not self.inf_count


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardReport(Result):
    """One backward."""

    _derived = ("ok", "nonfinite")

    loss: float
    total_norm: float | None
    """Global L2 norm over the leaves; None when none has a gradient."""
    duration_s: float
    """Wall-clock of the backward."""
    leaves: tuple[LeafGradient, ...]
    """Leaves that the loss reaches: in model order where a model was given."""
    unreached: tuple[str, ...]
    """Trainable parameters of the model that the loss does not reach; empty without a model."""

    @property
    def nonfinite(self) -> tuple[str, ...]:
        """Names of leaves whose gradient has NaN or Inf."""
        return tuple(leaf.name for leaf in self.leaves if not leaf.is_finite)

    @property
    def ok(self) -> bool:
        """Loss and gradients are finite."""
        return abs(self.loss) < float("inf") and not self.nonfinite

    def __str__(self) -> str:
        """A verdict, and a row for each leaf."""
        lines = [
            f"backward: {'ok' if self.ok else 'NOT OK'}, loss {tables.number(self.loss)}, "
            f"gradient norm {tables.number(self.total_norm)}, {tables.duration(self.duration_s)}"
        ]
        if self.nonfinite:
            lines.append(f"  NaN or Inf in {tables.names(self.nonfinite)}")
        if self.unreached:
            lines.append(f"  not reached by the loss: {tables.names(self.unreached)}")
        if any(leaf.accumulated for leaf in self.leaves):
            lines.append("  added to gradients that were there before")
        header = ("leaf", "shape", "norm", "max |g|", "NaN", "Inf")
        rows = [
            (
                leaf.name,
                tables.shape(leaf.shape),
                tables.number(leaf.norm),
                tables.number(leaf.max_abs),
                str(leaf.nan_count),
                str(leaf.inf_count),
            )
            for leaf in self.leaves
        ]
        return "\n".join([*lines, *tables.table(header, rows, left=2)])


def debug_backward_pass(
    loss: Tensor, retain_graph: bool = False, *, model: nn.Module | None = None
) -> BackwardReport:
    """Run `loss.backward()` and report what it gave to each leaf. Waits for the device.

    The gradients are left where backward puts them; an exception of the backward passes through.

    Args:
        loss: one number with a graph.
        retain_graph: as for `Tensor.backward`.
        model: gives the leaves their names, and tells which of its parameters the loss does not reach.

    Raises:
        ValueError: no tensor, not one number, or nothing in its graph requires a gradient.
    """
    _require_loss(loss)
    names = {} if model is None else _names(require_module(model))
    leaves = list({id(leaf): leaf for leaf in torch_nodes.leaves_of([loss])}.values())
    if names:
        order = {key: index for index, key in enumerate(names)}
        leaves.sort(key=lambda leaf: order.get(id(leaf), len(order)))
    had_gradient = [leaf.grad is not None for leaf in leaves]
    value = float(loss.detach())
    began_ns = time.perf_counter_ns()
    loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
    if loss.is_cuda:
        torch.cuda.synchronize(loss.device)
    duration_s = (time.perf_counter_ns() - began_ns) / 1e9
    reached = set(map(id, leaves))
    gradients, total_norm = _gradients(leaves, had_gradient, names)
    return BackwardReport(
        loss=value,
        total_norm=total_norm,
        duration_s=duration_s,
        leaves=gradients,
        unreached=tuple(name for key, name in names.items() if key not in reached),
    )


def _require_loss(loss: object) -> None:
    if not isinstance(loss, Tensor):
        raise ValueError(f"the loss must be a torch.Tensor, got {type(loss).__name__}")
    if loss.numel() != 1 or loss.is_complex():
        raise ValueError(
            f"the loss must be one real number, got {loss.dtype} of shape {tuple(loss.shape)}: reduce it "
            "with .mean() or .sum()"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss has no graph: it was computed under torch.no_grad(), detached, or from nothing that "
            "requires gradients"
        )


def _names(root: nn.Module) -> dict[int, str]:
    return {id(p): clean_name(name) for name, p in root.named_parameters() if p.requires_grad}


def _gradients(
    leaves: list[Tensor], had_gradient: list[bool], names: dict[int, str]
) -> tuple[tuple[LeafGradient, ...], float | None]:
    statistics = tensor_statistics([leaf.grad for leaf in leaves])
    rows = []
    for index, leaf in enumerate(leaves):
        is_missing = bool(statistics.missing[index])
        rows.append(
            LeafGradient(
                name=names.get(id(leaf), f"leaf[{index}]"),
                shape=tuple(leaf.shape),
                norm=None if is_missing else float(statistics.norm[index]),
                max_abs=None if is_missing else float(statistics.max_abs[index]),
                nan_count=int(statistics.nan_count[index]),
                inf_count=int(statistics.inf_count[index]),
                accumulated=had_gradient[index],
            )
        )
    return tuple(rows), statistics.total_norm
