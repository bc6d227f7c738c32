"""What the findings of one step mean together. Pure."""

from __future__ import annotations

from .base import Finding


def merge_nonfinite(findings: list[Finding]) -> list[Finding]:
    """A non-finite loss makes its gradients non-finite: one fault, one event.

    Parameters that are bad before the update were so before loss and gradients, and come first.
    """
    findings = sorted(findings, key=lambda finding: finding.kind != "nonfinite_parameter")
    if not any(finding.kind == "nonfinite_loss" for finding in findings):
        return findings
    gradient = next((finding for finding in findings if finding.kind == "nonfinite_gradient"), None)
    merged = [finding for finding in findings if finding.kind != "nonfinite_gradient"]
    if gradient is None:
        return merged
    return [
        _replaced(finding, affected=gradient.affected, message=f"{finding.message}. {gradient.message}")
        if finding.kind == "nonfinite_loss"
        else finding
        for finding in merged
    ]


def _replaced(finding: Finding, **changes: object) -> Finding:
    values = {name: getattr(finding, name) for name in Finding.__dataclass_fields__}
    return Finding(**{**values, **changes})
