"""Has torch raise at what waits for a CUDA device, for a part of a test."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cuda_waits_are_errors() -> Iterator[None]:
    """Have each synchronising call inside raise, as far as torch's debug mode sees them.

    By warnings that are errors: where torch itself raises, the probe may wait on purpose.
    """
    with warnings.catch_warnings():
        # The mode says of itself that it is a prototype.
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
