"""Which functions of installed packages a replay may call, by name."""

from __future__ import annotations

import pytest

from probe.forensics.effects.allowed_calls import is_allowed


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.nn.functional", "cross_entropy"),
        ("torch.autograd", "grad"),
        # What the probe has put in the place of torch's, also where a script has a `probe` of its own.
        ("probe.attach.gradient_calls", "grad"),
        ("_nanscope.probe.attach.gradient_calls", "grad"),
        ("torchmetrics.functional.classification", "accuracy"),
        ("math", "sqrt"),
        ("numpy", "mean"),
        ("time", "perf_counter"),
    ],
)
def test_what_computes_is_allowed(module: str, name: str) -> None:
    assert is_allowed(module, name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.serialization", "save"),
        ("torch.distributed.distributed_c10d", "all_reduce"),
        ("torch.utils.tensorboard.writer", "add_scalar"),
        ("numpy", "copyto"),
        ("numpy", "save"),
        ("builtins", "open"),
        ("operator", "iadd"),
        ("os", "remove"),
        ("queue", "put"),
        ("wandb.sdk.wandb_run", "log"),
        ("gymnasium.core", "step"),
        ("transformers.integrations.integration_utils", "rewrite_logs"),
    ],
)
def test_what_changes_other_things_is_refused(module: str, name: str) -> None:
    assert not is_allowed(module, name)
