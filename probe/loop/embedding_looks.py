"""Sees which rows of embeddings get a gradient, from four columns of it, in the first steps.

Used by the early watch on the training thread, before the update. Embeddings on devices are left out: it
would have to wait for them.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from ..compat.torch_memory import coo_parts

_COLUMNS: Final = 4


def single_rows(root: nn.Module) -> dict[str, tuple[int, int]]:
    """Return, by the parameter's name, the only row with a gradient and the number of rows, of each table."""
    found = {}
    for name, module in root.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            row = _only_row(module.weight.grad)
            if row is not None:
                found[f"{name}.weight" if name else "weight"] = (row, module.num_embeddings)
    return found


def _only_row(gradient: Tensor | None) -> int | None:
    """The only row that is not 0; None where there are more or none, or it is not on the host."""
    if gradient is None or not gradient.is_cpu:
        return None
    with torch.no_grad():
        if gradient.is_sparse:
            rows = coo_parts(gradient)[0][0]
            return int(rows[0]) if rows.numel() and bool((rows == rows[0]).all()) else None
        hit = gradient[:, :_COLUMNS].ne(0).any(1).nonzero()
        return int(hit[0, 0]) if len(hit) == 1 else None
