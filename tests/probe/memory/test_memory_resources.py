"""High use of the machine's memory, of a device and, on request, of the processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.detectors.base import Finding
from probe.detectors.resources import ResourceDetector, ResourceLimits, ResourceReading
from probe.memory.memory_limit import memory_use

GIB = 2.0**30


def reading(step: int, used: float, *, own: float | None = None, **more: float) -> ResourceReading:
    return ResourceReading(
        step=step,
        system_used_bytes=used * GIB,
        system_total_bytes=100 * GIB,
        process_bytes=(used if own is None else own) * GIB,
        **more,
    )


def findings(
    readings: list[ResourceReading], limits: ResourceLimits | None = None
) -> list[tuple[int, Finding]]:
    detector = ResourceDetector(limits)
    return [(item.step, finding) for item in readings for finding in detector.observe(item)]


def test_resources_memory_above_nine_tenths_is_said_once_at_the_fifth_reading() -> None:
    found = findings([reading(step, 93.0) for step in range(20)])
    assert [step for step, _ in found] == [4]
    assert (found[0][1].kind, found[0][1].severity) == ("high_resource_use", "warning")
    assert found[0][1].value == pytest.approx(0.93)


def test_resources_said_again_after_it_has_eased() -> None:
    used = [95.0] * 6 + [80.0] * 3 + [95.0] * 6
    assert [step for step, _ in findings([reading(i, value) for i, value in enumerate(used)])] == [4, 13]


def test_resources_hovering_at_the_limit_is_said_once() -> None:
    used = [91.0] * 6 + [88.0, 91.0] * 10 + [91.0] * 6
    assert len(findings([reading(i, value) for i, value in enumerate(used)])) == 1


def test_resources_peaks_of_four_readings_are_none() -> None:
    used = ([97.0] * 4 + [70.0]) * 5
    assert findings([reading(i, value) for i, value in enumerate(used)]) == []


def test_resources_memory_of_others_is_not_ours_until_the_machine_swaps() -> None:
    assert findings([reading(i, 95.0, own=10.0, swap_used_bytes=0.0) for i in range(10)]) == []
    swapping = [reading(i, 95.0, own=10.0, swap_used_bytes=i * 1e6) for i in range(10)]
    assert len(findings(swapping)) == 1


def test_resources_full_device_is_information() -> None:
    full = [reading(i, 10.0, device_used_bytes=79 * GIB, device_total_bytes=80 * GIB) for i in range(6)]
    assert [finding.severity for _, finding in findings(full)] == ["info"]


def test_resources_processors_only_on_request() -> None:
    busy = [reading(i, 10.0, cpu_fraction=1.0) for i in range(6)]
    assert findings(busy) == []
    assert [f.subject for _, f in findings(busy, ResourceLimits(cpu_fraction=0.9))] == ["cpu"]


def test_resources_nothing_known_is_nothing_said() -> None:
    assert findings([ResourceReading(step=step) for step in range(10)]) == []


def test_memory_use_of_a_container_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("800\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 250\n")
    assert memory_use(5e9, 8e9, folder=tmp_path) == (550.0, 1000.0)


def test_memory_use_version_1_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("900\n")
    assert memory_use(5e9, 8e9, folder=tmp_path) == (900.0, 2000.0)


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n", "nonsense"])
def test_memory_use_without_a_limit_is_the_machines(tmp_path: Path, limit: str) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("800\n")
    assert memory_use(5e9, 8e9, folder=tmp_path) == (5e9, 8e9)


def test_resources_of_device_and_gpu_have_limits_on_request() -> None:
    used = [reading(step, 10.0, device_used_bytes=9 * GIB, gpu_fraction=0.99) for step in range(6)]
    assert findings(used) == []
    found = findings(used, ResourceLimits(device_bytes=8 * GIB, gpu_fraction=0.9))
    assert [(step, finding.subject) for step, finding in found] == [(4, "device memory limit"), (4, "gpu")]
    assert (
        "9.0 GiB of the device's memory are used at step 4, above the limit of 8.0 GiB" in found[0][1].message
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_fraction": 90},
        {"system_fraction": 0},
        {"gpu_fraction": "high"},
        {"device_bytes": -1},
        {"readings": 0},
    ],
)
def test_resources_limit_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ResourceLimits(**wrong)  # type: ignore[arg-type]
