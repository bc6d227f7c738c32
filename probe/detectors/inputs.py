"""What the model is called with: NaN and Inf, magnitudes far beyond the usual, and nothing any more."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from ..wire import Severity
from .base import Finding
from .baselines import SeriesHistory, Strikes
from .cause_advice import BLANK_INPUT
from .medians import median_of
from .nonfinite import NEIGHBOURS
from .sample import InputSample, Lasting, Sample
from .sampled_thresholds import SampledThresholds

WARMUP_SAMPLES: Final = 10
SUSTAINED: Final = 5
"""Samples whose median is judged beside the single one ..."""
SUSTAINED_SHARE: Final = 0.4
"""... by a limit this many times as far out in MADs."""
ZERO_SHARE: Final = 0.1
"""An input that is all zeros this often is a mask or a rare feature, and has no usual size."""
BLANK_SAMPLES: Final = 2
"""Samples in a row that hold one number each: one alone may be a batch without the rare thing."""
CONSTANT: Final = 1e-9
"""Spread below this share of the magnitude is rounding."""
MASK_SIZE: Final = 6e4
"""Beyond it lie the stand-ins for -Inf: -65504, -1e9, `torch.finfo(dtype).min`."""


class InputDetector:
    """Emits `nonfinite_input` and `input_out_of_range`; each input has its own history."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._inputs: dict[str, _InputHistory] = {}
        self._lasting = Lasting()
        self._step = -1

    def observe(self, sample: Sample) -> list[Finding]:
        """Return at most one finding of each kind, of the first input that is wrong, and what lasts."""
        inputs = sample.inputs
        if inputs is None:
            return list(self._lasting.findings)
        if sample.step < self._step:
            self._inputs, self._lasting = {}, Lasting()
        self._step = sample.step
        found: dict[str, Finding] = {}
        for index, name in enumerate(inputs.names):
            history = self._inputs.get(name)
            if history is None:
                history = self._inputs[name] = _InputHistory(self._thresholds)
            finding = _nonfinite(sample, inputs, index, is_usual=history.is_never_finite)
            if finding is None:
                size, mean, std = (
                    float(column[index]) for column in (inputs.max_abs, inputs.mean, inputs.std)
                )
                blank = history.judge_spread(sample.step, name, size, mean, std)
                finding = history.judge(sample.step, name, size) or blank
            else:
                history.nonfinite += 1
            if finding is not None:
                found.setdefault(finding.kind, finding)
        return self._lasting.note(list(found.values()))


