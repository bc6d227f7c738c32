"""Advice: every kind has some, and an origin's op adds the hint that fits it."""

from __future__ import annotations

import pytest

from probe.detectors.advice import MAX_HINTS, advice_for
from probe.detectors.advice_texts import ADVICE
from probe.detectors.advice_when import Known
from probe.wire import KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.capability(73)
def test_advice_exists_for_every_kind(kind: str) -> None:
    assert all(hint.endswith(".") and len(hint) < 300 for hint in advice_for(kind))
    assert 1 <= len(advice_for(kind)) <= MAX_HINTS - 2, "an origin may add two"


def test_advice_kinds_are_kinds_of_the_wire() -> None:
    assert set(ADVICE) <= KINDS


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("aten.sqrt.default", "sqrt is NaN below 0"),
        ("aten.sqrt_.default", "sqrt is NaN below 0"),
        ("SqrtBackward0", "sqrt is NaN below 0"),
        ("aten.rsqrt.default", "rsqrt"),
        ("aten::log", "log is -Inf at 0"),
        ("aten.log1p.default", "log is -Inf at 0"),
        ("aten.div.Tensor", "Division by 0"),
        ("DivBackward0", "Division by 0"),
        ("aten.exp.default", "exp overflows"),
        ("aten._softmax.default", "fully masked row"),
        ("aten._safe_softmax.default", "fully masked row"),
        ("aten._log_softmax_backward_data.default", "fully masked row"),
        ("aten.pow.Tensor_Scalar", "fractional exponent"),
        ("aten.std.correction", "single element"),
        ("aten.var_mean.correction", "single element"),
        ("aten.linalg_vector_norm.default", "vector_norm"),
        ("aten.native_layer_norm.default", "constant input"),
        ("aten.acos.default", "outside -1..1"),
        ("aten.atan2.default", "atan2"),
        ("aten.nll_loss_forward.default", "ignore_index"),
        ("aten.binary_cross_entropy.default", "with_logits"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "fully masked row"),
        ("aten.addmm.default", "A product of finite numbers overflowed: look"),
        ("torch.log", "log is -Inf at 0"),
    ],
)
@pytest.mark.capability(73)
def test_advice_begins_with_the_hint_for_the_op(op: str, words: str) -> None:
    assert words in advice_for("nonfinite_loss", Known(phase="forward", op=op))[0]


_HOOK = "SqrtBackward0 (hook: mul)"
"""What a hook of the script did to the gradient of a square root says nothing of roots."""


@pytest.mark.parametrize(
    "op", ["aten.logical_and.default", "aten.expand.default", "aten.index.Tensor", "", _HOOK]
)
def test_advice_for_an_op_without_a_hint_is_the_kinds_own(op: str) -> None:
    assert advice_for("nonfinite_loss", Known(op=op)) == advice_for("nonfinite_loss")


def test_advice_for_a_backward_origin_says_so() -> None:
    hints = advice_for("nonfinite_gradient", Known(phase="backward", op="aten.sqrt.default"))
    assert "sqrt" in hints[0]
    assert hints[1].startswith("Forward was finite")
    assert len(hints) <= MAX_HINTS


def test_advice_for_a_kind_without_any_is_empty() -> None:
    assert advice_for("no_such_kind") == []
