"""The blocks of docs/diffusion.md run, in order, with the real package."""

import re
from pathlib import Path

import pytest
import tiny_diffusion as tiny

import probe

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "diffusion.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.capability(74, 75)
def test_diffusion_page_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    tiny.diffusers()
    probe.clear_debug_history()  # counts are of the process, which other tests share
    scope: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/diffusion.md", "exec"), scope)  # noqa: S102
    out = capsys.readouterr().out
    assert "UNet2DModel" in out
    assert "denoising step 9 (timestep 0)" in out
    assert "'total_steps': 10" in out


def test_diffusion_page_names_every_field() -> None:
    from probe.actions.analysis.diffusion_results import DiffusionStep

    fields = set(DiffusionStep.__dataclass_fields__) - {"step", "timestep", "shape", "dtype", "findings"}
    assert {name for name in fields if f"`{name}`" not in PAGE} == set()
