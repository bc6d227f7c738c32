"""Bytes that each module's forward leaves behind for the backward, and of its outputs. Reads, never unpacks.

Saved-tensor hooks would see the same, but they switch off autograd's check for tensors modified in place and
keep outputs alive through their own node; so the finished graph is walked instead, once per sampled forward.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...compat import torch_memory, torch_nodes


def saved_bytes(
    outputs: Iterable[Tensor], spans: Sequence[tuple[int, int, int]], left_out: frozenset[int]
) -> list[int]:
    """Add up what the graph of a forward keeps, by the innermost call that computed it.

    A storage that several nodes keep counts once, for the node that was made first; whole storages count,
    for that is what stays allocated. What a checkpoint or other saved-tensor hooks took away is not kept.

    Args:
        outputs: of the root.
        spans: for each call, in order: first autograd sequence number, the one after the last, and the
            index of the enclosing call or -1.
        left_out: storage addresses of parameters and buffers, which are there anyway.

    Returns:
        One number of bytes per call.
    """
    result = [0] * len(spans)
    begins = [begin for begin, _, _ in spans]
    seen = set(left_out)
    for number, node in sorted(_nodes(outputs, begins[0] if begins else 0), key=lambda pair: pair[0]):
        call = _innermost(spans, bisect.bisect_right(begins, number) - 1, number)
        for tensor in torch_nodes.saved_tensors(node):
            key = torch_memory.storage_key(tensor)
            if key and key not in seen:
                seen.add(key)
                if call >= 0:
                    result[call] += torch_memory.storage_bytes(tensor)
    return result


def storages_of(root: nn.Module) -> frozenset[int]:
    """Addresses of the storages of all parameters and buffers."""
    tensors = [*root.parameters(), *root.buffers()]
    return frozenset(torch_memory.storage_key(tensor) for tensor in tensors)


def cuda_allocated(device: torch.device) -> int:
    """Bytes that torch's allocator has given out on a CUDA device."""
    return int(torch.cuda.memory_allocated(device))


def _nodes(outputs: Iterable[Tensor], first: int) -> list[tuple[int, Any]]:
    """Return (sequence number, node) of all nodes made since `first` that lead to `outputs`."""
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen, found = set(waiting), []
    while waiting:
        node = waiting.pop()
        number = torch_nodes.node_sequence_number(node)
        # Nodes without a number are leaves' accumulators; older ones belong to what was computed before.
        if number is None or number < first:
            continue
        found.append((number, node))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _innermost(spans: Sequence[tuple[int, int, int]], call: int, number: int) -> int:
    """Return the innermost call whose span holds `number`, beginning with the last one begun before it."""
    while call >= 0 and number >= spans[call][1]:
        call = spans[call][2]
    return call
