"""The probe: records a PyTorch training run from inside, into a local journal. See `watch`.

Attributes load lazily, so that `import probe.wire` needs neither torch nor its import time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import ProbeConfig
    from .errors import AnomalyError
    from .session import Probe, watch

__all__ = ["AnomalyError", "Probe", "ProbeConfig", "watch"]
__version__ = "0.1.0"

_HOME = {"AnomalyError": "errors", "Probe": "session", "ProbeConfig": "config", "watch": "session"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"probe.{name} needs PyTorch, which is not installed here: pip install torch==2.13.0"
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
