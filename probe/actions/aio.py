"""The analysis calls for an async training loop: `await probe.aio.check_gradients(model)`.

Same names, arguments and results as without `aio`. Each call runs in a worker thread, so the event loop goes
on. A session has the same as `run.aio`. What is safe:

- Calls that read (`analyze_tensor`, `analyze_optimizer`, the checks, `analyze_gradient_flow`,
  `check_model_parameters`, `snapshot_parameters`, `monitor_training_step`): await them before the next
  `optimizer.step()` or `zero_grad()`. A tensor that was changed in place meanwhile is noticed, and the call
  raises ValueError.
- Calls that run the model (`inspect_model`, `debug_forward_pass`, `debug_backward_pass`,
  `debug_training_step`): one at a time. Meanwhile nothing else may use the model or its optimizer, or draw
  from the default random generators: the order of the draws, and so the result, would depend on the clock.
  Cancelling does not stop them.
- `debug_context` and `@debug_operation` need no async form: they nest by coroutine. `anomaly_detection` is
  one switch for the whole process: every coroutine that runs meanwhile is in it.
"""

from __future__ import annotations

from .analysis.anomaly_checks import check_gradient_anomalies as _check_gradient_anomalies
from .analysis.anomaly_checks import check_tensor_anomalies as _check_tensor_anomalies
from .analysis.backward_pass import debug_backward_pass as _debug_backward_pass
from .analysis.forward_pass import debug_forward_pass as _debug_forward_pass
from .analysis.gradient_checks import check_gradient_explosion as _check_gradient_explosion
from .analysis.gradient_checks import check_gradient_vanishing as _check_gradient_vanishing
from .analysis.gradient_checks import check_gradients as _check_gradients
from .analysis.gradient_flow import analyze_gradient_flow as _analyze_gradient_flow
from .analysis.inspection import inspect_model as _inspect_model
from .analysis.monitoring import monitor_training_step as _monitor_training_step
from .analysis.optimizers import analyze_optimizer as _analyze_optimizer
from .analysis.parameters import check_model_parameters as _check_model_parameters
from .analysis.parameters import snapshot_parameters as _snapshot_parameters
from .analysis.tensor import analyze_tensor as _analyze_tensor
from .analysis.threads import awaitable_reading, awaitable_running
from .analysis.training_step import debug_training_step as _debug_training_step
from .progress_calls import awaitable_update as _awaitable_update
from .progress_calls import update_progress as _update_progress

__all__ = [
    "analyze_gradient_flow",
    "analyze_optimizer",
    "analyze_tensor",
    "check_gradient_anomalies_async",
    "check_gradient_explosion",
    "check_gradient_vanishing",
    "check_gradients",
    "check_model_parameters",
    "check_tensor_anomalies_async",
    "debug_backward_pass",
    "debug_forward_pass",
    "debug_training_step",
    "inspect_model",
    "monitor_training_step",
    "snapshot_parameters",
    "update_progress_async",
]

analyze_tensor = awaitable_reading(_analyze_tensor)
analyze_gradient_flow = awaitable_reading(_analyze_gradient_flow)
analyze_optimizer = awaitable_reading(_analyze_optimizer)
check_gradients = awaitable_reading(_check_gradients)
check_gradient_explosion = awaitable_reading(_check_gradient_explosion)
check_gradient_vanishing = awaitable_reading(_check_gradient_vanishing)
check_model_parameters = awaitable_reading(_check_model_parameters)
snapshot_parameters = awaitable_reading(_snapshot_parameters)
monitor_training_step = awaitable_reading(_monitor_training_step)
inspect_model = awaitable_running(_inspect_model)
debug_forward_pass = awaitable_running(_debug_forward_pass)
debug_backward_pass = awaitable_running(_debug_backward_pass)
debug_training_step = awaitable_running(_debug_training_step)
check_tensor_anomalies_async = awaitable_reading(_check_tensor_anomalies)
check_gradient_anomalies_async = awaitable_reading(_check_gradient_anomalies)
update_progress_async = _awaitable_update(_update_progress)
