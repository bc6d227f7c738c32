"""Measures the norm of a rank's own gradient: once its graph has run, before it is averaged over the ranks.

DistributedDataParallel averages copies of the gradients, and writes into `p.grad` at the end of the backward,
in a callback that the engine calls after ours. Nothing is put on the model, and no communication hook is
replaced. Called by `StepMeasures`, on the training thread; the measuring itself on the thread that ends the
backward, which is autograd's where gradients lie on CUDA, while the training thread waits for it.
"""

from __future__ import annotations

from torch import Tensor

from ..attach.watched_model import WatchedModel
from ..compat import torch_engine
from ..step.open_step import OpenStep
from .measure_schedule import MeasureSchedule


def measure_own_gradients(
    loss: Tensor, opened: OpenStep, *, model: WatchedModel, schedule: MeasureSchedule
) -> None:
    """Have the backward that is about to begin note the norm of this rank's own gradient, where it is due.

    Micro-steps under `no_sync` are added up. Where another backward of the step was averaged already there is
    none: `p.grad` is a sum of averaged gradients and own ones then.

    Args:
        loss: a tensor that it starts from.
        opened: the step that it belongs to.
        model: whose gradients are averaged.
        schedule: says whether it is due, and is charged.
    """
    if not model.is_reduced:
        return
    opened.reductions += 1
    opened.own_grad_norm = None
    if opened.reductions > 1 or not (schedule.features.own_gradients and model.keeps_own_gradients):
        return

    def note() -> None:
        opened.own_grad_norm = schedule.run("own_gradients", _norm, model)

    torch_engine.call_after_graph(loss, note)


def _norm(model: WatchedModel) -> float | None:
    """Global L2 norm of the gradients; None where an optimizer in the backward has used them up."""
    if any(torch_engine.has_post_accumulate_hooks(parameter) for parameter in model.layout.parameters):
        return None
    return model.measure_gradients().total_norm
