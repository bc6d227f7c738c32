"""The examples of docs/analysis.md run, in order, and no call is left out of it."""

import re
from pathlib import Path

import pytest

import probe

PAGE = Path(__file__).resolve().parents[3] / "docs" / "analysis.md"
RECOVERY = {
    "InputPolicy",
    "OutputPolicy",
    "PolicyError",
    "Recovery",
    "robust_training_step",
    "safe_inference",
}
"""In docs/recovery.md, of which test_recovery_docs.py says so."""
RULES = {"RuleResult", "StepView"}
"""In docs/rules.md."""
SETTINGS = {"DetectorThresholds", "Features", "LEVELS", "Level", "PRESETS", "Preset", "SampledThresholds"}
SETTINGS |= {"ResourceLimits"}
"""In docs/options.md."""
OPTIMISATION = {"benchmark_optimizations", "optimize_model", "optimize_training_loop"}
"""In docs/optimisation.md, of which test_optimisation_docs.py says so."""
NOT_ANALYSIS = {"clip_gradients", "AnomalyError", "Probe", "ProbeConfig", "watch", "show", "InferenceResult"}
DIFFUSION = {"analyze_diffusion_pipeline", "monitor_diffusion_step"}
"""In docs/diffusion.md."""
NOT_ANALYSIS |= RECOVERY | RULES | SETTINGS | DIFFUSION | OPTIMISATION


def test_docs_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        exec(compile(block, str(PAGE), "exec"), scope)  # noqa: S102
    assert "gradient flow of Sequential" in capsys.readouterr().out
    assert (tmp_path / "reports" / "first-try.json").exists()


@pytest.mark.parametrize("name", sorted(set(probe.__all__) - NOT_ANALYSIS))
def test_docs_name_every_call(name: str) -> None:
    assert f"probe.{name}" in PAGE.read_text(encoding="utf-8")
