"""What a healthy run does not need is loaded when it is asked for: on the recorder's thread."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.delivery.recorder import late_parts
from probe.delivery.recorder.late_parts import LateParts

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("no_module_of_ours_1", "no_module_of_ours_2")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was imported."""
    names: list[str] = []
    monkeypatch.setattr(late_parts, "import_module", names.append)
    return names


def test_nothing_is_loaded_before_it_is_asked_for(loaded: list[str]) -> None:
    tasks: list[Callable[[], None]] = []
    LateParts(NAMES, tasks.append)
    assert not tasks and not loaded


def test_the_thread_loads_them_once_in_their_order(loaded: list[str]) -> None:
    tasks: list[Callable[[], None]] = []
    parts = LateParts(NAMES, tasks.append)
    assert not parts.are_loaded() and not parts.are_loaded()
    for done, load in enumerate(tasks):
        assert loaded == list(NAMES[:done]) and not parts.are_loaded()
        load()
    assert loaded == list(NAMES) and parts.are_loaded()
    assert len(tasks) == len(NAMES), "one is loaded in a piece: between two the thread looks at the training"


def test_what_is_there_is_not_loaded_again() -> None:
    tasks: list[Callable[[], None]] = []
    assert LateParts([importlib.__name__], tasks.append).are_loaded()
    assert not tasks


def test_a_module_that_cannot_be_loaded_is_tried_no_more(caplog: pytest.LogCaptureFixture) -> None:
    tasks: list[Callable[[], None]] = []
    parts = LateParts(NAMES, tasks.append)
    assert not parts.are_loaded()
    tasks[0]()
    assert NAMES[0] in caplog.text and NAMES[1] not in caplog.text
    assert not parts.are_loaded() and len(tasks) == 1


def test_a_look_at_the_heap_imports_no_more_than_it_has_loaded() -> None:
    """Else the rest would be imported in a step; and each of them loads one module, not all at once."""
    program = """
import sys
from importlib import import_module
from probe.memory.leak_watch import LOOKS
def ours():
    return {name for name in sys.modules if name.startswith("probe.memory.")}
before = ours()
for name in LOOKS:
    import_module(name)
    assert ours() - before == {name}, (name, ours() - before)
    before = ours()
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
