"""What a document of kind `denoising` holds: the latents of one sampling, step by step. No torch."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

DENOISING_KIND: Final = "denoising"
MAX_ROWS: Final = 1000

_Name = Annotated[str, msgspec.Meta(max_length=512)]


class DenoisingRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The latents after one denoising step. What is NaN or Inf is null."""

    step: int
    """Its number within the sampling."""
    timestep: float | None = None
    """Of the scheduler, at which the model was called."""
    norm: float | None = None
    """L2 norm of all elements."""
    mean: float | None = None
    std: float | None = None
    """Population standard deviation of all elements."""
    min: float | None = None
    max: float | None = None
    nan: int = 0
    """Elements."""
    inf: int = 0
    expected_std: float | None = None
    """What the scheduler implies for the latents after this step."""
    found: _Name = ""
    """Kind of what is wrong at this step; the first where there are two."""


class DenoisingBody(msgspec.Struct, frozen=True, kw_only=True):
    """One sampling so far."""

    pipeline: _Name
    """Class."""
    scheduler: _Name = ""
    """Class; empty where the pipeline has none."""
    steps: Annotated[list[DenoisingRow], msgspec.Meta(max_length=MAX_ROWS)] = []
    """The newest of them."""
    found: Annotated[list[Annotated[str, msgspec.Meta(max_length=2048)]], msgspec.Meta(max_length=16)] = []
    """A sentence for each thing that is wrong."""
