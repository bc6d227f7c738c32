"""What has to hold along the guide of the email system: an entry for each of its blocks, in its order."""

from guide_walk import Example

TRACE = (
    "{{event.get('name') for event in json.loads(Path('{}').read_text())['traceEvents']}} "
    ">= {{'aten::addmm', 'aten::mm'}}"
)
METHODS = {
    "anomaly_detection": {"enabled"},
    "profiling": {"enabled", "output_file"},
    "memory_tracking": {"enabled"},
    "check_gradients": {"model", "threshold"},
    "check_model_parameters": {"model"},
    "debug_forward_pass": {"model", "inputs", "layer_hooks"},
    "debug_backward_pass": {"loss", "retain_graph"},
    "debug_training_step": {"model", "inputs", "targets", "loss_fn", "optimizer"},
    "get_debug_summary": set[str](),
    "save_debug_report": {"path"},
    "clear_debug_data": set[str](),
}

WALK: list[Example] = [
    (
        "1. Autograd Anomaly Detection",
        ["run.active", ("modes = watch_mode()", "modes == [True] and not torch.is_anomaly_enabled()")],
    ),
    (
        "2. PyTorch Profiler",
        [f"{TRACE.format('profile.json')} and profile.report.steps == 2"],
    ),
    (
        "3. Memory Tracking",
        ["tracked.change.rss_bytes == tracked.after.rss_bytes - tracked.before.rss_bytes"],
    ),
    (
        "4. Gradient Checking",
        [
            "gradient_norm == approx(norm())",
            ("spoil(model[4].bias)", "it is False and param_stats.nonfinite == ('4.bias',)"),
        ],
    ),
    (
        "5. Forward/Backward Debugging",
        [
            "torch.equal(outputs, model(inputs)) "
            "and [layer.layer for layer in forward.layers] == ['', *'01234']",
            "it.total_norm == approx(norm())",
        ],
    ),
    (
        "Enhanced Training Optimizer Integration",
        [
            (
                "before = run.steps_made",
                "run.steps_made == before + 4 == before + results['steps'] "
                "and results['epoch_losses'][1] < results['epoch_losses'][0]",
            )
        ],
    ),
    (
        "Training Session Debugging",
        [
            "not session.active "
            "and json.loads(Path('session.json').read_text())['training']['total_steps'] == 40",
        ],
    ),
    (
        "Debugger Configuration",
        [
            "debugger.steps_made == 40 and read_journal(Path('debug_logs', debugger.run)).frames "
            "and read_journal(Path('debug_logs', debugger.run)).start.options['features'] "
            "== str({'memory': 1, 'gradients': 1})",
        ],
    ),
    (
        "Training Optimizer Configuration",
        [
            (
                "before = run.steps_made",
                "run.steps_made == before + 4 and 'log/val_loss' in measured() "
                "and progress_has(total_epochs=2)",
            )
        ],
    ),
    ("Debug Summary", ["json.loads(it)['total_steps'] == run.steps_made"]),
    (
        "Debug Report Saving",
        [
            "report_path == Path('debug_report.json') "
            "and json.loads(report_path.read_text())['run'] == run.run"
        ],
    ),
    (
        "Integration with Training Logger",
        [
            "('INFO', 'custom: Anomaly detection enabled') in logged('training')",
            "('WARNING', 'custom: Gradient explosion detected') in logged('training')",
            "('ERROR', 'custom: NaN parameter detected') in logged('training')",
        ],
    ),
    (
        "Error Recovery",
        [
            (
                "spoil(batches[0])",
                "recovered.isfinite().all() and len(events('recovery', session)) == 1",
            ),
            (
                "spoil(inputs, factor=100)",
                "it > 1 and norm() == approx(1.0, rel=1e-4)",
            ),
        ],
    ),
    (
        "Custom Error Handling",
        ["'MulBackward0' in events('custom')[-1].data['detail'] and not torch.is_anomaly_enabled()"],
    ),
    (
        "Debug Event Timeline",
        [
            (
                "began = time()",
                "events('custom')[-1].message == 'Gradient explosion detected' "
                "and began <= events('custom')[-1].time <= time() "
                "and events('custom')[-1].data == {'gradient_norm': 15.5, 'threshold': 1.0}",
            )
        ],
    ),
    ("Performance Analysis", [("Path('profile.json').unlink()", TRACE.format("profile.json"))]),
    (
        "Memory Analysis",
        [
            "0 < it[0] <= 100 and it[3].startswith('20') and "
            "(it[1] is None) == (it[2] is None) == (not torch.cuda.is_initialized())"
        ],
    ),
    (
        "1. Development and Debugging",
        [
            ("before = run", "run is before and train_step() and events('level_changed')"),
            "modes[-1] and profile.report.steps == 1 and tracked.after.rss_bytes > 0 "
            "and not torch.is_anomaly_enabled()",
        ],
    ),
    (
        "2. Production Monitoring",
        ["options(session)['preset'] == 'production' and 'grad_norm' in measured(session) and tracked.after"],
    ),
    (
        "3. Performance Investigation",
        [f"options(session)['preset'] == 'performance' and {TRACE.format('performance_profile.json')}"],
    ),
    (
        "4. Training Optimizer Integration",
        [("before = run.steps_made", "run.steps_made == before + 2 == before + results['steps']")],
    ),
    ("Common Issues", ["it[0] == 0 and torch.__version__ in it[1] and 'psutil' in it[1]"]),
    (
        "Debug Data Management",
        [
            "json.loads(it.read_text())['training']['total_steps'] > 0 "
            "and run.get_training_summary()['total_steps'] == 0",
            "it.name == 'final_debug_report.json' and json.loads(it.read_text())['run'] == run.run",
        ],
    ),
    (
        "PyTorchDebugger Class",
        [
            f"all(asked <= parameters(getattr(it, name)) for name, asked in {METHODS}.items())",
            "it == step.loss and step.stepped and step.gradients.total_norm == approx(norm())",
        ],
    ),
    (
        "Utility Functions",
        ["all({'model', 'optimizer', 'options'} <= parameters(function) for function in it)"],
    ),
]
