"""Each piece of advice: the evidence under which it is given, and one under which it is wrong and is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe.detectors.advice import advice_for, advice_of
from probe.detectors.advice_ops import OP_HINTS
from probe.detectors.advice_texts import ADVICE
from probe.detectors.advice_when import CHANGED, CONDITIONS, SORTED_DATA, Known, fits
from probe.detectors.base import Finding
from probe.detectors.cause_advice import (
    BLANK_INPUT,
    BROADCAST,
    COPIES,
    DRIFTED,
    LOSS_BOUND,
    LOSS_INPUT,
    RAW_INPUT,
    SLOW_REGION,
    SOFTMAX_OF_ONE,
)
from probe.detectors.initialization import AFTER_UPDATES

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
RATES = Known(rate=1e-5), Known(rate=0.1)
NAN, INF = Known(is_nan=True), Known(is_nan=False)
KEPT, UNKEPT = Known(held_for_backward=True), Known(held_for_backward=False)
CRITICAL, AFTER = Known(severity="critical"), Known(is_after_nonfinite=True)
READ, OP = Known(has_only_read=True), Known(op="aten.div.Tensor")
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
    "Small gradients become 0": ((HALF, Known(weights=HALF.dtypes)), (SINGLE, BFLOAT, UNKNOWN)),
    "Look at the operations inside this module": ((UNKNOWN,), (OP, READ)),
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
    "LeakyReLU or GELU let": ((UNKNOWN, BATCH), (RATE, WRITTEN)),
    "Skip the update of this step": ((UNKNOWN, GOOD), (BAD,)),
    "Restart from the last good checkpoint: the weights": ((BAD,), (UNKNOWN, GOOD)),
    "The parameters that hold NaN": ((UNKNOWN, Known(has_spread=True)), (Known(has_spread=False),)),
    "`clip_grad_norm_` does not help": ((UNKNOWN,), (Known(is_scaled=True),)),
    "No loss and no gradient was NaN": ((UNKNOWN,), (AFTER,)),
    "If it comes from padding": ((UNKNOWN, WARNING, INFO), (CRITICAL, AFTER)),
    "Look for missing values": ((UNKNOWN, NAN), (INF,)),
    "It is Inf, not NaN": ((INF,), (UNKNOWN, NAN)),
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
    "Usual causes: all ReLUs": _IN_PART,
    "No layer gets anything": ((EVERYWHERE,), (UNKNOWN,)),
    "Reduce the batch, the number": ((MEMORY,), (CPU,)),
    "Save a checkpoint now": ((MEMORY,), (CPU,)),
    "Most often a list of losses": ((UNKNOWN, PROCESS), (HELD,)),
    "Look for a cache without a limit": ((UNKNOWN, PROCESS), (HELD,)),
    "On the host: data loader workers": ((UNKNOWN, PROCESS), (HELD,)),
    "Reduce the batch size": ((UNKNOWN, Known(samples=32)), (Known(samples=1),)),
    "Trade time for memory": ((UNKNOWN, KEPT), (UNKEPT,)),
    "On a GPU": ((UNKNOWN, Known(is_on_device=True)), (Known(is_on_device=False),)),
    "With Adam, a larger eps": ((UNKNOWN, ADAM), (SGD,)),
    "Warm the learning rate up: Adam's": ((UNKNOWN, ADAM), (SGD, LATE)),
    "With SGD the update": ((UNKNOWN, SGD), (ADAM,)),
    "Raise the learning rate": ((UNKNOWN, RATES[0]), (RATES[1],)),
    "The optimizer has weight decay": ((Known(has_decay=True),), (UNKNOWN, Known(has_decay=False))),
    "With several optimizers": ((UNKNOWN, Known(optimizer_count=2)), (Known(optimizer_count=1),)),
    "If it is what guessing gives": ((UNKNOWN, WARNING), (INFO,)),
    "Check the wiring": ((UNKNOWN, WARNING), (INFO,)),
    "Check the loss: `cross": ((UNKNOWN, WARNING), (INFO,)),
    "Check the learning rate": ((UNKNOWN, WARNING), (INFO,)),
    "It stopped after learning": ((INFO,), (WARNING, UNKNOWN)),
    "Usual causes: a list": ((UNKNOWN, WARNING), (INFO,)),
    "Compare the module times": ((UNKNOWN, WARNING), (INFO,)),
    "The step's own work": ((INFO,), (UNKNOWN, WARNING)),
}
"""Of each sentence that depends on the evidence: where it is given, and where it would be wrong."""

GIVEN_UNLESS: dict[tuple[str, str], tuple[str, ...]] = {
    ("poor_initialization", "Use `kaiming_normal_`"): (*COPIES, *AFTER_UPDATES),
    ("poor_initialization", "Normalisation layers"): (*COPIES, *AFTER_UPDATES),
    ("input_out_of_range", "Look at this batch"): (*BLANK_INPUT, *RAW_INPUT, *DRIFTED),
    ("output_degenerate", "Look for dead units"): (*SOFTMAX_OF_ONE, *BROADCAST, *DRIFTED),
}
"""Sentences that are right unless the detector knows better: what it then says in their place."""
FOR_EVERY_EVENT: dict[str, str] = {
    "Call `optimizer.zero_grad()` once": "accumulated_gradient: the gradients are never cleared",
    "Keep the checkpoint of the lowest": "overfitting: the validation loss had a minimum, and rises since",
    "To go further, try more data": "overfitting: the remedies of what its name says, the mildest first",
    "Start again from a checkpoint that": "rank_divergence: replicas that differ stay different",
    "Look at what `probe.analyze_diffusion": "diffusion_nonfinite: it finds NaN in any part of the pipeline",
    "Check that model and scheduler": "diffusion_drift: what is expected is calculated from these",
    "Check the latents' scaling": "diffusion_drift: what is expected is calculated from these, too",
    "Read the first event of this run": "high_anomaly_rate: it has at least two events before it",
    "Raise `overhead_limit`": "throttled: the limit is why something is measured less often",
}
"""Instructions that hold for every event of their kind, by the definition of the kind: why."""


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


def test_other_sentences_say_what_the_kind_is_or_hold_for_every_event_of_it() -> None:
    """A new one comes unseen by no reader of this file: under which evidence is it wrong?"""
    unconditional = [
        (kind, sentence)
        for kind, sentences in ADVICE.items()
        for sentence in sentences[1:]
        if not any(sentence.startswith(beginning) for beginning in CONDITIONS)
    ]
    reasons = {beginning: why.partition(":")[0] for beginning, why in FOR_EVERY_EVENT.items()}
    listed = [(kind, beginning) for beginning, kind in reasons.items()] + list(GIVEN_UNLESS)
    for kind, sentence in unconditional:
        (found,) = [one for one in listed if one[0] == kind and sentence.startswith(one[1])]
        listed.remove(found)
    assert not listed, "these are gone, or depend on the evidence now"


@pytest.mark.parametrize(("kind", "beginning"), GIVEN_UNLESS)
def test_sentence_is_not_given_where_the_detector_knows_better(kind: str, beginning: str) -> None:
    finding = replace(FINDING, kind=kind)
    assert any(one.startswith(beginning) for one in advice_of(finding))
    for better in GIVEN_UNLESS[kind, beginning]:
        assert advice_of(replace(finding, advice=(better,))) == [better]


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


@pytest.mark.parametrize("advice", [LOSS_INPUT, LOSS_BOUND, BROADCAST, RAW_INPUT, SLOW_REGION])
def test_finding_with_advice_of_its_own_is_told_nothing_else(advice: tuple[str, ...]) -> None:
    for kind in ("loss_divergence", "loss_plateau", "output_degenerate", "input_out_of_range"):
        assert advice_of(replace(FINDING, kind=kind, advice=advice)) == list(advice)
        assert not set(advice) & set(advice_of(replace(FINDING, kind=kind)))
