"""The view Ranks in a real Chromium: few ranks and many, what stands out, picking, address, hostile names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import rank_runs
from page_fixtures import BOTH_ENGINES, Served, never_late, until
from page_visits import visit
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def fill(served: Served, **arguments: object) -> None:
    rank_runs.fill_ranks(served.server.store, **{"start_time": never_late(), **arguments})
    served.server.notify()


def open_ranks(page: Page, served: Served, query: str = "", *, run: str = "demo-run") -> None:
    page.goto(f"{served.server.address}&run={run}&tab=ranks{query}")
    wait_for_rows(page)


def visit_ranks(page: Page, run: str, query: str = "") -> None:
    """Have an open page show a run's ranks, scrolled to the first one."""
    page.evaluate("nanscope.byId('ranks-body').scrollTop = 0")
    visit(page, f"run={run}&tab=ranks{query}")
    wait_for_rows(page)


def wait_for_rows(page: Page) -> None:
    until(page, "window.nanscope?.ranks?.rows.length > 0 && document.querySelector('.ns-rank-row') !== null")


def label(page: Page, rank: int) -> str:
    return page.locator(f"#ranks-row-{rank}").get_attribute("aria-label") or ""


def point(page: Page, rank: int, step: float) -> tuple[float, float]:
    """Where a cell lies on the screen."""
    x, y = page.evaluate(
        "([rank, step]) => { const box = nanscope.byId('ranks-canvas').parentElement.getBoundingClientRect();"
        "const row = nanscope.ranks.rows.find((each) => each.rank === rank);"
        "return [box.left + nanscope.axis().of(step) * box.width, box.top + row.top + row.height / 2]; }",
        [rank, step],
    )
    return x, y


def colours(page: Page, rank: int, step: float) -> set[tuple[int, ...]]:
    """Colours of the pixels of one cell."""
    x, y = point(page, rank, step)
    found = page.evaluate(
        "([x, y]) => { const canvas = nanscope.byId('ranks-canvas'), box = canvas.getBoundingClientRect();"
        "const scale = canvas.width / box.width;"
        "const context = canvas.getContext('2d');"
        "const data = context.getImageData((x - box.left) * scale - 3, (y - box.top) * scale - 2,"
        "  7, 4).data; return Array.from(data); }",
        [x, y],
    )
    return {tuple(found[at : at + 3]) for at in range(0, len(found), 4)}


@BOTH_ENGINES
def test_ranks_nan_first_in_one_rank_is_said_marked_and_hatched(page: Page, served: Served) -> None:
    others = {rank: 32 for rank in range(8) if rank != 3}
    fill(served, ranks=range(8), steps=range(40), nan_from={3: 30, **others})
    open_ranks(page, served)
    said = "Rank 3 went NaN first at step 30, 2 steps before any other"
    expect(page.locator("#ranks-said")).to_contain_text(said)
    expect(page.locator("#ranks-row-3 .ns-rank-mark")).to_have_text("\u25c6")
    expect(page.locator("#ranks-row-4 .ns-rank-mark")).to_have_count(0)
    assert label(page, 3).startswith("rank 3 on node0; NaN or Inf first")
    expect(page.locator("#ranks-origin")).to_be_visible()
    assert len(colours(page, 3, 31)) == 2, "a hatch has two colours"
    assert not colours(page, 3, 31) & colours(page, 4, 20)
    expect(page.locator("#ranks-caption")).to_contain_text(
        "DistributedDataParallel has averaged over the ranks"
    )
    page.locator("#ranks-said button", has_text="Rank 3").click()
    until(page, "nanscope.view.rank === 3 && nanscope.ranks.fields !== null")
    expect(page.locator("#ranks-own")).to_have_text("NaN")


