"""A real sampling from the front door: its table and its series on the page, and nothing of it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_diffusion as tiny
import torch
from page_fixtures import Served
from playwright.sync_api import Page, expect

import probe
from dashboard.ingest.spool import SpoolIngest

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def train_and_sample(spool: Path, *, samplings: int) -> str:
    """One training step of a denoiser, some samplings with it, one more step; returns the run's id."""
    pipeline = tiny.latent_pipeline()
    unet = pipeline.unet
    optimizer = torch.optim.SGD(unet.parameters(), lr=1e-4)
    with probe.watch(unet, optimizer, spool=spool, quiet=True) as run:
        for step in range(2):
            unet(torch.randn(2, 4, 8, 8), 5, torch.ones(2, 3, 8)).sample.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(samplings if step == 0 else 0):
                tiny.sample(pipeline, 6, callback_on_step_end=probe.monitor_diffusion_step)
    return run.run


@pytest.mark.browser
@pytest.mark.capability(75)
def test_sampling_is_a_table_in_the_view_profile_and_series_on_the_page(page: Page, served: Served) -> None:
    run = train_and_sample(served.folder / "spool", samplings=2)
    SpoolIngest(served.server.store, served.folder / "spool").run()
    served.server.notify()
    page.goto(served.server.address)
    page.locator("#tab-profile").click()
    section = page.locator("#documents-denoising")
    expect(section).to_contain_text("6 steps of StableDiffusionPipeline, DDIMScheduler")
    expect(section.locator("tbody tr:visible")).to_have_count(6)
    expect(section.get_by_text("drift").first).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    names = [name for name in served.server.store.scalar_names(run) if "diffusion" in name]
    assert names == ["log/diffusion/drift", "log/diffusion/std"]


@pytest.mark.browser
def test_training_without_sampling_has_no_such_section(page: Page, served: Served) -> None:
    train_and_sample(served.folder / "spool", samplings=0)
    SpoolIngest(served.server.store, served.folder / "spool").run()
    served.server.notify()
    page.goto(served.server.address)
    page.locator("#tab-profile").click()
    expect(page.locator("#documents-profile, #profile-form").first).to_be_visible()
    expect(page.locator("#documents-denoising")).to_have_count(0)
