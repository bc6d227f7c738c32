"""Exceptions of shapes that do not fit: which module or variable, what it takes, what it was given."""

from __future__ import annotations

import ast
import math
import re
from typing import Any, Final

from torch import Tensor, nn

from .scene import Cause, Scene, arguments_of, shape_text, source


def _matmul(scene: Scene, match: re.Match[str]) -> Cause | None:
    got, wanted = int(match[2]), int(match[3])
    module = scene.module
    if isinstance(module, nn.Linear):
        fit = _given(scene)
        shape = f" (its shape is {shape_text(fit)})" if fit is not None else ""
        return Cause(
            f"{scene.name_of_module(module)} takes {module.in_features} features, and its input "
            f"has {got}{shape}",
            (
                f"Make it `nn.Linear({got}, {module.out_features})`, or give it what has {wanted} features.",
                "Behind convolutions, flatten all but the batch: `x.flatten(1)`.",
            ),
        )
    return _operands(scene, f"{match[1]} x {got} and {wanted} x {match[4]} cannot be multiplied")


def _channels(scene: Scene, match: re.Match[str]) -> Cause | None:
    module, given = scene.module, _given(scene)
    wanted, got = int(match[1]), int(match[2])
    if module is None:
        return None
    shape = "" if given is None else f" (its shape is {shape_text(given)})"
    last = given is not None and given.dim() > 1 and given.shape[-1] == wanted
    advice = (
        "The channels are the last dimension: `x.permute(0, 3, 1, 2)`."
        if last
        else f"Give it images of {wanted} channels, or make the layer with `in_channels={got}`."
    )
    return Cause(
        f"{scene.name_of_module(module)} takes {wanted} channels, and its input has {got}{shape}", (advice,)
    )


def _dimensions(scene: Scene, match: re.Match[str]) -> Cause | None:
    module, given = scene.module, _given(scene)
    if module is None:
        return None
    shape = f"({match[2].strip()})" if given is None else shape_text(given)
    sizes = len(match[2].split(","))
    return Cause(
        f"{scene.name_of_module(module)} ({type(module).__name__}) takes {match[1].strip()} "
        "input, and this one "
        f"has {sizes} dimensions, {shape}{_made_at(scene, given)}",
        (
            "Add the missing dimension (`x.unsqueeze(1)` for one channel), or leave out the "
            "flattening before it.",
        ),
    )


def _made_at(scene: Scene, given: Tensor | None) -> str:
    """Say which line of the script made an input, where one did."""
    for place in reversed(scene.own):
        for argument in arguments_of(scene.expression(place)):
            if isinstance(argument, ast.Name) and scene.value(argument, place) is given:
                made = scene.made_by(argument.id, place)
                return "" if made is None else f" (made by `{made[1]}` at {scene.at(made[0], place)})"
    return ""


def _broadcast(scene: Scene, match: re.Match[str]) -> Cause | None:
    return _operands(scene, f"they have {match[1]} and {match[2]} in dimension {match[3]}, and neither is 1")


def _operands(scene: Scene, why: str) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or expression is None:
        return None
    pair = _pair(expression)
    tensors = [(source(each), scene.value(each, place)) for each in pair]
    if not any(isinstance(value, Tensor) for _, value in tensors):
        return None
    named = " and ".join(
        f"`{name}` {shape_text(value)}" if isinstance(value, Tensor) else f"`{name}`"
        for name, value in tensors
    )
    return Cause(
        f"{named} do not fit together at {scene.at(place.line)}: {why}",
        ("Look at the shapes before this line; `unsqueeze`, `transpose` or `view` arrange them.",),
    )


def _pair(expression: ast.expr) -> list[ast.expr]:
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    if isinstance(expression, ast.Call):
        receivers = [expression.func.value] if isinstance(expression.func, ast.Attribute) else []
        named = [
            each for each in receivers if not (isinstance(each, ast.Name) and each.id in ("torch", "F", "nn"))
        ]
        given = [*named, *expression.args]
        lists = [each for node in given if isinstance(node, ast.List | ast.Tuple) for each in node.elts]
        return [*given, *lists][:4] if lists else given[:2]
    return []


