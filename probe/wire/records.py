"""The only description of what is written to a journal: a *record* is one entry (a frame, an event, ...).

Everything is msgpack through msgspec, version 1; see `encoding.py`. Nothing here does I/O, and nothing here
imports torch: the dashboard reads these types too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

VERSION: Final = 1
MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
MAX_SCALARS: Final = 4096
"""Scalars of one frame."""
MAX_SCALAR_NAME: Final = 1024
"""Characters in the name of a scalar."""
BATCH_BYTES: Final = 256 * 1024
"""Records that are read or sent together: up to the first that takes them past this size."""

StreamName: TypeAlias = Literal["events", "metrics", "host"]
SentStream: TypeAlias = Literal["events", "metrics", "host", "detail"]
"""Streams as they are sent: `detail` has the statistics of frames that are sent without them in `metrics`,
under the same sequence numbers, and may be pooled."""
Severity: TypeAlias = Literal["critical", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")

KINDS: Final = frozenset(
    """nonfinite_loss nonfinite_gradient nonfinite_activation nonfinite_parameter nonfinite_input
    gradient_explosion gradient_vanishing dead_units saturated_activation loss_spike loss_divergence
    loss_plateau parameter_not_updated poor_initialization update_ratio_high update_ratio_low zero_gradient
    accumulated_gradient memory_leak hang killed exception out_of_memory overfitting amp_overflow
    rank_divergence input_out_of_range output_degenerate high_resource_use performance_degradation
    high_anomaly_rate data_gap level_changed throttled replayed recovery snapshot profile cleared control
    diffusion_nonfinite diffusion_drift custom""".split()
)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
SourceText = Annotated[str, msgspec.Meta(max_length=65536)]
RunId = Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}\Z")]
RequestId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
WriterId = Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,128}\Z")]


Member: TypeAlias = Count | msgspec.UnsetType
"""Which of the models that a run makes one after the other, from 0 on; absent of the first."""


class WireStruct(msgspec.Struct, frozen=True):
    """Frozen base. Unknown fields are ignored, so that a newer probe can talk to an older page."""


class RunStart(WireStruct, tag="run_start", tag_field="t", frozen=True, kw_only=True):
    """First record of every incarnation's `events` stream; `run.json` holds the same fields."""

    run: RunId
    rank: Count
    incarnation: Count
    """Start time in nanoseconds since the epoch; one above the newest of the rank in the run's folder where
    the clock has gone back."""
    world_size: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    name: Text = ""
    """What people call the run: `watch(name=...)`, else the script's file name."""
    host: Text = ""
    pid: Count = 0
    time: float = 0.0
    """UNIX seconds."""
    argv: Annotated[list[Text], msgspec.Meta(max_length=1000)] = []
    working_directory: Text = ""
    versions: dict[str, Text] = {}
    """Distribution -> version (python, torch, nanscope, numpy)."""
    git_commit: Text | None = None
    level: Text = "basic"
    devices: Annotated[list[Text], msgspec.Meta(max_length=1024)] = []
    torch_seed: int | None = None
    """Of torch's default generator, as the script or torch has set it last."""
    group: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The same for all sessions of one process and for the ranks of one launch: the run of the first of them.
    Empty in journals that an older probe has written, each of which is a group of its own."""
    model: Text = ""
    """What layouts and events call the model."""
    options: Annotated[dict[Text, Text], msgspec.Meta(max_length=1000)] = {}
    """Of `watch`, where they are not the defaults."""
    config: Annotated[dict[Text, Text], msgspec.Meta(max_length=1000)] = {}
    """Hyperparameters by name; secrets are ``***``."""
    config_source: Text = ""
    """Where they are from: `watch`, `argparse`, `transformers`, `lightning`, or nothing."""
    seeds: Annotated[dict[Text, Text], msgspec.Meta(max_length=1000)] = {}
    """Seed of torch, digests of the states of Python's and NumPy's generators."""
    boot: Count = 0
    """Of the machine, and of the view of its processes, in which `pid` is this process; 0 where not known."""
    started_ticks: Count = 0
    """When the process began, in clock ticks since that boot."""
    member: Member = msgspec.UNSET
    """A later start of the incarnation is that of a further model, whose steps begin at 0."""


class ParameterInfo(WireStruct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One parameter, in the order of the model's `named_parameters()`."""

    name: Text
    shape: Annotated[list[Count], msgspec.Meta(max_length=64)]
    dtype: Text
    layer: Count
    """Index into `Layout.layers`."""


