"""What `bundle.json` says, typed and limited: the only description of the format. Loads no torch.

Tensors are named by their position in `Bundle.tensors`; their elements lie in `tensors.safetensors`. Values
that JSON has no word for are objects with one key that says what they are; see `values.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from ...wire import Origin, RunId, Stacks
from ...wire.bundle_format import check_format

TENSORS: Final = "tensors.safetensors"
STATISTICS: Final = "statistics.json"
ALIGNMENT: Final = 64
"""Bytes; where memory begins relative to this decides which instructions some kernels use."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Index: TypeAlias = Count
"""Position in `Bundle.tensors`."""
Text = Annotated[str, msgspec.Meta(max_length=65536)]
Sizes = Annotated[list[Count], msgspec.Meta(max_length=64)]


class _Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen base; unknown fields are ignored."""


class Blob(_Struct, frozen=True, kw_only=True):
    """A stretch of memory: one entry of `tensors.safetensors`."""

    dtype: Text
    elements: Count
    alignment: Annotated[int, msgspec.Meta(ge=0, lt=ALIGNMENT)] = 0
    """Address of the first element modulo `ALIGNMENT`."""


class StridedTensor(_Struct, tag="strided", frozen=True, kw_only=True):
    """A view of a blob; several may share one, as they did in the run."""

    blob: Text
    """Empty for a tensor without elements."""
    dtype: Text
    shape: Sizes
    stride: Sizes
    offset: Count
    """Elements from the blob's first."""
    device: Text
    is_spread: bool = False
    """The blob has its elements alone, one after the other; in memory there were gaps between them."""


class SparseTensor(_Struct, tag="sparse_coo", frozen=True, kw_only=True):
    """A sparse tensor in coordinate format."""

    indices: Index
    values: Index
    shape: Sizes
    is_coalesced: bool


TensorRecord: TypeAlias = StridedTensor | SparseTensor


class Parameter(_Struct, frozen=True, kw_only=True):
    """One parameter of the model."""

    name: Text
    tensor: Index
    requires_grad: bool


class Buffer(_Struct, frozen=True, kw_only=True):
    """One buffer of the model, as it was after the step's forwards."""

    name: Text
    tensor: Index
    is_persistent: bool


class Attribute(_Struct, frozen=True, kw_only=True):
    """A buffer or an attribute of a module: a number, a tensor, or nothing."""

    module: Text
    name: Text
    value: Any


class Model(_Struct, frozen=True, kw_only=True):
    """The module that holds all that the step called: what `--entry` builds. Names are relative to it."""

    type: Text
    naming_root: Text
    """Where in it the watched model is, whose names events use."""
    parameters: list[Parameter]
    ties: dict[str, str]
    """Names of parameters that are the same tensor as another one, by the other's name."""
    buffers: list[Buffer]
    attributes: list[Attribute]
    """Numbers and flags of modules, `training` included, and tensors that are no buffers."""


class Gradient(_Struct, frozen=True, kw_only=True):
    """Of one watched parameter, by its name in the watched model."""

    name: Text
    tensor: Index | None


class Pass(_Struct, frozen=True, kw_only=True):
    """One backward pass through a call's outputs."""

    task: int
    order: Count
    gradients: list[tuple[Count, Index]]
    """dL/d(output) by the output's position."""


class Call(_Struct, frozen=True, kw_only=True):
    """One forward call, with what came back to it."""

    root: Text
    """The called module."""
    args: Any
    kwargs: Any
    computed: list[Text]
    """Tensor arguments that differentiable ops had made."""
    rng_cpu: Index
    rng_cuda: tuple[Count, Index] | None
    rng_python: Any
    rng_numpy: Any
    autocast: list[tuple[Text, Text]]
    autocast_cache: bool
    training: bool
    state: list[Attribute]
    """What the forward changes, as it was before."""
    output_count: int
    """-1: it raised."""
    outputs: list[Index | None]
    """Its differentiable outputs; None for one that was no longer at hand."""
    passes: list[Pass]
    loss_is_closed: bool
    """Whether the loss was made of nothing of the forward but its outputs."""
    order: Count
    backwards: Count = 0
    """How often backward was called while it was the newest call."""


class Batch(_Struct, frozen=True, kw_only=True):
    """What an earlier step called a module with; of several calls one each, in their order."""

    step: Count
    args: Any
    kwargs: Any


class LossMaker(_Struct, frozen=True, kw_only=True):
    """Which lines of the script made the loss, and what they read. They are never run from here."""

    file: Text
    """Without its folder."""
    function: Text
    """Its qualified name; `<module>` outside of any."""
    lines: tuple[int, int, int]
    """Of the model's call, of backward, and of where the step was, from the function's first line."""
    columns: tuple[int | None, int | None, int | None] = (None, None, None)
    """Where in those lines; None where it is not known."""
    text: Annotated[str, msgspec.Meta(max_length=1 << 20)]
    """The statements, to be compared with those that are found."""
    values: list[tuple[Text, Any]]
    """What they read, by name."""
    outside: list[Text]
    """Names that the script's module has by itself: imports and functions."""


class Settings(_Struct, frozen=True, kw_only=True):
    """Settings of torch in the process that change its numbers."""

    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    default_dtype: Text
    matmul_precision: Literal["highest", "high", "medium"]
    deterministic: bool
    mkldnn: bool
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    flushes_denormals: bool


class Environment(_Struct, frozen=True, kw_only=True):
    """Where the step ran."""

    settings: Settings
    facts: dict[str, str]
    """Versions, processor and devices: what else decides about the last bits."""
    variables: dict[str, str]
    """Environment variables of numerical libraries; no others."""


class EventText(_Struct, frozen=True, kw_only=True):
    """What the replay reads of the event; the file has all of it."""

    id: Text
    run: RunId
    step: Count
    time: float
    kind: Text
    subject: Text
    message: Text
    origin: Origin | None = None
    stacks: Stacks = Stacks()


class Contents(_Struct, frozen=True, kw_only=True):
    """Everything that is there for a replay."""

    model: Model
    calls: Annotated[list[Call], msgspec.Meta(max_length=4096)]
    gradients: list[Gradient] | None
    """None where they were left out."""
    loss: Index | None
    loss_maker: LossMaker | None = None
    """None where the loss was made by other code, or reads what cannot be written."""
    batches: Annotated[list[Batch], msgspec.Meta(max_length=65536)] = []
    """Of the steps before, the oldest first."""
    stage: Text
    tensors: list[TensorRecord]
    blobs: dict[str, Blob]
    tensors_bytes: Count
    tensors_crc32: Count


class Bundle(_Struct, frozen=True, kw_only=True):
    """The whole file."""

    version: int
    event: EventText
    environment: Environment
    run: dict[str, Any]
    """The fields of `wire.RunStart`."""
    learning_rates: dict[str, Any]
    """Learning rates and scale of the GradScaler at the newest known step, by series name."""
    left_out: list[Text]
    """What is not in the bundle, in words."""
    not_replayable: Text
    """Why it cannot be replayed; empty when it can."""
    contents: Contents | None


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a view, both included; 0 without elements."""
    if not math.prod(shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def without_repeats(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The shape with a size of 1 where a stride of 0 repeats the same elements."""
    return [size if step else min(size, 1) for size, step in zip(shape, stride, strict=True)]


_decoder = msgspec.json.Decoder(Bundle)


def decode_bundle(data: bytes) -> Bundle:
    """Decode and validate `bundle.json`.

    Raises:
        ValueError: it is no JSON, breaks a type or limit, or is of another version.
    """
    check_format(data)
    try:
        bundle: Bundle = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return bundle
