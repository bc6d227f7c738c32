"""Exceptions of values: a class, row or index that does not exist, a dtype or device that does not fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...compat.torch_modes import own_operations
from .scene import Cause, Scene, arguments_of, dtype_text, shape_text, source

_MOST_READ: Final = 2**24


def _class_range(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("cross_entropy") or scene.torch_variables("nll_loss")
    given, target = held.get("input"), held.get("target")
    if not isinstance(given, Tensor) or given.dim() < 1:
        return None
    classes = given.shape[1] if given.dim() > 1 else given.shape[0]
    low, high = _range(target)
    span = "" if low is None else f"; those of this batch go from {low} to {high}"
    advice = ["Count classes from 0, or make the last layer larger."]
    if low == 1 and high == classes:
        advice.insert(0, "The targets count from 1: subtract 1.")
    if low is not None and low < 0:
        advice.insert(0, "For targets that do not count pass `ignore_index=` with their value.")
    return Cause(
        f"the target {match[1]} is out of range for {classes} classes (0 to {classes - 1}){span}",
        tuple(advice),
    )


def _row_range(scene: Scene, match: re.Match[str]) -> Cause | None:
    module = scene.module
    held = scene.torch_variables("embedding")
    table, given = held.get("weight"), held.get("input")
    if isinstance(module, nn.Embedding) and table is None:
        table = module.weight
    if not isinstance(table, Tensor) or not isinstance(given, Tensor):
        return None
    low, high = _range(given)
    if low is None or high is None:
        return None
    wrong = high if high >= table.shape[0] else low
    name = scene.name_of_module(module) if isinstance(module, nn.Embedding) else "the embedding"
    return Cause(
        f"the index {wrong} is out of range for {name}, which has {table.shape[0]} rows (0 to "
        f"{table.shape[0] - 1})",
        (
            "Make `num_embeddings` as large as the vocabulary with its special tokens, or the "
            "longest sequence for "
            "positions.",
        ),
    )


def _index_range(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    statement = None if place is None else scene.statement(place)
    if place is None or statement is None:
        return None
    for node in ast.walk(statement):
        held = scene.value(node.value, place) if isinstance(node, ast.Subscript) else None
        if isinstance(node, ast.Subscript) and isinstance(held, Tensor):
            return Cause(
                f"`{source(node)}` at {scene.at(place.line)} asks for index {match[1]} of "
                f"dimension {match[2]}, and "
                f"`{source(node.value)}` has shape {shape_text(held)}",
                (f"Indices of that dimension go from 0 to {int(match[3]) - 1}.",),
            )
    expression = scene.expression(place)
    for argument in arguments_of(expression):
        for node in ast.walk(argument):
            held = scene.value(node, place) if isinstance(node, ast.Name | ast.Attribute) else None
            if isinstance(held, Tensor) and not held.is_floating_point() and _range(held)[1] == int(match[1]):
                return Cause(
                    f"`{source(node)}` holds index {match[1]}, and dimension {match[2]} has size {match[3]} "
                    f"(`{source(expression or argument)}` at {scene.at(place.line)})",
                    (f"Indices of that dimension go from 0 to {int(match[3]) - 1}.",),
                )
    return None


def _long_targets(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("cross_entropy") or scene.torch_variables("nll_loss")
    target = held.get("target")
    if isinstance(target, Tensor):
        return Cause(
            f"the loss is given targets{scene.named(target)} of {dtype_text(target.dtype)} "
            f"{shape_text(target)}, and class indices have to be int64 (long)",
            (
                "Convert them once: `targets.long()`.",
                "For probabilities as targets, give them the shape of the logits.",
            ),
        )
    table = scene.torch_variables("embedding")
    given = table.get("input")
    if not isinstance(given, Tensor) and (found := _float_argument(scene)) is not None:
        return Cause(
            f"`{found[0]}` is {dtype_text(found[1].dtype)}, and `{found[2]}` wants whole "
            "numbers of int64 (long)",
            (f"Convert it: `{found[0]}.long()`.",),
        )
    if isinstance(given, Tensor):
        module = scene.module
        name = scene.name_of_module(module) if module is not None else "the embedding"
        return Cause(
            f"{name} is given indices of {dtype_text(given.dtype)}, and they have to be int64 or int32",
            ("Convert them: `ids.long()`.",),
        )
    return None


def _float_argument(scene: Scene) -> tuple[str, Tensor, str] | None:
    """A tensor that the script's innermost call is given, and that is not of int64."""
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    for argument in arguments_of(expression):
        value = scene.value(argument, place)
        if isinstance(value, Tensor) and value.dtype != torch.int64 and expression is not None:
            return source(argument), value, source(expression)
    return None


