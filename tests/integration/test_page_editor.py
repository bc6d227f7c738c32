"""Links from file and line to an editor, in a real Chromium: local paths and schemes of the list alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from page_fixtures import Served, page_runs, until
from page_visits import RunsOfTheirOwn, visit
from playwright.sync_api import Page, expect

from probe.wire import Event, StackFrame, Stacks

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def event_in(run: str, file: str, line: int = 26, subject: str = "blocks.1.norm1") -> Event:
    frame = StackFrame(file=file, line=line, function="forward", code="x\n", code_first_line=line)
    event = page_runs.event(20, run=run, subject=subject)
    return msgspec.structs.replace(event, stacks=Stacks(forward=[frame]))


def visit_event(page: Page, served: Served, run: str, file: str) -> None:
    """Have an open page show the panel of the one event of a run, whose line is in a file."""
    event = event_in(run, file)
    served.fill(run=run, steps=range(40))
    served.add_event(event)
    visit(page, f"run={run}&event={event.id}")
    until(page, "id => nanscope.panelShown()?.dataset.event === id", event.id)
    expect(page.locator("#event-headline")).to_be_visible()
    until(page, "nanscope.rowsInOrder()?.length === 1")


def choose(page: Page, editor: str) -> None:
    page.locator("#page-menu").click()
    page.locator("#editor").click()
    page.locator(f"#editor-choices input[value={editor}]").check()


FOREIGN = (
    "<string>",
    "train.py",
    "../train.py",
    "//host/share/train.py",
    "\\\\host\\share\\train.py",
    "/home/ann/../../etc/passwd",
    "/home/ann/\u202eyp.exe",
    "/home/ann/a\nb.py",
    "javascript:window.hurt=1",
    "vscode://file/x.py",
    "file:///etc/passwd",
    "https://evil.example/x.py",
)


class TestEditor(RunsOfTheirOwn):
    """One page, on which each test visits a run of its own, and where no editor is chosen when it begins."""

    @pytest.fixture(autouse=True)
    def no_editor_is_chosen(self, page: Page) -> Iterator[None]:
        yield
        page.context.clear_permissions()
        page.evaluate("document.querySelector('#editor-choices input').click()")
        page.evaluate("localStorage.removeItem('nanscope-editor')")
        expect(page.locator(".ns-open-line")).to_have_count(0)

    def test_lines_have_a_copy_button_always_and_a_link_once_an_editor_is_chosen(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        visit_event(page, served, own_run, "/home/ann/my code/train#1&x=%2.py")
        assert page.locator(".ns-open-line").count() == 0
        place = page.locator("#event-content .ns-source").first
        place.get_by_role("button", name="Copy path:line").click()
        expect(place.locator("button")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "/home/ann/my code/train#1&x=%2.py:26"
        choose(page, "vscode")
        page.keyboard.press("Escape")
        links = page.locator(".ns-open-line")
        expect(links).to_have_count(3)  # verdict, origin, stack frame
        expected = "vscode://file/home/ann/my%20code/train%231%26x%3D%252.py:26"
        assert {link.get_attribute("href") for link in links.all()} == {expected}
        page.reload()
        expect(page.locator("#verdict-source a")).to_have_attribute("href", expected)
        choose(page, "pycharm")
        expect(page.locator("#verdict-source a")).to_have_attribute(
            "href", "pycharm://open?file=/home/ann/my%20code/train%231%26x%3D%252.py&line=26"
        )
        page.locator("#editor-choices input[value='']").check()
        expect(links).to_have_count(0)

    def test_path_that_is_not_one_of_this_machine_has_no_link(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        visit_event(page, served, own_run, "/home/ann/train.py")
        choose(page, "vscode")
        page.keyboard.press("Escape")
        expect(page.locator(".ns-open-line")).to_have_count(3)
        events = [event_in(own_run, file, subject=f"s{number}") for number, file in enumerate(FOREIGN)]
        served.add_events(events)
        until(page, "count => nanscope.rowsInOrder()?.length === count", len(FOREIGN) + 1)
        for file, event in zip(FOREIGN, events, strict=True):
            page.evaluate("id => nanscope.openEvent(id)", event.id)
            until(page, "id => nanscope.panelShown()?.dataset.event === id", event.id)
            page.wait_for_timeout(100)
            assert page.locator("#event-content .ns-open-line").count() == 0, file
            copied = page.locator("#event-content .ns-source button").first.get_attribute("data-text") or ""
            assert copied and "\n" not in copied and "\u202e" not in copied
        assert page.evaluate("window.hurt") is None

    def test_addresses_are_made_of_the_listed_schemes_and_escaped_paths_alone(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        visit_event(page, served, own_run, "/home/ann/train.py")
        choose(page, "own")
        own = page.get_by_label("Address that opens a line")
        for template in (
            "javascript:alert('{path}{line}')",
            "javascript://%0aalert(1)//{path}{line}",
            "https://evil.example/?{path}{line}",
            "data:text/html,{path}{line}",
            "file://{path}{line}",
            "VSCODE://file{path}:{line}",
            "vscode://file{path}",
            "vscode://file{path}:{line}{path}",
            "vscode://file{path}:{line}\u202e",
            'vscode://file{path}:{line}" onclick="x',
            " vscode://file{path}:{line}",
        ):
            own.fill(template)
            expect(page.locator("#editor-said")).not_to_be_empty()
            assert page.locator(".ns-open-line").count() == 0, template
        own.fill("subl://open?url=file://{path}&line={line}")
        expect(page.locator("#editor-said")).to_be_empty()
        address = "subl://open?url=file:///home/ann/train.py&line=26"
        expect(page.locator("#verdict-source a")).to_have_attribute("href", address)
        made = page.evaluate(
            """files => files.map(([file, line]) => nanscope.editorAddress(file, line))""",
            [
                ["/a/$&$'{line}.py", 3],
                ['/a/"><img src=x onerror=alert(1)>.py', 3],
                ["C:\\code\\train.py", 3],
                ["/a.py", 0],
                ["/a.py", -1],
                ["/a.py", 1.5],
                ["/a.py", "3"],
                ["/" + "x" * 5000, 3],
            ],
        )
        assert made == [
            "subl://open?url=file:///a/%24%26%24'%7Bline%7D.py&line=3",
            "subl://open?url=file:///a/%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E.py&line=3",
            "subl://open?url=file:///C%3A/code/train.py&line=3",
            None,
            None,
            None,
            None,
            None,
        ]

    def test_stored_editor_may_be_anything(self, page: Page, served: Served, own_run: str) -> None:
        visit_event(page, served, own_run, "/home/ann/train.py")
        for stored in (
            "nonsense",
            "{}",
            '["evil", "javascript:{path}{line}"]',
            '["own", "javascript:{path}{line}"]',
        ):
            page.evaluate("text => localStorage.setItem('nanscope-editor', text)", stored)
            page.reload()
            expect(page.locator("#event-headline")).to_be_visible()
            until(page, "document.querySelector('#verdict-source')?.dataset.file === '/home/ann/train.py'")
            assert page.locator(".ns-open-line").count() == 0, stored

    def test_link_to_an_editor_breaks_no_rule_of_the_pages_policy(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        visit_event(page, served, own_run, "/home/ann/train.py")
        choose(page, "vscode")
        page.keyboard.press("Escape")
        page.evaluate(
            "window.broken = [];"
            "document.addEventListener('securitypolicyviolation',"
            " ({ blockedURI }) => broken.push(blockedURI));"
            "document.querySelector('#verdict-source a').addEventListener('click', "
            "(event) => { window.clicked = event.defaultPrevented; event.preventDefault(); })"
        )
        page.locator("#verdict-source a").click()
        until(page, "window.clicked === false")
        assert page.evaluate("window.broken") == []
