"""How large latents are to be after a denoising step, by the scheduler of `diffusers` that makes them.

Reads a scheduler by its attributes, as all schedulers of `diffusers` name them; imports none of it. With
data x0 and noise e of unit deviation, latents are x = signal * x0 + noise * e:

    variance preserving   signal = sqrt(a), noise = sqrt(1 - a), a = alphas_cumprod (Ho et al. 2020, eq. 4);
                          with sigmas, a = 1 / (1 + sigma^2)
    variance exploding    signal = 1, noise = sigma (Karras et al. 2022, table 1)
    flow                  signal = 1 - sigma, noise = sigma (Lipman et al. 2023)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ...guard import let_pass

Family = Literal["variance_preserving", "variance_exploding", "flow"]
_ABOVE_ONE: Final = 1.001
"""`init_noise_sigma`, by which a pipeline multiplies its first noise, is 1 where variance is preserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentScale:
    """Shares of data and noise in the latents after a step."""

    signal: float
    noise: float

    def std(self, data_std: float) -> float:
        """Expected deviation, where the data has `data_std` and noise has 1."""
        return math.hypot(self.signal * data_std, self.noise)


def scheduler_family(scheduler: Any) -> Family | None:
    """Return how a scheduler mixes data and noise; None where its attributes do not say so."""
    sigmas = _numbers(getattr(scheduler, "sigmas", None))
    if option(scheduler, "use_flow_sigmas") or option(scheduler, "prediction_type") == "flow_prediction":
        return "flow"
    has_alphas = getattr(scheduler, "alphas_cumprod", None) is not None
    if sigmas and (_number(getattr(scheduler, "init_noise_sigma", None)) or 1.0) > _ABOVE_ONE:
        return "variance_exploding"
    if has_alphas:
        return "variance_preserving"
    return "flow" if sigmas and max(sigmas) <= 1.0 else None


def scale_after(scheduler: Any, step: int, timestep: float | None = None) -> LatentScale | None:
    """Return the scale of the latents after a denoising step; None where the scheduler does not tell.

    Args:
        scheduler: after its `set_timesteps`.
        step: number of the step in the loop over `scheduler.timesteps`.
        timestep: at which the model was called; finds the step where the loop began later than at the first.
    """
    timesteps = _numbers(getattr(scheduler, "timesteps", None))
    at = _position(timesteps, step, timestep)
    family = scheduler_family(scheduler)
    if at is None or family is None:
        return None
    sigmas = _numbers(getattr(scheduler, "sigmas", None))
    if not sigmas:
        return _preserving(_alpha_after(scheduler, timesteps, at))
    if at + 1 >= len(sigmas):
        return None
    sigma = sigmas[at + 1]
    if family == "flow":
        return LatentScale(signal=1.0 - sigma, noise=sigma)
    if family == "variance_exploding":
        return LatentScale(signal=1.0, noise=sigma)
    return _preserving(1.0 / (1.0 + sigma * sigma))


def timestep_of(scheduler: Any, step: int) -> float | None:
    """Return the timestep at which the model is called in a step; None where there is no such step."""
    timesteps = _numbers(getattr(scheduler, "timesteps", None))
    return timesteps[step] if 0 <= step < len(timesteps) else None


def is_last(scheduler: Any, step: int, timestep: float | None) -> bool:
    """Whether a step is the last one of `scheduler.timesteps`."""
    timesteps = _numbers(getattr(scheduler, "timesteps", None))
    return bool(timesteps) and _position(timesteps, step, timestep) == len(timesteps) - 1


def option(scheduler: Any, name: str) -> Any:
    """Return a scheduler's option; None where it has none."""
    config = getattr(scheduler, "config", None)
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _position(timesteps: Sequence[float], step: int, timestep: float | None) -> int | None:
    """Where a step stands among the timesteps; schedulers of second order have one of them twice."""
    if timestep is not None and timestep in timesteps:
        is_there = 0 <= step < len(timesteps) and timesteps[step] == timestep
        return step if is_there else timesteps.index(timestep)
    return step if 0 <= step < len(timesteps) else None


def _alpha_after(scheduler: Any, timesteps: Sequence[float], at: int) -> float | None:
    alphas = scheduler.alphas_cumprod
    if at + 1 < len(timesteps):
        index = int(timesteps[at + 1])
        return _number(alphas[index]) if 0 <= index < len(alphas) else None
    final = _number(getattr(scheduler, "final_alpha_cumprod", None))
    return 1.0 if final is None else final


def _preserving(alpha: float | None) -> LatentScale | None:
    if alpha is None or not 0.0 <= alpha <= 1.0:
        return None
    return LatentScale(signal=math.sqrt(alpha), noise=math.sqrt(1.0 - alpha))


def _numbers(values: Any) -> list[float]:
    """A tensor, an array or a list as numbers; empty where it is none of these. Waits for its device."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, list | tuple):
        return []
    return [number for value in listed if (number := _number(value)) is not None]


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        let_pass(error)
        return None
