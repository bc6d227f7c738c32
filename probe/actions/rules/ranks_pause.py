"""How long one rank may be paused while others wait for it, in a collective that fails when it times out."""

from __future__ import annotations

from typing import Final

from ...compat import torch_ranks
from ...threads.hang_events import duration_text

SHARE: Final = 1 / 3
"""Of the shortest timeout: a watchpoint before the update and one after it may pause the same step."""
DEFAULT_TIMEOUT_S: Final = 600.0
"""Where torch does not say it: the shortest of its own defaults (`default_pg_nccl_timeout`)."""


def within_timeouts(limit_s: float) -> tuple[float, str]:
    """Return the seconds that a rank may be paused for, and a sentence where that is less than the limit."""
    timeout_s = min(torch_ranks.collective_timeouts_s(), default=DEFAULT_TIMEOUT_S)
    if timeout_s * SHARE >= limit_s:
        return limit_s, ""
    return timeout_s * SHARE, (
        f" Without that it continues after {duration_text(timeout_s * SHARE)}: collectives of "
        "the other ranks "
        f"time out after {duration_text(timeout_s)}."
    )
