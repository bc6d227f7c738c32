"""Who may import what: the layers are visible in the imports, and light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"dash", "plotly", "pandas", "duckdb"}
FROM_PROBE = {
    "bundle_format",
    "columns",
    "event_json",
    "wire",
    "journal",
    "journal_reader",
    "places",
    "errors",
    "detectors",
    "findings",
    "helper",
    "module_frames",
    "magnitude_bins",
    "rank_journals",
    "rank_watch",
    "message_lines",
    "control_messages",
    "control_files",
    "rules",
}
"""What the dashboard may use of the probe; `helper` for its lock alone, which says that a helper is alive,
and `module_frames` and `magnitude_bins`, which are numpy alone, because a frame's module columns and
histograms are unpacked by who packs them."""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (level, module, name) of every import statement; `name` is empty for `import x`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, node.module or "", alias.name) for alias in node.names)


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `statement`."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "probe",
        "probe.wire",
        "probe.journal",
        "probe.places",
        "probe.helper",
        "probe.module_frames",
        "probe.magnitude_bins",
        "probe.self_check",
    ],
)
def test_probe_light_modules_load_no_torch(module: str) -> None:
    assert "torch" not in loaded_by(f"import {module}")


def test_cli_loads_nothing_heavy() -> None:
    assert not loaded_by("import dashboard.cli") & (HEAVY | {"torch", "zmq", "fastapi", "uvicorn", "numpy"})


def test_events_command_loads_nothing_heavy() -> None:
    assert not loaded_by("import dashboard.commands.events") & (
        HEAVY | {"torch", "zmq", "fastapi", "uvicorn"}
    )


@pytest.mark.parametrize("path", sources("probe"), ids=module_name)
def test_probe_module_never_imports_the_dashboards_side(path: Path) -> None:
    tops = {module.partition(".")[0] for level, module, _ in imports_of(path) if level == 0}
    assert not tops & (HEAVY | {"dashboard", "fastapi", "uvicorn"})


@pytest.mark.parametrize("path", sources("dashboard"), ids=module_name)
def test_dashboard_module_never_imports_torch_and_little_of_the_probe(path: Path) -> None:
    for level, module, name in imports_of(path):
        if level:
            continue
        assert module.partition(".")[0] != "torch"
        if module == "probe":
            assert name in FROM_PROBE | {"__version__"}
        elif module.startswith("probe."):
            assert module.split(".")[1] in FROM_PROBE


@pytest.mark.parametrize("path", sources("probe") + sources("dashboard"), ids=module_name)
def test_module_imports_its_own_package_relatively(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    assert not [
        module for level, module, _ in imports_of(path) if not level and module.split(".")[0] == package
    ]


@pytest.mark.parametrize("package", ["probe", "dashboard"])
def test_package_has_no_import_cycle(package: str) -> None:
    """Imports under `if TYPE_CHECKING:` and inside functions count too: none may close a circle."""
    graph = {module_name(path): set(edges(path)) for path in sources(package)}
    graph.pop(package)  # its lazy attributes are no edges of the package's own design
    assert cycle(graph) is None


def edges(path: Path) -> Iterator[str]:
    """Modules of the same package that a file imports."""
    names = {module_name(other) for other in sources(path.relative_to(ROOT).parts[0])}
    base = module_name(path).split(".")
    package = base if path.name == "__init__.py" else base[:-1]
    for level, module, name in imports_of(path):
        if level:
            parent = [*package[: len(package) - level + 1], *(module.split(".") if module else [])]
            yield from (found for found in (".".join([*parent, name]), ".".join(parent)) if found in names)


def cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """Return one circle of modules, or None."""
    finished: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in finished or node not in graph:
            return None
        for following in sorted(graph[node]):
            if found := visit(following, [*trail, node]):
                return found
        finished.add(node)
        return None

    return next((found for node in sorted(graph) if (found := visit(node, []))), None)


def test_cycle_finds_a_planted_circle() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
