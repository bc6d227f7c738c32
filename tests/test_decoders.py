"""Whatever bytes a file or a peer holds, decoding them is an error that somebody expects, in every place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PLAIN: Final = frozenset(
    "json.loads json.load tomllib.loads tomllib.load msgspec.json.decode msgspec.msgpack.decode "
    "msgspec.toml.decode msgspec.yaml.decode".split()
)
DECODERS: Final = ("msgspec.json.Decoder", "msgspec.msgpack.Decoder")
EXPECTED: Final = "RecursionError"
REASONS: Final = {
    "dashboard/export/figures.py": "decodes what plotly has just encoded, of figures that our views made",
    "probe/forensics/op_diff/traced_step.py": "reads names of values that its own parent has encoded",
}
"""Files whose bytes are our own."""


def names_of_decoders(tree: ast.Module) -> set[str]:
    """Variables that hold a decoder."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if ast.unparse(node.value.func) in DECODERS:
                found |= {ast.unparse(target) for target in targets}
    return found


def is_decoding(call: ast.Call, decoders: set[str]) -> bool:
    name = ast.unparse(call.func)
    return name in PLAIN or name.removesuffix(".decode") in decoders


def expects(text: str) -> bool:
    return EXPECTED in text


def unguarded(node: ast.AST, decoders: set[str], *, is_guarded: bool = False) -> Iterator[int]:
    """Yield the lines of decoding calls that no handler around them expects to fail."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        is_guarded = False
    if isinstance(node, ast.Call) and is_decoding(node, decoders) and not is_guarded:
        yield node.lineno
    if isinstance(node, ast.Try):
        handled = any(handler.type and expects(ast.unparse(handler.type)) for handler in node.handlers)
        for child in node.body:
            yield from unguarded(child, decoders, is_guarded=is_guarded or handled)
        for child in (*node.handlers, *node.orelse, *node.finalbody):
            yield from unguarded(child, decoders, is_guarded=is_guarded)
        return
    if isinstance(node, ast.With) and any(expects(ast.unparse(item)) for item in node.items):
        is_guarded = True
    for child in ast.iter_child_nodes(node):
        yield from unguarded(child, decoders, is_guarded=is_guarded)


def found_in(text: str) -> list[int]:
    tree = ast.parse(text)
    return list(unguarded(tree, names_of_decoders(tree)))


def test_every_decoding_of_foreign_bytes_expects_whatever_they_are() -> None:
    sources = [path for top in ("probe", "dashboard") for path in (ROOT / top).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): found_in(path.read_text()) for path in sources}
    assert {path: lines for path, lines in found.items() if lines and path not in REASONS} == {}
    assert {path for path, lines in found.items() if lines} == set(REASONS)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("json.loads(x)", 1),
        ("try:\n    json.loads(x)\nexcept ValueError: pass", 1),
        ("try:\n    json.loads(x)\nexcept (ValueError, RecursionError): pass", 0),
        ("try:\n    pass\nexcept RecursionError:\n    json.loads(x)", 1),
        ("with suppress(OSError, RecursionError):\n    msgspec.json.decode(x, type=T)", 0),
        ("with open(x):\n    msgspec.json.decode(x, type=T)", 1),
        ("d: Final = msgspec.json.Decoder(T)\ndef f(): return d.decode(x)", 1),
        ("try:\n    def f(): json.loads(x)\nexcept RecursionError: pass", 1),
        ("b'x'.decode()", 0),
    ],
)
def test_unguarded_decoding_is_found(text: str, count: int) -> None:
    assert len(found_in(text)) == count
