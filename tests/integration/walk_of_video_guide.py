"""What has to hold along the guide of the video system: an entry for each of its blocks, in its order."""

from guide_walk import Example

WALK: list[Example] = [
    (
        "1. Autograd Anomaly Detection",
        [
            "run.active and run.mode == 'detect'",
            (
                "modes = watch_mode()",
                "modes == [True] and not torch.is_anomaly_enabled() and norm() > 0",
            ),
        ],
    ),
    (
        "2. Gradient Debugging",
        [
            "gradient_info.ok and gradient_info.total_norm == approx(norm())",
            (
                "for name in names[:4]: model.get_parameter(name).grad.zero_()",
                "flow_analysis.dies_at == '2'",
            ),
            ("backward()\nscale(1e6)", "it > 1000 and norm() == approx(1.0, rel=1e-4)"),
            (
                "change(batches, 35, batches[35] * 1e6)",
                "len(events('recovery', session)) == 1 and events('recovery', session)[0].step == 35 "
                "and events('recovery', session)[0].subject == 'clip'",
            ),
        ],
    ),
    (
        "3. Memory Debugging",
        [
            "it.is_alive and it.bytes == 16 * 8 * 4 and it.name == 'inputs'",
            "(snapshot['label'], snapshot['rss_bytes'] > 0) == ('checkpoint', True) "
            "and snapshot in run.memory_snapshots()",
            "it.collected >= 0 and it.rss_after_bytes > 0",
        ],
    ),
    (
        "4. Model Debugging",
        [
            "inspection.parameters == sum(p.numel() for p in model.parameters()) "
            "and inspection.modules[-1].output_shapes == ((32, 3),)",
            ("validation = None", "'shape (32, 10)' in validation"),
        ],
    ),
    (
        "5. Training Debugging",
        [
            (
                "before = run.steps_made",
                "debug_info.ok and debug_info.stepped and run.steps_made == before + 1",
            )
        ],
    ),
    (
        "Training Integration",
        [
            (
                "before = run.steps_made",
                "run.steps_made == before + 4 and results['epoch_losses'][1] < results['epoch_losses'][0]",
            ),
            "run.run in debug_report.read_text()",
        ],
    ),
    (
        "1. Development and Debugging",
        ["options(session)['preset'] == 'development' and 'update_ratio' in measured(session)"],
    ),
    (
        "2. Production Monitoring",
        ["options(session)['preset'] == 'production' and 'grad_mean' not in measured(session)"],
    ),
    (
        "3. Specific Issue Debugging",
        [
            (
                "keep(other)\nchange(batches, 5, batches[5] * 1e6)",
                "events('gradient_explosion', session)[0].step == 5 "
                "and events('gradient_explosion', session)[0].evidence.threshold == 1e3",
            ),
            (
                "hold(other, 39, lambda: session.memory_snapshots())",
                "{snapshot.cause for snapshot in snapshots} == {'steps'} and snapshots[0].step >= 9",
            ),
        ],
    ),
    (
        "Basic Usage",
        [
            "(it.name, it.scenario) == ('quickstart', 'comprehensive')",
            "it[0] == 0 and 'nonfinite_gradient' in it[1]",
            "(it.name, it.scenario) == ('quickstart', 'gradient')",
            "(it.name, it.scenario) == ('quickstart', 'memory')",
            "(it.name, it.scenario) == ('quickstart', 'training')",
        ],
    ),
    (
        "Integration with Existing Code",
        [
            (
                "before = run.steps_made",
                "debug_manager is run and run.steps_made == before + 4 and gradient_info.ok "
                "and {one.label for one in run.memory_snapshots()} >= {'epoch_0', 'epoch_1'} "
                "and json.loads(report.read_text())['run'] == run.run",
            )
        ],
    ),
    (
        "Minimal Impact Mode",
        [
            (
                "keep(other)\nchange(batches, 5, batches[5] * math.nan)",
                "'update_ratio' not in measured(session) and events('nonfinite_loss', session)[0].step == 5",
            )
        ],
    ),
    ("Development Mode", ["'level extreme' in repr(session) and 'update_ratio' in measured(session)"]),
    (
        "Error Recovery",
        [
            (
                "change(batches, 5, batches[5] * math.nan)",
                "session.steps_made == 40 and [one.step for one in events('recovery', session)] == [5] "
                "and all(parameter.isfinite().all() for parameter in other.parameters())",
            )
        ],
    ),
]
