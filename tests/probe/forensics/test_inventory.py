"""The functions that a replay guards: those that were frozen are read once, and none is missed."""

from __future__ import annotations

import gc
import sys
import sysconfig
from types import FunctionType, ModuleType

import pytest

from probe.forensics.effects.inventory import take_inventory

FILE = f"{sysconfig.get_path('purelib')}/some_package/steps.py"
SOURCE = """
def plain(): ...
class Held:
    def method(self): ...
    @property
    def value(self): ...
    @classmethod
    def of_class(cls): ...
    @staticmethod
    def static(): ...
"""


def functions() -> dict[str, FunctionType]:
    inventory = take_inventory()
    assert inventory is not None
    return {one.__name__: one for one in inventory.functions_of(FILE)}


def test_functions_of_a_frozen_package_are_found_however_late_they_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("some_package.steps")
    module.__file__ = FILE
    exec(compile(SOURCE, FILE, "exec"), vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, module.__name__, module)
    gc.freeze()
    names = {"plain", "method", "value", "of_class", "static"}
    assert functions().keys() == names
    assert functions().keys() == names
    exec(compile("def plain(): ...\ndef later(): ...", FILE, "exec"), vars(module))  # noqa: S102
    assert functions().keys() == {*names, "later"}
    gc.freeze()
    assert functions()["later"] is vars(module)["later"]
