"""`debug_context`, `@debug_operation`, `anomaly_detection`: they nest, let exceptions pass and clean up."""

import asyncio
import gc
import inspect
import json
import logging
import math
import threading

import pytest
import torch

from probe import anomaly_detection, clear_debug_history, debug_context, debug_operation, get_debug_summary
from probe.actions.analysis import regions
from probe.actions.analysis.regions import MAX_REGIONS, MAX_RUNS, RegionTable


@pytest.fixture(autouse=True)
def fresh_table() -> None:
    clear_debug_history()


def paths() -> list[str]:
    return [row.path for row in get_debug_summary().regions]


def busy(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_region_measures_time_and_memory() -> None:
    gc.collect()  # what other tests have left would go meanwhile, and be taken off
    with debug_context("allocate") as region:
        kept = torch.ones(16_000_000)  # above what malloc takes from memory that it has
        busy(0.02)
    report = region.report
    assert report is not None and report.ok
    assert report.duration_s >= 0.02
    assert report.rss_delta_bytes > 0.8 * kept.nbytes
    json.dumps(report.to_dict(), allow_nan=False)


def test_regions_nest_by_name_and_reenter() -> None:
    again = debug_context("step")
    with debug_context("epoch"), again:
        with again:
            pass
    assert paths() == ["epoch/step/step", "epoch/step", "epoch"]


def test_region_lets_the_exception_pass_and_closes(caplog: pytest.LogCaptureFixture) -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, debug_context("outer"), debug_context("inner"):
        raise error
    assert caught.value is error
    assert [(row.path, row.errors) for row in get_debug_summary().regions] == [
        ("outer/inner", 1),
        ("outer", 1),
    ]
    assert regions._open.get() == ()
    assert "left by KeyError" in caplog.text


def test_regions_of_coroutines_do_not_mix() -> None:
    async def work(name: str) -> None:
        with debug_context(name):
            await asyncio.sleep(0.01)
            with debug_context("inner"):
                await asyncio.sleep(0.01)

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    assert sorted(paths()) == ["a", "a/inner", "b", "b/inner"]


def test_regions_of_threads_do_not_nest_in_each_other() -> None:
    def work() -> None:
        with debug_context("worker"):
            pass

    with debug_context("main"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(5)
    assert paths() == ["worker", "main"]


def test_region_whose_average_is_above_its_limit_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("mine")
    slow = debug_context("slow", slow_above_s=1e-9, logger=logger)
    for region in (slow, slow, debug_context("quick", slow_above_s=1e6, logger=logger)):
        with region:
            pass
    (record,) = caplog.records
    assert record.name == "mine" and record.levelno == logging.WARNING
    assert "Region `slow` is slow: it took " in record.message and "(limit 0.001 us)" in record.message


def test_running_average_is_of_the_newest_runs_and_forgets_the_earlier_ones() -> None:
    table = RegionTable()
    for seconds in (9.0, 5.0, *[1.0] * (regions.AVERAGED_RUNS - 1)):
        row = table.add(report_of(seconds))
    assert row.running_mean_s == pytest.approx((5.0 + (regions.AVERAGED_RUNS - 1)) / regions.AVERAGED_RUNS)
    assert row.count == regions.AVERAGED_RUNS + 1 and row.max_s == 9.0


def report_of(seconds: float) -> regions.RegionReport:
    return regions.RegionReport(
        name="r", path="r", duration_s=seconds, cpu_s=0.0, rss_delta_bytes=0, rss_bytes=2**20,
        cuda_delta_bytes=None, cuda_peak_bytes=None, error=None,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "limit"), [("", None), (3, None), ("a", 0.0), ("a", math.nan)])
def test_region_refuses_a_bad_name_or_limit(name: str, limit: float | None) -> None:
    with pytest.raises(ValueError, match=r"name|slow_above_s"):
        debug_context(name, slow_above_s=limit)


def test_region_table_is_bounded() -> None:
    table = RegionTable()
    for number in range(MAX_REGIONS + 50):
        with regions.debug_context(f"r{number}", table=lambda: table):
            pass
    assert len(table.rows()) == MAX_REGIONS + 1
    assert table.rows()[-1].count == 50
    assert len(table.runs()) == MAX_RUNS


def test_summary_averages_over_runs() -> None:
    for _ in range(3):
        with debug_context("step"):
            busy(0.005)
    (row,) = get_debug_summary().regions
    assert row.count == 3 and row.mean_s == pytest.approx(row.total_s / 3)
    assert row.max_s >= row.mean_s >= 0.005
    assert get_debug_summary().to_dict()["total_operations"] == 3


def test_operation_keeps_name_signature_and_result() -> None:
    @debug_operation("double")
    def double(x: int, *, by: int = 2) -> int:
        """Multiply."""
        return x * by

    assert double(4, by=3) == 12
    assert (double.__name__, double.__doc__) == ("double", "Multiply.")
    assert str(inspect.signature(double)) == "(x: int, *, by: int = 2) -> int"
    assert paths() == ["double"]


def test_operation_without_parentheses_takes_the_functions_name() -> None:
    @debug_operation
    def train_one() -> str:
        return "done"

    assert train_one() == "done"
    assert paths()[0].endswith("train_one")


def test_operation_on_a_method_counts_every_call() -> None:
    class Trainer:
        @debug_operation("fit")
        def fit(self, times: int) -> int:
            return self.fit(times - 1) + 1 if times else 0

    assert Trainer().fit(2) == 2
    assert paths() == ["fit/fit/fit", "fit/fit", "fit"]


def test_operation_on_a_coroutine_function_measures_its_awaits() -> None:
    @debug_operation("fetch")
    async def fetch() -> int:
        await asyncio.sleep(0.02)
        return 7

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(fetch()) == 7
    (row,) = get_debug_summary().regions
    assert row.last_s >= 0.02


def test_operation_refuses_a_generator_function() -> None:
    def batches() -> object:
        yield 1

    with pytest.raises(ValueError, match="debug_context instead"):
        debug_operation("batches")(batches)


@pytest.mark.capability(8, 64)
@pytest.mark.parametrize(("enabled", "counted"), [(None, 1), (True, 1), (False, 0)])
def test_region_and_operation_are_measured_where_they_are_enabled(enabled: bool | None, counted: int) -> None:
    @debug_operation("double", enabled=enabled)
    def double(x: int) -> int:
        return 2 * x

    with debug_context("outer", anomaly=True, enabled=enabled) as region:
        assert double(4) == 8
        assert torch.is_anomaly_enabled() == bool(counted)
    assert not torch.is_anomaly_enabled()
    assert paths() == ["outer/double", "outer"][: 2 * counted]
    assert (region.report is not None) == bool(counted)


def test_region_that_is_not_enabled_is_no_part_of_a_path_and_lets_errors_pass() -> None:
    with pytest.raises(KeyError), debug_context("left_out", enabled=False), debug_context("inner"):
        raise KeyError("mine")
    assert paths() == ["inner"]


@pytest.mark.parametrize("name", ["NANSCOPE_OFF", "NANSCOPE_LEVEL"])
def test_region_under_a_switch_of_the_environment_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1" if name == "NANSCOPE_OFF" else "off")
    for enabled in (None, True):
        with debug_context(f"enabled={enabled}", anomaly=True, enabled=enabled) as region:
            assert torch.is_anomaly_enabled() == bool(enabled)
        assert region.report is not None and region.report.duration_s > 0, "scripts read it"
    assert paths() == ["enabled=True"]


def mode() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def nan_backward() -> None:
    x = torch.zeros(1, requires_grad=True)
    (x.sqrt() * 0).backward()


@pytest.mark.capability(7, 8)
def test_anomaly_detection_finds_nan_and_restores_the_mode() -> None:
    before = mode()
    with pytest.warns(UserWarning, match="SqrtBackward"), pytest.raises(RuntimeError, match="returned nan"):
        with anomaly_detection():
            nan_backward()
    assert mode() == before
    nan_backward()


@pytest.mark.capability(8)
def test_anomaly_detection_nests_and_reenters() -> None:
    switch = anomaly_detection(check_nan=False)
    with switch:
        assert mode() == (True, False)
        with anomaly_detection(False):
            assert mode()[0] is False
            with switch:
                assert mode() == (True, False)
            assert mode()[0] is False
        assert mode() == (True, False)
    assert mode() == (False, True)


def test_anomaly_detection_restores_what_the_user_had_set() -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        with anomaly_detection():
            assert mode() == (True, True)
        assert mode() == (True, False)


def test_region_with_anomaly_mode_switches_it_for_the_block() -> None:
    with debug_context("careful", anomaly=True):
        assert mode()[0] is True
    assert mode()[0] is False
