"""`levels`: what level, preset and single switches come to, and what is refused."""

import pytest

from probe.settings.levels import (
    FEATURES,
    LABELS,
    LEVEL_FEATURES,
    LEVELS,
    MAX_PERIOD,
    PHASES,
    PRESETS,
    Features,
    Settings,
)

FROM_THE_FIRST = {"gradients", "learning_rates", "clipping", "loss_scale", "memory"}


def test_level_off_measures_nothing_whatever_is_asked_for() -> None:
    settings = Settings(level="off", preset="gradients", overrides={"activations": 1})
    assert not any(settings.features.periods().values())


def test_level_basic_measures_gradients_at_every_step_and_samples_updates() -> None:
    basic = Settings().features
    assert all(basic.periods()[name] == 1 for name in FROM_THE_FIRST)
    assert basic.update_ratios > 1
    assert basic.activations > 20
    assert not basic.activation_gradients


@pytest.mark.parametrize(
    ("lower", "higher"), [("off", "basic"), ("basic", "advanced"), ("advanced", "extreme")]
)
def test_higher_level_measures_all_of_the_lower_at_least_as_often(lower: str, higher: str) -> None:
    few, many = (LEVEL_FEATURES[level].periods() for level in (lower, higher))  # type: ignore[index]
    for name in FEATURES:
        assert not few[name] or 0 < many[name] <= few[name], name
    assert few != many


@pytest.mark.parametrize(("level", "limit"), [("basic", 0.02), ("advanced", 0.10), ("extreme", 0.25)])
def test_limit_is_the_levels_unless_given(level: str, limit: float) -> None:
    assert Settings(level=level).limit == limit  # type: ignore[arg-type]
    assert Settings(level=level, overhead_limit=0.0).limit == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.capability(49)
def test_preset_goes_before_level_and_single_switch_before_preset(preset: str) -> None:
    settings = Settings(level="advanced", preset=preset, overrides={"histograms": 7})
    for name, period in PRESETS[preset].features.items():
        assert getattr(settings.features, name) == (7 if name == "histograms" else period)
    assert settings.limit == PRESETS[preset].overhead_limit


def test_parameter_norm_period_gives_way_to_preset_and_switch() -> None:
    assert Settings(parameter_norm_every=25).features.parameter_norms == 25
    assert Settings(parameter_norm_every=25, preset="production").features.parameter_norms == 100
    assert Settings(parameter_norm_every=25, overrides={"parameter_norms": 3}).features.parameter_norms == 3


def test_settings_keep_their_switches_when_the_callers_mapping_changes() -> None:
    switches = {"activations": 5}
    settings = Settings(overrides=switches)
    switches["activations"] = 1
    assert settings.features.activations == 5


@pytest.mark.parametrize("period", [-1, MAX_PERIOD + 1, 1.0, True, "3", None])
def test_period_out_of_range_is_refused_by_name(period: object) -> None:
    with pytest.raises(ValueError, match=r"features\['histograms'\]=.* must be a whole number"):
        Settings(overrides={"histograms": period})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="histograms"):
        Features(histograms=period)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"level": "loud"}, "level='loud' is not available; choose one of 'off', 'basic'"),
        ({"preset": "fast"}, "preset='fast' is not available; choose one of 'development'"),
        ({"overrides": {"gradient": 1}}, "features.'gradient'. is not a feature; choose from gradients, "),
        ({"overrides": ["gradients"]}, "must be a mapping"),
        ({"overhead_limit": 2}, "overhead_limit=2 must be a fraction from 0"),
        ({"overhead_limit": float("nan")}, "overhead_limit=nan must be a fraction"),
        ({"overhead_limit": True}, "overhead_limit=True must be a fraction"),
    ],
)
def test_wrong_setting_is_refused_with_what_is_allowed(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)  # type: ignore[arg-type]


def test_every_feature_has_a_label_and_phases_name_features() -> None:
    assert set(LABELS) == set(FEATURES)
    assert set(PHASES) <= set(FEATURES)
    assert set(LEVEL_FEATURES) == set(LEVELS)
