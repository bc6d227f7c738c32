"""What is measured how often: levels and presets over one switch per feature, and their overhead limits.

Pure data and checks, no torch. Read by the options, the mailbox and the budget. The *tripwire*, the check of
every step that starts a replay, is no feature: only the level "off" is without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

Level: TypeAlias = Literal["off", "basic", "advanced", "extreme"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
MAX_PERIOD: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """How often each thing is measured: every N steps, 0 is never.

    Raises:
        ValueError: a period is no whole number from 0 to `MAX_PERIOD`; names it, and what it got.
    """

    gradients: int = 0
    """Statistics of every parameter's gradient: norm, largest element, mean, deviation, NaN and Inf."""
    parameter_norms: int = 0
    """L2 norm of every parameter."""
    update_ratios: int = 0
    """Norm of the update over the norm of the parameter, for each; keeps a copy of them during the update."""
    learning_rates: int = 0
    """Learning rate of each parameter group."""
    clipping: int = 0
    """Total norm after clipping, beside the one before, and whether clipping changed anything."""
    loss_scale: int = 0
    """Scale and skipped updates of a GradScaler."""
    memory: int = 0
    """Memory of process, machine and CUDA allocator; each is read at most once a second."""
    parameter_statistics: int = 0
    """All statistics of every parameter, not its norm alone."""
    optimizer_state: int = 0
    """Norms of the optimizer's first and second moments, and Adam's effective step."""
    activations: int = 0
    """Statistics of what each module returns, dead and saturated units among them."""
    activation_gradients: int = 0
    """The same of the gradients that flow back through the modules' outputs."""
    histograms: int = 0
    """Histograms of log2 magnitudes: the head-room left in fp16, bf16 and fp8."""
    gradient_noise: int = 0
    """Gradient noise scale, from micro-steps or ranks."""
    own_gradients: int = 0
    """Norm of a rank's own gradient, before DistributedDataParallel averages it over the ranks."""
    module_times: int = 0
    """Forward and backward time of each module."""
    module_memory: int = 0
    """Memory that each module's forward leaves behind."""
    module_calls: int = 0
    """Every call of a module by itself, where one is called several times in a step."""
    gradient_cosine: int = 0
    """Cosine between the gradients of successive measurements; keeps a copy of them."""
    anomaly_context: int = 0
    """What the modules returned, said in the event of a step that goes wrong, where it was measured."""

    def __post_init__(self) -> None:
        for name, period in self.periods().items():
            _check_period(name, period)

    def periods(self) -> dict[str, int]:
        """Return every feature's period by name, in the order above."""
        return {name: getattr(self, name) for name in FEATURES}

    def changed(self, periods: Mapping[str, int]) -> Features:
        """Return a copy with some periods replaced.

        Raises:
            ValueError: an unknown feature, or a period out of range.
        """
        check_features(periods)
        return replace(self, **periods)


FEATURES: Final[tuple[str, ...]] = tuple(item.name for item in fields(Features))


def _check_period(name: str, period: object) -> None:
    if not isinstance(period, int) or isinstance(period, bool) or not 0 <= period <= MAX_PERIOD:
        raise ValueError(
            f"features[{name!r}]={period!r} must be a whole number: 1 to {MAX_PERIOD}, or 0 for never"
        )


LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gradients": "Full gradient statistics",
        "parameter_norms": "Parameter norms",
        "update_ratios": "Update-to-weight ratios",
        "learning_rates": "Learning rates",
        "clipping": "Norms after clipping",
        "loss_scale": "Loss scales",
        "memory": "Memory readings",
        "parameter_statistics": "Parameter statistics",
        "optimizer_state": "Optimizer moments",
        "activations": "Activations",
        "activation_gradients": "Activation gradients",
        "histograms": "Histograms",
        "gradient_noise": "Gradient noise scales",
        "own_gradients": "Norms before averaging over ranks",
        "module_times": "Module times",
        "module_memory": "Module memory sizes",
        "module_calls": "Single module calls",
        "gradient_cosine": "Cosines between gradients",
        "anomaly_context": "Anomaly contexts",
    }
)
"""What a sentence calls each feature, in the plural."""

PHASES: Final[Mapping[str, int]] = MappingProxyType({"module_times": 5, "module_memory": 7})
"""A feature is due where step % period == phase % period. Times and memory are taken beside the steps that
measure activations, whose hooks would be timed too; all others have phase 0."""

_BASIC: Final = Features(
    gradients=1,
    parameter_norms=10,
    update_ratios=50,
    learning_rates=1,
    clipping=1,
    loss_scale=1,
    memory=1,
    activations=100,
)
_ADVANCED: Final = replace(
    _BASIC,
    update_ratios=20,
    parameter_statistics=50,
    optimizer_state=50,
    activations=10,
    activation_gradients=10,
    histograms=50,
    gradient_noise=10,
    own_gradients=10,
    module_times=20,
    module_memory=100,
)
_EXTREME: Final = replace(
    _ADVANCED,
    update_ratios=5,
    parameter_statistics=1,
    optimizer_state=10,
    activations=2,
    activation_gradients=2,
    histograms=20,
    gradient_noise=1,
    own_gradients=1,
    module_times=5,
    module_memory=20,
    module_calls=1,
    gradient_cosine=2,
    anomaly_context=1,
)
LEVEL_FEATURES: Final[Mapping[Level, Features]] = MappingProxyType(
    {"off": Features(), "basic": _BASIC, "advanced": _ADVANCED, "extreme": _EXTREME}
)
LEVEL_LIMITS: Final[Mapping[Level, float]] = MappingProxyType(
    {"off": 0.0, "basic": 0.02, "advanced": 0.10, "extreme": 0.25}
)
"""Largest share of a step that the probe may take, as a fraction; 0 is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Switches for one purpose, over those of the level; `overhead_limit` stands in for the level's."""

    purpose: str
    features: Mapping[str, int]
    overhead_limit: float


