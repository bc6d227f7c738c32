"""The views of memory and of the system in a browser: sections, choices, events, the doctor, any width."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from axe_fixtures import THEMED, axe_source, grave_faults
from page_fixtures import Served, page_runs, until
from page_visits import OnePage, visit
from playwright.sync_api import Page, expect

from probe.wire import Evidence, StackFrame, Stacks

pytestmark = pytest.mark.browser
MIB = 2**20
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
DOCTOR_MS = 180_000


def append(served: Served, *records: Any, run: str = "demo-run") -> None:
    page_runs.add_records(served.server.store, *records, run=run)
    served.server.notify()


def leak() -> Any:
    message = "Memory leak: `history` grows by about one tensor per step\nKeep `.item()` of it."
    event = page_runs.event(40, kind="memory_leak", severity="warning", subject=HOSTILE, message=message)
    stack = Stacks(training_loop=[StackFrame(file="/home/ann/train.py", line=148, function="train")])
    numbers = Evidence(value=0.8 * MIB, baseline={"items": 12.0, "items_per_step": 1.0})
    return msgspec.structs.replace(event, evidence=numbers, stacks=stack, origin=None)


def fill(served: Served) -> None:
    served.fill(steps=range(80), is_full=True, start_time=1.7e9)
    append(
        served,
        leak(),
        page_runs.memory_snapshot(10),
        page_runs.memory_snapshot(40, HOSTILE),
        page_runs.memory_snapshot(70),
        page_runs.tracked_tensor(HOSTILE),
    )


def open_view(page: Page, served: Served, tab: str) -> None:
    page.goto(f"{served.server.address}&tab={tab}")
    until(page, "tab => document.body.dataset.tab === tab && nanscope.newestStep !== null", tab)


def go_to_view(page: Page, tab: str, run: str = "demo-run") -> None:
    visit(page, f"run={run}&tab={tab}")
    until(page, "tab => document.body.dataset.tab === tab && nanscope.newestStep !== null", tab)


class TestMemory(OnePage):
    """A run with a leak, and one that says nothing of memory before its test."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        fill(served)
        open_view(shared_page, served, "memory")
        return shared_page

    def test_memory_has_charts_growth_lines_snapshots_and_tensors(self, page: Page) -> None:
        go_to_view(page, "memory")
        details = page.locator("#memory-details")
        for title in ("What feeds the growth", "What grew between two snapshots", "Tracked tensors"):
            expect(details.get_by_role("region", name=title, exact=True)).to_be_visible()
        # The synthetic run's process gets 1e5 bytes a step; what CUDA has given out stays.
        expect(details).to_contain_text("The process grows by +95.4 MiB per 1,000 steps")
        expect(details).to_contain_text("CUDA memory of tensors: no growth within the noise")
        expect(details.locator(".ns-tracked tbody th")).to_have_text("<img src=x onerror=alert(1)>[U+202E]")
        assert page.locator("img[src=x]").count() == 0
        for chart in ("memory_kinds", "memory", "allocator", "memory_growth"):
            expect(page.locator(f"[data-chart={chart}]")).to_be_visible()
        template = "nanscope.templates.charts.find((chart) => chart.id === 'memory_kinds').stacked"
        assert page.evaluate(template) is True

    def test_any_two_snapshots_can_be_compared_and_stay_chosen(self, page: Page, served: Served) -> None:
        go_to_view(page, "memory")
        heads = page.locator(".ns-compared thead th")
        expect(heads).to_have_text(["At step 10", "At step 70", "Change"])
        page.get_by_role("combobox", name="First snapshot").select_option(f"{page_runs.INCARNATION}/s40")
        expect(heads).to_have_text(["At step 40", "At step 70", "Change"])
        expect(page.locator(".ns-compared tr", has_text="process")).to_contain_text("+30 MiB")
        # Another snapshot makes the sections anew.
        append(served, page_runs.memory_snapshot(75))
        option = page.get_by_role("combobox", name="Second snapshot").locator("option", has_text="step 75")
        expect(option).to_have_count(1)
        expect(heads).to_have_text(["At step 40", "At step 70", "Change"])
        until(page, "document.querySelector('.ns-compare').selectedOptions[0].text.startsWith('step 40')")
        # They are in the address: Back takes them back, a reload has them again.
        page.go_back()
        expect(heads).to_have_text(["At step 10", "At step 75", "Change"])
        until(page, "document.querySelector('.ns-compare').selectedOptions[0].text.startsWith('step 10')")
        page.go_forward()
        page.reload()
        expect(heads).to_have_text(["At step 40", "At step 70", "Change"])
        until(page, "document.querySelector('.ns-compare').selectedOptions[0].text.startsWith('step 40')")
        page.goto(page.url.replace("s70", "s71"))
        expect(page.locator("#memory-details")).to_contain_text("The second snapshot that the address names")

    def test_line_that_feeds_a_leak_opens_its_event(self, page: Page) -> None:
        go_to_view(page, "memory")
        page.get_by_role("button", name="train.py:148").click()
        expect(page.locator("#event-headline")).to_contain_text("Memory leak")

    def test_run_that_says_nothing_of_memory_has_no_such_view(self, page: Page, served: Served) -> None:
        served.fill(run="bare", steps=range(10), is_bare=True)
        go_to_view(page, "overview", run="bare")
        expect(page.locator("#tab-system")).to_be_visible()
        expect(page.locator("#tab-memory")).to_be_hidden()
        append(served, page_runs.memory_snapshot(3), run="bare")
        expect(page.locator("#tab-memory")).to_be_visible()

    @pytest.mark.parametrize("width", [1440, 1024, 390])
    @pytest.mark.parametrize("tab", ["memory", "system"])
    def test_no_window_is_scrolled_sideways(self, page: Page, tab: str, width: int) -> None:
        go_to_view(page, tab)
        page.set_viewport_size({"width": width, "height": 844})
        until(page, "width => document.documentElement.clientWidth === width", width)
        expect(page.locator("#memory-details section, #system-account section").first).to_be_attached()
        expect(page.locator(f"#panel-{tab} section").first).to_be_visible()
        until(page, "document.documentElement.scrollWidth <= window.innerWidth")

    @pytest.mark.parametrize(("theme", "rules"), [("dark", None), ("light", THEMED)], ids=["dark", "light"])
    def test_memory_has_no_grave_fault_of_accessibility(
        self, page: Page, theme: Any, rules: tuple[str, ...] | None
    ) -> None:
        page.emulate_media(color_scheme=theme)
        until(page, "theme => document.documentElement.dataset.theme === theme", theme)
        go_to_view(page, "memory")
        expect(page.locator(".ns-compared")).to_be_visible()
        page.evaluate(axe_source())
        assert grave_faults(page, "memory", rules=rules) == []
        page.emulate_media(color_scheme="dark")


