"""A loss without a graph, or one that backward cannot begin at; tensors that autograd cannot follow."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...forensics.cut_line import find_cut_after
from .flow import calls_in
from .scene import Cause, Place, Scene, shape_text, source, tensors_in

_MOST_NODES: Final = 20_000


def _no_graph(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    function = None if place is None else scene.function(place)
    if place is None or function is None:
        return None
    named = {name.partition(".")[0] for name in scene.parameters}
    trained = [parameter for parameter in scene.parameters.values() if parameter.requires_grad]
    if scene.parameters and not trained:
        owner = f"`{min(named)}`" if len(named) == 1 and min(named).isidentifier() else "the model"
        return Cause(
            f"no parameter of {owner} requires gradients (requires_grad is False for all "
            f"{len(scene.parameters)}), so the loss has no graph",
            ("Leave the part that is to be trained with `requires_grad=True`.",),
        )
    cut = find_cut_after(function, lambda called: _is_model(scene.value(called.func, place)))
    if cut is None:
        return _switched_off(scene)
    if cut is not None:
        return Cause(
            f"the loss is cut off from the model at {scene.at(cut.line, place)}: `{cut.text}` "
            "has no gradient",
            (
                "Compute the loss from the model's output itself: argmax, comparisons, "
                "`.item()`, `.detach()`, "
                "`.data`, `.numpy()` and `torch.tensor(...)` carry no graph, nor does code "
                "under `torch.no_grad()`.",
            ),
        )
    return None


def _switched_off(scene: Scene) -> Cause | None:
    """A function of the script's file that calls a model under `torch.no_grad()`; the only one there is."""
    place = scene.innermost
    tree = None if place is None else scene.file_source(place)
    found = [
        (node.lineno, source(item.context_expr))
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, ast.With)
        for item in node.items
        if "no_grad" in source(item.context_expr) or "inference_mode" in source(item.context_expr)
        if any(isinstance(each, ast.Call) for inner in node.body for each in ast.walk(inner))
    ]
    if place is None or len(found) != 1 or found[0][0] > place.line:
        return None
    return Cause(
        f"the loss has no graph: `with {found[0][1]}` at {scene.at(found[0][0], place)} "
        "switches gradients off for "
        "what it is computed from",
        ("Leave the forward and the loss outside of that block.",),
    )


