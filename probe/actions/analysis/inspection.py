"""`inspect_model`: what a model is made of, and what it occupies. Leaves everything as it was.

With an input one forward runs: buffers, training flags, random generators and gradients are put back, and a
session that watches the model is not told. What a forward does besides (prints, counters of its own, files)
happens. Hooks that a user put on the modules run as in any forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...attach.layout import clean_name
from ...compat import torch_memory
from ...compat.torch_memory import local_shard
from ...forensics.module_state import preserved, state_as_before
from ...threads.unnoticed import unnoticed
from . import tables
from .call_results import Result
from .gradient_checks import require_module
from .recorded_calls import CallRecorder, ModuleCall, calls_recorded, find_tensors, split_input
from .tensor import occupied_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow(Result):
    """One module. Counts are of what it owns itself, each shared parameter where it comes first."""

    name: str
    """Qualified name; the root's is empty."""
    type: str
    depth: int
    training: bool
    parameters: int
    """Elements of its own parameters."""
    trainable: int
    """Those of them that require gradients."""
    buffers: int
    """Elements of its own buffers."""
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    calls: int | None = None
    """Calls in the forward; None without an input."""
    input_shapes: tuple[tuple[int, ...], ...] = ()
    """Of the first call."""
    output_shapes: tuple[tuple[int, ...], ...] = ()
    """Of the first call."""
    output_bytes: int | None = None
    """Summed over the calls; None without an input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Result):
    """One child of the root with everything below it; `(root)` is what the root owns itself."""

    name: str
    type: str
    modules: int
    parameters: int
    trainable: int
    share: float
    """Fraction (0-1) of the model's parameters."""
    bytes: int
    """Parameters and buffers."""
    training: bool | None
    """None when some modules are in training mode and some in evaluation mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory(Result):
    """Bytes on this rank, memory shared by several tensors counted once."""

    _derived = ("total",)

    parameters: int
    gradients: int
    buffers: int
    activations: int | None
    """What autograd saved for the backward of one forward of this input, without parameters, buffers and the
    input itself; None without an input, or where it could not be observed."""
    outputs: int | None
    """Of all leaf modules' outputs; None without an input."""
    optimizer_state: int | None = None
    """Of what the optimizer keeps for the parameters; None without an optimizer."""

    @property
    def total(self) -> int:
        """Parameters, gradients, buffers, optimizer state and activations, as far as they are known."""
        known = (self.parameters, self.gradients, self.buffers, self.optimizer_state, self.activations)
        return sum(size for size in known if size is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInspection(Result):
    """A model as a table of its modules, with components and memory."""

    model: str
    parameters: int
    """Elements, a shared parameter counted once."""
    trainable: int
    shared: int
    """Parameters that have more than one name."""
    modules: tuple[ModuleRow, ...]
    components: tuple[Component, ...]
    memory: ModelMemory | None
    """None where there is no model."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Totals, components, and a row for each module."""
        if self.memory is None:
            return f"model: {'; '.join(self.notes) or 'no problem found'}"
        memory = self.memory
        lines = [
            f"{self.model}: {self.parameters:,} parameters, {self.trainable:,} trainable, "
            f"{len(self.modules)} modules",
            f"  memory: parameters {tables.size(memory.parameters)}, "
            f"gradients {tables.size(memory.gradients)}, buffers {tables.size(memory.buffers)}, "
            f"optimizer state {tables.size(memory.optimizer_state)}, "
            f"saved for backward {tables.size(memory.activations)}; total {tables.size(memory.total)}",
            *(f"  {note}" for note in self.notes),
        ]
        header = ("component", "type", "parameters", "share", "memory")
        rows = [
            (c.name, c.type, f"{c.parameters:,}", f"{c.share:.1%}", tables.size(c.bytes))
            for c in self.components
        ]
        lines += ["", *tables.table(header, rows, left=2), ""]
        columns = ("module", "type", "input", "output", "parameters", "trainable", "calls", "out")
        return "\n".join([*lines, *tables.table(columns, [_row(m) for m in self.modules], left=4)])


def inspect_model(
    model: nn.Module, input: Any = None, *, optimizer: Optimizer | None = None
) -> ModelInspection:
    """Describe a model: modules, parameters, shapes, dtypes, memory, and the share of each component.

    Args:
        model: the model; DistributedDataParallel and torch.compile around it are looked through.
        input: runs one forward with it, which gives shapes and activation memory: a tensor, a tuple of
            positional arguments or a dictionary of keyword arguments. It needs as much memory as a training
            forward.
        optimizer: gives what it keeps for the parameters a place in the memory.

    Raises:
        ValueError: it is no module, or a lazy one without parameters as yet; or an input was given for a
            model under FSDP, whose forward is a collective that cannot be undone.
    """
    root = require_module(model)
    if input is not None and (sharded := fully_sharded(root)) is not None:
        raise ValueError(
            f"{sharded} is under FSDP, whose forward needs every rank: inspect it without an input"
        )
    recorder, saved = (None, None) if input is None else trial_forward(root, input)
    kept = None if optimizer is None else bytes_once(state_tensors([optimizer], root))
    calls = recorder.calls if recorder is not None else None
    rows = list(_module_rows(root, calls))
    names = [len(group) for group in _names_of_parameters(root).values()]
    return ModelInspection(
        model=type(root).__name__,
        parameters=sum(row.parameters for row in rows),
        trainable=sum(row.trainable for row in rows),
        shared=sum(count > 1 for count in names),
        modules=tuple(rows),
        components=tuple(_components(root, rows)),
        memory=ModelMemory(
            parameters=bytes_once(root.parameters()),
            gradients=bytes_once(p.grad for p in root.parameters() if p.grad is not None),
            buffers=bytes_once(root.buffers()),
            activations=saved,
            outputs=None
            if calls is None
            else sum(c.output_bytes for c in calls if not _has_children(c.module)),
            optimizer_state=kept,
        ),
        notes=tuple(_notes(root, rows, recorder)),
    )


def trial_forward(root: nn.Module, value: Any) -> tuple[CallRecorder, int | None]:
    """Run one forward whose effects are undone; return its calls and the bytes saved for its backward."""
    args, kwargs = split_input(value)
    meter = _SavedBytes(exclude=[*root.parameters(), *root.buffers(), *find_tensors((args, kwargs))])
    with unnoticed(), preserved([root]), state_as_before([root], []) as stand_ins:
        meter.exclude(stand_ins)
        # The hooks are in `preserved` too: its attributes' containers are put back after ours are removed.
        with calls_recorded(root) as recorder, torch.enable_grad(), meter:
            root(*args, **kwargs)
    return recorder, meter.total


class _SavedBytes:
    """Counts what autograd saves for backward, each storage once."""

    def __init__(self, *, exclude: Iterable[Tensor]) -> None:
        self._seen: set[int] = set()
        self._held: list[Tensor] = []
        self._bytes = 0
        self.exclude(exclude)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    @property
    def total(self) -> int:
        return self._bytes

    def exclude(self, tensors: Iterable[Tensor]) -> None:
        """Do not count the memory of these."""
        self._seen |= {torch_memory.storage_key(local_shard(tensor)) for tensor in tensors}

    def _pack(self, tensor: Tensor) -> Tensor:
        local = local_shard(tensor)
        key = torch_memory.storage_key(local)
        if key and key not in self._seen:
            self._seen.add(key)
            # Held, so that its address is not used again for another one while we count.
            self._held.append(local.detach())
            self._bytes += _storage_bytes(local)
        return tensor

    def __enter__(self) -> None:
        self._hooks.__enter__()

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        self._held.clear()


def _storage_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else occupied_bytes(tensor)


def bytes_once(tensors: Iterable[Tensor]) -> int:
    """Sum of what tensors occupy; those in the same memory count once."""
    sizes: dict[object, int] = {}
    for tensor in tensors:
        local = local_shard(tensor)
        key = torch_memory.storage_key(local)
        place = (key, local.storage_offset()) if key and local.layout is torch.strided else id(tensor)
        sizes[place] = max(sizes.get(place, 0), occupied_bytes(tensor))
    return sum(sizes.values())


def state_tensors(optimizers: Iterable[Optimizer], root: nn.Module) -> Iterable[Tensor]:
    """Yield the tensors that optimizers keep for the parameters of a model."""
    own = set(map(id, root.parameters()))
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            if id(parameter) in own:
                yield from find_tensors(state)


def _names_of_parameters(root: nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _module_rows(root: nn.Module, calls: list[ModuleCall] | None) -> Iterable[ModuleRow]:
    counted: set[int] = set()
    by_module: dict[int, list[ModuleCall]] = {}
    for call in calls or ():
        by_module.setdefault(id(call.module), []).append(call)
    for raw_name, module in root.named_modules():
        name = clean_name(raw_name)
        own = [p for p in module.parameters(recurse=False) if id(p) not in counted]
        counted |= set(map(id, own))
        tensors = [*own, *module.buffers(recurse=False)]
        mine = by_module.get(id(module), [])
        yield ModuleRow(
            name=name,
            type=type(module).__name__,
            depth=name.count(".") + 1 if name else 0,
            training=module.training,
            parameters=sum(p.numel() for p in own),
            trainable=sum(p.numel() for p in own if p.requires_grad),
            buffers=sum(b.numel() for b in module.buffers(recurse=False)),
            dtypes=tuple(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors)),
            devices=tuple(dict.fromkeys(str(t.device) for t in tensors)),
            calls=None if calls is None else len(mine),
            input_shapes=mine[0].input_shapes if mine else (),
            output_shapes=mine[0].output_shapes if mine else (),
            output_bytes=None if calls is None else sum(call.output_bytes for call in mine),
        )


def _components(root: nn.Module, rows: list[ModuleRow]) -> Iterable[Component]:
    total = sum(row.parameters for row in rows)
    below: dict[str, list[ModuleRow]] = {}
    for row in rows:
        below.setdefault(row.name.partition(".")[0], []).append(row)
    children = {clean_name(name): child for name, child in root.named_children()}
    for name, module in {"": root, **children}.items():
        mine = below.get(name, [])
        if not mine or (not name and not (mine[0].parameters or mine[0].buffers)):
            continue
        parameters = sum(row.parameters for row in mine)
        modes = {row.training for row in mine}
        yield Component(
            name=tables.root_or(name),
            type=type(module).__name__,
            modules=len(mine),
            parameters=parameters,
            trainable=sum(row.trainable for row in mine),
            share=parameters / total if total else 0.0,
            bytes=bytes_once([*module.parameters(recurse=bool(name)), *module.buffers(recurse=bool(name))]),
            training=modes.pop() if len(modes) == 1 else None,
        )


def fully_sharded(root: nn.Module) -> str | None:
    """Name of the first module that FSDP manages, if any."""
    for name, module in root.named_modules():
        if {"FSDPModule", "FullyShardedDataParallel"} & {base.__name__ for base in type(module).__mro__}:
            return f"{type(module).__name__} {name}".strip()
    return None


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _notes(root: nn.Module, rows: list[ModuleRow], recorder: CallRecorder | None) -> Iterable[str]:
    if len({row.training for row in rows}) == 2:
        evaluating = [row.name for row in rows if not row.training]
        yield f"training and evaluation mode are mixed: in evaluation mode {tables.names(evaluating, 4)}"
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in root.parameters()}
    if len(dtypes) > 1:
        yield f"parameters of several dtypes: {', '.join(sorted(dtypes))}"
    devices = {str(parameter.device) for parameter in root.parameters()}
    if len(devices) > 1:
        yield f"parameters on several devices: {', '.join(sorted(devices))}"
    if any(local_shard(parameter) is not parameter for parameter in root.parameters()):
        yield "sharded parameters (DTensor): counts are of the whole, bytes of this rank's shards"
    if recorder is not None:
        unused = [row.name for row in rows if row.calls == 0 and row.parameters]
        if unused:
            yield f"not called in this forward: {tables.names(unused)}"
        if recorder.dropped:
            yield f"{recorder.dropped:,} calls were not recorded"


def _row(m: ModuleRow) -> tuple[str, ...]:
    return (
        "  " * m.depth + (m.name.rpartition(".")[2] or "(root)"),
        m.type,
        tables.shapes(m.input_shapes),
        tables.shapes(m.output_shapes),
        f"{m.parameters:,}" if m.parameters else "-",
        f"{m.trainable:,}" if m.trainable else "-",
        "-" if m.calls is None else str(m.calls),
        tables.size(m.output_bytes),
    )
