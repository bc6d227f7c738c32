"""Finds private symbols of torch where they stand; what is missing is None, for the caller to do without.

For the modules beside this one, which name every symbol that is used. Imports nothing of ours.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch


def symbol(*path: str) -> Any:
    """Walk attributes from `torch._C`; None where one is missing."""
    value: Any = torch._C
    for name in path:
        value = getattr(value, name, None)
    return value


def pytree() -> types.ModuleType | None:
    """`torch.utils._pytree`, which knows the containers users registered; None limits captures to tensors."""
    return sys.modules.get("torch.utils._pytree")
