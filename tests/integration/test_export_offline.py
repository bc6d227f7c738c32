"""An exported file in a real Chromium with the network off: it draws, unfolds an event, asks for nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "dashboard"))

from sample_events import nan_event, own_frame, spike_event
from sample_runs import write_run

from probe.wire import Event, Stacks

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"

pytestmark = pytest.mark.browser


@dataclass(frozen=True, slots=True)
class OpenExport:
    """A loaded export and everything that its page asked for or complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def export(
    folder: Path, events: list[Event], *, layers: tuple[str, ...] = ("embedding", "blocks.3", "head")
) -> Path:
    """Write journals and let the command make the file, as a user would."""
    write_run(folder / "spool", events=events, steps=450, layers=layers)
    target = folder / "run.html"
    command = [sys.executable, "-m", "dashboard", "export", str(folder / "spool"), "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    return target


def open_offline(browser: Browser, file: Path, *, scheme: str = "dark") -> OpenExport:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    context.set_offline(True)
    opened = OpenExport(context.new_page())
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.goto(file.as_uri())
    opened.page.wait_for_selector("#chart-heatmap .heatmaplayer image", state="attached", timeout=30_000)
    return opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("offline"), [nan_event(), spike_event()])


@pytest.fixture(scope="module")
def opened(browser: Browser, file: Path) -> OpenExport:
    """For tests that leave it as they have found it, but for events that they have unfolded."""
    return open_offline(browser, file)


def test_export_offline_asks_for_nothing_and_complains_about_nothing(opened: OpenExport, file: Path) -> None:
    assert [url for url in opened.requests if not url.startswith(("data:", "blob:"))] == [file.as_uri()]
    assert opened.complaints == []


def test_export_offline_draws_every_chart(opened: OpenExport) -> None:
    page = opened.page
    for name in ("loss", "grad_norm", "memory"):
        assert page.locator(f"#chart-{name} .scatterlayer path.js-line").count() >= 1
    assert page.locator("#chart-timeline .scatterlayer path.point").count() == 2


@pytest.mark.capability(5, 11)
def test_export_offline_click_on_the_marker_opens_the_event_with_its_source(opened: OpenExport) -> None:
    page = opened.page
    page.locator("#chart-timeline .scatterlayer .trace").first.locator("path.point").hover(force=True)
    box = page.locator("#chart-timeline .scatterlayer .trace").first.locator("path.point").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    event = page.locator(f"#event-{nan_event().id}[open]")
    event.wait_for(timeout=10_000)
    assert "project/model.py:26 in forward" in event.inner_text()
    assert (
        "torch.sqrt(x * scale)" in event.locator(".event-frame[open] .source-line.current").first.inner_text()
    )


@pytest.mark.parametrize(("scheme", "ground"), [("dark", "rgb(27, 27, 29)"), ("light", "rgb(255, 255, 255)")])
def test_export_offline_follows_the_readers_colour_scheme(
    browser: Browser, file: Path, scheme: str, ground: str
) -> None:
    page = open_offline(browser, file, scheme=scheme).page
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground


def test_export_offline_theme_switch_recolours_the_charts(opened: OpenExport) -> None:
    page = opened.page
    colour = "document.querySelector('#chart-loss .js-line').style.stroke"
    before = page.evaluate(colour)
    page.click("#theme-switch")
    page.wait_for_function(f"{colour} !== {before!r}", timeout=10_000)
    other = page.evaluate(colour)
    page.click("#theme-switch")
    page.wait_for_function(f"{colour} !== {other!r}", timeout=10_000)
    assert page.evaluate(colour) == before


def test_export_offline_hostile_run_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    frame = own_frame(file=f"/x/{HOSTILE}.py", function=HOSTILE, code=HOSTILE, code_first_line=26)
    event = nan_event(message=HOSTILE, subject=HOSTILE, stacks=Stacks(forward=[frame]))
    opened = open_offline(browser, export(tmp_path, [event], layers=(HOSTILE, "<b>bold</b>")))
    opened.page.locator("details.event > summary").click()
    assert HOSTILE in opened.page.locator("details.event .event-headline").inner_text()
    assert "owned" not in opened.page.title()
    assert opened.page.locator("img").count() == 0
    assert "<b>bold</b>" in opened.page.locator("#chart-heatmap .ytick text").all_text_contents()
    assert opened.complaints == []
