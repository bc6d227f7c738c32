"""What has to hold along the guide of the security system: an entry for each of its blocks, in its order."""

from guide_walk import Example

RUNS_OUT_ONCE = """
failing = [MemoryError("planted")]
def run_out(*_):
    if failing:
        raise failing.pop()
model.register_forward_pre_hook(run_out)
"""
LEAKS = """
import mmap
held, plain_step = [], train_step
def leaking_step():
    # Fresh pages: malloc may have some that were freed before.
    held.append(mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE))
    held[-1].write(bytes(2 << 20))
    return plain_step()
change(globals(), "train_step", leaking_step)
"""
AMP_RAN = "output.dtype is torch.bfloat16"
LEARNS = "before = run.steps_made"
TWO_STEPS = "run.steps_made == before + 2"
POLICY = "[event.message for event in events('{}', session)]"

WALK: list[Example] = [
    ("Basic Setup", ["run.active and 'level extreme' in repr(run)"]),
    (
        "Anomaly Detection",
        [
            (
                "modes = watch_mode()",
                "modes == [True] and not torch.is_anomaly_enabled() "
                "and run.debug_metrics[-1].mode.value == 'training_operation'",
            )
        ],
    ),
    (
        "Gradient Checking",
        [
            "gradient_info.ok",
            (
                "spoil(model[0].weight.grad, math.inf)\ngradient_info = run.check_gradients(model)",
                "it[0] == math.inf and it[1] == ('0.weight',) and [one.name for one in it[2]] == names",
            ),
        ],
    ),
    ("Memory Profiling", ["0 < it[0] < 100 and it[1] == 0.0 and not it[2]"]),
    ("Model Optimization", ["optimized_model.wrapped is model", "it == (True, 'full')"]),
    (
        "Training Loop Optimization",
        [
            (
                f"train_step()\n{LEARNS}",
                "run.steps_made == before + 20 == before + result['steps'] "
                "and result['epoch_losses'][-1] < result['epoch_losses'][0]",
            ),
            "float(it[0][:-1]) >= 0 and float(it[1][:-1]) > 0",
        ],
    ),
    (
        "Benchmarking",
        [
            (LEARNS, "run.steps_made == before and list(benchmark_results) == ['none', 'amp']"),
            "[line.split(':')[0] for line in it] == ['none', 'amp']",
        ],
    ),
    (
        "Anomaly Detection with autograd.detect_anomaly()",
        [
            "[event.severity for event in events('exception')] == ['critical'] "
            "and 'MulBackward0' in events('exception')[-1].message"
        ],
    ),
    (
        "Gradient Analysis",
        [
            "it == ()",
            ("scale(1e-15)", "set(it) == set(names)"),
            ("spoil(model[2].weight.grad)", "it == ('2.weight',)"),
        ],
    ),
    (
        "Memory Leak Detection",
        [
            (
                LEAKS,
                "batch < 99 and 'grows' in str(memory_after['memory_leaks'])",
            )
        ],
    ),
    ("Automatic Mixed Precision (AMP)", [(LEARNS, f"{TWO_STEPS} and {AMP_RAN}")]),
    ("Model Compilation", ["torch.allclose(output, other(batches[0]), atol=1e-6)"]),
    (
        "Memory-Efficient Training",
        [(LEARNS, f"{TWO_STEPS} and optimized_model.checkpointed == ('',)")],
    ),
    (
        "Robust Operations Integration",
        ["result.success and torch.equal(output, model(inputs)) and result.attempts == 1"],
    ),
    (
        "Training Logger Integration",
        [
            "events('custom')[-1].data == {'gradient_info': {'gradient_norm': gradient_info.total_norm}} "
            "and ('INFO', 'custom: Training step completed') in logged('training')"
        ],
    ),
    (
        "Debug Operation Decorator",
        [
            "modes[-1] is True and run.debug_metrics[-1].mode.value == 'training_step' and loss.isfinite()",
        ],
    ),
    ("Optimize Model Decorator", [AMP_RAN]),
    (
        "Debug Summary",
        [
            "it[0] == len(run.debug_metrics) == 5 and 0 < it[1] <= it[2] and it[3] > 50 and it[4] >= 5",
        ],
    ),
    (
        "Performance Metrics",
        [
            "[one[0] for one in it] == ['training_operation', 'anomaly_detection', 'robust_inference', "
            "'training_step', 'training_step'] and all(one[1] > 0 and one[2] > 50 for one in it)",
        ],
    ),
    ("Optimization Analysis", ["('amp', 0.0, None, None, True) in it and it[-1][0] == 'amp'"]),
    (
        "Input Validation",
        [
            "('NaN' in refused[0], '1001' in refused[1], len(refused)) == (True, True, 3) "
            "and accepted.shape == (2, 2)",
        ],
    ),
    ("Anomaly Detection", [f"len({POLICY.format('output_degenerate')}) == 1"]),
    (
        "Resource Monitoring",
        ["0 <= used['cpu_percent'] <= 100 and 0 < used['memory_percent'] <= 100 and set(used) >= {'above'}"],
    ),
    (
        "1. Use Anomaly Detection",
        ["modes[-1] is True and run.debug_metrics[-1].mode.value == 'development_training'"],
    ),
    ("2. Regular Gradient Checking", ["it is True and gradient_info.total_norm == approx(norm())"]),
    (
        "3. Memory Profiling",
        ["not it and memory_info['label'] == 'batch_50' and memory_info['cpu_memory'] > 0"],
    ),
    ("1. Start with AMP", ["optimized_model.dtype is torch.bfloat16 and optimized_model.wrapped is model"]),
    ("2. Benchmark Optimizations", ["it[0] in ('none', 'memory_efficient') and it[1]"]),
    ("3. Monitor Performance", ["0 < it < 60"]),
    ("1. Input Validation", [f"'1001' in {POLICY.format('input_out_of_range')}[0]"]),
    ("2. Anomaly Detection", [f"len({POLICY.format('output_degenerate')}) == 1"]),
    ("3. Resource Monitoring", ["0 < it['memory_percent'] <= 100"]),
    (
        "Comprehensive Error Handling",
        [
            (
                RUNS_OUT_ONCE,
                "not failing and loss > 0 and len(events('recovery')) == 1 "
                "and [one.error for one in run.debug_metrics[-2:]] == ['MemoryError', None]",
            )
        ],
    ),
    (
        "Recovery Strategies",
        [
            (
                f"change(batches, 5, batches[5] * math.nan)\n{RUNS_OUT_ONCE}",
                "not failing and step > 0 and [one.step for one in events('recovery', session)] == [5] "
                "and all(parameter.isfinite().all() for parameter in other.parameters())",
            )
        ],
    ),
]
