"""The page in a real Chromium: charts of what a run measures, of nothing else; the heatmap's selector."""

from __future__ import annotations

import time

import pytest
from page_fixtures import Served, never_late, page_runs, until
from playwright.sync_api import Page, expect

from probe.wire import encode

pytestmark = pytest.mark.browser
SPEED = ("step_time", "steps_per_s")


def open_page(page: Page, served: Served, query: str = "") -> None:
    page.goto(served.server.address + query)


def wait_drawn(page: Page, *ids: str) -> None:
    for id_ in ids or ("loss",):
        until(page, "id => nanscope.painted?.(id)?.lines.some(line => line.x.length)", arg=id_)


def visible_charts(page: Page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('[data-chart]')]"
        ".filter(card => card.checkVisibility()).map(card => card.dataset.chart)"
    )


def test_page_run_that_measures_little_has_no_empty_charts(page: Page, served: Served) -> None:
    served.fill(steps=range(30))
    open_page(page, served)
    wait_drawn(page)
    assert visible_charts(page) == ["loss", "grad_norm", "heatmap", "timeline"]
    page.locator("#tab-memory").click()
    assert visible_charts(page) == ["memory", "memory_growth"]
    page.locator("#tab-profile").click()
    assert visible_charts(page) == list(SPEED)
    page.locator("#tab-layers").click()
    assert visible_charts(page) == ["heatmap"]
    expect(page.locator("#logged")).to_be_hidden()


@pytest.mark.capability(2)
def test_page_full_run_draws_every_chart_with_its_marks(page: Page, served: Served) -> None:
    served.fill(steps=range(60), is_full=True)
    page.set_viewport_size({"width": 1440, "height": 2000})
    open_page(page, served)
    wait_drawn(page, "loss", "grad_norm", "update_ratio", "lr", "amp")
    names = (
        "id => { const { lines, marks } = nanscope.painted(id);"
        "return [...lines.filter(line => line.x.length).map(line => line.label),"
        " ...marks.filter(mark => mark.x.length).map(mark => mark.name)] }"
    )
    assert page.evaluate(names, "grad_norm") == ["gradient norm", "after clipping", "clip_fired"]
    assert page.evaluate(names, "amp") == ["loss scale", "amp_skipped_updates"]
    expect(page.locator("#legend-grad_norm")).to_contain_text("clipped in 30 % of the steps")
    page.locator("#tab-system").click()
    expect(page.locator("#tile-probe .ns-tile-detail")).to_have_text("+0.3 % \u00b1 0.9 step time")
    page.locator("#tab-overview").click()
    ranges = page.evaluate(
        "['loss', 'lr', 'amp', 'update_ratio'].map("
        "id => [nanscope.painted(id).axis.first, nanscope.painted(id).axis.last].join())"
    )
    assert len(set(ranges)) == 1, ranges


@pytest.mark.capability(2, 63, 78)
def test_page_shows_throughput_and_utilisation_with_a_gap_at_a_stop(page: Page, served: Served) -> None:
    for steps in (range(20), range(40, 60)):
        served.fill(steps=steps, is_full=True)
    page.set_viewport_size({"width": 1440, "height": 3000})
    open_page(page, served, "&tab=profile")
    wait_drawn(page, "steps_per_s", "samples_per_s")
    lines = (
        "id => Object.fromEntries(nanscope.painted(id).lines.filter(line => line.x.length)"
        ".map(t => [t.label, [...t.y].map(y => Number.isNaN(y) ? null : Math.round(y * 1000) / 1000)]))"
    )
    # Steps of 0.1 s with 32 samples; the first one's time is known too in these frames.
    speed = {"steps": 10.0, "samples": 320.0}
    shown = page.evaluate(lines, "steps_per_s") | page.evaluate(lines, "samples_per_s")
    assert shown == {name: [*[value] * 20, None, *[value] * 20] for name, value in speed.items()}
    page.locator("#tab-system").click()
    wait_drawn(page, "utilisation")
    used = {name: set(values) for name, values in page.evaluate(lines, "utilisation").items()}
    assert used == {"process (CPU)": {0.4}, "machine (CPU)": {0.5}, "GPU": {0.9}}


def test_page_chart_of_something_new_appears_while_the_run_goes_on(page: Page, served: Served) -> None:
    served.fill(steps=range(30))
    page.set_viewport_size({"width": 1440, "height": 2000})
    open_page(page, served)
    wait_drawn(page)
    before = visible_charts(page)
    served.fill(steps=range(30, 60), is_full=True)
    wait_drawn(page, "lr", "amp")
    assert {"lr", "amp"} <= set(visible_charts(page)) - set(before)


