"""Who may import what: the layers are visible in the imports, and light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"dash", "plotly", "pandas", "duckdb"}
FLOORS: dict[str, dict[str, int]] = {
    "probe": {
        "began": 0,
        "errors": 0,
        "guard": 0,
        "own_files": 1,
        "compat": 1,
        "wire": 2,
        "threads": 3,
        "detectors": 3,
        "settings": 4,
        "measure": 4,
        "delivery": 5,
        "attach": 5,
        "forensics": 6,
        "memory": 6,
        "incidents": 7,
        "step": 7,
        "actions": 8,
        "loop": 9,
        "session": 10,
        "self_check": 10,
        "watching": 11,
        "calls": 12,
        "integrations": 12,
    },
    "dashboard": {
        "errors": 0,
        "descriptors": 0,
        "ids": 0,
        "throttle": 0,
        "local_opener": 0,
        "packaged": 1,
        "callers": 1,
        "store": 2,
        "comparison": 3,
        "ingest": 3,
        "page": 4,
        "live": 5,
        "export": 5,
        "outlets": 5,
        "runs": 5,
        "serving": 6,
        "client": 6,
        "commands": 7,
        "arguments": 8,
        "cli": 9,
        "__main__": 10,
    },
}
"""A package, or a module that lies flat, imports of its own top package only what stands on a lower floor."""
FLAT_MODULES = {"began", "errors", "guard", "own_files", "session", "self_check", "watching"}
MOST_PACKAGES = 16
FROM_PROBE = {"wire", "errors", "detectors", "settings", "delivery", "__version__"}
"""What the dashboard may use of the probe: `delivery` for the journals, the helper's lock and what may be
asked of a trainer."""


@cache
def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> list[tuple[int, str, str]]:
    """(level, module, name) of every import statement; `name` is empty for `import x`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.level, node.module or "", alias.name) for alias in node.names]
    return found


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
        "probe.delivery.journal.journal",
        "probe.settings.places",
        "probe.delivery.helper.helper",
        "probe.wire.module_frames",
        "probe.wire.magnitude_bins",
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


def absolute_imports(package: str) -> list[tuple[str, str, str]]:
    """(importing module, imported module, name) of all of a package's imports that are not relative."""
    return [
        (module_name(path), module, name)
        for path in sources(package)
        for level, module, name in imports_of(path)
        if level == 0
    ]


def test_probe_modules_never_import_the_dashboards_side() -> None:
    others = HEAVY | {"dashboard", "fastapi", "uvicorn"}
    found = absolute_imports("probe")
    assert found
    assert [one for one in found if one[1].partition(".")[0] in others] == []


def test_dashboard_modules_never_import_torch_and_little_of_the_probe() -> None:
    found = absolute_imports("dashboard")
    assert found
    assert [one for one in found if one[1].partition(".")[0] == "torch"] == []
    packages = [
        (path, name if module == "probe" else module.split(".")[1])
        for path, module, name in found
        if module.partition(".")[0] == "probe" and (module != "probe" or name)
    ]
    assert [(path, used) for path, used in packages if used not in FROM_PROBE] == []


@pytest.mark.parametrize("top", FLOORS)
def test_imports_lead_to_lower_floors_only(top: str) -> None:
    """Also those inside functions and under `if TYPE_CHECKING:`."""
    floors = FLOORS[top]
    upward = [
        f"{module_name(path)} -> {found}"
        for path in sources(top)
        if module_name(path) != top  # its lazy attributes are no part of the design
        for found in set(edges(path)) - {top}
        if room(found) != room(module_name(path)) and floors[room(found)] >= floors[room(module_name(path))]
    ]
    assert upward == []


def room(module: str) -> str:
    """The package, or the flat module, of a module below `probe` or `dashboard`."""
    return module.split(".")[1]


@pytest.mark.parametrize("top", FLOORS)
def test_every_room_has_a_floor(top: str) -> None:
    rooms = {room(name) for name in map(module_name, sources(top)) if "." in name}
    assert rooms == set(FLOORS[top])


def test_probe_has_few_packages_and_few_flat_modules() -> None:
    assert {path.stem for path in (ROOT / "probe").glob("*.py")} - {"__init__"} == FLAT_MODULES
    assert len(list((ROOT / "probe").glob("*/__init__.py"))) <= MOST_PACKAGES


def test_probe_base_names_stand_once() -> None:
    """A file is found by its name alone."""
    names = Counter(path.name for path in sources("probe"))
    assert {name for name, count in names.items() if count > 1} == {"__init__.py"}


@pytest.mark.parametrize("package", FLOORS)
def test_modules_import_their_own_package_relatively(package: str) -> None:
    assert [one for one in absolute_imports(package) if one[1].split(".")[0] == package] == []


@pytest.mark.parametrize("package", ["probe", "dashboard"])
def test_package_has_no_import_cycle(package: str) -> None:
    """Imports under `if TYPE_CHECKING:` and inside functions count too: none may close a circle."""
    graph = {module_name(path): set(edges(path)) for path in sources(package)}
    graph.pop(package)  # its lazy attributes are no edges of the package's own design
    assert cycle(graph) is None


@cache
def names_in(package: str) -> set[str]:
    return {module_name(path) for path in sources(package)}


def edges(path: Path) -> Iterator[str]:
    """Modules of the same package that a file imports."""
    names = names_in(path.relative_to(ROOT).parts[0])
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
