"""The page in a real Chromium, over a real server and store: live data, pause and zoom, themes, restarts."""

from __future__ import annotations

import re
import time

import pytest
from page_fixtures import BOTH_ENGINES, TOKEN, Served, forget, never_late, page_runs, until
from page_visits import RunsOfTheirOwn, visit
from playwright.sync_api import BrowserContext, Page, expect

from dashboard.live import hub

pytestmark = pytest.mark.browser


def open_page(page: Page, served: Served, query: str = "") -> None:
    page.goto(served.server.address + query)


def wait_drawn(page: Page) -> None:
    until(page, "nanscope.painted('loss')?.lines.some(line => line.x.length)")
    until(page, "document.querySelectorAll('#heatmap-labels button').length > 0")


def newest_drawn(page: Page) -> float:
    return page.evaluate("Math.max(...nanscope.painted('loss').lines.map(line => line.x.at(-1) ?? -1))")


def wait_newest(page: Page, step: int) -> None:
    until(
        page,
        "step => Math.max(...nanscope.painted('loss').lines.map(line => line.x.at(-1) ?? -1)) >= step",
        arg=step,
    )


class TestPageWithoutRun:
    """One page, where no menu is open when a test begins."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, shared_served: Served) -> Page:
        open_page(shared_page, shared_served)
        return shared_page

    def test_page_without_run_says_how_to_attach(self, page: Page, shared_served: Served) -> None:
        expect(page.locator("#snippet")).to_contain_text("probe.watch(model, optimizer)")
        expect(page.locator("#empty-state")).to_contain_text(shared_served.server.ingest)
        expect(page.locator("#live-text")).to_have_text("waiting for a run")

    def test_page_menu_is_a_button_that_says_whether_it_is_open(self, page: Page) -> None:
        button = page.get_by_role("button", name="Menu")
        expect(button).to_have_attribute("aria-expanded", "false")
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("Escape")
        assert page.locator("header div[aria-expanded]").count() == 0


def test_page_first_run_appears_without_reload(page: Page, served: Served) -> None:
    open_page(page, served)
    expect(page.locator("#empty-state")).to_be_visible()
    page.evaluate("window.loadedOnce = true")
    served.fill(steps=range(30), start_time=time.time() - 3)
    wait_drawn(page)
    expect(page.locator("#empty-state")).to_be_hidden()
    assert page.evaluate("window.loadedOnce") is True


@BOTH_ENGINES
@pytest.mark.capability(2, 3)
def test_page_live_lines_and_heatmap_grow(page: Page, served: Served) -> None:
    served.fill(steps=range(50))
    open_page(page, served)
    wait_drawn(page)
    picture = "document.querySelector('#heatmap-canvas').toDataURL()"
    before = page.evaluate(picture)
    served.fill(steps=range(50, 80))
    wait_newest(page, 79)
    until(page, f"before => {picture} !== before", arg=before)
    expect(page.locator("#tile-step .ns-tile-value")).to_have_text("79")


def test_page_lines_go_on_with_the_status_between_two_pictures(
    page: Page, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "DATA_INTERVAL_S", 600.0)
    monkeypatch.setattr(hub, "next_beat", lambda at, interval: at and at + interval)
    served.fill(steps=range(50))
    open_page(page, served)
    wait_drawn(page)
    ends = "['loss', 'grad_norm'].flatMap(id => nanscope.painted(id).lines.map(line => line.x.at(-1)))"
    until(page, f"{ends}.every(end => end === 49)")
    served.fill(steps=range(50, 53))
    until(page, f"{ends}.every(end => end === 52)")
    served.fill(steps=range(53, 75))  # more than there is room for on the axis
    until(page, f"{ends}.every(end => end === 74) && nanscope.axisRange()[1] >= 74")
    assert page.evaluate("nanscope.array('loss/loss/line/x').length") == 50


def test_page_token_leaves_the_address_and_is_remembered(page: Page, served: Served) -> None:
    open_page(page, served)
    expect(page.locator("#empty-state")).to_be_visible()
    assert "token" not in page.url
    page.goto(served.server.page)
    expect(page.locator("#empty-state")).to_be_visible()


def test_page_of_another_test_has_nothing_of_this_one(
    page: Page, window: BrowserContext, served: Served
) -> None:
    """They share a profile, of which only scripts are to stay."""
    open_page(page, served)
    page.evaluate("localStorage.setItem('left', 'behind')")
    forget(window, served.server.page)
    other = window.new_page()
    answer = other.goto(served.server.page)
    assert answer is not None and answer.status == 401
    other.goto(f"{served.server.page}?token={TOKEN}")
    assert other.evaluate("localStorage.getItem('left')") is None


class TestPageOfARun:
    """One page, which no test moves away from its newest step."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, shared_served: Served) -> Page:
        shared_served.fill(steps=range(30), bad={10: "nan"})
        open_page(shared_page, shared_served)
        wait_drawn(shared_page)
        return shared_page

    def test_page_loss_and_all_layers_fit_one_screen(self, page: Page) -> None:
        bottom = page.evaluate(
            "document.querySelector('[data-chart=timeline]').getBoundingClientRect().bottom"
        )
        assert bottom <= 900
        assert page.evaluate("document.documentElement.scrollWidth") == 1440

    def test_page_heatmap_hover_says_layer_step_and_value(self, page: Page) -> None:
        box = page.locator("#heatmap-canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 10.5 / 30, box["y"] + 4)
        expect(page.locator("#tooltip")).to_be_visible()
        expect(page.locator("#tooltip")).to_contain_text("embed")
        expect(page.locator("#tooltip")).to_contain_text("step 10")
        expect(page.locator("#tooltip")).to_contain_text("NaN")

    def test_page_layer_unfolds_into_parameters(self, page: Page) -> None:
        page.locator("#heatmap-labels button", has_text="embed").click()
        until(page, "nanscope.heatmap.rows.includes('embed.weight')")
        assert page.evaluate("nanscope.heatmap.kinds.filter(kind => kind === 'parameter').length") == 2

    def test_page_theme_menu_recolours_charts(self, page: Page) -> None:
        colour = "nanscope.painted('loss').colours.muted"
        dark = page.evaluate(colour)
        page.locator("#page-menu").click()
        page.locator("#theme-light").click()
        until(page, f"dark => {colour} !== dark", arg=dark)
        assert page.evaluate("document.documentElement.dataset.mantineColorScheme") == "light"


class TestPageOfManyRuns(RunsOfTheirOwn):
    """One page, on which each test visits a run of its own, or opens it anew."""

    @pytest.mark.capability(6)
    def test_page_nan_is_named_in_title_and_list_without_click(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(20))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        served.fill(run=own_run, steps=range(20, 21), bad={20: "nan"})
        served.add_event(page_runs.event(20, run=own_run))
        until(page, "document.title.includes('NaN at step 20 in blocks.1.norm1')")
        expect(page.locator("#verdict-text")).to_contain_text("NaN first at step 20 in blocks.1.norm1")
        until(page, "nanscope.painted('loss').bands.some(band => band.kind === 'nan' && band.x.includes(20))")

    def test_page_after_nan_x_axis_runs_on(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(40), bad=dict.fromkeys(range(20, 40), "nan"))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        low, high = page.evaluate("(({ first, last }) => [first, last])(nanscope.painted('loss').axis)")
        assert (low, high) == (-0.5, 39.5)

    def test_page_zoom_pauses_and_resume_follows_again(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(100))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        box = page.locator("#plot-loss").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20, steps=5)
        page.mouse.up()
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "false")
        served.fill(run=own_run, steps=range(100, 130))
        expect(page.locator("#live-text")).to_contain_text("new")
        ranges = page.evaluate(
            "['loss', 'grad_norm'].map("
            "id => [nanscope.painted(id).axis.first, nanscope.painted(id).axis.last].join())"
        )
        assert len(set(ranges)) == 1, ranges
        page.locator("#live-button").click()
        wait_newest(page, 129)
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "true")

    def test_page_space_holds_still_and_zero_resets(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(60))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        page.keyboard.press("Space")
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "false")
        served.fill(run=own_run, steps=range(60, 90))
        expect(page.locator("#live-text")).to_have_text("30 new")
        assert newest_drawn(page) == 59
        page.keyboard.press("0")
        wait_newest(page, 89)

    def test_page_hostile_names_stay_text(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(5), name='<img src=x onerror="window.hurt=1">')
        visit(page, f"run={own_run}")
        wait_drawn(page)
        served.add_event(
            page_runs.event(3, run=own_run, message="<img src=x onerror='window.hurt=1'> at step 3")
        )
        expect(page.locator("#verdict-text")).to_contain_text("<img src=x")
        page.locator("#tab-events").click()
        expect(page.locator("#event-table")).to_contain_text("<img src=x")
        assert page.evaluate("window.hurt") is None
        assert page.locator("img[src=x]").count() == 0

    def test_page_run_that_ends_says_so(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(30), start_time=never_late())
        visit(page, f"run={own_run}")
        expect(page.locator("#live-text")).to_have_text("live 10/s")
        served.end_run(run=own_run)
        # Its clock goes before ours: nobody can say how long ago that was.
        expect(page.locator("#live-text")).to_have_text("ended")
        assert "clock" in page.locator("#live-button").get_attribute("title")

    def test_page_chosen_run_stays_when_a_newer_one_starts(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(30))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        count = page.evaluate("nanscope.runCount")
        served.fill(run="newer-run", steps=range(7), start_time=time.time())
        until(page, "count => nanscope.runCount === count + 1", count)
        assert f"run={own_run}" in page.url
        expect(page.locator("#tile-step .ns-tile-value")).to_have_text("29")

    def test_page_rank_in_the_address_is_shown(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(30))
        served.fill(run=own_run, steps=range(12), rank=1)
        open_page(page, served, f"&run={own_run}&rank=1")
        expect(page.locator("#tile-step .ns-tile-value")).to_have_text("11")
        expect(page.locator("#rank-select")).to_have_value("rank 1")

    def test_page_first_view_is_as_fine_as_its_pixels(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(400))
        open_page(page, served, f"&run={own_run}")
        wait_drawn(page)
        assert page.evaluate("nanscope.painted('loss').lines[0].x.length") == 400
        assert page.evaluate("nanscope.heatmap.fields.stepsPerColumn") == 1

    def test_page_long_layer_names_show_their_ends(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(5))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        short = page.evaluate("nanscope.heatmap.rows")
        page.evaluate(
            "nanscope.heatmap.rows = "
            "nanscope.heatmap.rows.map(name => 'model.encoder.stages.attention.' + name);"
            "nanscope.later(nanscope.drawHeatmap)"
        )
        label = page.locator("#heatmap-labels button", has_text="blocks.3.mlp.2")
        expect(label).to_have_attribute("title", re.compile("model.encoder.stages.attention.blocks.3.mlp.2"))
        # Its last letters lie inside the button, the first ones are what is left out.
        inside = page.evaluate(
            "button => { const range = document.createRange();"
            "const text = button.querySelector('bdi').lastChild;"
            "range.setStart(text, text.length - 5); range.setEnd(text, text.length);"
            "const end = range.getBoundingClientRect(), box = button.getBoundingClientRect();"
            "return end.left >= box.left && end.right <= box.right + 0.5; }",
            label.element_handle(),
        )
        page.evaluate("short => { nanscope.heatmap.rows = short; }", short)
        assert inside

    def test_page_without_loss_or_gradients_says_so(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(9), is_bare=True)
        visit(page, f"run={own_run}")
        until(page, "document.querySelectorAll('#heatmap-labels button').length > 0")
        expect(page.locator("#legend-loss")).to_have_text("none recorded in these steps")
        expect(page.locator("#heatmap-scale")).to_be_hidden()
        assert page.evaluate("nanscope.painted('loss').yTicks.length") == 0

    def test_page_keys_work_after_choosing_steps(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(60))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        served.add_event(page_runs.event(20, run=own_run))
        expect(page.locator("#verdict-text")).to_contain_text("step 20")
        page.locator("#strip").focus()
        page.keyboard.press("ArrowUp")
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "false")
        until(page, "nanscope.rowsInOrder()?.length > 0")  # the verdict may come before the table
        page.keyboard.press("n")
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")

    def test_page_keys_never_act_while_typing(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(60))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        served.add_event(page_runs.event(20, run=own_run))
        expect(page.locator("#verdict-text")).to_contain_text("step 20")
        page.locator("#run-select").click()
        page.keyboard.type("n p0")
        expect(page.locator("#event-aside")).to_be_hidden()
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "true")

    def test_page_notice_of_an_unknown_run_goes_with_a_choice(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(9), start_time=1_600_000_000.0)
        open_page(page, served, "&run=gone")
        expect(page.locator("#notice")).to_contain_text("gone is not here")
        page.locator("#run-select").click()
        page.keyboard.type(own_run)  # only rows in view are elements
        page.locator(f"#run-picker [data-run={own_run}]").click()
        expect(page.locator("#notice")).to_be_hidden()

    def test_page_long_run_names_can_be_read_whole(self, page: Page, served: Served, own_run: str) -> None:
        name = "experiment_with_a_long_name_" * 4 + "seed1.py"
        served.fill(run=own_run, steps=range(5), name=name)
        visit(page, f"run={own_run}")
        wait_drawn(page)
        expect(page.locator("#run-select")).to_have_attribute("title", re.compile("seed1.py"))
        page.locator("#run-select").click()
        whole = page.locator("#run-picker-name")
        expect(whole).to_contain_text(name)
        assert whole.evaluate("each => each.scrollWidth <= each.clientWidth")


