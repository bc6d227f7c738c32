"""`ProbeConfig`: where options come from, what is refused, and that their table is true."""

from dataclasses import fields
from pathlib import Path

import pytest

from probe.settings.config import ProbeConfig, is_switched_off


def test_argument_goes_before_environment_goes_before_default() -> None:
    environment = {"NANSCOPE_RUN": "from-environment", "NANSCOPE_CONNECT": ""}
    assert ProbeConfig.resolve({}, {}).run is None
    assert ProbeConfig.resolve({}, environment).run == "from-environment"
    assert ProbeConfig.resolve({}, environment).connect == ""
    assert ProbeConfig.resolve({"run": "mine"}, environment).run == "mine"


def test_spool_from_environment_is_taken(tmp_path: Path) -> None:
    assert ProbeConfig.resolve({}, {"NANSCOPE_SPOOL": str(tmp_path)}).spool == tmp_path


def test_level_from_environment_is_checked_too() -> None:
    with pytest.raises(ValueError, match="level='loud' is not available"):
        ProbeConfig.resolve({}, {"NANSCOPE_LEVEL": "loud"})


@pytest.mark.parametrize("level", ["off", "basic", "advanced", "extreme"])
def test_every_level_is_taken_from_the_environment(level: str) -> None:
    assert ProbeConfig.resolve({}, {"NANSCOPE_LEVEL": level}).settings.level == level


def test_level_preset_and_switches_come_to_what_is_measured() -> None:
    options = {"level": "advanced", "preset": "memory", "features": {"gradients": 4}, "overhead_limit": 0.5}
    config = ProbeConfig.resolve({**options, "parameter_norm_every": 7}, {})
    assert config.settings.limit == 0.5
    assert (config.settings.features.gradients, config.settings.features.parameter_norms) == (4, 7)
    assert config.settings.features.module_memory == 10


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("preset", "fast", "preset='fast' is not available; choose one of"),
        ("features", {"gradient": 1}, "features.'gradient'. is not a feature; choose from"),
        ("features", {"gradients": -1}, "features.'gradients'.=-1 must be a whole number"),
        ("features", 3, "features=3 must be a mapping"),
        ("overhead_limit", 2, "overhead_limit=2 must be a fraction from 0"),
        ("overhead_limit", "2 %", "overhead_limit='2 %' must be a fraction from 0"),
        ("hang_seconds", 0, "hang_seconds=0 must be a number of seconds above 0"),
        ("hang_seconds", "5 s", "hang_seconds='5 s' must be a number of seconds above 0"),
        ("first_step", -1, "first_step=-1 must be a whole number from 0 to 9007199254740991"),
        ("first_step", 2**53, "first_step=9007199254740992 must be a whole number from 0 to"),
        ("first_step", 1.0, "first_step=1.0 must be a whole number from 0 to"),
        ("first_step", True, "first_step=True must be a whole number from 0 to"),
        ("memory_snapshot_every", -1, "memory_snapshot_every=-1 must be a whole number of at least 0"),
        ("memory_snapshot_every", 1.5, "memory_snapshot_every=1.5 must be a whole number"),
        ("stack_signal", 1, "stack_signal=1 must be True or False"),
        ("replay_limit_s", -1.0, "replay_limit_s=-1.0 must be a number of seconds above 0"),
        ("intended_infinities", "mask", "intended_infinities='mask' must be a list of names"),
        ("pause_limit_s", 0, "pause_limit_s=0 must be a number of seconds above 0"),
        ("pause_ranks", "no", "pause_ranks='no' must be True or False"),
        ("replay", "no", "replay='no' must be True or False"),
        ("name", 3, "name=3 must be a text"),
        ("model_name", b"net", "model_name=b'net' must be a text"),
        ("run", 3, "run=3 must be a text"),
        ("spool", 3, "spool=3 must be a folder"),
        ("connect", 8051, "connect=8051 must be a text"),
        ("connect", "127.0.0.1:8051", "connect='127.0.0.1:8051' must be a ZeroMQ address such as"),
        ("connect", "http://127.0.0.1:8050/", "connect='http.* must be a ZeroMQ address such as"),
        ("connect", "tcp://127.0.0.1:70000", "connect='tcp://127.0.0.1:70000' must be a ZeroMQ address"),
        ("spool", "", "spool='' must be a folder, as a text or a Path"),
        ("connect", "tcp://127.0.0.1:0", "connect='tcp://127.0.0.1:0' must be a ZeroMQ address"),
        ("connect", "tcp://*:8051", "must be a ZeroMQ address such as"),
        ("connect", "tcp://127.0.0.1", "connect='tcp://127.0.0.1' must be a ZeroMQ address such as"),
        ("thresholds", {}, "thresholds={} must be a DetectorThresholds: from probe.detectors.base import"),
        ("sampled_thresholds", {"a": 1}, "sampled_thresholds=.* must be a SampledThresholds: from probe."),
    ],
)
def test_wrong_switch_is_refused_at_attach(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProbeConfig.resolve({option: value}, {})


@pytest.mark.parametrize("address", ["", "tcp://127.0.0.1:8051", "tcp://[::1]:1", "ipc:///run/nanscope"])
def test_addresses_that_a_helper_can_connect_to_are_taken(address: str) -> None:
    assert ProbeConfig.resolve({"connect": address}, {}).connect == address


def test_address_from_the_environment_is_checked_too() -> None:
    with pytest.raises(ValueError, match="connect='localhost' must be a ZeroMQ address"):
        ProbeConfig.resolve({}, {"NANSCOPE_CONNECT": "localhost"})


def test_first_step_comes_from_the_environment_below_the_argument() -> None:
    assert ProbeConfig.resolve({}, {"NANSCOPE_FIRST_STEP": "41000"}).first_step == 41_000
    assert ProbeConfig.resolve({"first_step": 7}, {"NANSCOPE_FIRST_STEP": "41000"}).first_step == 7
    assert ProbeConfig.resolve({}, {"NANSCOPE_FIRST_STEP": ""}).first_step == 0
    with pytest.raises(ValueError, match="first_step='4e4' must be a whole number from 0"):
        ProbeConfig.resolve({}, {"NANSCOPE_FIRST_STEP": "4e4"})


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, "3"])
def test_counts_must_be_whole_and_positive(value: object) -> None:
    with pytest.raises(ValueError, match=r"parameter_norm_every=.* must be a whole number of at least 1"):
        ProbeConfig.resolve({"parameter_norm_every": value}, {})


@pytest.mark.parametrize(("value", "off"), [("", False), ("0", False), ("1", True), ("yes", True)])
def test_off_switch_reads_its_variable(value: str, off: bool) -> None:
    assert is_switched_off({"NANSCOPE_OFF": value}) is off


def test_table_lists_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "options.md").read_text(encoding="utf-8")
    table = page.split("<!-- options:", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if "| `" in line]
    documented = {name.strip("`"): default.strip("`") for name, default in rows}
    assert set(documented) == {field.name for field in fields(ProbeConfig)}
    for field in fields(ProbeConfig):
        if isinstance(field.default, bool | int):
            assert documented[field.name] == str(field.default), field.name
        elif isinstance(field.default, str):
            assert documented[field.name] == f'"{field.default}"', field.name


@pytest.mark.parametrize("run", ["a/b", "..", "", "x" * 65, "run\n"])
def test_run_that_cannot_name_a_folder_is_refused_at_attach(run: str) -> None:
    with pytest.raises(ValueError, match="cannot name a run; use at most 64"):
        ProbeConfig.resolve({"run": run}, {})
