"""Every test here runs twice: C follows none of the steps, then all that it can; both record the same.

What a test asserts holds for both. `never_followed.py` lists the set-ups in which C follows no step, and why.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from early_arming import early_arming
from journal_differences import differences
from journals import Journal, read_journal
from never_followed import RUN_ONCE, reason_of

from probe.measure.kernels import hot_binding


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test in both ways, in a folder each, and compare what was recorded."""
    if pyfuncitem.module.__name__ in RUN_ONCE or hot_binding.status().calls is None:
        return None
    spools, followed = [], 0
    for way in ("slow", "in_c"):
        with early_arming(in_c=way == "in_c") as seen, pytest.MonkeyPatch.context() as patch:
            spools.append(_run(pyfuncitem, way, patch))
        followed = seen.steps
    compare(pyfuncitem.name, *spools, followed=followed)
    return True


def _run(item: pytest.Function, way: str, patch: pytest.MonkeyPatch) -> list[Journal]:
    """Run a test's function; returns the journals that it has left, in order."""
    folder: Path = item.funcargs["tmp_path"] / way if "tmp_path" in item.funcargs else _folder(item) / way
    folder.mkdir()
    patch.setenv("NANSCOPE_SPOOL", str(folder / "spool"))
    others: dict[str, Any] = {"tmp_path": folder, "spool": folder / "spool"}
    names = inspect.signature(item.obj).parameters
    torch.manual_seed(0)
    if "caplog" in item.funcargs:
        item.funcargs["caplog"].clear()
    item.obj(**{name: others.get(name, item.funcargs[name]) for name in names})
    journals = [read_journal(path.parent) for path in sorted(folder.rglob("run.json"))]
    return sorted(journals, key=lambda journal: journal.start.time)


def _folder(item: pytest.Function) -> Path:
    """`private_folders` has asked for it."""
    folder: Path = item._request.getfixturevalue("tmp_path")
    return folder


def compare(name: str, slow: list[Journal], in_c: list[Journal], *, followed: int) -> None:
    """Fail where the runs differ, or where the list of set-ups that C does not follow is wrong."""
    reason = reason_of(name)
    if not slow and not in_c:
        assert reason is None, f"{name} records nothing, and is listed in never_followed.py"
        return
    assert len(slow) == len(in_c)
    found = []
    for one, other in zip(slow, in_c, strict=True):
        found += differences(one, other)
    assert found == [], f"{followed} steps were followed"
    if reason is None:
        assert followed, f"C followed no step of {name}: say why in never_followed.py"
    else:
        assert not followed, f"C follows {followed} steps of {name} now: take it out of never_followed.py"