def test_ranks_1024_a_bad_one_is_seen_on_the_strip_and_reached_by_a_click(page: Page, served: Served) -> None:
    fill(served, ranks=range(1024), steps=range(24), nan_from={768: 20}, slow=[300])
    open_ranks(page, served)
    expect(page.locator("#ranks-said")).to_contain_text("Rank 768 went NaN first at step 20")
    expect(page.locator("#ranks-said")).to_contain_text("Rank 300 is slow")
    expect(page.locator("#ranks-facts")).to_contain_text("1,024 ranks on 128 hosts")
    assert page.locator(".ns-rank-row").count() < 200, "only the rows in the window have elements"
    strip = page.locator("#ranks-map").bounding_box()
    assert strip is not None
    share = page.evaluate("nanscope.ranks.rows.find((row) => row.rank === 768).top / nanscope.ranks.height")
    x, y = strip["x"] + strip["width"] / 2, strip["y"] + strip["height"] * share + 1
    page.mouse.move(x, y)
    expect(page.locator("#tooltip")).to_contain_text("rank 768 \u00b7 node96")
    page.mouse.click(x, y)
    expect(page.locator("#rank-select")).to_have_value("rank 768")
    expect(page.locator("#ranks-row-768")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#ranks-row-768 .ns-rank-mark")).to_have_text("\u25c6")
    assert len(colours(page, 768, 21)) == 2, "what is scrolled to is painted: the hatch"
    page.locator("#ranks-said button", has_text="Rank 300").click()
    expect(page.locator("#ranks-row-300")).to_have_attribute("aria-selected", "true")
    page.locator("#ranks-list").focus()
    page.keyboard.press("End")
    expect(page.locator("#ranks-list")).to_have_attribute("aria-activedescendant", "ranks-row-1023")
    assert label(page, 1023).startswith("rank 1023 on node127")
    page.locator("#rank-select").fill("517")
    page.get_by_role("option", name="rank 517", exact=True).click()
    expect(page.locator("#ranks-row-517")).to_have_attribute("aria-selected", "true")
    assert "rank=517" in page.url


class TestRanks:
    """One page, on which each test visits the ranks of a run of its own, or opens it anew."""

    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, shared_served: Served) -> Served:
        fill(shared_served, ranks=range(2), steps=range(5))
        return shared_served

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        open_ranks(shared_page, served)
        return shared_page

    @pytest.fixture(autouse=True)
    def at_desk(self, page: Page) -> Iterator[None]:
        yield
        page.set_viewport_size({"width": 1440, "height": 900})

    def test_ranks_click_and_keys_pick_the_rank_everywhere(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(8), steps=range(40))
        visit_ranks(page, own_run)
        expect(page.locator("#ranks-said")).to_have_text("No rank is unusual")
        page.mouse.click(*point(page, 5, 20))
        expect(page.locator("#rank-select")).to_have_value("rank 5")
        expect(page.locator("#ranks-row-5")).to_have_attribute("aria-selected", "true")
        assert "rank=5" in page.url
        page.mouse.move(5, 5)
        page.locator("#ranks-list").focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator("#ranks-list")).to_have_attribute("aria-activedescendant", "ranks-row-6")
        value = rank_runs.scalars(6, 39)["grad_norm"]
        expect(page.locator("#ranks-row-6")).to_have_attribute(
            "aria-label", re.compile(f"step 39: {value:.3g}".rstrip("0"))
        )
        assert (
            ", median 0.3" in label(page, 6)
            and "of 8 ranks" in label(page, 6)
            and "95 % below" in label(page, 6)
        )
        assert "rank=5" in page.url
        page.keyboard.press("Enter")
        expect(page.locator("#rank-select")).to_have_value("rank 6")
        page.keyboard.press("Home")
        expect(page.locator("#ranks-list")).to_have_attribute("aria-activedescendant", "ranks-row-0")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#announcer")).to_contain_text("step 38, rank 0: 0.3")
        fill(served, run=own_run, ranks=range(8), steps=range(40, 50))
        until(page, "nanscope.newestStep === 49")
        expect(page.locator("#announcer")).to_contain_text("step 38, rank 0: 0.3")

    def test_ranks_hover_says_rank_step_value_and_median(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(8), steps=range(40))
        visit_ranks(page, own_run)
        page.mouse.move(*point(page, 2, 17))
        value = rank_runs.scalars(2, 17)["grad_norm"]
        expect(page.locator("#tooltip")).to_contain_text("rank 2 \u00b7 node0")
        expect(page.locator("#tooltip")).to_contain_text("step 17")
        expect(page.locator("#tooltip")).to_contain_text(f"{value:.3g}".rstrip("0"))
        expect(page.locator("#tooltip")).to_contain_text("median 0.3")
        expect(page.locator("#ranks-crosshair")).to_be_visible()
        expect(page.locator("#ranks-at")).to_have_text("step 17")
        page.mouse.move(5, 5)
        expect(page.locator("#tooltip")).to_be_hidden()

    def test_ranks_as_a_table_of_a_step(self, page: Page, served: Served, own_run: str) -> None:
        fill(served, run=own_run, ranks=range(8), steps=range(40))
        visit_ranks(page, own_run)
        page.keyboard.press("t")
        expect(page.locator("#values-step")).to_have_text("Step 39")
        expect(page.locator("#values-rows tr")).to_have_count(8)
        expect(page.locator("#values-rows-title")).to_have_text("Gradient norm")
        row = page.locator("#values-rows tr").nth(6)
        expect(row).to_contain_text("rank 6, node0")
        expect(row).to_contain_text(f"{rank_runs.scalars(6, 39)['grad_norm']:.3g}, median 0.3")

    def test_ranks_first_step_of_many_is_whole_below_the_picture(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(2), steps=range(600))
        visit_ranks(page, own_run)
        expect(page.locator("#ranks-axis > span").first).to_have_text("0")
        left = "name => document.querySelector(name).getBoundingClientRect().left"
        assert page.evaluate(left, "#ranks-axis > span") > page.evaluate(left, "#ranks-axis") - 0.5

    def test_ranks_64_by_host_with_a_slow_and_a_missing_one(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        present = [rank for rank in range(64) if rank != 5]
        fill(served, run=own_run, ranks=present, steps=range(60), world_size=64, slow=[12])
        visit_ranks(page, own_run)
        expect(page.locator(".ns-rank-row")).to_have_count(64)
        expect(page.locator("#ranks-facts")).to_contain_text("64 ranks on 8 hosts")
        expect(page.locator("#ranks-said")).to_contain_text("Rank 12 is slow: its own work takes 130 ms")
        expect(page.locator("#ranks-said")).to_contain_text("Rank 5 has sent nothing")
        order = page.evaluate("nanscope.ranks.rows.map((row) => row.rank)")
        assert order == [*present, 5], "by host, and last who has sent nothing"
        tops = page.evaluate("nanscope.ranks.rows.map((row) => row.isNew)")
        assert sum(tops) == 9
        assert "this rank has sent nothing" in label(page, 5)
        # The picked rank has the label of its host's first row, and names the host beside it.
        expect(page.locator("#ranks-row-0 .ns-rank-label")).to_contain_text("rank 0node0")
        assert len(colours(page, 5, 30)) == 1
        page.mouse.click(*point(page, 5, 30))
        page.wait_for_timeout(300)
        assert "rank=" not in page.url, "there is nothing of it to show"
        page.locator("#ranks-order button", has_text="By step time").click()
        times = "nanscope.ranks.rows.slice(0, -1).map(row => nanscope.ranks.fields.times.p50[row.at])"
        until(page, f"{times}.every((time, at, all) => at === 0 || all[at - 1] >= time)")  # in the next frame
        assert page.evaluate("nanscope.ranks.rows.at(-1).rank") == 5
        assert "rankorder=time" in page.url

    def test_ranks_statistic_is_in_the_address_and_offered_where_there_is_data(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        def without(rank: int, step: int, values: dict[str, float]) -> None:
            del values["own_backward_s"]

        fill(served, run=own_run, ranks=range(8), steps=range(40), change=without)
        visit_ranks(page, own_run)
        assert page.locator("#ranks-select option:not([hidden])").all_text_contents() == [
            "Gradient norm",
            "Loss",
            "Step time",
        ]
        page.locator("#ranks-select").select_option("loss")
        until(page, "nanscope.ranks.fields.statistic === 'loss'")
        expect(page.locator("#ranks-scale")).to_contain_text("\u00b10.0")
        expect(page.locator("#ranks-caption")).to_contain_text("its own part of the batch")
        assert "ranks=loss" in page.url
        page.reload()
        until(page, "window.nanscope?.ranks?.fields?.statistic === 'loss'")
        expect(page.locator("#ranks-select")).to_have_value("loss")
        open_ranks(page, served, "&ranks=%3Cb%3E&rankorder=__proto__&rank=2", run=own_run)
        until(page, "nanscope.ranks.fields.statistic === 'grad_norm'")

    def test_ranks_drag_zooms_and_a_live_run_grows(self, page: Page, served: Served, own_run: str) -> None:
        fill(served, run=own_run, ranks=range(4), steps=range(40))
        visit_ranks(page, own_run)
        fill(served, run=own_run, ranks=range(4), steps=range(40, 60))
        until(page, "nanscope.rankColumns().length === 60")
        page.mouse.move(*point(page, 1, 19.6))
        page.mouse.down()
        page.mouse.move(*point(page, 1, 40.4), steps=5)
        page.mouse.up()
        until(page, "nanscope.range.join() === '20,41' && nanscope.rankColumns().length === 21")
        assert "steps=20-41" in page.url and "rank=" not in page.url
        page.keyboard.press("0")
        until(page, "nanscope.rankColumns().length === 60")

    def test_ranks_wheel_zooms_and_pans_and_a_drag_with_shift_pans(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(4), steps=range(200))
        visit_ranks(page, own_run, "&rank=1&steps=50-150")
        until(page, "nanscope.range.join() === '50,150' && nanscope.rankColumns().length === 100")
        page.mouse.move(*point(page, 2, 100))
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        until(page, "nanscope.range[0] === 60 && nanscope.range[1] === 140")
        page.keyboard.down("Shift")
        page.mouse.wheel(0, 100)
        until(page, "nanscope.range.join() === '68,148'")
        page.mouse.move(*point(page, 2, 120))
        page.mouse.down()
        page.mouse.move(*point(page, 2, 100), steps=5)
        page.mouse.up()
        page.keyboard.up("Shift")
        until(page, "Math.abs(nanscope.range[0] - 88) <= 1 && nanscope.range[1] - nanscope.range[0] === 80")
        assert "rank=1" in page.url, "what ends a drag picks no rank"
        page.mouse.dblclick(*point(page, 1, 120))
        until(page, "nanscope.range.join() === '0,200'")

    def test_ranks_drag_shows_what_it_chooses_and_escape_ends_it(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(4), steps=range(40))
        visit_ranks(page, own_run)
        page.mouse.move(*point(page, 1, 10))
        page.mouse.down()
        page.mouse.move(*point(page, 1, 30), steps=5)
        expect(page.locator("#drag-selection")).to_be_visible()
        chosen, (left, _) = page.locator("#drag-selection").bounding_box(), point(page, 1, 10)
        assert abs(chosen["x"] - left) < 2 and abs(chosen["width"] - (point(page, 1, 30)[0] - left)) < 3
        page.keyboard.press("Escape")
        expect(page.locator("#drag-selection")).to_be_hidden()
        page.mouse.up()
        assert page.evaluate("nanscope.view.paused") is False

    def test_ranks_keys_zoom_and_pan_also_from_the_list(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(4), steps=range(200))
        open_ranks(page, served, run=own_run)  # where no row has been under the keys
        until(page, "nanscope.rankColumns().length === 200")
        page.locator("#ranks-list").focus()
        page.keyboard.press("w")
        until(page, "nanscope.range.join() === '50,150'")
        page.keyboard.press("d")
        until(page, "nanscope.range.join() === '75,175'")
        page.keyboard.press("a")
        until(page, "nanscope.range.join() === '50,150'")
        page.keyboard.press("ArrowDown")
        page.keyboard.press(" ")
        expect(page.locator("#rank-select")).to_have_value("rank 1")
        assert page.evaluate("nanscope.view.paused") is True, "Space picks a rank and changes nothing else"
        page.keyboard.press("s")
        until(page, "nanscope.range.join() === '0,200'")

    def test_ranks_axis_counts_time_as_the_other_charts_do(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        # Steps 0 to 19 take a second each, then 20 to 39 four: step 20 lies at a fifth of the time.
        fill(
            served,
            run=own_run,
            ranks=range(4),
            steps=range(40),
            nan_from={1: 20},
            seconds_of=lambda step: step if step < 20 else 20 + 4 * (step - 20),
        )
        visit_ranks(page, own_run, "&steps=0-40")
        until(page, "nanscope.rankColumns().length === 40")
        assert page.locator("#ranks-axis > span").all_text_contents()[:2] == ["0", "5"]
        page.locator("#ranks-kind-relative").click()
        until(page, "nanscope.axis().isTime")
        assert "x=relative" in page.url
        expect(page.locator("#ranks-kind-relative")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#axis-relative")).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#ranks-axis")).to_contain_text("15 s")
        box = page.locator("#ranks-canvas").bounding_box()
        (left, y), (middle, _) = point(page, 1, 19.5), point(page, 1, 30)
        share = (left - box["x"]) / box["width"]
        assert 0.18 < share < 0.24, "by time, not by number"
        assert len(colours(page, 1, 22)) == 2, "the hatch begins where its step is"
        assert len(colours(page, 1, 17)) == 1
        origin = page.locator("#ranks-origin").bounding_box()
        assert abs(origin["x"] + 1 - left) < 2
        page.mouse.move(middle, y)
        expect(page.locator("#ranks-at")).to_have_text("step 30")
        expect(page.locator("#tooltip")).to_contain_text(":")
        page.mouse.move(*point(page, 1, 29.6))
        page.mouse.down()
        page.mouse.move(*point(page, 1, 35.4), steps=5)
        page.mouse.up()
        until(page, "nanscope.range.join() === '30,36'")
        page.locator("#ranks-kind-clock").click()
        expect(page.locator("#ranks-axis > span").first).to_contain_text(":")

    def test_ranks_run_of_one_rank_has_no_such_tab(self, page: Page, served: Served, own_run: str) -> None:
        fill(served, run=own_run, ranks=[0], steps=range(20))
        page.goto(f"{served.server.address}&run={own_run}")
        until(page, "window.nanscope?.range?.[1] === 20")
        expect(page.locator("#tab-ranks")).to_be_hidden()
        fill(served, run=own_run, ranks=[1], steps=range(20))
        expect(page.locator("#tab-ranks")).to_be_visible()
        fill(served, run=f"alone-{own_run}", ranks=[0], steps=range(20))
        page.goto(f"{served.server.address}&run=alone-{own_run}&tab=ranks")
        expect(page.locator("#ranks-empty")).to_have_text(
            "This run has one rank: there is nothing to compare."
        )
        expect(page.locator("#ranks")).to_be_hidden()

    def test_ranks_are_sent_only_while_the_view_is_open(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(8), steps=range(20))
        visit_ranks(page, own_run)
        page.locator("#tab-overview").click()
        until(page, "nanscope.ranks.fields === null")
        page.locator("#tab-ranks").click()
        until(page, "nanscope.ranks.fields !== null && nanscope.rankColumns().length === 20")

    def test_ranks_names_of_hosts_are_text(self, page: Page, served: Served, own_run: str) -> None:
        fill(
            served,
            run=own_run,
            ranks=range(4),
            steps=range(20),
            host_of=lambda rank: f"<img src=x onerror='window.hurt={rank}'>\u202egpj" if rank % 2 else "",
        )
        visit_ranks(page, own_run, "&rank=1")
        page.mouse.move(*point(page, 1, 10))
        expect(page.locator("#tooltip")).to_contain_text("<img src=x onerror='window.hurt=1'>[U+202E]gpj")
        expect(page.locator("#ranks-side-host")).to_have_text(
            "<img src=x onerror='window.hurt=1'>[U+202E]gpj"
        )
        assert "[U+202E]" in label(page, 3) and "host unknown" in label(page, 0)
        assert page.evaluate("window.hurt") is None
        assert page.evaluate("document.querySelectorAll('#ranks img, #tooltip img').length") == 0

    def test_ranks_strip_is_there_only_where_the_rows_do_not_fit_and_scrolls_them(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        fill(served, run=own_run, ranks=range(300), steps=range(8))
        visit_ranks(page, own_run)
        strip = page.locator("#ranks-map").bounding_box()
        assert strip is not None
        page.mouse.click(strip["x"] + 6, strip["y"] + strip["height"] * 0.75)
        expect(page.locator("#ranks-row-225")).to_be_visible()
        assert "rank=" not in page.url, "where no rank stands out a click scrolls"
        page.mouse.move(strip["x"] + 6, strip["y"] + strip["height"] * 0.75)
        page.mouse.down()
        page.mouse.move(strip["x"] + 6, strip["y"], steps=4)
        page.mouse.up()
        expect(page.locator("#ranks-row-0")).to_be_visible()
        page.set_viewport_size({"width": 1440, "height": 2000})
        expect(page.locator("#ranks-map")).to_be_hidden()

    @pytest.mark.parametrize("size", [(1024, 768), (390, 844)])
    def test_ranks_fit_a_smaller_window(
        self, page: Page, served: Served, own_run: str, size: tuple[int, int]
    ) -> None:
        fill(served, run=own_run, ranks=range(8), steps=range(20))
        page.set_viewport_size({"width": size[0], "height": size[1]})
        visit_ranks(page, own_run)
        widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert widths[0] <= widths[1]
        assert page.evaluate("nanscope.byId('ranks-canvas').clientWidth") > 200
