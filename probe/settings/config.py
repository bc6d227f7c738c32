"""Options of the probe, range-checked at construction: argument over environment over default."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from ..detectors.base import DetectorThresholds
from ..detectors.resources import ResourceLimits
from ..detectors.sampled_thresholds import SampledThresholds
from ..threads.watchdog import DEFAULT_HANG_S
from .levels import Level as Level
from .levels import Settings
from .places import check_connect, default_spool, is_folder_name

if TYPE_CHECKING:
    from .policies import InputPolicy, OutputPolicy
    from .recovery_options import NonfiniteAction, Recovery, Strategy

Mode: TypeAlias = Literal["detect", "warn", "raise"]
Verdict: TypeAlias = Literal["auto", "before_update", "after_update"]

_MIB: Final = 1024 * 1024
_LAST_STEP: Final = 2**53 - 1
"""The page keeps steps as float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """What `watch` was asked for. See the table in `docs/options.md`.

    Raises:
        ValueError: an option is out of its range; the message names it, what it got and what is allowed.
    """

    level: Level = "basic"
    """`off` records nothing; `basic` records gradients, loss, times and memory at every step; `advanced` adds
    activations, parameters and optimizer state, sampled; `extreme` measures most of it at every step."""
    preset: str | None = None
    """Switches for one purpose, over the level's: `development`, `production`, `performance`, `gradients`,
    `memory` or `minimal`."""
    features: Mapping[str, int] | None = None
    """Single switches over level and preset: every how many steps, 0 never. `levels.Features` lists them."""
    overhead_limit: float | None = None
    """Largest share of a step that the probe may take, as a fraction; 0 is no limit: nothing is throttled and
    no step is left plain for calibration. None takes the preset's, else the level's: 0.02, 0.10 or 0.25."""
    mode: Mode = "detect"
    """`detect` records events; `warn` also issues a Python warning for critical and warning events; `raise`
    raises `AnomalyError` in the training loop at a critical event, before the optimizer's update."""
    name: str | None = None
    """What the run is called on the page; the script's file name by default."""
    model_name: str | None = None
    """What the model is called in events and layouts, where a script trains several; its class by default."""
    run: str | None = None
    """Run id, at most 64 of `[A-Za-z0-9._-]`; derived from the launcher, else random, by default."""
    first_step: int = 0
    """Number of the first step: of a training that goes on from a checkpoint, the one that comes next."""
    spool: Path = field(default_factory=default_spool)
    """Folder for the journals."""
    connect: str | None = None
    """ZeroMQ address of a dashboard; "" ships nothing; None finds the local `serve`."""
    parameter_norm_every: int = 10
    """Steps between measurements of the parameters' norms, where `preset` and `features` do not say."""
    verdict: Verdict = "auto"
    """When a step is judged. `before_update` waits for the device, and a replay can find the origin;
    `after_update` does not wait, and judges one step late. `auto` is late on CUDA alone. Both wait in the
    first 20 steps, in the 20 after a step that was not finite, above level basic, with a GradScaler and where
    a rule needs the verdict; `auto` also where the script has just waited itself."""
    replay: bool = True
    """Replay a failing step to find the op that made the first NaN or Inf."""
    max_replays: int = 5
    """Replays per run at most."""
    replay_limit_s: float = 30.0
    """A replay that takes longer is stopped, and says so; the training goes on."""
    intended_infinities: Sequence[str] = ()
    """Modules and ops whose infinities are meant, as masks are: no origin. Names, such as ``decoder.*.mask``
    or ``masked_fill``."""
    recovery: Recovery | NonfiniteAction | Strategy | None = None
    """What is done before the update of a step whose loss or gradients are bad; nothing by default."""
    input_policy: InputPolicy | None = None
    """What the model may be called with, in training and evaluation; anything by default."""
    output_policy: OutputPolicy | None = None
    """What it may return."""
    bundles: int = 3
    """Bundles per run at most: folders that reproduce a failing step on another machine; 0 writes none."""
    bundle_inputs: bool = True
    """Put inputs and outputs of the model into bundles; a bundle without them cannot be replayed."""
    bundle_limit_bytes: int = 1024**3
    """Size of a bundle's tensors; above it gradients and inputs are left out, and weights that are larger."""
    black_box_steps: int = 8
    """Steps whose inputs are held, by reference, for bundles and for what moved before an event; 0: none."""
    black_box_mib: int = 64
    """Size of those inputs together; the oldest go first."""
    capture_limit_mib: int = 1024
    """A step whose captured inputs and output gradients are larger is not replayed."""
    memory_snapshot_every: int = 0
    """Steps between automatic memory snapshots, read beside the training four times a second at most; 0: none
    but those at the end of each epoch."""
    journal_cap_mib: int = 2048
    """Journal size per run; the oldest metrics are evicted first, events never."""
    thresholds: DetectorThresholds = field(default_factory=DetectorThresholds)
    """Options of the detectors that see every step."""
    sampled_thresholds: SampledThresholds = field(default_factory=SampledThresholds)
    """Options of the detectors that see what is sampled: modules, updates, inputs, times, logged values."""
    resource_limits: ResourceLimits | None = None
    """Shares of memory, processors and device above which use is high, a `probe.ResourceLimits` or a mapping
    of its fields; by default memory alone has limits."""
    hang_seconds: float = DEFAULT_HANG_S
    """No forward, backward or update for this long, and for 30 median steps, is a `hang`."""
    stack_signal: bool = True
    """Take a free real-time signal (`faulthandler.register`), by which the helper gets stacks while C code
    holds Python's lock."""
    pause_limit_s: float = 3600.0
    """A training that a watchpoint has paused goes on by itself after so many seconds."""
    pause_ranks: bool = False
    """Pause also where other ranks then wait for this one; for a third of their timeout at most."""
    config: Mapping[str, Any] | None = None
    """Hyperparameters to be kept with the run, by name; secrets such as ``api_key`` become ``***``. Where
    none are given, those of an `argparse.Namespace`, of `TrainingArguments` or of Lightning's `hparams`."""
    logger: logging.Logger | None = None
    """Where events are logged; the package's own logger by default."""
    report: str | Path | None = None
    """File that a report is written to when the session ends, exception or not: ``.json``, ``.txt`` or
    ``.html``; a folder gets `nanscope-<run id>.json`. None writes none."""
    quiet: bool = False
    """Write no line to stderr, neither at the start nor at the end of a session that found something; events
    are logged only where logging is set up."""

    def __post_init__(self) -> None:
        settings = self.settings
        if self.features is not None:
            object.__setattr__(self, "features", settings.overrides)
        _require_one_of("mode", self.mode, get_args(Mode))
        _require_one_of("verdict", self.verdict, get_args(Verdict))
        if self.mode == "raise" and self.verdict == "after_update":
            raise ValueError('mode="raise" raises before the update; it cannot have verdict="after_update"')
        if self.recovery is not None and self.verdict == "after_update":
            raise ValueError('recovery=... acts before the update; it cannot have verdict="after_update"')
        self._check_texts()
        if self.run is not None and (len(self.run) > 64 or not is_folder_name(self.run)):
            raise ValueError(f"run={self.run!r} cannot name a run; use at most 64 of A-Z a-z 0-9 . _ -")
        _require_step("first_step", self.first_step)
        _require_at_least("parameter_norm_every", self.parameter_norm_every, 1)
        _require_at_least("max_replays", self.max_replays, 0)
        _require_seconds("replay_limit_s", self.replay_limit_s)
        _require_names("intended_infinities", self.intended_infinities)
        self._check_actions()
        if self.recovery is not None and self.mode == "raise":
            raise ValueError(
                'mode="raise" ends at the step that recovery=... would go on from; choose one of them'
            )
        _require_at_least("bundles", self.bundles, 0)
        _require_at_least("bundle_limit_bytes", self.bundle_limit_bytes, 1)
        _require_at_least("black_box_steps", self.black_box_steps, 0)
        _require_at_least("black_box_mib", self.black_box_mib, 0)
        _require_at_least("capture_limit_mib", self.capture_limit_mib, 1)
        _require_at_least("memory_snapshot_every", self.memory_snapshot_every, 0)
        _require_at_least("journal_cap_mib", self.journal_cap_mib, 1)
        _require_seconds("hang_seconds", self.hang_seconds)
        _require_seconds("pause_limit_s", self.pause_limit_s)
        for option in ("replay", "bundle_inputs", "stack_signal", "pause_ranks", "quiet"):
            _require_truth_value(option, getattr(self, option))
        if isinstance(self.resource_limits, Mapping):
            object.__setattr__(self, "resource_limits", _limits_of(self.resource_limits))
        if self.resource_limits is not None:
            _require_instance("resource_limits", self.resource_limits, ResourceLimits)
        _require_instance("thresholds", self.thresholds, DetectorThresholds)
        _require_instance("sampled_thresholds", self.sampled_thresholds, SampledThresholds)
        if self.config is not None and not isinstance(self.config, Mapping):
            raise ValueError(
                f"config={self.config!r} must be a mapping of names to values, such as vars(args)"
            )
        if not isinstance(self.logger, logging.Logger | None):
            raise ValueError(f"logger={self.logger!r} must be a logging.Logger")

    def _check_texts(self) -> None:
        """Check what is a name, a folder or an address."""
        for option in ("name", "model_name", "run", "connect"):
            value = getattr(self, option)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{option}={value!r} must be a text")
        if not isinstance(self.spool, Path):
            raise ValueError(f"spool={self.spool!r} must be a folder, as a text or a Path")
        check_connect(self.connect)
        if self.report is not None:
            if not isinstance(self.report, str | Path) or str(self.report) == "":
                raise ValueError(f"report={self.report!r} must be a file or a folder, as a text or a Path")
            # The script may change its working directory; the slash that says "folder" has to stay.
            folder = "/" if str(self.report).endswith("/") else ""
            object.__setattr__(self, "report", f"{Path.cwd() / self.report}{folder}")

    def _check_actions(self) -> None:
        """Check what changes a training; few ask for any of it."""
        if self.recovery is not None:
            from .recovery_options import as_recovery

            object.__setattr__(self, "recovery", as_recovery(self.recovery))
        if self.input_policy is not None or self.output_policy is not None:
            from .policies import InputPolicy, OutputPolicy, require_policy

            require_policy("input_policy", self.input_policy, InputPolicy)
            require_policy("output_policy", self.output_policy, OutputPolicy)

    @property
    def settings(self) -> Settings:
        """What is measured how often at the start, and the overhead limit."""
        return Settings(
            level=self.level,
            preset=self.preset,
            overrides={} if self.features is None else self.features,
            overhead_limit=self.overhead_limit,
            parameter_norm_every=self.parameter_norm_every,
        )

    @property
    def capture_limit_bytes(self) -> int:
        """`capture_limit_mib` in bytes."""
        return self.capture_limit_mib * _MIB

    @property
    def journal_cap_bytes(self) -> int:
        """`journal_cap_mib` in bytes."""
        return self.journal_cap_mib * _MIB

    @classmethod
    def resolve(cls, options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> ProbeConfig:
        """Merge explicit options (None means "not given") over the environment over the defaults.

        Raises:
            ValueError: an unknown option, or one out of its range.
        """
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(options) - known):
            raise ValueError(f"unknown option {unknown[0]!r}; watch() takes {', '.join(sorted(known))}")
        merged = _from_environment(environment)
        _check_keys(environment)
        merged |= {name: value for name, value in options.items() if value is not None}
        # An empty text would be the working directory.
        if merged["spool"] != "" and isinstance(merged["spool"], str | os.PathLike):
            merged["spool"] = Path(merged["spool"])
        return cls(**merged)


