"""What is kept with a run so that it can be made again, beside `RunStart`: a document of kind `start_facts`.

Written once at the start, and again when git has answered. Imports no torch: the dashboard reads it too.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

KIND: Final = "start_facts"
MAX_DIFF: Final = 64 * 1024
"""Bytes of a diff that is kept itself; of a larger one the digest, the size and the names of its files."""
_Short = Annotated[str, msgspec.Meta(max_length=4096)]
_Texts = Annotated[dict[_Short, _Short], msgspec.Meta(max_length=1000)]


class WorkTree(msgspec.Struct, frozen=True, kw_only=True):
    """What `git diff HEAD` said in the script's folder when the run began."""

    diff: Annotated[str, msgspec.Meta(max_length=2 * MAX_DIFF)]
    """Empty where it is larger than `MAX_DIFF`."""
    sha256: _Short
    """Of the whole diff, as hexadecimal digits."""
    size_bytes: int
    files: Annotated[list[_Short], msgspec.Meta(max_length=1000)]
    """Names of the changed files."""
    is_whole: bool
    """False where git wrote so much that not all of it was read."""


class StartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Options, hyperparameters, seeds, and the work tree once it is known."""

    options: _Texts = {}
    """Of `watch`, where they are not the defaults."""
    config: _Texts = {}
    """Hyperparameters by name; secrets are ``***``."""
    config_source: _Short = ""
    """`watch`, `argparse`, `transformers`, `lightning`, or nothing."""
    seeds: _Texts = {}
    """Seed of torch; digests of the states of Python's and NumPy's generators."""
    work_tree: WorkTree | None = None
