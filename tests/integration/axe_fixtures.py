"""axe-core, which looks for faults of accessibility in a page, for the tests of the page."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

PACKAGE = "axe-core@4.10.3"
NPM_TIMEOUT_S = 120
GRAVE = ("critical", "serious")
THEMED = ("color-contrast", "link-in-text-block")
"""Rules that ask for colours (axe's tag `cat.color`): no other one's answer depends on the theme."""
_RUN = """async ([selector, rules]) => {
  const runOnly = rules && { type: 'rule', values: rules };
  const found = await axe.run(selector, { resultTypes: ['violations'], ...(rules && { runOnly }) });
  return found.violations.flatMap((rule) => rule.nodes.map((node) =>
    [rule.impact, rule.id, node.target.join(' '), node.html.slice(0, 160), node.failureSummary]));
}"""


def axe_source() -> str:
    """Return the script. It is fetched once, into a folder that outlives the tests.

    Where npm cannot be reached the test is skipped; under `CI=true` it fails.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nanscope-tests"
    script = folder / f"{PACKAGE}.js"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        own = folder / f"{PACKAGE}.{os.getpid()}"
        own.mkdir(exist_ok=True)
        try:
            _fetch(own).replace(script)
        except (OSError, subprocess.SubprocessError) as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"{PACKAGE} cannot be fetched with npm: {error}")
        finally:
            shutil.rmtree(own)
    return script.read_text(encoding="utf-8")


def _fetch(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    command = [npm, "pack", PACKAGE, "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=NPM_TIMEOUT_S, cwd=folder)
    (packed,) = folder.glob("*.tgz")
    with tarfile.open(fileobj=io.BytesIO(packed.read_bytes())) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        script = folder / "axe.js"
        script.write_bytes(member.read())
    return script


def grave_faults(
    page: Page, view: str, *, within: str = "html", rules: tuple[str, ...] | None = None
) -> list[str]:
    """Return a line for each critical and serious finding. The page must have had `axe_source` evaluated.

    Args:
        page: the page.
        view: what is on screen, for the message.
        within: CSS selector of what is looked at.
        rules: ids of the rules to ask; None asks all that axe-core has on.
    """
    found = page.evaluate(_RUN, [within, rules])
    return [
        f"{view}: {impact} {rule} at {target}: {html}\n    {why}"
        for impact, rule, target, html, why in found
        if impact in GRAVE
    ]