def _view(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if (
        place is None
        or not isinstance(expression, ast.Call)
        or not isinstance(expression.func, ast.Attribute)
    ):
        return None
    held = scene.value(expression.func.value, place)
    sizes = [int(size) for size in match[1].split(",") if size.strip()]
    known = math.prod(size for size in sizes if size > 0)
    shape = f" of shape {shape_text(held)}" if isinstance(held, Tensor) else ""
    wanted = " x ".join(str(size) for size in sizes if size > 0)
    per_row = (
        f", {held[0].numel()} in each row"
        if isinstance(held, Tensor) and held.dim() > 1 and len(held)
        else ""
    )
    rest = f"not a multiple of {known}" if -1 in sizes else f"not {wanted} = {known}"
    rest = f"{rest}{per_row}"
    return Cause(
        f"`{source(expression.func.value)}`{shape} has {match[2]} elements, {rest} "
        f"(`{source(expression)}` at {scene.at(place.line)})",
        (
            "Keep the first dimension and let the rest follow: `x.flatten(1)`; compute the "
            "size from `x.shape`.",
        ),
    )


def _strides(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if (
        place is None
        or not isinstance(expression, ast.Call)
        or not isinstance(expression.func, ast.Attribute)
    ):
        return None
    name = source(expression.func.value)
    return Cause(
        f"`{name}` at {scene.at(place.line)} does not lie in memory in the order of its "
        "dimensions (a transpose, permute "
        "or slice came before), so `view` cannot regroup them",
        (f"Use `{name}.reshape(...)`, or `.contiguous()` before `view`.",),
    )


def _concatenated(scene: Scene, match: re.Match[str]) -> Cause | None:
    dim, wanted, got, number = (int(each) for each in match.groups())
    shapes = _listed(scene)
    if not shapes:
        return None
    return Cause(
        f"{', '.join(shapes)} are joined along dimension {dim} at "
        f"{scene.at(scene.own[-1].line)}, "
        f"but number {number} has {got} where the first has {wanted}",
        ("All dimensions but the one that is joined have to be equal.",),
    )


def _listed(scene: Scene) -> list[str]:
    place = scene.own[-1]
    expression = scene.expression(place)
    if not isinstance(expression, ast.Call) or not expression.args:
        return []
    first = expression.args[0]
    if isinstance(first, ast.List | ast.Tuple):
        held = [(source(each), scene.value(each, place)) for each in first.elts[:4]]
        known = any(isinstance(value, Tensor) for _, value in held)
        named = [
            f"`{name}` {shape_text(value)}" if isinstance(value, Tensor) else f"`{name}`"
            for name, value in held
        ]
        return named if known else []
    values: Any = scene.value(first, place)
    if not isinstance(values, list | tuple) or not all(isinstance(each, Tensor) for each in values):
        return []
    return [shape_text(each) for each in values[:4]] + (["..."] if len(values) > 4 else [])


def _stacked(scene: Scene, match: re.Match[str]) -> Cause | None:
    first, other, number = match.groups()
    if any(place.frame.f_code.co_name in ("default_collate", "collate") for place in scene.places):
        return Cause(
            f"the samples of a batch have different shapes: the first is ({first}), number "
            f"{number} is ({other})",
            (
                "Pad or crop the samples in the dataset, or give the DataLoader a `collate_fn` that does "
                "(`torch.nn.utils.rnn.pad_sequence`).",
            ),
        )
    return Cause(
        f"`{source(scene.expression(scene.own[-1]) or ast.Name('stack'))}` stacks tensors of "
        "different shapes: the first "
        f"is ({first}), number {number} is ({other})",
        ("`torch.stack` needs equal shapes: pad them, or use `torch.cat`.",),
    )


def _one_value(scene: Scene, match: re.Match[str]) -> Cause | None:
    module = scene.module
    if module is None:
        return None
    return Cause(
        f"{scene.name_of_module(module)} ({type(module).__name__}) got one value per channel "
        f"(input ({match[1]})), and in "
        "training mode (without `eval()`) it needs at least two to compute a variance",
        (
            "The last batch has one sample: give the DataLoader `drop_last=True`, or another batch size.",
            "For a single sample, call `model.eval()` first.",
        ),
    )


def _dimension_range(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or expression is None:
        return None
    for name, value in ((source(each), scene.value(each, place)) for each in _pair(expression)):
        if isinstance(value, Tensor):
            return Cause(
                f"`{name}` has {value.dim()} dimension{'' if value.dim() == 1 else 's'} "
                f"{shape_text(value)}, and "
                f"`{source(expression)}` at {scene.at(place.line)} asks for dimension {match[3]}",
                (f"Dimensions are counted from 0: {match[1]} to {match[2]} exist.",),
            )
    return None


def _normalized(scene: Scene, match: re.Match[str]) -> Cause | None:
    module = scene.module
    if module is None:
        return None
    return Cause(
        f"{scene.name_of_module(module)} normalises over ({match[1]}), and its input has shape ({match[2]})",
        ("The last dimensions of the input have to be those of `normalized_shape`.",),
    )


def _recurrent(scene: Scene, match: re.Match[str]) -> Cause | None:
    module = scene.module
    if module is None:
        return None
    return Cause(
        f"{scene.name_of_module(module)} ({type(module).__name__}) takes {match[1]} features in "
        "the last dimension, and "
        f"its input has {match[2]}",
        ("Give it (batch, time, features) with `batch_first=True`, else (time, batch, features).",),
    )


def _batch_sizes(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("cross_entropy") or scene.torch_variables("nll_loss")
    given, target = held.get("input"), held.get("target")
    if not isinstance(given, Tensor) or not isinstance(target, Tensor):
        return None
    logits, targets = scene.named(given), scene.named(target)
    return Cause(
        f"the loss is given logits{logits} of shape {shape_text(given)} and targets{targets} of shape "
        f"{shape_text(target)}: {match[1]} rows against {match[2]} targets",
        (
            "Classes belong in dimension 1: for sequences `logits.transpose(1, 2)`, or flatten both: "
            "`logits.flatten(0, 1)` and `targets.flatten()`.",
        ),
    )


def _target_size(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("binary_cross_entropy_with_logits") or scene.torch_variables(
        "binary_cross_entropy"
    )
    given, target = scene.named(held.get("input")), scene.named(held.get("target"))
    first, second = match[2], match[1]
    sentence = (
        f"the loss is given predictions{given} of shape ({first}) and targets{target} of shape ({second})"
    )
    if first.count(",") == 1 and first.partition(",")[0] == second.strip(", "):
        return Cause(
            f"{sentence}: one label for each row, where this loss wants one for each of "
            f"{first.rpartition(' ')[2]} outputs",
            (
                "Class indices belong in `cross_entropy`; for several labels at a time make them one-hot: "
                "`torch.nn.functional.one_hot(labels, n).float()`.",
                "Of one output take `predictions.squeeze(-1)`.",
            ),
        )
    return Cause(
        f"{sentence}, which have to be equal",
        ("Give both one shape: `predictions.squeeze(-1)`, or `targets.unsqueeze(-1)`.",),
    )


def _given(scene: Scene) -> Tensor | None:
    """The first tensor that the innermost running forward was given."""
    for place in reversed(scene.places):
        code = place.frame.f_code
        if code.co_name == "forward":
            held = scene.variables(place)
            for name in code.co_varnames[1 : code.co_argcount]:
                if isinstance(held.get(name), Tensor):
                    given: Tensor = held[name]
                    return given
            return None
    return None


TABLE: Final = (
    (r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", _matmul),
    (r"expected input\[[\d, ]+\] to have (\d+) channels, but got (\d+) channels", _channels),
    (r"Expected ([^.:]*?\dD[^.:]*?) input to \w+, but got input of size: \[([\d, ]+)\]", _dimensions),
    (
        r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton dimension (\d+)",
        _broadcast,
    ),
    (r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", _view),
    (r"view size is not compatible with input tensor's size and stride", _strides),
    (
        r"match except in dimension (\d+)\. Expected size (\d+) but got size (\d+) for tensor number (\d+)",
        _concatenated,
    ),
    (r"equal size, but got \[([\d, ]*)\] at entry 0 and \[([\d, ]*)\] at entry (\d+)", _stacked),
    (r"more than 1 value per channel when training, got input size torch\.Size\(\[([\d, ]+)\]\)", _one_value),
    (r"expected to be in range of \[(-?\d+), (-?\d+)\], but got (-?\d+)\)", _dimension_range),
    (r"normalized_shape=\[([\d, ]+)\], .* but got input of size ?\[([\d, ]+)\]", _normalized),
    (r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)", _recurrent),
    (r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)", _batch_sizes),
    (
        r"arget size \(torch\.Size\(\[([\d, ]*)\]\)\) must be the same as input size .*\[([\d, ]*)\]",
        _target_size,
    ),
)
"""Pattern -> who explains it, as in `causes/__init__.py`."""
