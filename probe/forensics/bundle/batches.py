"""The inputs in a bundle: of the step that went wrong, and of the steps before it.

For a person who wants to look at the data:
``from probe.forensics.bundle.batches import load_batches``. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import BundleError
from ..tensor_facts import summarise
from .calls import referred
from .reproduce import read_bundle
from .schema import TENSORS, Bundle
from .unpacker import TensorReader
from .values import Decoder


class Batch(NamedTuple):
    """What a forward was called with."""

    step: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors among them, with names such as ``args[0]['mask']``."""
        for index, value in enumerate(self.args):
            yield from _tensors(f"args[{index}]", value)
        for name, value in self.kwargs.items():
            yield from _tensors(name, value)


def load_batches(folder: Path | str) -> list[Batch]:
    """Return the inputs of a bundle: of the steps before, the oldest first, then of the step itself.

    Args:
        folder: the bundle's.

    Raises:
        BundleError: it is no bundle, is damaged, or its inputs were left out.
    """
    folder = Path(folder)
    return batches_of(read_bundle(folder), folder)


def batches_of(bundle: Bundle, folder: Path) -> list[Batch]:
    """Return the inputs of a bundle whose description has been read; see `load_batches`."""
    contents = bundle.contents
    if contents is None or not (contents.calls or contents.batches):
        raise BundleError("this bundle holds no inputs")
    tensors = TensorReader(folder / TENSORS, contents)
    decoder = Decoder(referred(tensors), device=tensors.device)
    described = [(batch.step, batch.args, batch.kwargs) for batch in contents.batches]
    described += [(bundle.event.step, call.args, call.kwargs) for call in contents.calls]
    return [
        Batch(step, tuple(decoder.decode(args)), dict(decoder.decode(kwargs)))
        for step, args, kwargs in described
    ]


def table(batches: list[Batch]) -> Iterator[str]:
    """Yield a line for each input of each step."""
    for batch in batches:
        for name, tensor in batch.tensors():
            with torch.no_grad():
                yield f"step {batch.step}  {name}: {summarise(tensor)}"


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{name}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(f"{name}[{index}]", item)
