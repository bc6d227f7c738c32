"""The table of a step's shapes names exactly the types that there are."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from types import ModuleType

import msgspec

import probe
from probe import step

PACKAGE = Path(probe.__file__).parent
WHOLE = {"ring_format", "evidence", "verdict", "step_queue", "followed_records"}
"""Modules outside of `probe.step` all of whose data is about one step."""


def rows() -> list[str]:
    return re.findall(r"^\| `(\w+\.\w+)`", step.__doc__ or "", re.MULTILINE)


def parts() -> list[str]:
    return re.findall(r"`(\w+\.\w+)`", (step.__doc__ or "").partition("Parts of them")[2])


def module(name: str) -> ModuleType:
    """A module by its base name, which is unique."""
    (path,) = PACKAGE.rglob(f"{name}.py")
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts))


def data_of(name: str) -> set[str]:
    """The public types of a module that are data: dataclasses, named tuples, structs."""
    found = vars(module(name)).values()
    own = {one for one in found if isinstance(one, type) and one.__module__ == module(name).__name__}
    return {f"{name}.{one.__name__}" for one in own if is_data(one) and not one.__name__.startswith("_")}


def is_data(one: type) -> bool:
    is_named = issubclass(one, tuple) and hasattr(one, "_fields")
    return is_named or dataclasses.is_dataclass(one) or issubclass(one, msgspec.Struct)


def test_every_type_of_the_table_exists_and_stands_there_once() -> None:
    named = rows() + parts()
    assert len(rows()) > 15 and len(set(named)) == len(named)
    for name in named:
        where, _, what = name.partition(".")
        assert isinstance(getattr(module(where), what), type)


def test_no_shape_of_a_step_is_missing() -> None:
    own = {path.stem for path in (PACKAGE / "step").glob("*.py")} - {"__init__"}
    existing = {name for one in own | WHOLE for name in data_of(one)}
    assert existing - {*rows(), *parts()} == set()


def test_data_of_the_loop_with_a_step_in_it_is_in_the_table() -> None:
    for path in (PACKAGE / "loop").glob("*.py"):
        for name in data_of(path.stem) if path.stem != "__init__" else ():
            fields = getattr(getattr(module(path.stem), name.partition(".")[2]), "__annotations__", {})
            has_step = "Step" in name or not {"step", "next_step", "measured"}.isdisjoint(fields)
            assert not has_step or name in rows()


def test_every_row_says_who_makes_and_who_reads_it() -> None:
    for line in (step.__doc__ or "").splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 4 and all(cells)
            assert all(re.match(r"[TRHC]\b|the same", cell) for cell in cells[2:])
