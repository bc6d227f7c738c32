"""The modules of a model as an icicle: each as wide as its time, its children below it.

Names are paths, so that a container without a forward of its own (`blocks` of `blocks.0`) has a box too, as
wide as what is in it. Pure: times in, boxes out; drawn by `assets/ns_78_icicle.js`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

LEAST_WIDTH: Final = 5e-4
"""Share of the whole; narrower boxes, less than half a pixel, are counted alone."""
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTime:
    """What a step took of one module, in seconds; None where it is not known."""

    forward_s: float | None = None
    """Its children's included, as in backward."""
    backward_s: float | None = None
    self_s: float | None = None
    """Without its children, where these two are not known apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One module of the picture."""

    name: str
    """Qualified; the root's is empty."""
    depth: int
    """Row, from the top."""
    at: float
    """Left edge, as a share (0-1) of the whole, as is `width`."""
    width: float
    total_s: float
    self_s: float
    """What none of its children took."""
    forward_s: float | None
    backward_s: float | None


@dataclass(slots=True)
class _Node:
    name: str
    time: ModuleTime | None = None
    children: dict[str, _Node] = field(default_factory=dict)
    total_s: float = 0.0
    of_children_s: float = 0.0


def module_boxes(times: Mapping[str, ModuleTime]) -> tuple[list[Box], int]:
    """Lay out an icicle.

    Where children took more than their parent, as those do that are called from elsewhere too, they share its
    width.

    Args:
        times: by qualified name, in model order.

    Returns:
        The boxes, parents before their children, and how many modules are too narrow for one.
    """
    root = _Node("")
    for name, time in times.items():
        _node_at(root, name).time = time
    _add_up(root)
    return _laid_out(root) if root.total_s > 0.0 else ([], 0)


def boxes_data(boxes: list[Box]) -> list[dict[str, Any]]:
    """Return them as the scripts get them."""
    return [asdict(box) for box in boxes]


def _node_at(root: _Node, name: str) -> _Node:
    node = root
    for part in name.split(".") if name else ():
        path = f"{node.name}.{part}" if node.name else part
        node = node.children.setdefault(part, _Node(path))
    return node


def _add_up(node: _Node) -> None:
    """Give a node and all below it their times; children are done before their parents, without recursion."""
    order = [node]
    for each in order:
        order += each.children.values()
    for each in reversed(order):
        each.of_children_s = sum(child.total_s for child in each.children.values())
        own = each.time
        if own is None:
            each.total_s = each.of_children_s
        elif own.self_s is not None:
            each.total_s = own.self_s + each.of_children_s
        else:
            each.total_s = (own.forward_s or 0.0) + (own.backward_s or 0.0)
        if not math.isfinite(each.total_s):
            each.total_s = each.of_children_s


def _laid_out(root: _Node) -> tuple[list[Box], int]:
    boxes: list[Box] = []
    hidden, waiting = 0, [(root, 0.0, 1.0, 0)]
    while waiting:
        each, at, width, depth = waiting.pop()
        if width < LEAST_WIDTH:
            hidden += _measured_in(each)
            continue
        own = each.time or ModuleTime()
        boxes.append(
            Box(
                name=each.name,
                depth=depth,
                at=at,
                width=width,
                total_s=each.total_s,
                self_s=_difference(each.total_s, each.of_children_s),
                forward_s=own.forward_s,
                backward_s=own.backward_s,
            )
        )
        scale = width / max(each.total_s, each.of_children_s)
        placed = []
        for child in each.children.values():
            placed.append((child, at, child.total_s * scale, depth + 1))
            at += child.total_s * scale
        waiting += reversed(placed)
    return boxes, hidden


def _difference(whole: float, parts: float) -> float:
    """What is left, without what float32 has rounded."""
    return whole - parts if whole - parts > _ROUNDING * whole else 0.0


def _measured_in(node: _Node) -> int:
    order = [node]
    for each in order:
        order += each.children.values()
    return sum(each.time is not None for each in order)