def _types(scene: Scene, match: re.Match[str]) -> Cause | None:
    """A tensor of one dtype meets weights of another."""
    module = scene.module
    given = _first_tensor(scene)
    weight = None if module is None else next(iter(module.parameters(recurse=False)), None)
    if module is not None and weight is not None and given is not None and given.dtype != weight.dtype:
        why = ""
        advice = [f"Convert the input: `x.to({weight.dtype})`, or the model: `model.to({given.dtype})`."]
        if given.dtype == torch.float64:
            why = ", the default of numpy and of Python's floats"
            advice.insert(0, "Make it float32 where it is made: `torch.from_numpy(x).float()`.")
        if not given.is_floating_point():
            why = " (whole numbers)"
        return Cause(
            f"the input of {scene.name_of_module(module)} is {dtype_text(given.dtype)}{why}, "
            "and its weights are "
            f"{dtype_text(weight.dtype)}",
            tuple(advice),
        )
    return _operand_types(scene)


def _operand_types(scene: Scene) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or expression is None:
        return None
    held = [
        (source(node), value)
        for node in ast.walk(expression)
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(value := scene.value(node, place), Tensor)
    ]
    for name, value in held[1:]:
        if value.dtype != held[0][1].dtype:
            return Cause(
                f"`{held[0][0]}` is {dtype_text(held[0][1].dtype)} and `{name}` is "
                f"{dtype_text(value.dtype)} at "
                f"{scene.at(place.line)}",
                (f"Convert one of them: `{name}.to({held[0][0]}.dtype)`.",),
            )
    return None


def _backward_type(scene: Scene, match: re.Match[str]) -> Cause | None:
    """A target of float64 makes a loss of float64, whose gradient does not fit."""
    for place in reversed(scene.own):
        for name, value in scene.variables(place).items():
            if isinstance(value, Tensor) and dtype_text(value.dtype) == "float64" and value.grad_fn is None:
                return Cause(
                    f"`{name}` is float64, the default of numpy and of Python's floats, and the "
                    "model computes in "
                    "float32: the gradient of the loss does not fit",
                    (f"Make it float32 where it is made: `{name}.float()`.",),
                )
    return None


def _devices(scene: Scene, match: re.Match[str]) -> Cause | None:
    module, given = scene.module, _first_tensor(scene)
    weight = None if module is None else next(iter(module.parameters(recurse=False)), None)
    if module is not None and weight is not None and given is not None and given.device != weight.device:
        return Cause(
            f"the input{scene.named(given)} of {scene.name_of_module(module)} is on {given.device}, and "
            f"its weights are on {weight.device}",
            (
                f"Move both to one device: `x.to({str(weight.device)!r})`, or "
                "`model.to(device)` before the loop.",
            ),
        )
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or expression is None:
        return None
    held = [
        (source(node), value)
        for node in ast.walk(expression)
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(value := scene.value(node, place), Tensor)
    ]
    for name, value in held[1:]:
        if value.device != held[0][1].device:
            return Cause(
                f"`{held[0][0]}` is on {held[0][1].device} and `{name}` is on {value.device} at "
                f"{scene.at(place.line)}",
                (f"Move one of them: `{name}.to({held[0][0]}.device)`.",),
            )
    return None


