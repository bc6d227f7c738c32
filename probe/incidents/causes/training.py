"""Exceptions of optimizers, checkpoints, data loaders, scalers and ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from torch import Tensor, nn

from .scene import Cause, Scene, names_in, source

_WRAPPERS: Final = {
    "module.": "a model inside DistributedDataParallel",
    "_orig_mod.": "a compiled model",
    "model.": "a model inside another one",
}
_MOST_NAMED: Final = 3


def _no_parameters(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or expression is None:
        return None
    modules = [(name, scene.value(ast.Name(name, ast.Load()), place)) for name in names_in(expression)]
    for name, module in modules:
        if not isinstance(module, nn.Module):
            continue
        for part in module.modules():
            for attribute, value in dict(vars(part)).items():
                held = list(value.values()) if type(value) is dict else value
                if attribute.startswith("_") or type(held) not in (list, tuple):
                    continue
                if any(isinstance(each, nn.Module) for each in held):
                    kind = type(value).__name__
                    return Cause(
                        f"`{name}.parameters()` is empty: the layers in `{attribute}` lie in a "
                        f"plain {kind}, where "
                        "`nn.Module` does not see them",
                        ("Keep them in an `nn.ModuleList` or `nn.ModuleDict`.",),
                    )
        if not any(True for _ in module.parameters()):
            return Cause(
                f"`{name}.parameters()` is empty: {type(module).__name__} has no parameters",
                ("Make the layers in `__init__`, after `super().__init__()`, before the optimizer.",),
            )
    for name, value in modules:
        if isinstance(value, Iterator):
            return Cause(
                f"`{name}` is an iterator, which was read already, and gives nothing the second time",
                (f"Make a list of it first: `{name} = list(model.parameters())`.",),
            )
        if (made := scene.made_by(name, place)) is not None:
            return Cause(
                f"`{name}` is empty: nothing passes `{made[1]}` at "
                f"{scene.at(made[0], place)}{_frozen(scene)}",
                ("Look at which parameters have `requires_grad` and what they are called.",),
            )
    return Cause(
        f"`{source(expression)}` at {scene.at(place.line)} is given no parameters: an iterator "
        "that was read before is "
        "empty, and so is a filter that nothing passes",
        ("Pass `list(model.parameters())`, and look at what the filter leaves.",),
    )


def _frozen(scene: Scene) -> str:
    """Say that all parameters in sight are frozen, and by which name one was looked for."""
    parameters = scene.parameters
    if not parameters or any(parameter.requires_grad for parameter in parameters.values()):
        return ""
    tops = sorted({name.partition(".")[0] for name in parameters})
    return (
        f"; all {len(parameters)} parameters in sight are frozen "
        f"({', '.join(f'`{top}`' for top in tops[:4])})"
    )


def _state_dict(scene: Scene, match: re.Match[str]) -> Cause | None:
    text = str(scene.error)
    missing = _keys(text, r"Missing key\(s\) in state_dict: (.*?)\. *(?:\n|$)")
    unexpected = _keys(text, r"Unexpected key\(s\) in state_dict: (.*?)\. *(?:\n|$)")
    for prefix in _WRAPPERS:
        if unexpected and all(key.startswith(prefix) for key in unexpected):
            return Cause(
                f"every name in the checkpoint begins with `{prefix}`, and the model's names do not: it was "
                f"saved from {_WRAPPERS[prefix]}",
                (
                    "Take it off: "
                    f"`{{name.removeprefix({prefix!r}): value for name, value in state.items()}}`"
                    "; save the inner model next time.",
                ),
            )
        if missing and unexpected and all(key.startswith(prefix) for key in missing):
            return Cause(
                f"the model's names begin with `{prefix}`, which those of the checkpoint do "
                "not: the model is wrapped, "
                "the saved one was not",
                ("Load into the inner model (`model.module`, `model._orig_mod`), before it is wrapped.",),
            )
    sizes = re.findall(
        r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([\d, ]*)\]\) from checkpoint, "
        r"the shape in current model is torch\.Size\(\[([\d, ]*)\]\)",
        text,
    )
    if sizes:
        name, saved, here = sizes[0]
        more = f", and {len(sizes) - 1} more do not fit" if len(sizes) > 1 else ""
        return Cause(
            f"`{name}` has shape ({saved}) in the checkpoint and ({here}) in this model{more}",
            (
                "Make the model with the settings it was saved with, or leave that layer out "
                "of the checkpoint.",
            ),
        )
    if missing and not unexpected:
        return Cause(
            f"the checkpoint has no {_named(missing)}, which the model has",
            ("The model has layers that the saved one had not; `strict=False` leaves them as initialised.",),
        )
    if unexpected and not missing:
        return Cause(
            f"the checkpoint has {_named(unexpected)}, which the model does not have",
            ("The saved model had other layers; look at which code saved it. `strict=False` drops them.",),
        )
    if missing and unexpected:
        return Cause(
            f"the checkpoint has {_named(unexpected)} where the model has {_named(missing)}",
            ("The names differ: the saved model was built by other code.",),
        )
    return None


def _keys(text: str, pattern: str) -> list[str]:
    found = re.search(pattern, text, re.S)
    return re.findall(r'"([^"]+)"', found[1]) if found else []


def _named(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMED])
    return shown + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")


def _no_grad_yet(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    statement = None if place is None else scene.statement(place)
    if place is None or statement is None:
        return None
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            held = scene.value(node.value, place)
            if isinstance(held, Tensor):
                by_id = {id(parameter): name for name, parameter in scene.parameters.items()}
                name = by_id.get(id(held)) or source(node.value)
                return _missing_grad(name, held)
    return None


def _missing_grad(name: str, held: Tensor) -> Cause:
    if not held.requires_grad:
        return Cause(
            f"`{name}.grad` is None: `{name}` does not require gradients",
            ("Set `requires_grad_()` before the forward, or skip parameters without a gradient.",),
        )
    if not held.is_leaf:
        return Cause(
            f"`{name}.grad` is None: `{name}` is not a leaf (it was computed from other tensors), and "
            "only a leaf keeps its gradient",
            (f"Call `{name}.retain_grad()` before backward.",),
        )
    return Cause(
        f"`{name}.grad` is None: no backward has reached `{name}` since its gradients were cleared",
        (
            "Call backward first; a part that the loss does not use gets no gradient. Skip those: "
            "`if p.grad is not None`.",
        ),
    )


def _groups(scene: Scene, match: re.Match[str]) -> Cause | None:
    held = scene.torch_variables("load_state_dict")
    state, optimizer = held.get("state_dict"), held.get("self")
    groups = getattr(optimizer, "param_groups", None)
    saved = state.get("param_groups") if type(state) is dict else None
    if not isinstance(groups, list) or not isinstance(saved, list):
        return None
    here, there = ([len(group["params"]) for group in each] for each in (groups, saved))
    return Cause(
        f"the saved optimizer has {_group_text(there)}, this one has {_group_text(here)}",
        ("Freeze, unfreeze and add layers before the optimizer is made, as the saved run did.",),
    )


def _group_text(sizes: list[int]) -> str:
    if len(sizes) == 1:
        return f"{sizes[0]} parameters"
    return f"{len(sizes)} groups of {', '.join(map(str, sizes))} parameters"


def _scaler(scene: Scene, match: re.Match[str]) -> Cause | None:
    text = match[0]
    if "No inf checks" in text:
        return Cause(
            "`scaler.step` is called for an optimizer none of whose parameters has a gradient: "
            "backward was not called "
            "on `scaler.scale(loss)`, or reaches none of them",
            ("Call `scaler.scale(loss).backward()` before `scaler.step(optimizer)`.",),
        )
    if "already been called" in text:
        return Cause(
            "`scaler.unscale_` or `scaler.step` is called twice for one optimizer before `scaler.update()`",
            ("Call `scaler.update()` once at the end of every step.",),
        )
    return Cause(
        "the parameters themselves are float16, so their gradients are, and a GradScaler "
        "cannot unscale those",
        ("Keep float32 weights and use `torch.autocast`, without `model.half()`.",),
    )


def _unused_by_ranks(scene: Scene, match: re.Match[str]) -> Cause | None:
    numbers = [int(number) for number in re.findall(r"\d+", match[1] or "")]
    names = list(scene.parameters)
    named = [f"`{names[number]}`" for number in numbers if number < len(names)][:_MOST_NAMED]
    if not named:
        return None
    return Cause(
        f"{', '.join(named)} had no gradient in the step before, so DistributedDataParallel "
        "still waits for them",
        (
            "Make every parameter take part in the loss, or pass `find_unused_parameters=True`.",
            "A part that is not trained any more: `requires_grad_(False)` before wrapping.",
        ),
    )


def _no_group(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    expression = None if place is None else scene.expression(place)
    if place is None or expression is None:
        return None
    return Cause(
        f"`{source(expression)}` at {scene.at(place.line)} needs a process group, and "
        "`init_process_group` was not called "
        "in this process",
        ("Call `torch.distributed.init_process_group()` first, and start the script with `torchrun`.",),
    )


def _worker(scene: Scene, match: re.Match[str]) -> Cause | None:
    text = str(scene.error)
    killed = re.search(r"killed by signal: (\w+)", text)
    how = f"was killed by a signal ({killed[1]})" if killed else "ended without an exception"
    return Cause(
        f"a worker process of the DataLoader {how}",
        (
            "Killed by `SIGKILL` or `Killed`: memory ran out; use fewer workers or smaller samples.",
            "`Bus error`: shared memory ran out; enlarge /dev/shm (docker: `--shm-size`).",
            "To see an exception of the dataset, run with `num_workers=0` once.",
        ),
    )


def _worker_error(scene: Scene, match: re.Match[str]) -> Cause | None:
    text = str(scene.error)
    places = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    own = [place for place in places if "/site-packages/" not in place[0] and "/torch/" not in place[0]]
    last = [line for line in text.strip().splitlines() if line and not line.startswith(" ")][-1]
    where = f" at {own[-1][0].rpartition('/')[2]}:{own[-1][1]}, in `{own[-1][2]}`" if own else ""
    return Cause(
        f"the dataset raised {last} in worker {match[2]} of the DataLoader{where}",
        ("Run with `num_workers=0` to have the debugger and the whole stack there.",),
    )


def _frozen_inference(scene: Scene, match: re.Match[str]) -> Cause | None:
    place = scene.innermost
    if place is None:
        return None
    held: list[Any] = [
        (name, value)
        for name, value in scene.variables(place).items()
        if isinstance(value, Tensor) and value.is_inference()
    ]
    which = f"`{held[0][0]}`" if held else "a tensor of this step"
    return Cause(
        f"{which} was made under `torch.inference_mode()`, and autograd cannot record what is done with it",
        ("Use `torch.no_grad()` there, or `.clone()` it outside of inference mode.",),
    )


TABLE: Final = (
    (r"optimizer got an empty parameter list", _no_parameters),
    (r"Error\(s\) in loading state_dict", _state_dict),
    (r"'NoneType' object has no attribute|unsupported operand type\(s\) for .*'NoneType'", _no_grad_yet),
    (r"argument 'input' \(position 1\) must be Tensor, not NoneType", _no_grad_yet),
    (r"doesn't match the size of optimizer's group", _groups),
    (r"loaded state dict has a different number of parameter groups", _groups),
    (r"No inf checks were recorded", _scaler),
    (r"(?:unscale_|step)\(\) has already been called", _scaler),
    (r"Attempting to unscale FP16 gradients", _scaler),
    (r"did not receive grad for rank \d+: ([\d ]+)", _unused_by_ranks),
    (r"Default process group has not been initialized", _no_group),
    (r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:exited unexpectedly|is killed)", _worker),
    (r"Caught (\w+) in DataLoader worker process (\d+)", _worker_error),
    (r"Inference tensors cannot be", _frozen_inference),
)
"""Pattern -> who explains it, as in `causes/__init__.py`."""