class _InputHistory:
    """Log of the largest magnitude of one input, of healthy samples."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._logs = SeriesHistory(refresh_steps=4)
        self._strikes = Strikes()
        self._recent: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._last: deque[float] = deque(maxlen=SUSTAINED)
        self._zeros = self._seen = 0
        self._varied = self._blank = 0
        self._is_sometimes_blank = False
        self._peak = 0.0
        self.nonfinite = 0

    @property
    def is_never_finite(self) -> bool:
        """Whether there has been no sample without NaN or Inf."""
        return self._seen == 0

    def judge_spread(self, step: int, name: str, size: float, mean: float, std: float) -> Finding | None:
        """Find an input that holds one number only, after it never did."""
        if std > CONSTANT * size:
            self._is_sometimes_blank |= 0 < self._blank < BLANK_SAMPLES
            # Zeros and ones: a mask that masks nothing, or a rare flag.
            is_binary = abs(std * std - mean * (size - mean)) <= 1e-6 * size * size
            self._varied, self._blank = self._varied + (not is_binary), 0
            return None
        if self._varied < WARMUP_SAMPLES or self._is_sometimes_blank:
            self._is_sometimes_blank = True
            return None
        self._blank += 1
        if self._blank < BLANK_SAMPLES:
            return None
        return Finding(
            kind="input_out_of_range",
            severity="warning",
            subject=name,
            message=f"Input `{name}` holds nothing but {mean:.4g} at step {step}, as in the last "
            f"{self._blank} samples of it; in the {self._varied} before it varied",
            value=std,
            threshold=CONSTANT * size,
            baseline={"samples": float(self._varied)},
            affected=(name,),
            advice=BLANK_INPUT,
        )

    def judge(self, step: int, name: str, size: float) -> Finding | None:
        """Judge one sample without NaN and Inf, and learn it if it is like the others."""
        self._seen += 1
        if size <= 0.0 or not math.isfinite(size):
            self._zeros += size == 0.0
            return None
        limit, why = self._passed(math.log(size))
        finding = None if limit is None else self._finding(step, name, size, limit, why)
        self._recent.append((step, size))
        is_odd = finding is not None and why != "limit"
        if self._strikes.is_new_normal(abnormal=is_odd):
            self._logs.clear()
            self._last.clear()
        elif not is_odd:
            self._logs.add(math.log(size))
        return finding

    def _passed(self, log_size: float) -> tuple[float | None, str]:
        """The magnitude that this sample, or the last few together, have passed, and by which rule."""
        options = self._thresholds
        if options.input_limit is not None and log_size > math.log(options.input_limit):
            return options.input_limit, "limit"
        self._last.append(log_size)
        if len(self._logs) < WARMUP_SAMPLES or self._zeros > ZERO_SHARE * self._seen:
            return None, ""
        _, median, mad, tail = self._logs.baseline()
        if log_size > math.log(MASK_SIZE) and tail > math.log(MASK_SIZE):
            return None, ""
        factor, mads = math.log(options.input_factor), options.input_mads
        limit = median + max(mads * mad, factor)
        if log_size > limit:
            return math.exp(min(limit, 700.0)), "history"
        limit = median + max(SUSTAINED_SHARE * mads * mad, factor)
        if len(self._last) == SUSTAINED and float(median_of(self._last)) > limit:
            return math.exp(min(limit, 700.0)), "history"
        return None, ""

    def _finding(self, step: int, name: str, size: float, limit: float, why: str) -> Finding:
        if why == "limit":
            said, baseline = "above the limit that was set", None
        else:
            median, mad = self._logs.robust()
            usual = math.exp(min(median, 700.0))
            said = f"{size / usual:.3g} times the median of this input ({usual:.4g})"
            baseline = {"median": usual, "mad_log": mad, "samples": float(len(self._logs))}
        return Finding(
            kind="input_out_of_range",
            severity="warning",
            subject=name,
            message=f"Input `{name}` reaches {size:.4g} at step {step}, {said}",
            value=size,
            threshold=limit,
            baseline=baseline,
            neighbours=tuple(self._recent),
            affected=(name,),
        )


def _counted(nan: float, inf: float) -> str:
    """Write "1 NaN and 3 Inf elements", each only where there are some."""
    parts = [f"{count:,.0f} {name}" for count, name in ((nan, "NaN"), (inf, "Inf")) if count]
    return f"{' and '.join(parts)} element{'s' if nan + inf > 1 else ''}"


def _nonfinite(sample: Sample, inputs: InputSample, index: int, *, is_usual: bool) -> Finding | None:
    """NaN, or Inf other than the -Inf of a mask."""
    nan, inf = float(inputs.nan_count[index]), float(inputs.inf_count[index])
    is_mask = "mask" in inputs.names[index].lower() or float(inputs.mean[index]) == -math.inf
    if not nan > 0.0 and not (inf > 0.0 and not is_mask):
        return None
    value = math.nan if nan > 0.0 else math.inf
    total = sample.total_grad_norm
    is_harmless = sample.loss is not None and (total is None or math.isfinite(total))
    severity: Severity = "warning" if is_harmless else "critical"
    if is_harmless and is_usual:
        severity = "info"
    return Finding(
        kind="nonfinite_input",
        severity=severity,
        subject=inputs.names[index],
        message=f"Input `{inputs.names[index]}` holds {_counted(nan, inf)} at step {sample.step}"
        f"{_all_the_same(sample) if is_harmless else ''}",
        value=value,
        threshold=None,
        affected=(inputs.names[index],),
    )


def _all_the_same(sample: Sample) -> str:
    """What is known of the loss: a call may have had none that backward got, as where the script skips it."""
    if sample.calls_without_backward <= 0:
        return ", though the loss is finite"
    calls = sample.calls_without_backward
    skipped = "1 call of the model" if calls == 1 else f"{calls} calls of the model"
    return f", though the loss that backward got is finite; {skipped} in this step had no backward"
