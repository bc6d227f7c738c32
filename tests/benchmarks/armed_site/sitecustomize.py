"""What a script of the fault bank executes at its start: has C follow its steps as early as can be, or never.

`NANSCOPE_BANK_ARMED` is `early` or `off`, the interval of every followed stretch goes to the file that
`NANSCOPE_BANK_REPORT` names. The looks at a model's first steps end with the first one in both cases. Waits
for the session's modules, whatever the launcher calls the probe.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_LAST = ".loop.session_builder"
"""Imports all that is changed here."""


class _WaitForTheProbe:
    """A finder that hands an import through, and is told when it is done."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.endswith("probe" + _LAST) or self._is_asking:
            return None
        self._is_asking = True
        spec = next(
            (
                found
                for finder in sys.meta_path
                if (found := finder.find_spec(name, path, target)) is not None
            ),
            None,
        )
        self._is_asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: Any) -> None:
                execute(module)
                _change(name.removesuffix(_LAST))

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _change(package: str) -> None:
    """As `early_arming` in the tests does."""
    modules = {name: sys.modules[f"{package}.{name}"] for name in _CHANGED}
    modules["loop.fast_path"].ARMED_AFTER = modules["loop.fast_path"]._LONGEST_WAIT = 1
    modules["loop.budget"]._EARLY_STEPS = frozenset({0})
    modules["loop.sample_judge"]._AT_LEAST_EVERY_S = float("inf")
    modules["settings.levels"].Settings.limit = 0.0
    # What is found is acted upon within a few steps, though a step of these scripts takes a millisecond.
    modules["loop.news_watch"]._PERIOD_S = 0.002
    modules["loop.step_queue"]._PERIOD_S = modules["loop.step_queue"].JUDGE_S = 0.002
    modules["delivery.recorder.recorder"].WRITE_S = 0.002
    early = modules["loop.early_watch"].EarlyWatch
    note_step = early.note_step

    def noted(self: Any, *args: Any) -> None:
        note_step(self, *args)
        of_partials = [call for _, call in self._clear]
        for hook in self._hooks._of_steps:
            for call in hook.calls:
                if getattr(call, "__self__", None) is self or call in of_partials:
                    hook.remove(call)

    early.note_step = noted
    training = modules["loop.followed_training"].FollowedTraining
    take_back, adopt_forward = training.take_back, training.adopt_forward

    def counted(self: Any, account: Any) -> None:
        _report(account.next_step - account.finished, account.next_step)
        take_back(self, account)

    def adopted(self: Any, *args: Any, **kwargs: Any) -> None:
        step = self._loop.counter.number
        _report(step + 1, step + 2)
        adopt_forward(self, *args, **kwargs)

    training.take_back, training.adopt_forward = counted, adopted
    if os.environ["NANSCOPE_BANK_ARMED"] == "off":
        binding = modules["measure.kernels.hot_binding"]
        never = binding.HotStatus(None, "not in this run")
        binding.status = lambda: never


_CHANGED = (
    "loop.fast_path",
    "loop.budget",
    "loop.sample_judge",
    "loop.early_watch",
    "loop.followed_training",
    "loop.news_watch",
    "loop.step_queue",
    "delivery.recorder.recorder",
    "settings.levels",
    "measure.kernels.hot_binding",
)


def _report(first: int, end: int) -> None:
    with Path(os.environ["NANSCOPE_BANK_REPORT"]).open("a") as file:
        file.write(f"{first} {end}\n")


if "NANSCOPE_BANK_ARMED" in os.environ:
    sys.meta_path.insert(0, _WaitForTheProbe())
