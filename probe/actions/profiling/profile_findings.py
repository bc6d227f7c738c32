"""Says in plain words what stands out in the table of a profile, with its numbers and what to try. Pure.

The limits are rules of thumb, written for steps that run as most do: they leave alone what a training does
now and then, or what no change of the script would make faster.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from typing import Final

from ...wire.profiles import ProfileFinding
from .profile_table import OpCall, ProfileTable, Total, largest

INPUT_WAIT: Final = 0.2
"""Share of the time in DataLoaders, from which on the loader is worth a look."""
TRACED_US: Final = 3.0
"""What recording one event takes, in us (2-4 were measured): a loader in Python is not to blame for it."""
SMALL_OPS: Final = 1000
"""Operations a step that the script calls ..."""
SMALL_US: Final = 50.0
"""... and their median time, in us: as long as calling one takes with a profiler, or not much longer."""
SMALL_SHARE: Final = 0.3
"""Share of the time that they take."""
SYNCS: Final = 10
"""Reads of single elements a step; one for the loss, one for an accuracy are as most scripts have it."""
SYNC_SHARE: Final = 0.1
"""Share of the time that the host waits for the device."""
COPIES: Final = 0.15
"""Share of the time in copies and conversions."""
DOMINANT: Final = 0.3
"""Share of the time that one operation takes at one place."""
IDLE_GPU: Final = 0.5
"""Share of the time in which no kernel runs."""
_LEAST_US: Final = 1000.0
"""A profile of less time tells nothing."""
_READS: Final = ("aten::item", "aten::_local_scalar_dense")
_WAITS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
_COPIES: Final = ("aten::copy_", "aten::to", "aten::_to_copy", "aten::clone", "aten::contiguous")
_KINDS: Final = ("input_wait", "idle_gpu", "host_sync", "small_ops", "copies", "dominant_op")


def find_bottlenecks(table: ProfileTable) -> list[ProfileFinding]:
    """Return what stands out; nothing for a healthy profile."""
    if table.wall_us < _LEAST_US or not table.calls:
        return []
    found = [
        *_input_wait(table),
        *_idle_gpu(table),
        *_host_sync(table),
        *_small_ops(table),
        *_copies(table),
        *_dominant_op(table),
    ]
    return sorted(found, key=lambda finding: _KINDS.index(finding.kind))


def _input_wait(table: ProfileTable) -> list[ProfileFinding]:
    waited_us = max(table.input_wait_us - TRACED_US * table.traced_in_input, 0.0)
    share = waited_us / table.wall_us
    if share < INPUT_WAIT:
        return []
    each = waited_us / table.steps
    return [
        ProfileFinding(
            kind="input_wait",
            message=(
                f"Training waits for its DataLoader {_percent(share)} of the time ({_time(each)} per step)"
            ),
            value=share,
            threshold=INPUT_WAIT,
            advice=[
                "Give the DataLoader workers (num_workers=): they make batches while others are trained.",
                "pin_memory=True, persistent_workers=True and a larger prefetch_factor help where there are "
                "workers already.",
                "Do once, before training, what is done to every sample in every epoch.",
            ],
        )
    ]


def _idle_gpu(table: ProfileTable) -> list[ProfileFinding]:
    idle = 1.0 - table.device_us / table.wall_us
    if not table.has_device or idle < IDLE_GPU:
        return []
    return [
        ProfileFinding(
            kind="idle_gpu",
            message=f"The GPU does nothing {_percent(idle)} of the time",
            value=idle,
            threshold=IDLE_GPU,
            advice=[
                "It waits for the CPU: for data, for Python between kernels, or for a synchronisation. The "
                "other findings say for which.",
                "A larger batch gives it more to do for the same Python; torch.compile makes fewer, larger "
                "kernels.",
                "A profiler makes Python slower, so that the GPU idles more than without: compare the time "
                "of a step.",
            ],
        )
    ]


def _host_sync(table: ProfileTable) -> list[ProfileFinding]:
    reads = [call for call in table.script_calls if call.name == _READS[1] and not call.place.is_in_optimizer]
    waits = [call for call in table.script_calls if call.name in _WAITS]
    each, waited_us = len(reads) / table.steps, sum(call.end_us - call.start_us for call in waits)
    share = waited_us / table.wall_us
    if each < SYNCS and share < SYNC_SHARE:
        return []
    where = _at(_most_common([call.place.line for call in reads]))
    parts = []
    if each >= SYNCS:
        parts.append(f"{each:,.0f} elements per step are read one by one, by .item() or similar{where}")
    if share >= SYNC_SHARE:
        each_us = waited_us / table.steps
        parts.append(f"the host waits for the GPU {_percent(share)} of the time ({_time(each_us)} per step)")
    message = "; ".join(parts)
    counts = each >= SYNCS
    return [
        ProfileFinding(
            kind="host_sync",
            message=message[0].upper() + message[1:],
            value=each if counts else share,
            threshold=SYNCS if counts else SYNC_SHARE,
            advice=[
                "Each .item(), float(tensor), tensor.tolist() or `if tensor:` has the host wait until the "
                "device has computed the value.",
                "Add up on the device, and read the sum once every so many steps; run.log takes tensors and "
                "does not wait.",
                "Copy with non_blocking=True from pinned memory.",
            ],
        )
    ]


def _small_ops(table: ProfileTable) -> list[ProfileFinding]:
    outer = [call for call in table.script_calls if call.is_outermost and not call.place.is_in_optimizer]
    each = len(outer) / table.steps
    if each < SMALL_OPS:
        return []
    times = [call.end_us - call.start_us for call in outer]
    median, share = statistics.median(times), sum(times) / table.wall_us
    if median > SMALL_US or share < SMALL_SHARE:
        return []
    name, count = Counter(call.name for call in outer).most_common(1)[0]
    where = _at(_most_common([call.place.line for call in outer if call.name == name]))
    return [
        ProfileFinding(
            kind="small_ops",
            message=f"A step calls {each:,.0f} operations of {_time(median)} in the median: most of that "
            f"time is the call itself ({count / table.steps:,.0f} are {name}{where})",
            value=each,
            threshold=SMALL_OPS,
            advice=[
                "Put loops over elements or small tensors into one operation on a larger tensor "
                "(torch.stack, broadcasting, torch._foreach_ functions, torch.func.vmap).",
                "torch.compile fuses what is left.",
            ],
        )
    ]


def _copies(table: ProfileTable) -> list[ProfileFinding]:
    copies = [call for call in table.script_calls if call.name in _COPIES]
    copied_us = sum(call.self_us for call in copies) + table.copied_to_device_us
    share = copied_us / table.wall_us
    if share < COPIES:
        return []
    weights: defaultdict[str | None, float] = defaultdict(float)
    for call in copies:
        weights[call.place.line] += call.self_us
    where = _at(largest(weights))
    return [
        ProfileFinding(
            kind="copies",
            message=f"Copies and conversions take {_percent(share)} of the time "
            f"({_time(copied_us / table.steps)} per step, {len(copies) / table.steps:,.0f} calls{where})",
            value=share,
            threshold=COPIES,
            advice=[
                "Make tensors where and as they are needed: device=, dtype= when they are made, instead of "
                ".to() afterwards.",
                "Move a batch to the device once, with non_blocking=True from pinned memory.",
                "A .contiguous() or .clone() in the forward may be left out where nothing writes in place.",
            ],
        )
    ]


def _dominant_op(table: ProfileTable) -> list[ProfileFinding]:
    places: defaultdict[tuple[str, str | None, str | None], Total] = defaultdict(Total)
    for call in table.script_calls:
        if _computes(call):
            places[call.name, call.place.module, call.place.line].add(call, has_device=table.has_device)
    if not places:
        return []
    (name, module, line), total = max(places.items(), key=lambda item: _weight(item[1], table))
    share = _weight(total, table) / table.wall_us
    # Without stacks the calls of all places are one.
    is_one_place = not (module is None and line is None) or total.calls <= table.steps
    if share < DOMINANT or not is_one_place:
        return []
    inside = "" if module is None else f" in module {module or 'root'}"
    return [
        ProfileFinding(
            kind="dominant_op",
            message=f"{name}{inside}{_at(line)} takes {_percent(share)} of the time "
            f"({_time(_weight(total, table) / table.steps)} per step, "
            f"{total.calls / table.steps:,.0f} calls)",
            value=share,
            threshold=DOMINANT,
            advice=[
                "Here a change pays most: a smaller size, a lower precision (torch.autocast), an algorithm "
                "that does less.",
                "Where it is what the model is there for, and runs as fast as the device can, leave it.",
            ],
        )
    ]


def _computes(call: OpCall) -> bool:
    return call.name not in _COPIES and call.name not in _READS and not call.name.startswith("cuda")


def _weight(total: Total, table: ProfileTable) -> float:
    return total.cuda_us if table.has_device else total.self_us


def _most_common(lines: list[str | None]) -> str | None:
    return Counter(lines).most_common(1)[0][0] if lines else None


def _at(line: str | None) -> str:
    return "" if line is None else f" at {line}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _time(us: float) -> str:
    for limit, scale, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if us < limit:
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:.3g} s"
