"""Advice: every kind has some, and an origin's op adds the hint that fits it."""

from __future__ import annotations

import pytest

from probe.detectors.advice import MAX_HINTS, advice_for
from probe.detectors.advice_ops import OP_HINTS
from probe.detectors.advice_texts import ADVICE
from probe.detectors.advice_when import CHANGED, CONDITIONS, Known, fits
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


# ------------------------------------------------------------------- chosen by the evidence

_HALF, _SINGLE = Known(dtypes=frozenset({"float16"})), Known(dtypes=frozenset({"float32"}))
_RATE, _MODE = Known(changes=frozenset({"learning rate"})), Known(changes=frozenset({"mode"}))
_READ, _UNKNOWN = Known(has_only_read=True), Known()
_BATCH = Known(changes=frozenset({"batch size", "level"}))
GIVEN_AND_NOT: dict[str, tuple[tuple[Known, ...], tuple[Known, ...]]] = {
    "A product of finite numbers overflowed float16": ((_HALF,), (_SINGLE, _UNKNOWN)),
    "A product of finite numbers overflowed: look": ((_SINGLE, _UNKNOWN), (_HALF,)),
    "exp overflows above 11": ((_HALF,), (_SINGLE, _UNKNOWN)),
    "exp overflows above 88": ((_SINGLE, _UNKNOWN), (_HALF,)),
    "In float16 squares overflow": ((_HALF,), (_SINGLE, _UNKNOWN)),
    "In float16 a product above": ((_HALF,), (_SINGLE, _UNKNOWN)),
    "In half precision, check for underflow": ((_HALF, _UNKNOWN), (_SINGLE,)),
    "In bfloat16 or float16 weights": ((Known(dtypes=frozenset({"bfloat16"})), _UNKNOWN), (_SINGLE,)),
    "cross entropy is NaN when every target": ((_UNKNOWN, Known(largest=40.0)), (Known(largest=3e37),)),
    "The logits are huge": ((Known(largest=3e37),), (_UNKNOWN, Known(largest=40.0))),
    "Check the batch of this step": ((_UNKNOWN, _BATCH), (_READ, _RATE, _MODE)),
    "If the loss comes back": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
    "If a gradient explosion came first": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
    "Otherwise look at the batch": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
    "If the loss does not come back": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
    "One gradient was much larger": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
    "Clip by norm": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
    "If it repeats: lower": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
    "Look at the batch of this step": ((_UNKNOWN, _BATCH), (_RATE, _MODE)),
}
"""Of each sentence that depends on the evidence: where it is given, and where it would be wrong."""


def test_each_conditional_sentence_exists_and_is_in_the_table() -> None:
    kinds = [sentence for sentences in ADVICE.values() for sentence in sentences]
    ops = [hint for _, hints in OP_HINTS for hint in hints]
    assert GIVEN_AND_NOT.keys() == CONDITIONS.keys()
    for beginning in CONDITIONS:
        assert any(sentence.startswith(beginning) for sentence in kinds + ops), beginning


@pytest.mark.parametrize("beginning", GIVEN_AND_NOT)
def test_sentence_is_given_where_it_fits_and_is_not_where_it_is_wrong(beginning: str) -> None:
    given, not_given = GIVEN_AND_NOT[beginning]
    assert [fits(beginning, known) for known in given] == [True] * len(given)
    assert [fits(beginning, known) for known in not_given] == [False] * len(not_given)


@pytest.mark.parametrize("what", CHANGED)
def test_change_of_the_training_comes_first_of_what_it_explains(what: str) -> None:
    known = Known(changes=frozenset({what}), op="aten.exp.default")
    assert advice_for("loss_spike", known)[0] == CHANGED[what]
    assert CHANGED[what] not in advice_for("loss_spike")
    assert CHANGED[what] not in advice_for("memory_leak", known)


def test_op_that_only_read_what_was_bad_gets_no_advice_of_its_own() -> None:
    op = "aten.addmm.default"
    made = advice_for("nonfinite_loss", Known(op=op, dtypes=frozenset({"float32"})))
    assert made[0].startswith("A product of finite numbers overflowed: look")
    read = advice_for("nonfinite_loss", Known(op=op, has_only_read=True))
    assert not any("overflowed" in sentence for sentence in read)