class LayerInfo(WireStruct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One layer: a module that directly owns trainable parameters. The root's name is ``""``."""

    name: Text
    type: Text


class ModuleInfo(WireStruct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One module, in the order of the naming root's `named_modules()`; the root's name is ``""``."""

    name: Text
    type: Text


class Layout(WireStruct, tag="layout", tag_field="t", frozen=True, kw_only=True):
    """Names the rows of every `Frame` that carries the same number. Lives in the `events` stream."""

    layout: Count
    """Number within the incarnation; a re-created model gets the next one."""
    model: Text
    """Variable or class name of the naming root."""
    parameters: Annotated[list[ParameterInfo], msgspec.Meta(max_length=1_000_000)]
    layers: Annotated[list[LayerInfo], msgspec.Meta(max_length=1_000_000)]
    """In model order."""
    modules: Annotated[list[ModuleInfo], msgspec.Meta(max_length=1_000_000)] = []
    """Every module, with or without parameters; empty until module statistics are measured."""
    sharded_over: Annotated[list[Count], msgspec.Meta(max_length=1_000_000)] = []
    """Ranks whose parts make up these parameters (FSDP2, tensor parallel), ascending; empty where each rank
    has all of them."""
    member: Member = msgspec.UNSET


class Column(WireStruct, array_like=True, frozen=True, kw_only=True):
    """One statistic of all parameters of a layout: little-endian float32, or float64 where float32 cannot
    hold a finite value. A column that is absent from a frame was not measured at that step."""

    name: Text
    dtype: Literal["f4", "f8"]
    data: bytes


class ModuleColumn(WireStruct, array_like=True, frozen=True, kw_only=True):
    """One statistic of modules (see `module_frames.MODULE_COLUMNS`): a `Column` of module rows, with gaps."""

    name: Text
    dtype: Literal["f4", "f8"]
    data: bytes
    missing: bytes = b""
    """`numpy.packbits` of "has no such value at this step"; empty when every row has one."""


class Histogram(WireStruct, array_like=True, frozen=True, kw_only=True):
    """Elements counted by magnitude, a row of bins for each parameter or module row; see `module_frames`."""

    name: Text
    rows: Literal["parameters", "modules"]
    """Parameters of the layout, or the frame's module rows."""
    bins: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    data: bytes
    """(rows, bins) little-endian uint32, row by row; a count beyond 2**32 - 1 stays there. Edges:
    `probe.wire.magnitude_bins.BIN_EDGES`. A row of zeros was not measured."""


class Frame(WireStruct, tag="frame", tag_field="t", frozen=True, kw_only=True, omit_defaults=True):
    """All statistics of one measured step. Lives in the `metrics` stream.

    Columns (see `COLUMNS`) have one value per parameter of `layout`, in its order. NaN and Inf are values:
    training produced them. A parameter without a gradient is marked in `missing`.
    """

    step: Count
    time: float
    layout: Count = 0
    stage: Text = "local"
    """Which gradient this is: micro, local, reduced, scaled, unscaled, clipped or shard."""
    scalars: dict[str, float] = {}
    """See `SCALARS`; what the user logged stands under ``log/<name>``."""
    columns: Annotated[list[Column], msgspec.Meta(max_length=64)] = []
    missing: bytes = b""
    """`numpy.packbits` of "has no gradient at this step"; empty when every parameter has one."""
    parameter_columns: Annotated[list[ModuleColumn], msgspec.Meta(max_length=64)] = []
    """Statistics of parameters that are measured at some steps only, with gaps of their own: see
    `PARAMETER_COLUMNS`."""
    module_columns: Annotated[list[ModuleColumn], msgspec.Meta(max_length=64)] = []
    """One value per module row; measured at some steps only."""
    module_rows: bytes = b""
    """Little-endian uint32: the module (index into `Layout.modules`) of each row, in the order of the calls;
    empty: one row per module of the layout, in its order."""
    module_states: bytes = b""
    """One byte per module of the layout, see `module_frames.MODULE_STATES`; empty when all were observed."""
    histograms: Annotated[list[Histogram], msgspec.Meta(max_length=16)] = []
    pooled: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = 0
    """Only of what a helper sends: statistics are the largest of each layer and module, all of them finite,
    over steps of the bucket `[step // pooled * pooled, + pooled)`; 0: they are of this step."""
    layer_columns: Annotated[list[ModuleColumn], msgspec.Meta(max_length=64)] = []
    """One value per layer of the layout, of pooled steps, in place of columns of parameters."""
    compared: Annotated[list[Column], msgspec.Meta(max_length=2)] = []
    """Columns that are not stored: ranks of several hosts are compared by them."""
    member: Count = 0
    """As `Member`; absent of the first."""


COLUMNS: Final[dict[str, str]] = {
    "grad_norm": "L2 norm of the gradient",
    "grad_max_abs": "largest absolute element of the gradient",
    "grad_mean": "mean of the gradient's elements",
    "grad_std": "population standard deviation of the gradient's elements",
    "grad_nan_count": "NaN elements; the column is left out when all are zero",
    "grad_inf_count": "infinite elements; the column is left out when all are zero",
    "parameter_norm": "L2 norm of the parameter; every 10th step unless asked otherwise",
}
PARAMETER_COLUMNS: Final[dict[str, str]] = {
    "update_ratio": "L2 norm of the newest update over the parameter's before it",
    "gradient_cosine": "cosine between the gradient and that of the step measured before",
    "parameter_max_abs": "largest absolute element of the parameter",
    "parameter_mean": "mean of the parameter's elements",
    "parameter_std": "population standard deviation of the parameter's elements",
    "first_moment_norm": "L2 norm of the optimizer's first moment",
    "second_moment_norm": "L2 norm of the optimizer's second moment",
    "effective_step": "root mean square of the newest change that Adam made, weight decay left out",
}
SCALARS: Final[dict[str, str]] = {
    "loss": "loss of the step, summed over its micro-steps, scale and accumulation undone",
    "val_loss": "mean of what torch's loss functions gave in an evaluation, where run.log gives none",
    "loss_raw": "the scalar that backward was called on, as it was, summed over the micro-steps",
    "grad_norm": "global L2 norm over all parameters",
    "grad_norm_clipped": "global L2 norm after clipping; absent where nothing clips",
    "clip_fired": "1 where clipping made the gradients smaller, else 0; absent where nothing clips",
    "update_ratio": "L2 norm of the newest update of all parameters over theirs before it",
    "gradient_cosine": "cosine between all gradients as one vector and those measured before",
    "gradient_noise_scale": "batch size in samples at which gradient noise and signal are equal",
    "lr": "learning rate; lr/<group> where parameter groups have different ones",
    "amp_scale": "scale of the GradScaler",
    "amp_growths": "how often the scale has grown since the start",
    "amp_skipped_updates": "updates that the GradScaler has skipped since the start",
    "step_time_added": "the probe's part of the step time by comparison with plain steps, as a fraction",
    "step_time_added_half_width": "half the width of its 95 % interval",
    "step_time_s": "wall-clock seconds since the previous frame; not at the first, nor after level off",
    "data_wait_s": "seconds of the step time in which the training thread waited for batches of "
    "DataLoaders, evaluations left out; absent where none gave one",
    "forward_s": "host seconds of the step time in the model's training forwards, without the loss; this and "
    "the next two without the probe's own time, and absent where there was none",
    "backward_s": "the same of the backwards, with their waiting for other ranks",
    "optimizer_s": "the same of the optimizer's step that ended the step before, with what a closure is "
    "called for again",
    "before_backward_s": "seconds before the backwards: data, forward, update; where there are several ranks",
    "own_backward_s": "seconds of the backwards until this rank's graphs had run, before it waits for others",
    "own_grad_norm": "global L2 norm of this rank's own gradient, before DistributedDataParallel averages it "
    "over the ranks; absent where it is not known (feature own_gradients)",
    "grad_square_part": "this rank's part of the squared gradient norm of a sharded model: the sum over the "
    "ranks of `Layout.sharded_over` is that of the whole. What several of them hold is shared out among them",
    "grad_norm_whole": "global L2 norm of a sharded model's gradient: the root of the sum of all ranks' "
    "`grad_square_part`, put together by the dashboard at steps that all of them have sent",
    "processor_wait": "part (0-1) of a second in which training waited for processors that others had; "
    "absent where it did not, read with the memory",
    "samples": "first dimension of the first input, summed over the micro-steps",
    "probe_fraction": "CPU time of the probe's calls on the training thread, as a fraction (0-1) of the step",
    "probe_failures": "failures of the probe's own code, which switched a part of it off",
    "profiled": "1 at steps that a profiler has made longer; absent at the others",
    "epoch": "passes over the training data that have ended, at the last step of one",
    "process_rss_bytes": "resident memory of the training process, read at most once a second",
    "system_used_bytes": "memory in use on the machine, read at most once a second",
    "system_total_bytes": "memory of the machine",
    "process_cpu_fraction": "part (0-1) of all processors' time that this process took, once a second",
    "system_cpu_fraction": "part (0-1) of all processors' time that everything on the machine took",
    "gpu_fraction": "part (0-1) of the time in which the CUDA device ran a kernel, where NVML tells",
    "cuda_allocated_bytes": "torch.cuda.memory_allocated",
    "cuda_reserved_bytes": "torch.cuda.memory_reserved",
    "memory_parameters_bytes": "all parameters, frozen ones too; this and the next four are sums of "
    "what lies on the model's device (that of most of its parameters), taken where memory was read",
    "memory_gradients_bytes": "gradients that are there before the update",
    "memory_optimizer_bytes": "tensors of the optimizers' state",
    "memory_activations_bytes": "what the newest measured forward kept for its backward; where "
    "module_memory is measured",
    "memory_other_bytes": "cuda_allocated_bytes, on a CPU process_rss_bytes, without the first three",
}


class StackFrame(WireStruct, frozen=True, kw_only=True):
    """One line of a stack, with the source around it as the training process saw it."""

    file: Text
    line: Count
    function: Text
    code: SourceText = ""
    """About seven source lines either side, or empty when the source cannot be read."""
    code_first_line: Count = 0
    """Line number of the first line of `code`."""


Frames: TypeAlias = Annotated[list[StackFrame], msgspec.Meta(max_length=256)]


class Stacks(WireStruct, frozen=True, kw_only=True):
    """Stacks of an event, outermost frame first; empty where unknown."""

    forward: Frames = []
    backward: Frames = []
    training_loop: Frames = []


class Origin(WireStruct, frozen=True, kw_only=True):
    """Where a fault began."""

    phase: Literal["forward", "backward", "loss", "input"]
    op: Text
    module: Text | None
    """Qualified name; the root is ``""``; None for code outside any module."""
    stage: Text | None = None
    """Which gradient was tripped on."""


def is_in_derivative(origin: Origin | None, backward: Sequence[StackFrame]) -> bool:
    """Whether a stack of backward ends in the script's own derivative that went wrong, and not in torch's.

    That is a hook, or the `backward` of a `torch.autograd.Function`: its line says more than the one that
    called the function in forward.
    """
    if origin is None or origin.phase not in ("backward", "loss"):
        return False
    own = origin.op.removesuffix("Backward")
    in_function = any(frame.function.endswith(f"{own}.backward") for frame in backward)
    return "(hook: " in origin.op or (own != origin.op and in_function)


class NoticedAt(WireStruct, frozen=True, kw_only=True):
    """Where a fault was only noticed: it began elsewhere, or nothing tells where."""

    file: Text
    line: Count
    function: Text
    module: Text | None = None
    """Qualified name; None for code outside any module, and where it is not known."""


class TensorFacts(WireStruct, frozen=True, kw_only=True):
    """One tensor that an event is about.

    `min`, `max`, `mean` and `std` (population) are over all elements, in float64: a NaN or Inf among them
    propagates as IEEE arithmetic has it. Real and imaginary parts count as elements of their own. Numbers are
    None where the elements cannot be read, or there are none.
    """

    role: Text
    """What it is to the event: input or output of the op, operand, parameter, buffer, batch, local, event."""
    name: Text
    """A qualified name, a variable, or the position among the inputs or outputs."""
    shape: Annotated[list[Count], msgspec.Meta(max_length=64)]
    dtype: Text
    device: Text
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    nan: Count | None = None
    """Elements that are NaN."""
    inf: Count | None = None
    """Elements that are infinite, of either sign."""
    zero: Count | None = None
    """Elements that are exactly 0."""
    finite_min: float | None = None
    """Of the finite elements alone; None without one."""
    finite_max: float | None = None


MAX_TENSORS: Final = 32
"""Tensors that one event describes."""


class Evidence(WireStruct, frozen=True, kw_only=True):
    """The number that tripped, what it was judged by, and its surroundings."""

    value: float | None = None
    threshold: float | None = None
    baseline: dict[str, float] | None = None
    """For instance ``{"median": ..., "mad": ..., "steps": ...}`` of the run's own history."""
    neighbours: Annotated[list[tuple[Count, float]], msgspec.Meta(max_length=256)] = []
    """(step, value) of the steps before."""
    tensors: Annotated[list[TensorFacts], msgspec.Meta(max_length=MAX_TENSORS)] = []
    """What the op read and made, the bad batch, the variables of a function that an exception left."""


MAX_DATA_BYTES: Final = 16 * 1024
"""Of an event's `data`, as JSON."""
MAX_DATA_ITEMS: Final = 1000
"""Of one list or dictionary in it."""
# Each level names the one below it: the reader refuses deeper ones while it decodes.
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Plain: TypeAlias = bool | _Whole | float | SourceText | None
_Items = msgspec.Meta(max_length=MAX_DATA_ITEMS)
_Data1: TypeAlias = _Plain | Annotated[list[_Plain], _Items] | Annotated[dict[Text, _Plain], _Items]
_Data2: TypeAlias = _Plain | Annotated[list[_Data1], _Items] | Annotated[dict[Text, _Data1], _Items]
_Data3: TypeAlias = _Plain | Annotated[list[_Data2], _Items] | Annotated[dict[Text, _Data2], _Items]
_Data4: TypeAlias = _Plain | Annotated[list[_Data3], _Items] | Annotated[dict[Text, _Data3], _Items]
_Data5: TypeAlias = _Plain | Annotated[list[_Data4], _Items] | Annotated[dict[Text, _Data4], _Items]
MAX_DATA_DEPTH: Final = 5
"""Lists and dictionaries inside of each other, below `data` itself."""
EventData: TypeAlias = Annotated[dict[Text, _Data5], _Items]


class Event(WireStruct, tag="event", tag_field="t", frozen=True, kw_only=True):
    """One episode, in its latest state; a later record with the same id replaces an earlier one."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    run: RunId
    rank: Count
    incarnation: Count
    model: Text = ""
    step: Count
    micro_step: Count | None = None
    time: float
    kind: Text
    severity: Severity
    subject: Text = ""
    """The layer, parameter, series or exception that it is about."""
    message: Text
    """First line answers everything: what, when, where."""
    evidence: Evidence = Evidence()
    origin: Origin | None = None
    noticed_at: NoticedAt | None = None
    """None where one of the stacks ends in the line at which it began."""
    propagated_to: Annotated[list[Text], msgspec.Meta(max_length=10_000)] = []
    stacks: Stacks = Stacks()
    advice: Annotated[list[Text], msgspec.Meta(max_length=64)] = []
    count: Count = 1
    last_step: Count | None = None
    ended: bool = False
    data: EventData | None = None
    """What the script gave with an event of its own, or with an exception that it caught."""
    member: Member = msgspec.UNSET


class Gap(WireStruct, tag="gap", tag_field="t", frozen=True, kw_only=True):
    """Metrics that the journal evicted, or could not write, before anyone is sure to have read them.

    Lives in the `events` stream (which is never evicted). `[first_seq, end_seq)` of `stream`.
    """

    stream: StreamName
    first_seq: Count
    end_seq: Count
    reason: Text
    time: float
    lost: Count = 0
    """Records that were never written, and so have no numbers; `first_seq` and `end_seq` are the number that
    the next record got. A later gap of the same `first_seq` has the newest count."""
    first_step: Count | None = None
    last_step: Count | None = None
    """Steps of these records, where they are known."""


class RunEnd(WireStruct, tag="run_end", tag_field="t", frozen=True, kw_only=True):
    """Last record of an incarnation's `events` stream, when it ends in an orderly way."""

    time: float
    step: Count | None
    outcome: Literal["finished", "exception"]
    lost_before_write: Count = 0
    """Frames dropped from the in-memory ring because they could not be written (a full disk, say)."""
    events_written: Count | None = None
    """Records of the events stream up to this one, and with it; None where an older probe has written it."""
    metrics_written: Count | None = None
    """Records of the metrics stream, of which none follows."""


class HostSample(WireStruct, tag="host_sample", tag_field="t", frozen=True, kw_only=True):
    """What the helper sees of one rank's process from outside, about once a second (`host` stream)."""

    time: float
    rank: Count
    incarnation: Count
    state: Literal["running", "ended", "killed"]
    """`killed`: the process is gone and its journal has no `RunEnd`."""
    rss_bytes: Count | None = None
    system_used_bytes: Count | None = None
    system_total_bytes: Count | None = None


MAX_DOCUMENT_BYTES: Final = 1024 * 1024
MAX_DOCUMENTS: Final = 4096
"""Documents of one incarnation that are written."""


class Document(WireStruct, tag="document", tag_field="t", frozen=True, kw_only=True):
    """Something that is measured as a whole, now and then: a memory snapshot, a profile, a region's times.

    Lives in the `events` stream, which is never evicted. A later one of the same kind and key replaces an
    earlier one. What a kind's body holds is a struct of its own, see `documents.py`.
    """

    kind: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,64}\Z")]
    key: Annotated[str, msgspec.Meta(max_length=512)]
    """Which one of its kind: a label, a path, a number."""
    step: Count | None = None
    """The step that was under way; None before the first."""
    time: float
    """UNIX seconds."""
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_DOCUMENT_BYTES)]
    """JSON."""


Record: TypeAlias = RunStart | Layout | Frame | Event | Gap | RunEnd | HostSample | Document