def test_page_heatmap_shows_what_is_chosen_and_a_reload_keeps_it(page: Page, served: Served) -> None:
    served.fill(steps=range(60), is_full=True)
    open_page(page, served)
    wait_drawn(page)
    select = page.get_by_label("What the heatmap shows")
    expect(select).to_have_value("grad_norm")
    offered = (
        "[...document.querySelectorAll('#heatmap-select option')].filter(o => !o.disabled).map(o => o.value)"
    )
    counts = "activation_nan_count,activation_inf_count"
    until(page, f"{offered}.join() === 'grad_norm,update_ratio,activation_rms,{counts},saved_bytes'")
    before = page.evaluate("document.querySelector('#heatmap-canvas').toDataURL()")
    select.select_option("activation_rms")
    until(page, "nanscope.heatmap.kinds.every(kind => kind === 'module')")
    until(page, "before => document.querySelector('#heatmap-canvas').toDataURL() !== before", arg=before)
    expect(page.locator("#heatmap-facts")).to_contain_text("1 step in 5 measured, max of 8 steps a column")
    assert "heatmap=activation_rms" in page.url
    page.reload()
    expect(select).to_have_value("activation_rms")
    until(page, "nanscope.heatmap.fields?.statistic === 'activation_rms'")
    select.select_option("grad_norm")
    until(page, "nanscope.heatmap.kinds.every(kind => kind === 'layer')")
    assert "heatmap" not in page.url


def test_page_module_opens_alone_with_what_is_inside(page: Page, served: Served) -> None:
    served.fill(steps=range(20), is_full=True)
    open_page(page, served, "&heatmap=activation_rms")
    wait_drawn(page)
    until(page, "nanscope.heatmap.kinds.length > 0")
    page.evaluate("nanscope.focusRows('blocks.2'); nanscope.later(nanscope.drawHeatmap)")
    expect(page.locator("#heatmap-facts")).to_contain_text("blocks.2")
    assert page.evaluate("nanscope.heatmap.shown.length") == 7
    page.locator("#heatmap-facts button", has_text="all modules").click()
    until(page, "nanscope.heatmap.shown.length === nanscope.heatmap.rows.length")


def test_page_users_series_are_folded_and_hostile_names_stay_text(page: Page, served: Served) -> None:
    served.fill(steps=range(30), is_full=True)
    page.set_viewport_size({"width": 1440, "height": 3000})
    open_page(page, served)
    wait_drawn(page)
    expect(page.locator("#logged summary")).to_have_text("Logged values 2")
    assert not [id_ for id_ in visible_charts(page) if id_.startswith("log/")]
    page.locator("#logged summary").click()
    wait_drawn(page, "log/accuracy", "log/<b>bold</b>")
    expect(page.locator("#logged-charts")).to_contain_text("<b>bold</b>")
    assert page.locator("#logged-charts b").count() == 0
    assert "logged=1" in page.url


def test_page_run_without_a_step_says_so_and_fills_itself(page: Page, served: Served) -> None:
    start = page_runs.run_start(time=time.time())
    served.server.store.append(page_runs.key("events"), 0, [encode(start), encode(page_runs.layout())])
    served.server.store.commit()
    served.server.notify()
    open_page(page, served)
    expect(page.locator("#live-text")).to_have_text("waiting for the first step")
    expect(page.locator("#no-step")).to_contain_text("first step")
    assert visible_charts(page) == []
    served.fill(steps=range(20), start_time=never_late())
    wait_drawn(page)
    expect(page.locator("#no-step")).to_be_hidden()
    expect(page.locator("#live-text")).to_contain_text("live")


def test_page_full_run_costs_few_bytes_a_second(page: Page, served: Served) -> None:
    served.fill(steps=range(300), is_full=True)
    open_page(page, served, "&heatmap=update_ratio&logged=1")
    wait_drawn(page)
    page.wait_for_timeout(1500)
    before, messages = page.evaluate("[nanscope.link.bytes, nanscope.link.messages]")
    for second in range(3):
        served.fill(steps=range(300 + 20 * second, 320 + 20 * second), is_full=True)
        page.wait_for_timeout(1100)
    after, later = page.evaluate("[nanscope.link.bytes, nanscope.link.messages]")
    assert later > messages
    # 20 steps a second: at most 20 kB of them on the wire.
    assert (after - before) / 60 <= 1000
