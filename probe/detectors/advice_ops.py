"""What to do about an operation that made NaN or Inf: hints for each family of operations. Pure text."""

from __future__ import annotations

from typing import Final

OP_HINTS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        ("rsqrt",),
        ("rsqrt is Inf at 0 and NaN below: add an epsilon inside, `torch.rsqrt(x + eps)`.",),
    ),
    (
        ("sqrt",),
        (
            "sqrt is NaN below 0 and its gradient is Inf at 0 (times 0: NaN): use "
            "`torch.sqrt(x.clamp_min(eps))`.",
        ),
    ),
    (
        ("logsumexp", "logaddexp"),
        ("logsumexp over -inf only is -inf, with a NaN gradient: make sure that one entry is finite.",),
    ),
    (
        ("binary_cross_entropy",),
        (
            "BCE on probabilities of exactly 0 or 1 has gradients of 1e12: use "
            "`binary_cross_entropy_with_logits` on raw logits; targets must lie in 0..1.",
        ),
    ),
    (
        ("cross_entropy", "nll_loss"),
        (
            "cross entropy is NaN when every target is `ignore_index` (mean over nothing), and Inf when the "
            "target's logit is -inf: check targets and masks.",
            "The logits are huge, which no target explains: look at the layers before them, for a weight or "
            "an input that grew.",
        ),
    ),
    (
        ("softmax",),
        (
            "softmax over a row of -inf only is NaN: a fully masked row. Keep one entry unmasked, or mask "
            "with `torch.finfo(dtype).min` and zero the row afterwards; use log_softmax instead of "
            "log(softmax).",
        ),
    ),
    (
        ("attention",),
        (
            "Attention over a fully masked row is 0/0: let each query see at least one key (itself, for "
            "instance).",
        ),
    ),
    (
        ("log1p", "log2", "log10", "log"),
        ("log is -Inf at 0 and NaN below: use `torch.log(x.clamp_min(eps))`, log_softmax or logsigmoid.",),
    ),
    (
        ("div", "reciprocal", "true_divide", "remainder", "fmod"),
        (
            "Division by 0: use `x / y.clamp_min(eps)` or `x / (y + eps)`; `torch.where` after the division "
            "does not help, backward still multiplies 0 by Inf: replace the divisor before it.",
        ),
    ),
    (
        ("expm1", "exp2", "exp", "sinh", "cosh"),
        (
            "exp overflows above 11 in float16: subtract the maximum, clamp the exponent, or stay in the log "
            "domain (logsumexp, softplus).",
            "exp overflows above 88 in float32: subtract the maximum, clamp the exponent, or stay in the log "
            "domain (logsumexp, softplus).",
        ),
    ),
    (
        ("pow",),
        (
            "pow is NaN for a negative base with a fractional exponent, and its gradient is Inf at 0 for "
            "exponents below 1: clamp the base away from 0.",
        ),
    ),
    (
        ("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"),
        (
            "Normalising a constant input divides by sqrt(eps): raise eps, keep the layer in float32, and "
            "check for batches of one element.",
        ),
    ),
    (
        ("norm", "cdist", "dist", "normalize"),
        (
            "A hand-written norm, `x.square().sum().sqrt()`, has a NaN gradient at the zero vector: use "
            "`torch.linalg.vector_norm`, or add eps before the root.",
            "In float16 squares overflow above 256: take norms in float32.",
        ),
    ),
    (
        ("std", "var"),
        (
            "std and var of a single element are NaN (0/0): use `unbiased=False`, or check for groups of "
            "one. `var(...).sqrt()` has an infinite gradient where all elements are equal: add eps before "
            "the root.",
        ),
    ),
    (
        ("acos", "asin", "arccos", "arcsin"),
        (
            "acos and asin are NaN outside -1..1 and their gradient is Inf at the ends: clamp to +-(1 - "
            "1e-6), or use atan2.",
        ),
    ),
    (
        ("atan2",),
        (
            "atan2 divides by x^2 + y^2 in backward, which underflows near (0, 0) and overflows for large "
            "values: move one argument away from 0, or normalise both first.",
        ),
    ),
    (
        ("acosh", "atanh"),
        (
            "acosh needs x > 1 and atanh |x| < 1, and both have an infinite gradient at the edge: clamp "
            "inside.",
        ),
    ),
    (
        ("mean",),
        ("The mean of nothing is 0/0: check for an empty selection or mask.",),
    ),
    (
        ("matmul", "mm", "bmm", "addmm", "linear", "conv", "convolution", "einsum", "baddbmm"),
        (
            "A product of finite numbers overflowed float16, which ends at 65,504: use bfloat16 or float32 "
            "here, and look at why the activations or weights grew.",
            "A product of finite numbers overflowed: look at which of the two grew, the activations or the "
            "weights, and since which step.",
        ),
    ),
)
"""(words that an operation's bare name is to begin, end or be made of; hints); the first that fits counts."""