def _check_keys(environment: Mapping[str, str]) -> None:
    """Refuse a file of keys that the helper could not use: it could tell nobody.

    Raises:
        ValueError: says why.
    """
    if not environment.get("NANSCOPE_KEYS"):
        return
    from .keys import chosen_keys

    try:
        chosen_keys(environment)
    except ValueError as error:
        raise ValueError(f"NANSCOPE_KEYS: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read NANSCOPE_LEVEL, _CONNECT, _SPOOL, _RUN, _FIRST_STEP, _REPORT and _QUIET."""
    found: dict[str, Any] = {"spool": default_spool(environment)}
    for option in ("level", "run"):
        if value := environment.get(f"NANSCOPE_{option.upper()}"):
            found[option] = value
    if value := environment.get("NANSCOPE_FIRST_STEP"):
        # What is no number is refused like an argument.
        found["first_step"] = int(value) if value.isdecimal() else value
    if value := environment.get("NANSCOPE_REPORT"):
        found["report"] = value
    if environment.get("NANSCOPE_QUIET", "") not in ("", "0"):
        found["quiet"] = True
    if "NANSCOPE_CONNECT" in environment:
        found["connect"] = environment["NANSCOPE_CONNECT"]
    return found


def options_given(config: ProbeConfig) -> dict[str, str]:
    """Return the options that are not the defaults, as texts; not the hyperparameters."""
    found = {}
    for item in fields(ProbeConfig):
        default = item.default_factory() if callable(item.default_factory) else item.default
        value = getattr(config, item.name)
        if value != default and item.name not in ("config", "logger"):
            found[item.name] = (value if isinstance(value, str) else repr(value))[:1000]
    return found


def is_switched_off(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether NANSCOPE_OFF asks `watch` for an inert handle, whatever its arguments."""
    return environment.get("NANSCOPE_OFF", "") not in ("", "0")


def is_off_by_environment(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for nothing to be recorded: NANSCOPE_OFF, or level off."""
    return is_switched_off(environment) or environment.get("NANSCOPE_LEVEL") == "off"


def _limits_of(values: Mapping[str, Any]) -> ResourceLimits:
    """Make the limits of a mapping.

    Raises:
        ValueError: a name that there is not, or a value out of its range.
    """
    known = ResourceLimits.__struct_fields__
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"resource_limits has no {unknown[0]!r}; choose from {', '.join(known)}")
    return ResourceLimits(**values)


def _require_truth_value(option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{option}={value!r} must be True or False")


def _require_instance(option: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        home = f"{kind.__module__.split('.', 1)[-1]}"
        raise ValueError(
            f"{option}={value!r} must be a {kind.__name__}: from probe.{home} import {kind.__name__}"
        )


def _require_one_of(option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{option}={value!r} is not available; choose one of {choices}")


def _require_seconds(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{option}={value!r} must be a number of seconds above 0")


def _require_names(option: str, value: object) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{option}={value!r} must be a list of names of modules or ops")


def _require_step(option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LAST_STEP:
        raise ValueError(f"{option}={value!r} must be a whole number from 0 to {_LAST_STEP}")


def _require_at_least(option: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{option}={value!r} must be a whole number of at least {least}")