def _probabilities(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("binary_cross_entropy")
    what = match[1]
    value = held.get("target" if what == "target" else "input")
    if not isinstance(value, Tensor):
        return None
    low, high = _range(value)
    said = "" if low is None else f" goes from {low:.4g} to {high:.4g}"
    bad = "holds NaN" if said.endswith("nan") else f"{said.strip()}, and has to lie between 0 and 1"
    if what == "target":
        return Cause(f"the target of the binary cross entropy {bad}", ("Scale the targets to 0 and 1.",))
    made = (
        ""
        if value.grad_fn is None
        else value.grad_fn.name().removesuffix("0").removesuffix("Backward").lower()
    )
    raw = (
        f" (it comes from `{made}`, not from a sigmoid)"
        if made and made != "sigmoid" and "NaN" not in bad
        else ""
    )
    return Cause(
        f"the input of the binary cross entropy {bad}{raw}",
        ("Use `binary_cross_entropy_with_logits` on what the layer returns, or a sigmoid before.",),
    )


def _truth(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    statement = None if place is None else scene.statement(place)
    if place is None or statement is None:
        return None
    test = getattr(statement, "test", None)
    shown = source(test) if test is not None else source(statement)
    return Cause(
        f"`{shown}` at {scene.at(place.line)} asks whether a tensor of several values is true",
        ("Say which is meant: `.any()`, `.all()`, or `is not None`.",),
    )


def _one_number(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or not isinstance(expression, ast.Call):
        return None
    held = (
        expression.func.value
        if isinstance(expression.func, ast.Attribute)
        else next(iter(expression.args), None)
    )
    value = scene.value(held, place)
    shape = f" has shape {shape_text(value)}" if isinstance(value, Tensor) else f" has {match[1]} elements"
    return Cause(
        f"`{source(held) if held is not None else 'the tensor'}`{shape}, and `{source(expression)}` at "
        f"{scene.at(place.line)} takes one number",
        ("Reduce it first: `.mean()`, `.sum()` or an index; `.tolist()` for all numbers.",),
    )


def _whole_numbers(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or expression is None:
        return None
    for node in ast.walk(expression):
        value = scene.value(node, place) if isinstance(node, ast.Name | ast.Attribute) else None
        if type(value) is list and value and all(type(each) is int for each in value):
            return Cause(
                f"`{source(node)}` holds whole numbers, and `{source(expression)}` at "
                f"{scene.at(place.line)} needs "
                "floating point numbers",
                (
                    "Write them with a point (`0.0`), or pass `dtype=torch.float32`: "
                    f"`{source(node)}` becomes int64.",
                ),
            )
        if isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex():
            name = source(node)
            return Cause(
                f"`{name}` is {dtype_text(value.dtype)}, and `{source(expression)}` at "
                f"{scene.at(place.line)} needs "
                "floating point numbers",
                (f"Convert it: `{name}.float()`.",),
            )
    return None


def _no_tensor(scene: Scene, match: re.Match[str]) -> Cause | None:
    place, module = scene.innermost, scene.module
    expression = None if place is None else scene.expression(place)
    kind = match[2].rpartition(".")[2]
    named = [
        source(argument)
        for argument in arguments_of(expression)
        if type(scene.value(argument, place)).__name__ == kind
    ]
    taker = (
        scene.name_of_module(module)
        if module is not None
        else f"`{source(expression)}`"
        if expression
        else ""
    )
    if not taker:
        return None
    given = f"`{named[0]}`, {_article(kind)} {match[2]}" if named else f"{_article(kind)} {match[2]}"
    return Cause(
        f"{taker} is given {given}, and takes a tensor",
        (
            "Convert it: `torch.from_numpy(x).float()` or `torch.as_tensor(x)`; of a list of "
            "tensors `torch.stack(x)`; "
            "of a tuple or dictionary take the tensor inside.",
        ),
    )


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeiou" else "a"


def _range(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, Tensor) or value.numel() == 0 or value.numel() > _MOST_READ or value.is_meta:
        return None, None
    with own_operations():
        low, high = torch.aminmax(value.detach())
        return low.item(), high.item()


def _first_tensor(scene: Scene) -> Tensor | None:
    return next(_inputs(scene), None)


def _inputs(scene: Scene) -> Iterator[Tensor]:
    for place in reversed(scene.places):
        code = place.frame.f_code
        if code.co_name == "forward":
            held = scene.variables(place)
            for name in code.co_varnames[1 : code.co_argcount]:
                if isinstance(held.get(name), Tensor):
                    yield held[name]
            return


TABLE: Final = (
    (r"Target (-?\d+) is out of bounds", _class_range),
    (r"index out of range in self", _row_range),
    (r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)", _index_range),
    (r"expected scalar type Long but found|expected target dtype to be Long", _long_targets),
    (r"only applicable to index tensor of type LongTensor", _long_targets),
    (r'"nll_loss\w*" not implemented for', _long_targets),
    (r"expected floating point type for target with class probabilities", _long_targets),
    (r"Expected tensor for argument #1 'indices' to have one of the following scalar types", _long_targets),
    (r"must have the same dtype, but got|expected m1 and m2 to have the same dtype", _types),
    (r"(?:type|types) .*should be the same|expected scalar type \w+ but found|have different dtype", _types),
    (r"Found dtype (\w+) but expected (\w+)", _backward_type),
    (r"on the same device|is not on the expected device|tensors are not at the same device", _devices),
    (r"all elements of (input|target) should be between 0 and 1", _probabilities),
    (r"Boolean value of Tensor with more than one value is ambiguous", _truth),
    (r"a Tensor with (\d+) elements cannot be converted to Scalar", _one_number),
    (r"only (one element) tensors can be converted", _one_number),
    (r"could not infer output dtype|\"\w+\" not implemented for '(?:Long|Int|Byte|Bool)'", _whole_numbers),
    (r"only supports floating[- ]point|expected a floating", _whole_numbers),
    (r"Only Tensors of floating point .*can require gradients", _whole_numbers),
    (r"argument '(\w+)' (?:\(position \d+\) )?must be Tensor, not ([\w.]+)", _no_tensor),
)
"""Pattern -> who explains it, as in `causes/__init__.py`."""
