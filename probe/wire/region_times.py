"""What a document of kind `region` holds: times and memory of one named region of a script. No torch."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

REGION_KIND: Final = "region"


class RegionBody(msgspec.Struct, frozen=True, kw_only=True):
    """All runs through the regions of one path, so far. Seconds of wall-clock time; memory in bytes."""

    path: Annotated[str, msgspec.Meta(max_length=4096)]
    """Names of the regions round it, outermost first, and its own."""
    count: int
    errors: int
    """Runs that an exception has left."""
    total_s: float
    mean_s: float
    running_mean_s: float
    """Of the newest 20 runs."""
    max_s: float
    last_s: float
    slow_above_s: float | None = None
    """Limit of `running_mean_s`; None where there is none."""
    rss_delta_bytes: int = 0
    """Growth of the process's resident memory in the newest run."""
    max_rss_delta_bytes: int = 0
    cuda_bytes: int | None = None
    """What torch had allocated on the current device at the end of the newest run; None without CUDA."""
    max_cuda_delta_bytes: int | None = None
    """Largest growth of that in a run."""
    gradient_anomalies: int = 0
    """Events about gradients at steps of which the region was a part."""
    newest_anomalies: list[Annotated[str, msgspec.Meta(max_length=512)]] = []
    """The newest of them, at most 10: kind, step and subject."""
