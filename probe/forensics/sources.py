"""What the tensors are called that a replayed forward starts from: parameters, buffers, attributes.

Used by `passes.py` inside `module_state.state_as_before`. What a forward changes is known as it was before
the call only where the capture has a copy of it; elsewhere it is what that forward left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from torch import Tensor, nn

from ..compat import torch_memory
from ..compat.torch_modules import NORMS, own_buffers
from .capture import RootCapture
from .op_recorder import DetailRecorder
from .origin import Source

StateKey: TypeAlias = tuple[int, str]
"""Identity of a module, and the name of a buffer or attribute of it."""
_Seen: TypeAlias = dict[StateKey, tuple[int, int | None]]


def look_at_state(root: nn.Module) -> _Seen:
    """Note buffers and tensor attributes as they are, to be given to `changed_state`."""
    return {
        (id(module), name): (id(tensor), torch_memory.version_of(tensor))
        for module, _, name, tensor in _state(root)
    }


def changed_state(root: nn.Module, before: _Seen) -> frozenset[StateKey]:
    """Return which buffers and tensor attributes have changed since, in place or by assignment."""
    return frozenset(key for key, seen in look_at_state(root).items() if before.get(key) != seen)


def name_sources(
    recorder: DetailRecorder,
    capture: RootCapture,
    *,
    parameters: Mapping[str, nn.Parameter],
    changed: frozenset[StateKey],
) -> None:
    """Tell the recorder what a call's forward starts from.

    Args:
        recorder: of the second pass, before the forward.
        capture: the call.
        parameters: by the names that the user knows.
        changed: the state that the forward changed in the first pass.
    """
    root = capture.root
    for name, parameter in (*parameters.items(), *root.named_parameters()):
        recorder.add_source(parameter, "parameter", name=name)
    copied = {(id(copy.module()), copy.name) for copy in capture.state_copies}
    for module, path, name, tensor in _state(root):
        key = (id(module), name)
        source: Source | None = "buffer" if name in own_buffers(module) else None
        if _is_unread(module, name):
            source = "unread"
        elif key in changed and key not in copied:
            source = "state"
        elif key in copied and source is None:
            source = "attribute"
        # A constant attribute is best named by the line that reads it.
        if source is not None:
            recorder.add_source(tensor, source, name=path)


def _state(root: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    """Yield (module, qualified name, own name, tensor) of buffers and tensor attributes."""
    for path, module in root.named_modules():
        for name, value in (*own_buffers(module).items(), *module.__dict__.items()):
            if isinstance(value, Tensor):
                yield module, f"{path}.{name}" if path else name, name, value


def _is_unread(module: nn.Module, name: str) -> bool:
    """Whether it is a running statistic, which torch's own norms in training update without reading it."""
    # Their op leaves the version counters of these alone, too.
    is_norm = isinstance(module, NORMS)
    own = type(module).forward.__module__.startswith("torch.")
    return is_norm and own and module.training and name in own_buffers(module)
