"""No package but `compat` names what torch keeps private: found in the syntax of every file."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor, nn

PROBE = Path(__file__).resolve().parents[3] / "probe"
SOURCES = [path for path in sorted(PROBE.rglob("*.py")) if "compat" not in path.relative_to(PROBE).parts]
OF_PYTHON: Final = frozenset({"_getframe", "_current_frames", "_make", "_replace", "_fields", "_asdict"})
"""Of `sys` and of named tuples."""
ELSEWHERE_IN_TORCH: Final = frozenset(
    "_orig_mod _fsdp_wrapped_module _checkpoint_wrapped_module _local_tensor _schema _num_yielded "
    "_get_iterator _reset _shutdown_workers _c10d_functional _c10d_functional_autograd "
    "__dlpack_c_exchange_api__ __tensor_flatten__".split()
)
KEPT_BY_NODES: Final = ("_saved_", "_raw_saved_")


def private_names(thing: object) -> set[str]:
    return {name for name in dir(thing) if name.startswith("_") and not name.startswith("__")}


def names_of_torch() -> frozenset[str]:
    node = (torch.ones(1, requires_grad=True) * 2).grad_fn
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    things = (
        torch,
        torch._C,
        Tensor,
        nn.Module(),
        node,
        optimizer,
        torch.autograd.Variable,
        torch.amp.GradScaler("cpu", enabled=False),
    )
    return ELSEWHERE_IN_TORCH.union(*map(private_names, things))


TORCH: Final = names_of_torch()


def members_in(tree: ast.Module) -> set[str]:
    """Every attribute that a source file itself gives its classes, itself or its objects."""
    found = {node.attr for node in ast.walk(tree) if _is_assigned(node) and isinstance(node, ast.Attribute)}
    outside = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    found |= {
        name.id
        for node in outside
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and _is_assigned(name)
    }
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            found |= {node.name for node in owner.body if isinstance(node, ast.FunctionDef)}
            found |= {
                node.id for node in ast.walk(owner) if _is_assigned(node) and isinstance(node, ast.Name)
            }
    return found


def _is_assigned(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


@functools.cache
def members_of_probe() -> frozenset[str]:
    """Attributes of the probe's own classes and modules; not read when tests are only collected."""
    return frozenset().union(*(members_in(ast.parse(path.read_text())) for path in SOURCES))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def used_in(text: str) -> Iterator[str]:
    """Yield the private names of torch that a source text uses, each with its line."""
    tree = ast.parse(text)
    own = members_in(tree) | (members_of_probe() - TORCH)
    slots = {
        id(constant)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"
        for constant in ast.walk(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_own = ast.unparse(node.value) in ("self", "cls", "super()") or node.attr in own
            if is_private(node.attr) and not is_own and node.attr not in OF_PYTHON:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in slots:
            if node.value in TORCH or node.value.startswith(KEPT_BY_NODES):
                yield f"{node.lineno}: {node.value!r}"
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("torch"):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"{node.lineno}: import of {part}" for part in parts if is_private(part))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("torch.")]
            yield from (f"{node.lineno}: import of {name}" for name in names if "._" in name)


def test_no_other_package_uses_a_private_symbol_of_torch() -> None:
    found = {str(path.relative_to(PROBE)): list(used_in(path.read_text())) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "torch._foreach_norm(x)",
        "torch._C.DisableTorchFunctionSubclass()",
        "tensor._version",
        "module._buffers",
        "getattr(node, '_saved_self')",
        "getattr(node, f'_saved_{name}')",
        "hasattr(tensor, '_local_tensor')",
        "nn.modules.batchnorm._NormBase",
        "from torch._dynamo import eval_frame",
        "from torch.utils import _pytree",
        "import torch._dynamo",
    ],
)
def test_scan_finds_a_planted_symbol(line: str) -> None:
    assert list(used_in(line))


@pytest.mark.parametrize(
    "line", ["sys._getframe(1)", "self._version = 1", "pair._make(values)", "'_buffers of'", "torch.float32"]
)
def test_scan_passes_what_is_not_torchs(line: str) -> None:
    assert list(used_in(line)) == []
