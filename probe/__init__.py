"""The probe: records a PyTorch training run from inside, into a local journal. See `watch`.

Attributes load lazily, so that `import probe.wire` needs neither torch nor its import time.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import began as began
from .compat.lasting_objects import lasting

if TYPE_CHECKING:
    from .actions import aio
    from .actions.analysis.allocation_history import cuda_memory_history
    from .actions.analysis.anomaly_checks import check_gradient_anomalies, check_tensor_anomalies
    from .actions.analysis.anomaly_mode import anomaly_detection
    from .actions.analysis.backward_pass import debug_backward_pass
    from .actions.analysis.diffusion_pipeline import analyze_diffusion_pipeline
    from .actions.analysis.diffusion_steps import monitor_diffusion_step
    from .actions.analysis.forward_pass import debug_forward_pass
    from .actions.analysis.gradient_checks import (
        check_gradient_explosion,
        check_gradient_vanishing,
        check_gradients,
    )
    from .actions.analysis.gradient_flow import analyze_gradient_flow
    from .actions.analysis.inspection import inspect_model
    from .actions.analysis.model_memory import profile_memory_usage
    from .actions.analysis.monitoring import monitor_training_step
    from .actions.analysis.optimizers import analyze_optimizer
    from .actions.analysis.parameters import check_model_parameters, snapshot_parameters
    from .actions.analysis.resource_calls import monitor_resources
    from .actions.analysis.snapshot_results import compare_memory_snapshots, memory_trend
    from .actions.analysis.tensor import analyze_tensor
    from .actions.analysis.tensor_lives import clear_memory, track_tensor, tracked_tensors
    from .actions.analysis.training_step import debug_training_step
    from .actions.optimisation.optimised_loop import optimize_training_loop
    from .actions.optimisation.optimised_model import optimize_model
    from .actions.profiling.profiled_block import profiling
    from .actions.progress_calls import phase, start_training, update_progress
    from .actions.rules.rule_results import RuleResult
    from .actions.rules.step_view import StepView
    from .calls.memory_functions import memory_tracking, profile_memory, take_memory_snapshot
    from .calls.optimisations import benchmark_optimizations
    from .calls.own_events import record_event, track_error
    from .calls.robust_step import robust_training_step
    from .calls.safe_inference import InferenceResult, safe_inference
    from .calls.session_calls import (
        clear_debug_history,
        debug_context,
        debug_operation,
        get_debug_summary,
        get_training_summary,
        save_debug_report,
    )
    from .calls.shown_run import show
    from .calls.training_session import debug_training_session
    from .detectors.base import DetectorThresholds
    from .detectors.resources import ResourceLimits
    from .detectors.sampled_thresholds import SampledThresholds
    from .errors import AnomalyError, PolicyError
    from .session import Probe
    from .settings.config import ProbeConfig
    from .settings.levels import LEVELS, PRESETS, Features, Level, Preset
    from .settings.policies import InputPolicy, OutputPolicy
    from .settings.recovery_options import Recovery
    from .watching import clip_gradients, watch

__all__ = [
    "AnomalyError",
    "DetectorThresholds",
    "Features",
    "InferenceResult",
    "InputPolicy",
    "LEVELS",
    "Level",
    "OutputPolicy",
    "PRESETS",
    "PolicyError",
    "Preset",
    "Probe",
    "ProbeConfig",
    "Recovery",
    "ResourceLimits",
    "RuleResult",
    "SampledThresholds",
    "StepView",
    "aio",
    "analyze_diffusion_pipeline",
    "analyze_gradient_flow",
    "analyze_optimizer",
    "analyze_tensor",
    "anomaly_detection",
    "benchmark_optimizations",
    "check_gradient_anomalies",
    "check_gradient_explosion",
    "check_gradient_vanishing",
    "check_gradients",
    "check_model_parameters",
    "check_tensor_anomalies",
    "clear_debug_history",
    "clear_memory",
    "clip_gradients",
    "compare_memory_snapshots",
    "cuda_memory_history",
    "debug_backward_pass",
    "debug_context",
    "debug_forward_pass",
    "debug_operation",
    "debug_training_session",
    "debug_training_step",
    "get_debug_summary",
    "get_training_summary",
    "inspect_model",
    "memory_tracking",
    "memory_trend",
    "monitor_diffusion_step",
    "monitor_resources",
    "monitor_training_step",
    "optimize_model",
    "optimize_training_loop",
    "phase",
    "profile_memory",
    "profile_memory_usage",
    "profiling",
    "record_event",
    "robust_training_step",
    "safe_inference",
    "save_debug_report",
    "show",
    "snapshot_parameters",
    "start_training",
    "take_memory_snapshot",
    "track_error",
    "track_tensor",
    "tracked_tensors",
    "update_progress",
    "watch",
]
__version__ = "0.1.0"

_HOME = {
    "AnomalyError": "errors",
    "DetectorThresholds": "detectors.base",
    "Features": "settings.levels",
    "InferenceResult": "calls.safe_inference",
    "InputPolicy": "settings.policies",
    "LEVELS": "settings.levels",
    "Level": "settings.levels",
    "OutputPolicy": "settings.policies",
    "PRESETS": "settings.levels",
    "PolicyError": "errors",
    "Preset": "settings.levels",
    "Probe": "session",
    "ProbeConfig": "settings.config",
    "Recovery": "settings.recovery_options",
    "ResourceLimits": "detectors.resources",
    "RuleResult": "actions.rules.rule_results",
    "SampledThresholds": "detectors.sampled_thresholds",
    "StepView": "actions.rules.step_view",
    "analyze_diffusion_pipeline": "actions.analysis.diffusion_pipeline",
    "analyze_gradient_flow": "actions.analysis.gradient_flow",
    "analyze_optimizer": "actions.analysis.optimizers",
    "analyze_tensor": "actions.analysis.tensor",
    "anomaly_detection": "actions.analysis.anomaly_mode",
    "benchmark_optimizations": "calls.optimisations",
    "check_gradient_anomalies": "actions.analysis.anomaly_checks",
    "check_gradient_explosion": "actions.analysis.gradient_checks",
    "check_gradient_vanishing": "actions.analysis.gradient_checks",
    "check_gradients": "actions.analysis.gradient_checks",
    "check_model_parameters": "actions.analysis.parameters",
    "check_tensor_anomalies": "actions.analysis.anomaly_checks",
    "clear_debug_history": "calls.session_calls",
    "clear_memory": "actions.analysis.tensor_lives",
    "clip_gradients": "watching",
    "compare_memory_snapshots": "actions.analysis.snapshot_results",
    "cuda_memory_history": "actions.analysis.allocation_history",
    "debug_backward_pass": "actions.analysis.backward_pass",
    "debug_context": "calls.session_calls",
    "debug_forward_pass": "actions.analysis.forward_pass",
    "debug_operation": "calls.session_calls",
    "debug_training_session": "calls.training_session",
    "debug_training_step": "actions.analysis.training_step",
    "get_debug_summary": "calls.session_calls",
    "get_training_summary": "calls.session_calls",
    "inspect_model": "actions.analysis.inspection",
    "memory_tracking": "calls.memory_functions",
    "memory_trend": "actions.analysis.snapshot_results",
    "monitor_diffusion_step": "actions.analysis.diffusion_steps",
    "monitor_resources": "actions.analysis.resource_calls",
    "monitor_training_step": "actions.analysis.monitoring",
    "optimize_model": "actions.optimisation.optimised_model",
    "optimize_training_loop": "actions.optimisation.optimised_loop",
    "phase": "actions.progress_calls",
    "profile_memory": "calls.memory_functions",
    "profile_memory_usage": "actions.analysis.model_memory",
    "profiling": "actions.profiling.profiled_block",
    "record_event": "calls.own_events",
    "robust_training_step": "calls.robust_step",
    "safe_inference": "calls.safe_inference",
    "save_debug_report": "calls.session_calls",
    "show": "calls.shown_run",
    "snapshot_parameters": "actions.analysis.parameters",
    "start_training": "actions.progress_calls",
    "take_memory_snapshot": "calls.memory_functions",
    "track_error": "calls.own_events",
    "track_tensor": "actions.analysis.tensor_lives",
    "tracked_tensors": "actions.analysis.tensor_lives",
    "update_progress": "actions.progress_calls",
    "watch": "watching",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME and name != "aio":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOME.get(name, 'actions.aio')}"
    try:
        # Once loaded, nothing is made that lasts: a call at every step is not to collect garbage each time.
        with nullcontext() if home in sys.modules else lasting():
            module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"probe.{name} needs PyTorch, which is not installed here: pip install torch==2.13.0"
        ) from error
    return module if name == "aio" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