def test_system_has_the_account_and_runs_the_doctor_on_request(page: Page, served: Served) -> None:
    served.fill(steps=range(30), is_full=True)
    open_view(page, served, "system")
    account = page.locator("#system-account")
    expect(account).to_contain_text("32 records received = 32 stored + 0 in gaps + 0 dropped.")
    expect(account.locator(".ns-streams tbody tr")).to_have_count(2)
    served.fill(steps=range(30, 40), is_full=True)
    expect(account).to_contain_text("42 records received = 42 stored", timeout=30_000)
    assert page.locator("table.ns-doctor").count() == 0
    page.locator("#doctor-ask").click()
    expect(page.locator("#doctor-said")).to_contain_text("Checking what recording needs")
    expect(page.locator("#doctor-ask")).to_be_disabled()
    expect(page.locator("#doctor-serving tbody tr", has_text="duckdb")).to_contain_text("ok")
    # Charts and the rest of the page go on meanwhile.
    assert page.evaluate("fetch('/health').then((answer) => answer.status)") == 200
    found = page.locator("#doctor-recording tbody tr", has_text="torch").first
    expect(found).to_be_visible(timeout=DOCTOR_MS)
    expect(page.locator("#doctor-ask")).to_be_enabled()
    expect(page.locator("#doctor-said")).to_contain_text("Recording works")
    page.evaluate(axe_source())
    assert grave_faults(page, "system with the doctor's findings") == []
