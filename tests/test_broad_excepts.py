"""Broad `except` stands in the guard alone; what is caught elsewhere for good has its reason here."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parent.parent
BROAD: Final = frozenset({"Exception", "BaseException"})
GUARD: Final = "probe/guard.py"
REASONS: Final = {
    "dashboard/ingest/spool.py": (
        "one run of a spool that cannot be read is told, and all others are read: nobody looks at a thread"
    ),
    "probe/calls/launch/site/sitecustomize.py": (
        "runs in every Python process below `dashboard run`, before the probe can be imported"
    ),
    "probe/calls/robust_step.py": "tries the user's own step again; what it does not try again it raises",
    "probe/calls/safe_inference.py": "tries the user's own call again; what it does not try again it raises",
    "probe/delivery/recorder/recorder.py": (
        "its thread goes on: memory may be short, or a file system gone, for a while"
    ),
}
"""Files that swallow what they catch, besides the guard."""


ELSEWHERE: Final = {
    "probe/delivery/helper/": "a process of its own",
    "probe/delivery/control/control_relay.py": "runs in the helper",
    "probe/delivery/control/place_check.py": "the doctor's, or before the run is there",
    "probe/delivery/journal/": "what reads journals: only what writes them runs beside the script",
    "probe/delivery/run_words.py": "words of the command line",
    "probe/forensics/bundle/": "what reads bundles",
    "probe/forensics/op_diff/": "a command",
    "probe/measure/kernels/": "loads a library, once",
    "probe/compat/nvrtc.py": "loads a library, once",
    "probe/compat/torch_symbols.py": "loads a library, once",
    "probe/memory/heap_meter.py": "loads a library, once",
    "probe/began.py": "where the process began, once",
    "probe/self_check.py": "the doctor's",
    "probe/settings/keys.py": "reads a key, once",
    "probe/wire/": "what reads documents and bundles",
}
"""What may swallow what a signal handler raises, since none of a training runs there."""


OF_HANDLERS: Final = frozenset({"OSError", "RuntimeError"})
"""TimeoutError is an OSError, and torch's handler raises a RuntimeError where a worker has died."""


def swallows_signals(node: ast.AST) -> bool:
    """Whether what a signal handler raises may end there as a failure of the system, or of torch."""
    if isinstance(node, ast.Call):
        swallowed = OF_HANDLERS & set(map(ast.unparse, node.args))
        return ast.unparse(node.func).endswith("suppress") and bool(swallowed)
    if not isinstance(node, ast.ExceptHandler) or node.type is None:
        return False
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    is_whole = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
    asks = any(name in ast.unparse(node) for name in ("let_pass(", "is_from_signal("))
    return bool(OF_HANDLERS & set(map(ast.unparse, kinds))) and not is_whole and not asks


def test_what_signal_handlers_raise_is_no_failure_of_the_system_or_of_torch() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "probe").rglob("*.py")
        if any(map(swallows_signals, ast.walk(ast.parse(path.read_text()))))
    }
    assert [name for name in sorted(found) if not name.startswith(tuple(ELSEWHERE))] == []
    writers = ("journal", "account", "segment_files", "run_json", "run_folders", "kept_room")
    assert found.isdisjoint(f"probe/delivery/journal/{name}.py" for name in writers)


def is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in BROAD) for kind in kinds)


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether the handler ends in a `raise`, of the same exception or of another."""
    return isinstance(handler.body[-1], ast.Raise)


def swallowing(text: str) -> int:
    """How many broad handlers of a source text may keep what they catch."""
    handlers = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler))
    return sum(is_broad(handler) and not passes_on(handler) for handler in handlers)


def test_only_the_guard_and_listed_files_swallow_exceptions() -> None:
    sources = [path for top in ("probe", "dashboard") for path in (ROOT / top).rglob("*.py")]
    found = Counter({str(path.relative_to(ROOT)): swallowing(path.read_text()) for path in sources})
    assert set(+found) == {GUARD, *REASONS}


@pytest.mark.parametrize(
    ("handler", "count"),
    [
        ("except Exception: pass", 1),
        ("except:\n    pass", 1),
        ("except (ValueError, BaseException) as error: print(error)", 1),
        ("except Exception:\n    if x: raise", 1),
        ("except Exception as error:\n    raise ValueError from error", 0),
        ("except BaseException:\n    tidy()\n    raise", 0),
        ("except (ValueError, OSError): pass", 0),
    ],
)
def test_scan_counts_what_may_be_swallowed(handler: str, count: int) -> None:
    assert swallowing(f"try:\n    work()\n{handler}") == count
