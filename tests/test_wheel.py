"""The built wheel, installed on its own: what it carries, and that it works away from the checkout."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from built_wheel import ROOT, build, install, shared_wheel, without_checkout

from probe.measure.kernels import compile


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_wheel(tmp_path_factory)


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built where there is no compiler."""
    return build(tmp_path_factory.mktemp("pure"), CC="/nonexistent/cc")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("venv"))


def run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env=without_checkout(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_wheel_carries_assets_demo_types_and_license(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assets = {f"dashboard/assets/{path.name}" for path in (ROOT / "assets").iterdir()}
    expected = {"dashboard/demo_train.py", "dashboard/py.typed", "probe/py.typed", *assets}
    expected.add("dashboard/quickstart_train.py")
    expected |= {f"dashboard/export/{path.name}" for path in (ROOT / "dashboard" / "export").glob("page.*")}
    assert expected <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "demo_train", "quickstart", "assets/"))]


def test_wheel_imports_come_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import probe, dashboard; print(probe.__file__); print(dashboard.__file__)"
    finished = run(installed, "-c", code, folder=tmp_path)
    assert finished.stderr == ""
    assert all(str(installed.parents[1]) in line for line in finished.stdout.splitlines())


@pytest.mark.slow
def test_wheel_records_a_run_and_exports_it(installed: Path, tmp_path: Path) -> None:
    demo = next((installed.parents[1] / "lib").glob("python*/site-packages/dashboard/demo_train.py"))
    trained = run(installed, str(demo), "--steps", "12", "--fault-step", "6", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    spool = os.environ["NANSCOPE_SPOOL"]
    listed = run(installed, "-m", "dashboard", "events", spool, "--json", folder=tmp_path)
    assert '"kind":"nonfinite_loss"' in listed.stdout.replace(": ", ":")
    exported = run(installed, "-m", "dashboard", "export", spool, "-o", "run.html", folder=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert "demo_train.py" in (tmp_path / "run.html").read_text()


MEASURE = """
import torch
from probe.measure.kernels import binding
from probe.measure.statistics.statistics import tensor_statistics
print(binding.status().reason)
print(tensor_statistics([torch.full((9,), 2.0), None]).total_norm)
"""


def test_wheel_built_with_a_compiler_carries_a_working_kernel(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    if compile.find_compiler() is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    assert "py3-none-any" not in wheel.name
    assert zipfile.ZipFile(wheel).namelist().count("probe/measure/kernels/_kernel.so") == 1
    finished = run(installed, "-c", MEASURE, folder=tmp_path)
    assert finished.stderr == ""
    reason, norm = finished.stdout.splitlines()
    assert reason.startswith("native kernel")
    assert float(norm) == 6.0


def test_wheel_built_without_a_compiler_is_pure_and_measures_all_the_same(
    pure_wheel: Path, tmp_path: Path
) -> None:
    assert pure_wheel.name.endswith("py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure_wheel).namelist() if name.endswith(".so")]
    finished = run(install(pure_wheel, tmp_path / "venv"), "-c", MEASURE, folder=tmp_path)
    assert finished.stderr == ""
    reason, norm = finished.stdout.splitlines()
    assert reason.startswith("not built")
    assert float(norm) == 6.0