_DEAR: Final = dict.fromkeys(FEATURES[FEATURES.index("parameter_statistics") :], 0)
PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "development": Preset(
            purpose="a little of everything, while the model is being written",
            features={
                "update_ratios": 20,
                "parameter_statistics": 100,
                "optimizer_state": 100,
                "activations": 20,
                "activation_gradients": 20,
                "histograms": 100,
                "gradient_noise": 20,
                "module_times": 50,
                "module_memory": 100,
            },
            overhead_limit=0.10,
        ),
        "production": Preset(
            purpose="long runs: gradients and faults, at half the usual limit",
            features={**_DEAR, "parameter_norms": 100, "update_ratios": 200, "memory": 10},
            overhead_limit=0.01,
        ),
        "performance": Preset(
            purpose="where the time goes",
            features={**_DEAR, "gradients": 10, "update_ratios": 0, "module_times": 10, "module_memory": 50},
            overhead_limit=0.10,
        ),
        "gradients": Preset(
            purpose="gradients that vanish, explode or point elsewhere",
            features={
                "gradients": 1,
                "update_ratios": 10,
                "activation_gradients": 10,
                "histograms": 50,
                "gradient_noise": 10,
                "gradient_cosine": 10,
            },
            overhead_limit=0.10,
        ),
        "memory": Preset(
            purpose="what takes the memory, and what keeps growing",
            features={**_DEAR, "update_ratios": 0, "memory": 1, "module_memory": 10},
            overhead_limit=0.10,
        ),
        "minimal": Preset(
            purpose="loss, learning rate, times and the check for NaN and Inf, nothing else",
            features={
                **_DEAR,
                "gradients": 0,
                "parameter_norms": 0,
                "update_ratios": 0,
                "clipping": 0,
                "memory": 10,
            },
            overhead_limit=0.01,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is asked to measure; a command of the mailbox makes the next one of it.

    Level, then preset, then single features: the later goes before the earlier. "off" goes before all.

    Raises:
        ValueError: a value that is not allowed; names the option, what it got and what is allowed.
    """

    level: Level = "basic"
    preset: str | None = None
    overrides: Mapping[str, int] = field(default_factory=dict)
    """Periods of single features."""
    overhead_limit: float | None = None
    """As a fraction; None takes the preset's or the level's, 0 is no limit."""
    parameter_norm_every: int = 10
    """Period of the parameters' norms where neither preset nor `overrides` names one."""

    def __post_init__(self) -> None:
        check_level(self.level)
        check_preset(self.preset)
        check_features(self.overrides)
        check_overhead_limit(self.overhead_limit)
        # The caller's dictionary may change afterwards.
        object.__setattr__(self, "overrides", dict(self.overrides))

    @property
    def features(self) -> Features:
        """What is measured how often."""
        if self.level == "off":
            return LEVEL_FEATURES["off"]
        features = LEVEL_FEATURES[self.level].changed({"parameter_norms": self.parameter_norm_every})
        if self.preset is not None:
            features = features.changed(PRESETS[self.preset].features)
        return features.changed(self.overrides)

    @property
    def limit(self) -> float:
        """Largest share of a step that the probe may take, as a fraction; 0 is no limit."""
        if self.overhead_limit is not None:
            return self.overhead_limit
        return LEVEL_LIMITS[self.level] if self.preset is None else PRESETS[self.preset].overhead_limit


def check_level(level: object) -> None:
    """Refuse what is no level.

    Raises:
        ValueError: names what it got and what is allowed.
    """
    _check_one_of("level", level, LEVELS)


def check_preset(preset: object) -> None:
    """Refuse what is neither None nor the name of a preset.

    Raises:
        ValueError: names what it got and what is allowed.
    """
    if preset is not None:
        _check_one_of("preset", preset, tuple(PRESETS))


def check_features(periods: object) -> None:
    """Refuse anything but a mapping of features to periods.

    Raises:
        ValueError: names the feature, what it got and what is allowed.
    """
    if not isinstance(periods, Mapping):
        raise ValueError(f'features={periods!r} must be a mapping such as {{"activations": 20}}')
    for name, period in periods.items():
        if name not in FEATURES:
            raise ValueError(f"features[{name!r}] is not a feature; choose from {', '.join(FEATURES)}")
        _check_period(name, period)


def check_overhead_limit(limit: object) -> None:
    """Refuse what is neither None nor a fraction.

    Raises:
        ValueError: names what it got and what is allowed.
    """
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit <= 1:
        raise ValueError(
            f"overhead_limit={limit!r} must be a fraction from 0 (no limit) to 1; 2 % of a step is 0.02"
        )


def _check_one_of(option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{option}={value!r} is not available; choose one of {choices}")
