"""What an event of each kind means and what to try: short sentences that the session puts into the event.

Pure text. Called when an episode begins, with the origin where the replay has found one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_HINTS: Final = 8

_NONFINITE_NEXT: Final = (
    "The parameters that hold NaN are where it spread to, not where it began: start from the origin "
    "above, or from the first event of this run.",
    "Check the batch of this step: missing values, empty samples, targets out of range.",
)

ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    "nonfinite_loss": (
        "The forward pass or the loss produced NaN or Inf; backward spreads it to every parameter it "
        "reaches.",
        "Skip the update of this step (`if not torch.isfinite(loss): continue`), or restart from the last "
        "good checkpoint if the weights are already NaN.",
        *_NONFINITE_NEXT,
    ),
    "nonfinite_gradient": (
        "If the loss is finite, an operation in backward divided by zero or overflowed; the optimizer step "
        "would make the weights NaN for good.",
        "`clip_grad_norm_` does not help: one NaN makes all gradients NaN, one Inf makes all others 0. Pass "
        "`error_if_nonfinite=True`, or skip the step.",
        *_NONFINITE_NEXT,
    ),
    "nonfinite_parameter": (
        "The weights themselves are NaN or Inf: every further step is lost. Stop, and restart from a "
        "checkpoint from before this step.",
        "If no gradient event came before, look at the optimizer: learning rate, eps, weight decay, or code "
        "that writes to parameters directly.",
    ),
    "gradient_explosion": (
        "One step much larger than usual: a bad batch, a learning rate at the edge of stability, or an "
        "unbounded operation in the layer named.",
        "Clip by norm at a few times the run's median "
        "(`torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`), after unscaling under GradScaler.",
        "If it repeats: lower the learning rate, lengthen its warm-up, or with Adam try beta2 = 0.95.",
        "Look at the batch of this step; several in a row with growing norms mean divergence, not bad luck.",
    ),
    "gradient_vanishing": (
        "The layers named learn next to nothing now; what lies between them and the loss has saturated or "
        "died.",
        "Look between the first affected layer and the next healthy one: sigmoid or tanh in saturation, dead "
        "ReLUs, a gate near 0, a softmax that has become one-hot.",
        "Try a residual connection, a normalisation layer before the saturating one, a smaller learning "
        "rate, or GELU or LeakyReLU in place of ReLU.",
        "In half precision, check for underflow: use GradScaler or bfloat16.",
    ),
    "zero_gradient": (
        "The layers named are part of the graph but get exactly 0: they do not learn.",
        "Usual causes: all ReLUs of a layer dead, a clamp or hard sigmoid out of its range, a loss weight or "
        "mask of 0, underflow in float16, an argmax, round or comparison on the way.",
        "If it began after a large step, the layer died: lower the learning rate, or re-initialise it.",
        "If it is intended (an auxiliary branch that is switched off), freeze it with "
        "`requires_grad_(False)`.",
    ),
    "loss_spike": (
        "One batch, or one bad update before it. If the loss comes back within some steps, training "
        "survives.",
        "If a gradient explosion came first, treat that: clip gradients, lower the learning rate.",
        "Otherwise look at the batch: outliers, wrong labels, a very long sequence, another data source.",
        "If the loss does not come back, restart from before the spike with other data order or a lower "
        "learning rate.",
    ),
    "exception": (
        "The exception left the training loop unchanged; the stack shows where it was raised.",
        "The charts just before this step show the state in which it happened.",
    ),
    "out_of_memory": (
        "Reduce the batch size or the sequence length; gradient accumulation keeps the effective batch.",
        "Trade time for memory: activation checkpointing (`torch.utils.checkpoint`), autocast to bfloat16, "
        "`zero_grad(set_to_none=True)`.",
        "If memory grew step by step, something holds graphs: append `loss.item()` to a list, never `loss`.",
        "If allocated is far below reserved, it is fragmentation: try "
        "`PYTORCH_ALLOC_CONF=expandable_segments:True`.",
    ),
    "replayed": (
        "The failing step was run again to find where the value began; weights, gradients, buffers and "
        "random state were restored, but Python side effects of `forward` (counters, prints) happened twice.",
    ),
    "data_gap": (
        "Metrics of these steps were lost (a full disk, or the journal's size cap); training was not "
        "affected.",
        "Free space, or give the spool a larger place with `NANSCOPE_SPOOL`.",
    ),
    "custom": ("Recorded by the training script itself.",),
    "amp_overflow": (
        "GradScaler found Inf, skipped the step and lowers its scale: normal at the start and now and then.",
        "If most steps are skipped, or the scale falls towards 1, look for a real overflow or use bfloat16.",
    ),
}

_OPS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("rsqrt",),
        "rsqrt is Inf at 0 and NaN below: add an epsilon inside, `torch.rsqrt(x + eps)`.",
    ),
    (
        ("sqrt",),
        "sqrt is NaN below 0 and its gradient is Inf at 0 (times 0: NaN): use "
        "`torch.sqrt(x.clamp_min(eps))`.",
    ),
    (
        ("logsumexp", "logaddexp"),
        "logsumexp over -inf only is -inf, with a NaN gradient: make sure that one entry is finite.",
    ),
    (
        ("binary_cross_entropy",),
        "BCE on probabilities of exactly 0 or 1 has gradients of 1e12: use "
        "`binary_cross_entropy_with_logits` on raw logits; targets must lie in 0..1.",
    ),
    (
        ("cross_entropy", "nll_loss"),
        "cross entropy is NaN when every target is `ignore_index` (mean over nothing), and Inf when the "
        "target's logit is -inf: check targets and masks.",
    ),
    (
        ("softmax",),
        "softmax over a row of -inf only is NaN: a fully masked row. Keep one entry unmasked, or mask with "
        "`torch.finfo(dtype).min` and zero the row afterwards; use log_softmax instead of log(softmax).",
    ),
    (
        ("attention",),
        "Attention over a fully masked row is 0/0: let each query see at least one key (itself, for "
        "instance).",
    ),
    (
        ("log1p", "log2", "log10", "log"),
        "log is -Inf at 0 and NaN below: use `torch.log(x.clamp_min(eps))`, log_softmax or logsigmoid.",
    ),
    (
        ("div", "reciprocal", "true_divide", "remainder", "fmod"),
        "Division by 0: use `x / y.clamp_min(eps)` or `x / (y + eps)`; `torch.where` after the division does "
        "not help, backward still multiplies 0 by Inf: replace the divisor before it.",
    ),
    (
        ("expm1", "exp2", "exp", "sinh", "cosh"),
        "exp overflows above 88 in float32 (11 in float16): subtract the maximum, clamp the exponent, or "
        "stay in the log domain (logsumexp, softplus).",
    ),
    (
        ("pow",),
        "pow is NaN for a negative base with a fractional exponent, and its gradient is Inf at 0 for "
        "exponents below 1: clamp the base away from 0.",
    ),
    (
        ("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"),
        "Normalising a constant input divides by sqrt(eps): raise eps, keep the layer in float32, and check "
        "for batches of one element.",
    ),
    (
        ("norm", "cdist", "dist", "normalize"),
        "A hand-written norm, `x.square().sum().sqrt()`, has a NaN gradient at the zero vector: use "
        "`torch.linalg.vector_norm`, or add eps before the root. In half precision the squares overflow "
        "above 256: take norms in float32.",
    ),
    (
        ("std", "var"),
        "std and var of a single element are NaN (0/0): use `unbiased=False`, or check for groups of one. "
        "`var(...).sqrt()` has an infinite gradient where all elements are equal: add eps before the root.",
    ),
    (
        ("acos", "asin", "arccos", "arcsin"),
        "acos and asin are NaN outside -1..1 and their gradient is Inf at the ends: clamp to +-(1 - "
        "1e-6), or use atan2.",
    ),
    (
        ("atan2",),
        "atan2 divides by x^2 + y^2 in backward, which underflows near (0, 0) and overflows for large "
        "values: move one argument away from 0, or normalise both first.",
    ),
    (
        ("acosh", "atanh"),
        "acosh needs x > 1 and atanh |x| < 1, and both have an infinite gradient at the edge: clamp inside.",
    ),
    (
        ("mean",),
        "The mean of nothing is 0/0: check for an empty selection or mask.",
    ),
    (
        ("matmul", "mm", "bmm", "addmm", "linear", "conv", "convolution", "einsum", "baddbmm"),
        "A product of finite numbers overflowed: half precision ends at 65,504. Use bfloat16 or float32 "
        "here, and look at why the activations or weights grew.",
    ),
)

_PHASES: Final[Mapping[str, str]] = {
    "backward": "Forward was finite; only the derivative is not. Keep the input away from the point where "
    "the derivative is infinite: masking the output afterwards does not help.",
    "input": "The batch itself holds NaN or Inf: check it in the data loader (`torch.isfinite(x).all()`).",
}


def advice_for(kind: str, *, phase: str | None = None, op: str | None = None) -> list[str]:
    """Return what an event of this kind means and what to try, most specific first, at most 8 sentences.

    Args:
        kind: event kind.
        phase: of the origin: forward, backward, loss or input; None when unknown.
        op: of the origin, as torch names it (`aten.sqrt.default`, `SqrtBackward0`, `torch.sqrt`); None when
            unknown.

    Returns:
        Sentences; empty for a kind that explains itself.
    """
    hints = [_op_hint(op or ""), _PHASES.get(phase or "", "")]
    return ([hint for hint in hints if hint] + list(ADVICE.get(kind, ())))[:MAX_HINTS]


def _op_hint(op: str) -> str:
    """The hint of the first entry whose word the op's bare name begins or ends with; empty without one."""
    bare = _bare(op)
    for words, hint in _OPS:
        if any(_matches(bare, word) for word in words):
            return hint
    return ""


def _bare(op: str) -> str:
    """`aten.sqrt_.default`, `aten::sqrt`, `SqrtBackward0`, `torch.sqrt` -> `sqrt`; nothing of a hook."""
    if "(hook" in op:
        return ""
    parts = [part for part in op.replace("::", ".").split(".") if part]
    if len(parts) >= 3 and parts[0] == "aten":
        parts = parts[:2]
    name = parts[-1] if parts else ""
    head, found, _ = name.partition("Backward")
    return (head if found else name).lower().strip("_")


def _matches(bare: str, word: str) -> bool:
    """Whether `word` stands in `bare` as a part of it: `_safe_softmax` has softmax, `logical_and` no log."""
    plain = word.replace("_", "")
    return plain == bare.replace("_", "") or f"_{word}_" in f"_{bare}_" or (len(plain) > 5 and plain in bare)