def _not_scalar(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    loss = None if place is None else _receiver(scene, place)
    if loss is None or place is None:
        return None
    name = scene.tensor_names(loss) or "loss"
    function = scene.function(place)
    unreduced = next((call for call in calls_in(function) if _is_unreduced(scene, call, place)), None)
    why = (
        f": `{source(unreduced)}` at {scene.at(unreduced.lineno, place)} reduces nothing" if unreduced else ""
    )
    return Cause(
        f"`{name}` has shape {shape_text(loss)} and is not one number{why}",
        ("Reduce it: `.mean()` or `.sum()`, or a loss with `reduction='mean'`.",),
    )


def _is_unreduced(scene: Scene, call: ast.Call, place: Place) -> bool:
    for keyword in call.keywords:
        if keyword.arg == "reduction" and getattr(keyword.value, "value", "") == "none":
            return True
    return getattr(scene.value(call.func, place), "reduction", "") == "none"


def _leaf_written(scene: Scene, match: re.Match[str]) -> Cause | None:
    statement = scene.statement(scene.own[-1]) if scene.own else None
    if statement is None:
        return None
    return Cause(
        f"`{source(statement)}` at {scene.at(scene.own[-1].line)} changes a tensor in place that "
        "requires gradients",
        (
            "Put it under `with torch.no_grad():`, or let an optimizer make the update.",
            "For an initialisation use `torch.nn.init`, which does that.",
        ),
    )


def _to_numpy(scene: Scene, match: re.Match[str]) -> Cause | None:
    expression = scene.expression(scene.own[-1]) if scene.own else None
    if expression is None:
        return None
    held = receiver_of(expression, "numpy") or next(iter(_arguments(expression)), None)
    if held is None:
        return None
    return Cause(
        f"`{source(held)}` at {scene.at(scene.own[-1].line)} requires gradients, and numpy "
        "cannot hold its graph",
        (f"Use `{source(held)}.detach().cpu().numpy()`; for a number `.item()`.",),
    )


def _unused_input(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("grad")
    outputs = tensors_in(held.get("t_outputs", held.get("outputs")))
    inputs = tensors_in(held.get("inputs"))
    reached = _leaves(outputs)
    missed = [each for each in inputs if each.is_leaf and id(each) not in reached]
    if not missed:
        return None
    by_id = {id(parameter): name for name, parameter in scene.parameters.items()}
    name = by_id.get(id(missed[0])) or scene.tensor_names(missed[0])
    if not name:
        return None
    more = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
    return Cause(
        f"`{name}`{more} is not used to compute what is differentiated",
        ("Pass `allow_unused=True` if that is intended, or leave it out of `inputs`.",),
    )


def _receiver(scene: Scene, place: Place) -> Tensor | None:
    expression = scene.expression(place)
    value = scene.value(receiver_of(expression, "backward"), place)
    if isinstance(value, Tensor):
        return value
    held = scene.torch_variables("backward") or scene.torch_variables("grad")
    given = tensors_in(held.get("self", held.get("tensors", held.get("outputs"))))
    return given[0] if given else None


def receiver_of(expression: ast.expr | None, name: str) -> ast.expr | None:
    """Return `x` of `x.name()`; None of anything else."""
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return expression.func.value if expression.func.attr == name else None
    return None


def _arguments(expression: ast.expr) -> list[ast.expr]:
    return expression.args if isinstance(expression, ast.Call) else []


def _is_model(value: Any) -> bool:
    return isinstance(value, nn.Module) and any(True for _ in value.parameters())


def _leaves(outputs: list[Tensor]) -> set[int]:
    """Identities of the leaf tensors that a graph leads to."""
    waiting: list[Any] = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen, found = set(map(id, waiting)), set[int]()
    kept = list(waiting)  # nodes are made anew by each read: one that is gone may lend its identity
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.add(id(leaf))
        for following, _ in node.next_functions:
            if following is not None and id(following) not in seen:
                seen.add(id(following))
                kept.append(following)
                waiting.append(following)
    return found


def _attribute_name(scene: Scene, held: Tensor) -> str:
    """A tensor that a module keeps as a plain attribute."""
    for place in scene.own:
        for name, value in scene.variables(place).items():
            for inner, module in value.named_modules() if isinstance(value, nn.Module) else ():
                for attribute, each in dict(vars(module)).items():
                    if each is held:
                        return f"`{'.'.join(part for part in (name, inner, attribute) if part)}`"
    return ""


def _without_parameters(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("add_param_group").get("param")
    if not isinstance(held, torch.Tensor) or held.grad_fn is None:
        return None
    what = scene.name_of(held) or _attribute_name(scene, held) or f"a tensor of shape {shape_text(held)}"
    made = held.grad_fn.name().removesuffix("0").removesuffix("Backward")
    return Cause(
        f"{what}, which the optimizer is given, was computed from other tensors (by `{made}`) "
        "and is not a leaf",
        (
            "Make it on its device with its dtype first, then `requires_grad_()`: "
            "`torch.zeros(3, device=device)"
            ".requires_grad_()`; or wrap it in `nn.Parameter`.",
        ),
    )


TABLE: Final = (
    (r"does not require grad and does not have a grad_fn", _no_graph),
    (r"grad can be implicitly created only for", _not_scalar),
    (r"leaf Variable that requires grad .*in-?place", _leaf_written),
    (r"Can't call numpy\(\) on Tensor that requires grad", _to_numpy),
    (r"appears to not have been used in the graph", _unused_input),
    (r"can't optimize a non-leaf Tensor", _without_parameters),
)
"""Pattern -> who explains it, as in `causes/__init__.py`."""