@BOTH_ENGINES
def test_page_server_restart_reconnects_by_itself(page: Page, served: Served) -> None:
    served.fill(steps=range(30))
    open_page(page, served)
    wait_drawn(page)
    page.evaluate("window.loadedBefore = true")
    served.restart()
    served.fill(steps=range(30, 60))
    wait_newest(page, 59)
    assert page.evaluate("window.loadedBefore") is True


def test_page_newer_run_replaces_one_that_is_over(page: Page, served: Served) -> None:
    served.fill(steps=range(30), run="first-run")
    open_page(page, served)
    wait_drawn(page)
    served.end_run(run="first-run")
    served.fill(steps=range(7), run="second-run", start_time=time.time())
    expect(page.locator("#tile-step .ns-tile-value")).to_have_text("6")
    assert "run=second-run" in page.url


def test_page_lists_the_models_of_a_training_as_one_run(page: Page, served: Served) -> None:
    for model, later in (("judge", 0.0), ("painter", 1.0)):
        run, begun = f"gan-{model}", 1_700_000_000.0 + later
        name = f"gan.py ({model})"
        served.fill(steps=range(9), run=run, name=name, model=model, group="gan-judge", start_time=begun)
    served.fill(steps=range(9), run="single", name="train.py", start_time=1_700_009_000.0)
    open_page(page, served)
    wait_drawn(page)
    page.locator("#run-select").click()
    listed = page.get_by_role("grid", name="Runs")
    expect(listed.locator("[data-run]").first).to_be_visible()
    expect(listed.get_by_text("gan.py · an-judge")).to_be_visible()
    assert listed.locator(".ns-picker-run").all_inner_texts() == ["train.py", "judge", "painter"]
    listed.get_by_role("row", name="painter").click()
    expect(page.locator("#run-select")).to_have_attribute("title", "gan.py (painter) · gan-painter")
    expect(page.locator("#run-name")).to_have_text("gan.py (painter)")


def test_page_runs_that_somebody_has_named_keep_their_names(page: Page, served: Served) -> None:
    for rate, begun in (("0.1", 1_700_000_000.0), ("0.2", 1_700_000_001.0)):
        run, name = f"sweep-run-{rate}", f"lr {rate}"
        served.fill(steps=range(9), run=run, name=name, model="Net", group="sweep-run-0.1", start_time=begun)
    open_page(page, served)
    wait_drawn(page)
    page.locator("#run-select").click()
    listed = page.get_by_role("grid", name="Runs")
    expect(listed.get_by_text("2 runs of one process")).to_be_visible()
    assert listed.locator(".ns-picker-run").all_inner_texts() == ["lr 0.1", "lr 0.2"]
