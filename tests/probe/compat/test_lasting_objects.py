"""What is made inside of `lasting` is no reason for a full collection; garbage is found as before."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe
from probe.compat import lasting_objects
from probe.compat.lasting_objects import lasting

ROOT = Path(__file__).resolve().parents[3]
FULL_COLLECTIONS = """
import gc, sys
from contextlib import nullcontext
from probe.compat.lasting_objects import lasting
gc.collect()
before = gc.get_stats()[2]["collections"]
with lasting() if sys.argv[1] == "lasting" else nullcontext():
    kept = [set() for _ in range(len(gc.get_objects()))]
gc.set_threshold(50, 2, 2)
# Every generation's turn comes, and few objects live long: a full collection needs another reason.
for _ in range(30):
    passing = [set() for _ in range(60)]
print(gc.get_stats()[2]["collections"] - before)
"""


class Cycle:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python's collector as a script has it, with nothing young left of other tests."""
    gc.freeze()  # together they make all of it old; a collection would look at what all other tests hold
    gc.unfreeze()
    monkeypatch.setattr(lasting_objects, "_frozen_by_others", False)
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("how", ["lasting", "as ever"])
def test_what_lasts_brings_no_full_collection(how: str) -> None:
    command = [sys.executable, "-c", FULL_COLLECTIONS, how]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    assert (int(result.stdout) == 0) == (how == "lasting")


def test_garbage_from_before_is_collected_and_not_made_old() -> None:
    garbage = weakref.ref(Cycle())
    with lasting():
        pass
    assert garbage() is None


def test_what_was_made_is_found_by_a_full_collection_once_it_is_garbage() -> None:
    with lasting():
        made = Cycle()
    reference = weakref.ref(made)
    del made
    gc.collect(1)
    assert reference() is not None
    gc.collect()
    assert reference() is None


def test_an_exception_leaves_the_collector_enabled() -> None:
    with pytest.raises(ZeroDivisionError), lasting():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_collects_by_himself_goes_on_doing_so() -> None:
    gc.disable()
    garbage = weakref.ref(Cycle())
    with lasting():
        assert not gc.isenabled()
    assert not gc.isenabled()
    assert garbage() is not None


def test_what_the_user_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with lasting():
        pass
    assert gc.get_freeze_count() > 0.99 * frozen  # other threads may let go of some; thawed, there are none


def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [7]
    monkeypatch.setattr(gc, "get_freeze_count", counts.pop)
    for _ in range(3):
        with lasting():
            pass
    assert counts == []


def test_a_call_of_what_is_loaded_collects_nothing() -> None:
    assert probe.clip_gradients
    garbage = weakref.ref(Cycle())
    assert probe.clip_gradients
    assert garbage() is not None
