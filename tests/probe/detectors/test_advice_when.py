"""Each piece of advice: the evidence under which it is given, and one under which it is wrong and is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe.detectors.advice import advice_for, advice_of
from probe.detectors.advice_ops import OP_HINTS
from probe.detectors.advice_texts import ADVICE, BROADCAST, LOSS_BOUND, LOSS_INPUT, RAW_INPUT
from probe.detectors.advice_when import CHANGED, CONDITIONS, SORTED_DATA, Known, fits
from probe.detectors.base import Finding

UNKNOWN = Known()
HALF, SINGLE = Known(dtypes=frozenset({"float16"})), Known(dtypes=frozenset({"float32"}))
BFLOAT, FLOAT = Known(weights=frozenset({"bfloat16"})), Known(weights=frozenset({"float32"}))
RATE, MODE = Known(changes=frozenset({"learning rate"})), Known(changes=frozenset({"mode"}))
WRITTEN, SORTED = Known(changes=frozenset({"weights"})), Known(has_one_class=True)
BATCH = Known(changes=frozenset({"batch size", "level"}))
EARLY, LATE = Known(is_early=True), Known(is_early=False)
EVERYWHERE = Known(is_everywhere=True)
ADAM, SGD = Known(optimizers=frozenset({"AdamW"})), Known(optimizers=frozenset({"SGD"}))
MEMORY, CPU = Known(subject="device memory"), Known(subject="cpu")
PROCESS, HELD = Known(subject="process"), Known(subject="held")
WARNING, INFO = Known(severity="warning"), Known(severity="info")
BELOW = Known(is_below_zero=True)
BAD, GOOD = Known(are_weights_bad=True), Known(are_weights_bad=False)

_ONE_BATCH = ((UNKNOWN, BATCH), (RATE, MODE, WRITTEN, SORTED))
_NOT_EARLY, _NOT_LATE = ((UNKNOWN, LATE), (EARLY,)), ((UNKNOWN, EARLY), (LATE,))
_IN_PART = ((UNKNOWN,), (EVERYWHERE,))
GIVEN_AND_NOT: dict[str, tuple[tuple[Known, ...], tuple[Known, ...]]] = {
    "A product of finite numbers overflowed float16": ((HALF,), (SINGLE, UNKNOWN)),
    "A product of finite numbers overflowed: look": ((SINGLE, UNKNOWN), (HALF,)),
    "exp overflows above 11": ((HALF,), (SINGLE, UNKNOWN)),
    "exp overflows above 88": ((SINGLE, UNKNOWN), (HALF,)),
    "In float16": ((HALF,), (SINGLE, UNKNOWN)),
    "In half precision, check for underflow": ((HALF, UNKNOWN), (SINGLE,)),
    "In bfloat16 or float16 weights": ((BFLOAT, UNKNOWN), (FLOAT,)),
    "Autocast to bfloat16": ((FLOAT, UNKNOWN), (BFLOAT,)),
    "cross entropy is NaN when every target": ((UNKNOWN, Known(largest=40.0)), (Known(largest=3e37),)),
    "The logits are huge": ((Known(largest=3e37),), (UNKNOWN, Known(largest=40.0))),
    "Check the batch of this step": (_ONE_BATCH[0], (*_ONE_BATCH[1], Known(has_only_read=True))),
    "If the loss comes back": _ONE_BATCH,
    "If a gradient explosion came first": _ONE_BATCH,
    "Otherwise look at the batch": _ONE_BATCH,
    "If the loss does not come back": _ONE_BATCH,
    "One gradient was much larger": _ONE_BATCH,
    "Clip by norm": _ONE_BATCH,
    "If it repeats: lower": _ONE_BATCH,
    "Look at the batch of this step": _ONE_BATCH,
    "A loss that keeps rising": ((UNKNOWN, SORTED), (BELOW, RATE, MODE)),
    "A loss that falls ever faster": ((BELOW,), (UNKNOWN, RATE)),
    "If it rose suddenly": ((UNKNOWN, LATE), (EARLY, RATE)),
    "Divide the learning rate": ((UNKNOWN,), (RATE, MODE)),
    "Try a residual connection": ((UNKNOWN,), (RATE, WRITTEN)),
    "Skip the update of this step": ((UNKNOWN, GOOD), (BAD,)),
    "Restart from the last good checkpoint: the weights": ((BAD,), (UNKNOWN, GOOD)),
    "The parameters that hold NaN": ((UNKNOWN, Known(has_spread=True)), (Known(has_spread=False),)),
    "`clip_grad_norm_` does not help": ((UNKNOWN,), (Known(is_scaled=True),)),
    "No loss and no gradient was NaN": ((UNKNOWN,), (Known(is_after_nonfinite=True),)),
    "Usual cause: one update that was too large": _NOT_EARLY,
    "It is so from the start": _NOT_LATE,
    "Check the scale of the inputs first": _NOT_LATE,
    "It became so during training": _NOT_EARLY,
    "Initialise for the activation": _NOT_LATE,
    "It was so from the start": _NOT_LATE,
    "It became so: lower": _NOT_EARLY,
    "If it began after a large step": _NOT_EARLY,
    "If memory grew step by step": _NOT_EARLY,
    "A model that is not trained yet": _NOT_LATE,
    "Look between the first affected layer": _IN_PART,
    "If it is intended (an auxiliary": _IN_PART,
    "If it is meant to stay": _IN_PART,
    "With one of ordinary size": _IN_PART,
    "Reduce the batch, the number": ((MEMORY,), (CPU,)),
    "Save a checkpoint now": ((MEMORY,), (CPU,)),
    "Most often a list of losses": ((UNKNOWN, PROCESS), (HELD,)),
    "Look for a cache without a limit": ((UNKNOWN, PROCESS), (HELD,)),
    "On the host: data loader workers": ((UNKNOWN, PROCESS), (HELD,)),
    "Reduce the batch size": ((UNKNOWN, Known(samples=32)), (Known(samples=1),)),
    "On a GPU": ((UNKNOWN, Known(is_on_device=True)), (Known(is_on_device=False),)),
    "With Adam, a larger eps": ((UNKNOWN, ADAM), (SGD,)),
    "Warm the learning rate up: Adam's": ((UNKNOWN, ADAM), (SGD, LATE)),
    "With SGD the update": ((UNKNOWN, SGD), (ADAM,)),
    "The optimizer has weight decay": ((Known(has_decay=True),), (UNKNOWN, Known(has_decay=False))),
    "With several optimizers": ((UNKNOWN, Known(optimizer_count=2)), (Known(optimizer_count=1),)),
    "Check the wiring": ((UNKNOWN, WARNING), (INFO,)),
    "Check the loss: `cross": ((UNKNOWN, WARNING), (INFO,)),
    "Check the learning rate": ((UNKNOWN, WARNING), (INFO,)),
    "It stopped after learning": ((INFO,), (WARNING, UNKNOWN)),
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


def test_other_sentences_are_given_for_their_kind_alone() -> None:
    """What has no condition says what the kind is, or holds for whatever is of it."""
    whole = [sentence for kind in ADVICE for sentence in dict.fromkeys(ADVICE[kind])]
    plain = [one for one in whole if not any(one.startswith(beginning) for beginning in CONDITIONS)]
    assert len(plain) == len(set(plain)), "one of them is given for two kinds"
    meanings = {sentences[0] for sentences in ADVICE.values()}
    assert len(set(plain) - meanings) <= 36, "a new one: under which evidence is it wrong?"


def test_hint_of_an_op_is_given_for_no_other_op() -> None:
    for words, hints in OP_HINTS:
        for others, _ in OP_HINTS:
            if others is not words:
                given = advice_for("nonfinite_loss", Known(op=f"aten.{others[0]}.default", largest=3e37))
                assert not set(hints) & set(given), (words, others)


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


def test_data_sorted_by_class_come_first_of_what_they_explain() -> None:
    assert advice_for("loss_spike", SORTED) == [SORTED_DATA]
    assert SORTED_DATA not in advice_for("loss_spike", SORTED._replace(changes=RATE.changes))
    assert SORTED_DATA not in advice_for("memory_leak", SORTED)


FINDING = Finding(
    kind="loss_divergence", severity="warning", subject="loss", message="", value=9.0, threshold=1.0
)


def test_loss_that_rises_and_one_that_falls_below_zero_are_told_different_things() -> None:
    risen = advice_of(FINDING)
    fallen = advice_of(replace(FINDING, value=-900.0, threshold=-2.0))
    assert "keeps rising" in risen[0] and "no minimum" in fallen[0]
    assert not set(risen[:1]) & set(fallen) and not set(fallen[:1]) & set(risen)
    # A log density that rises, and a loss near 0, have not fallen.
    assert advice_of(replace(FINDING, value=-2.0, threshold=-5.0))[0] == risen[0]


@pytest.mark.parametrize("advice", [LOSS_INPUT, LOSS_BOUND, BROADCAST, RAW_INPUT])
def test_finding_with_advice_of_its_own_is_told_nothing_else(advice: tuple[str, ...]) -> None:
    for kind in ("loss_divergence", "loss_plateau", "output_degenerate", "input_out_of_range"):
        assert advice_of(replace(FINDING, kind=kind, advice=advice)) == list(advice)
        assert not set(advice) & set(advice_of(replace(FINDING, kind=kind)))
