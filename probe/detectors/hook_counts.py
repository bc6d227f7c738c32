"""Hooks that pile up on a module: registered again and again, and never removed.

Numbers in, findings out. Called on the recorder's thread, with a count now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .base import Finding

LEAST_HOOKS: Final = 50
"""So many more hooks on one module than when it was counted first: nobody registers as many on purpose. Tools
put one or a few on each module, once."""
LEAST_RISES: Final = 4
"""Counts in a row that were higher than the one before: what is registered at once, or per phase, ends."""
_ADVICE: Final = (
    "Register the hook once, before the loop; or keep its handle and call `handle.remove()` after the step "
    "(`with module.register_forward_hook(...):` does so by itself).",
    "Every hook runs at every call and keeps what its function refers to: steps take longer, memory grows.",
)


class HookCounts:
    """Emits `memory_leak`, a warning, once for a module."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, int]] = {}
        """Step and number of hooks of each module when it was counted first."""
        self._newest: dict[str, int] = {}
        self._rises: dict[str, int] = {}
        self._said: set[str] = set()

    @property
    def are_rising(self) -> bool:
        """Whether there were more at the newest count of a module."""
        return any(self._rises.values())

    def note(self, step: int, counts: Mapping[str, int]) -> str | None:
        """Take a count; return the module on which hooks pile up, once, where one has the most.

        Args:
            step: the newest finished one.
            counts: hooks of each module by name, those without any left out or not.
        """
        for name, count in counts.items():
            self._first.setdefault(name, (step, count))
            is_more = count > self._newest.get(name, count)
            self._rises[name] = self._rises.get(name, 0) + 1 if is_more else 0
            self._newest[name] = count
        piled = [name for name in counts if self._is_piling_up(name)]
        if not piled:
            return None
        worst = max(piled, key=lambda name: counts[name])
        self._said |= set(piled)
        return worst

    def _is_piling_up(self, name: str) -> bool:
        grown = self._newest[name] - self._first[name][1]
        return name not in self._said and grown >= LEAST_HOOKS and self._rises[name] >= LEAST_RISES

    def finding(self, name: str, step: int, *, newest: str) -> Finding:
        """Return what is said of a module.

        Args:
            name: of the module.
            step: the newest finished one.
            newest: where the function of the newest hook is, ``train.py:9 in <lambda>``; "" where unknown.
        """
        (since, before), count = self._first[name], self._newest[name]
        per_step = (count - before) / max(step - since, 1)
        where = f"; the newest one is {newest}" if newest else ""
        return Finding(
            kind="memory_leak",
            severity="warning",
            subject=name or "model",
            message=f"Hooks pile up on `{name or 'the model'}`: {count:,} at step {step}, {per_step:.2g} "
            f"more per step, and none is removed{where}",
            value=per_step,
            threshold=None,
            baseline={"hooks": float(count), "hooks_before": float(before)},
            affected=(name,),
            advice=_ADVICE,
        )
