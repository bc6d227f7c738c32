"""The probe: records a PyTorch training run from inside, into a local journal. See `watch`.

Attributes load lazily, so that `import probe.wire` needs neither torch nor its import time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import aio
    from .analysis.anomaly_mode import anomaly_detection
    from .analysis.backward_pass import debug_backward_pass
    from .analysis.forward_pass import debug_forward_pass
    from .analysis.gradient_flow import analyze_gradient_flow
    from .analysis.gradients import check_gradient_explosion, check_gradient_vanishing, check_gradients
    from .analysis.inspection import inspect_model
    from .analysis.memory import clear_memory, track_tensor, tracked_tensors
    from .analysis.monitoring import get_training_summary, monitor_training_step
    from .analysis.optimizers import analyze_optimizer
    from .analysis.parameters import check_model_parameters, snapshot_parameters
    from .analysis.regions import debug_context, debug_operation
    from .analysis.summary import clear_debug_history, get_debug_summary
    from .analysis.tensor import analyze_tensor
    from .analysis.training_session import debug_training_session
    from .analysis.training_step import debug_training_step
    from .config import ProbeConfig
    from .errors import AnomalyError, PolicyError
    from .recovery.options import Recovery
    from .recovery.policies import InputPolicy, OutputPolicy
    from .recovery.robust_step import robust_training_step
    from .recovery.safe_inference import safe_inference
    from .rules.results import RuleResult
    from .rules.step_view import StepView
    from .session import Probe
    from .watching import clip_gradients, watch

__all__ = [
    "AnomalyError",
    "InputPolicy",
    "OutputPolicy",
    "PolicyError",
    "Probe",
    "ProbeConfig",
    "Recovery",
    "RuleResult",
    "StepView",
    "aio",
    "analyze_gradient_flow",
    "analyze_optimizer",
    "analyze_tensor",
    "anomaly_detection",
    "check_gradient_explosion",
    "check_gradient_vanishing",
    "check_gradients",
    "check_model_parameters",
    "clear_debug_history",
    "clear_memory",
    "clip_gradients",
    "debug_backward_pass",
    "debug_context",
    "debug_forward_pass",
    "debug_operation",
    "debug_training_session",
    "debug_training_step",
    "get_debug_summary",
    "get_training_summary",
    "inspect_model",
    "monitor_training_step",
    "robust_training_step",
    "safe_inference",
    "snapshot_parameters",
    "track_tensor",
    "tracked_tensors",
    "watch",
]
__version__ = "0.1.0"

_HOME = {
    "AnomalyError": "errors",
    "InputPolicy": "recovery.policies",
    "OutputPolicy": "recovery.policies",
    "PolicyError": "errors",
    "Recovery": "recovery.options",
    "Probe": "session",
    "ProbeConfig": "config",
    "RuleResult": "rules.results",
    "StepView": "rules.step_view",
    "analyze_gradient_flow": "analysis.gradient_flow",
    "analyze_optimizer": "analysis.optimizers",
    "analyze_tensor": "analysis.tensor",
    "anomaly_detection": "analysis.anomaly_mode",
    "check_gradient_explosion": "analysis.gradients",
    "check_gradient_vanishing": "analysis.gradients",
    "check_gradients": "analysis.gradients",
    "check_model_parameters": "analysis.parameters",
    "clear_debug_history": "analysis.summary",
    "clear_memory": "analysis.memory",
    "clip_gradients": "watching",
    "debug_backward_pass": "analysis.backward_pass",
    "debug_context": "analysis.regions",
    "debug_forward_pass": "analysis.forward_pass",
    "debug_operation": "analysis.regions",
    "debug_training_session": "analysis.training_session",
    "debug_training_step": "analysis.training_step",
    "get_debug_summary": "analysis.summary",
    "get_training_summary": "analysis.monitoring",
    "inspect_model": "analysis.inspection",
    "monitor_training_step": "analysis.monitoring",
    "robust_training_step": "recovery.robust_step",
    "safe_inference": "recovery.safe_inference",
    "snapshot_parameters": "analysis.parameters",
    "track_tensor": "analysis.memory",
    "tracked_tensors": "analysis.memory",
    "watch": "watching",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME and name != "aio":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name == "aio":
            return import_module(".aio", __name__)
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"probe.{name} needs PyTorch, which is not installed here: pip install torch==2.13.0"
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
