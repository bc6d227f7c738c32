"""What an `nn.Module` keeps to itself: its registries, the names that wrappers add, how a call reaches it.

Looks at modules and their classes; nothing is put on one but by `module_calls_wrapped`, for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn


def available() -> dict[str, bool]:
    """Return which of the private symbols here this torch has."""
    return {"torch.nn.Module._call_impl": hasattr(nn.Module, IMPLEMENTATION)}


CALL: Final = "_wrapped_call_impl"
"""What torch calls the function that stands as `nn.Module.__call__`."""
IMPLEMENTATION: Final = "_call_impl"
"""What torch calls the function behind it."""
WRAPPERS: Final = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Under these names torch.compile, FSDP and checkpointing keep the module that they wrap."""
COMPILED: Final = "_orig_mod"
"""That of torch.compile among them."""
DROPOUTS: Final[type | tuple[type, ...]] = getattr(
    nn.modules.dropout, "_DropoutNd", (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
)
"""Modules that drop elements in training."""
NORMS: Final[type | tuple[type, ...]] = getattr(
    nn.modules.batchnorm,
    "_NormBase",
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d),
)
"""Modules with running statistics, which a forward in training updates and does not read."""

REGISTRIES: Final = ("_modules", "_parameters", "_buffers")
"""Attributes in which a module registers what belongs to it."""


def registries(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return those of modules, parameters and buffers that a module's `__dict__` has; runs no code of its."""
    found = (attributes.get(name) for name in REGISTRIES)
    return [registry for registry in found if isinstance(registry, dict)]


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Modules that a module registers itself, by name; not a copy.

    Empty before its `__init__` has run, and for one of TorchScript, which is taken as one module.
    """
    found = module.__dict__.get("_modules")
    return found if isinstance(found, dict) else {}


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Parameters that a module registers itself, by name; not a copy. Of TorchScript, all inside it."""
    found = module.__dict__.get("_parameters")
    return found if isinstance(found, dict) else dict(module.named_parameters()) if _is_script(module) else {}


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Buffers that a module registers itself, by name; not a copy. Of TorchScript, all inside it."""
    found = module.__dict__.get("_buffers")
    return found if isinstance(found, dict) else dict(module.named_buffers()) if _is_script(module) else {}


def _is_script(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def forward_hooks(module: nn.Module) -> list[Callable[..., Any]]:
    """Return the hooks that run before and after a module's forward."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


_HOOKS_OF_TENSORS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
_HOOKS: Final = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_load_state_dict_pre_hooks"),
)


def registered_hooks(module: nn.Module) -> list[dict[Any, Any]]:
    """Return the registries of hooks of a module and its own parameters, not copied; runs no code of its."""
    own = module.__dict__
    found = [own.get(name) for name in _HOOKS]
    for value in (own.get("_parameters") or {}).values():
        if type(value) is nn.Parameter:  # a subclass may run code of its own
            found += [getattr(value, name, None) for name in _HOOKS_OF_TENSORS]
    return [hooks for hooks in found if isinstance(hooks, dict)] or [{}]


def is_persistent(module: nn.Module, name: str) -> bool:
    """Whether a module's buffer is a part of its `state_dict`."""
    return name not in getattr(module, "_non_persistent_buffers_set", ())


def is_compiled(module: nn.Module) -> bool:
    """Whether what a module contains runs as a graph: `torch.compile`, `Module.compile`, TorchScript."""
    if module.__dict__.get("_compiled_call_impl") is not None or _is_script(module):
        return True
    return compiled_original(module) is not module


def compiled_original(module: nn.Module) -> nn.Module:
    """The module inside a `torch.compile(module)` wrapper, else the module itself."""
    inner = own_modules(module).get("_orig_mod")
    return inner if isinstance(inner, nn.Module) else module


@contextmanager
def module_calls_wrapped(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace what every `module(...)` runs, on the class and not on any instance, until the block ends.

    Args:
        wrap: takes the original `(module, *args, **kwargs)` function and returns its stand-in.
    """
    # `__call__` goes through `_call_impl`, also where a wrapper of `__call__` kept torch's own function.
    name = IMPLEMENTATION if hasattr(nn.Module, IMPLEMENTATION) else "__call__"
    original = getattr(nn.Module, name)
    try:
        setattr(nn.Module, name, wrap(original))
        yield
    finally:
        setattr(nn.Module, name, original)
