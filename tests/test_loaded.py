"""What a healthy run has loaded: not what only faults and calls need, but all that a lack of memory needs.

`tests/test_imports.py` says who may import what.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_IN_A_HEALTHY_RUN = (
    *("probe.calls", "probe.integrations", "probe.self_check", "dashboard", "zmq"),
    *("safetensors", "numpy.ma", "pandas", "asyncio", "psutil"),
    *(
        f"probe.forensics.{name}"
        for name in ("replay", "passes", "rerun", "explain", "op_recorder", "dispatch")
    ),
    *(f"probe.forensics.{name}" for name in ("fidelity", "origin", "sources", "running_modules")),
    *(f"probe.forensics.loss.loss_{name}" for name in ("code", "origin", "replay", "values")),
    *(f"probe.forensics.bundle.{name}" for name in ("calls", "environment", "last_steps", "loss_lines")),
    *(f"probe.forensics.bundle.{name}" for name in ("model_state", "packer", "schema", "unpacker", "values")),
    *("probe.actions.recovery", "probe.measure.optimizer_state", "probe.attach.observation.context"),
    *(f"probe.actions.rules.{name}" for name in ("compiled", "step_view", "user_rule", "watchpoint")),
    *(f"probe.delivery.control.{name}" for name in ("control_messages", "parser", "rule_options")),
    "probe.delivery.journal.journal_reader",
    *("probe.delivery.helper.shipper", "probe.delivery.helper.link", "probe.detectors.ranks"),
    # Of a suspicion, an event, or a level that measures more.
    *(f"probe.memory.{name}" for name in ("growth_lines", "heap_kinds", "heap_looks", "heap_names")),
    *(f"probe.memory.{name}" for name in ("heap_walk", "leaks", "open_look", "source_parts")),
    *(f"probe.memory.{name}" for name in ("bounded", "followed", "plain_size")),
    *(f"probe.detectors.{name}" for name in ("advice_ops", "limits", "verdicts")),
    *(f"probe.attach.observation.{name}" for name in ("call_clock", "module_memory", "observed_step")),
    *(f"probe.attach.observation.{name}" for name in ("gradient_history", "gradient_noise")),
    *(f"probe.measure.statistics.{name}" for name in ("late_check", "magnitudes", "tensor_pairs")),
    *("probe.loop.followed_late", "probe.loop.step_evidence", "probe.loop.stray_modules"),
    *("probe.forensics.bundle.writer", "probe.forensics.bundle.packed_step"),
    *("probe.wire.bundle_format", "probe.wire.event_json"),
    *(f"probe.actions.rules.{name}" for name in ("pause", "quantities", "snapshots")),
    *("probe.delivery.control.grammar", "probe.wire.messages"),
    *(f"probe.actions.profiling.{name}" for name in ("step_profiler", "profiled_block", "recording")),
    *("probe.compat.torch_profiler", "torch.profiler", "probe.wire.profiles"),
    *("probe.settings.policies", "probe.settings.recovery_options"),
    *(f"probe.actions.optimisation.{name}" for name in ("applied", "benchmark", "modes", "optimised_model")),
    *("probe.wire.compared_modes", "torch.utils.checkpoint", "torch._inductor"),
)
"""Loaded by what first needs it, at a fault, a call or a request: by name, with all that lies inside."""
OF_ANALYSIS = {"", ".analysis_calls", ".report_calls", ".summary_calls", ".default_limits", ".memory_calls"}
"""What a session needs of `probe.actions.analysis`."""
THERE_BEFORE_IT_IS_NEEDED = (
    # A lack of memory or of file descriptors: then an import fails, and the event would say nothing.
    *("probe.memory.live_memory", "probe.memory.reachable", "probe.memory.memory_limit"),
    *("probe.incidents.failure_texts", "probe.incidents.failure_locals", "probe.incidents.event_writer"),
    *("probe.detectors.advice", "probe.forensics.incident_texts", "probe.threads.source_lines"),
    # A signal, a hang, the end of the interpreter.
    *(
        "probe.threads.hang_events",
        "probe.threads.life_sign",
        "probe.delivery.recorder.gap_watch",
        "traceback",
    ),
)
PROGRAM = """
import gc, json, sys, tempfile
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
train(2)
before = set(sys.modules)
gc.collect()
import probe
run = probe.watch(model, optimizer, connect="", spool=tempfile.mkdtemp(dir=sys.argv[1]))
watched = set(sys.modules)
from types import FunctionType
ours = [f for f in gc.get_objects() if type(f) is FunctionType and str(f.__module__).startswith("probe.")]
generated = {(f.__module__, f.__qualname__) for f in ours if f.__code__.co_filename == "<string>"}
generated = {(module, name.rpartition(".")[0]) for module, name in generated}
del ours
young = len(gc.get_objects(0)) + len(gc.get_objects(1))
train(60)
print(json.dumps([sorted(before), sorted(watched), sorted(sys.modules), young, len(generated)]))
"""


class Loaded(NamedTuple):
    """Names of modules in a fresh interpreter, and what its collector has yet to look at."""

    before: set[str]
    watched: set[str]
    trained: set[str]
    young: int
    """Objects after `watch` that are of the two younger generations."""
    generated: int
    """Classes of the probe with functions that were compiled from text, as those of dataclasses are."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """What is loaded before `watch`, after it, and after sixty healthy steps."""
    folder = tmp_path_factory.mktemp("spool")
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    collects = os.environ | {"TESTS_START_QUICKLY": ""}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=True, env=collects
    )
    before, watched, trained, young, generated = json.loads(result.stdout)
    return Loaded(set(before), set(watched), set(trained), young, generated)


@pytest.mark.parametrize("name", NOT_IN_A_HEALTHY_RUN)
def test_healthy_run_does_not_load(name: str, loaded: Loaded) -> None:
    ours = loaded.trained - loaded.before
    assert not [module for module in ours if module == name or module.startswith(f"{name}.")]


def test_healthy_run_loads_no_analysis(loaded: Loaded) -> None:
    package = "probe.actions.analysis"
    found = {module.removeprefix(package) for module in loaded.trained if module.startswith(package)}
    assert found == OF_ANALYSIS


@pytest.mark.parametrize("name", THERE_BEFORE_IT_IS_NEEDED)
def test_what_serves_the_end_is_loaded_by_watch(name: str, loaded: Loaded) -> None:
    assert name in loaded.watched


def test_healthy_steps_import_nothing(loaded: Loaded) -> None:
    # torch's own optimizers and NumPy load parts of theirs at a first call: those are not the probe's.
    late = {module for module in loaded.trained - loaded.watched if not module.startswith("torch.")}
    assert late == set()


def test_few_classes_are_compiled_when_they_are_loaded(loaded: Loaded) -> None:
    """A dataclass takes 0.6 ms of the import, a `msgspec.Struct` of as many fields 0.01."""
    assert 0 < loaded.generated < 50


def test_what_watch_makes_is_not_young(loaded: Loaded) -> None:
    """Else it brings a full collection, 0.16 s, into one of the first steps."""
    assert loaded.young < 700


def test_the_names_are_those_of_real_modules() -> None:
    ours = [name for name in NOT_IN_A_HEALTHY_RUN if name.startswith("probe.")]
    assert not [name for name in ours if not list(ROOT.glob(name.replace(".", "/") + "*"))]
