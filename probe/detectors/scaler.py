"""Updates that a GradScaler skips one after the other: the scale falls, and nothing is trained.

Called where a step is judged, on the training thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .base import Finding, Observation

WARN_AFTER: Final = 10
"""Skips in a row before they are a warning. The scale has been halved ten times by then, from torch's 65,536
to 64: a healthy scale settles where gradients fit, within some seven."""
CRITICAL_AFTER: Final = 50
"""Skips in a row before they are critical: the scale is 6e-11 and no gradient can overflow under it, so that
what is not finite is so at any scale."""
DEFAULT_SCALE: Final = 65536.0
"""`torch.amp.GradScaler(init_scale=2.**16)`. Skips above it do not count: who starts higher lets the scaler
find its way down."""
ADVICE: Final = (
    "No update has been made since the skips began: the parameters are those of the step before.",
    "Gradients that are not finite under every scale did not overflow: look for an operation with an "
    "infinite derivative (`sqrt` or `norm` of 0, `log` of 0), or run some steps without autocast.",
    "If activations exceed 65,504 in float16, use bfloat16, or keep the layer in float32.",
)


class ScalerWatch:
    """Tells an overflow that a GradScaler handles from a run that stands still.

    An overflow is information (`amp_overflow`): the scaler skips the update and lowers its scale. The
    `WARN_AFTER`-th in a row is a warning, the `CRITICAL_AFTER`-th critical.
    """

    def __init__(self) -> None:
        self._skipped = 0
        self._first: tuple[int, float | None] = 0, None
        """Step and scale of the first skip in the row."""

    def note_updates(self) -> None:
        """Updates were made."""
        self._skipped = 0

    def judge(
        self, findings: list[Finding], observation: Observation, *, scale: float | None
    ) -> list[Finding]:
        """Return the findings of a step whose loss was scaled, as they are to be understood.

        Args:
            findings: of the step.
            observation: the step.
            scale: of the GradScaler; None where it is not known.
        """
        overflow = next((one for one in findings if one.kind == "nonfinite_gradient"), None)
        if overflow is None:
            self.note_updates()
            return findings
        if scale is None or scale <= DEFAULT_SCALE:
            self._first = self._first if self._skipped else (observation.step, scale)
            self._skipped += 1
        judged = self._overflow(overflow, observation.step, scale)
        return [judged if one is overflow else one for one in findings]

    def _overflow(self, finding: Finding, step: int, scale: float | None) -> Finding:
        if self._skipped < WARN_AFTER:
            message = (
                f"Gradients overflowed under the loss scale at step {step}; GradScaler skips the update and "
                "lowers the scale"
            )
            return replace(finding, kind="amp_overflow", severity="info", message=message)
        first, scale_then = self._first
        fell = (
            "" if None in (scale, scale_then) else f", its scale fell from {scale_then:,.4g} to {scale:.4g}"
        )
        return replace(
            finding,
            kind="amp_overflow",
            severity="critical" if self._skipped >= CRITICAL_AFTER else "warning",
            message=f"GradScaler has skipped {self._skipped} updates in a row, since step {first}{fell}: the "
            f"gradient of `{finding.subject}` is not finite at any of these scales, and nothing is trained",
            baseline={"skipped": float(self._skipped)},
            threshold=float(WARN_AFTER),
            advice=ADVICE,
        )
