"""What has to hold along the guide of the ads system: an entry for each of its blocks, in its order."""

from guide_walk import Example

NINE = (
    "{'total_steps', 'anomaly_steps', 'gradient_explosions', 'gradient_vanishing', 'loss_anomalies', "
    "'anomaly_rate', 'loss_anomaly_rate', 'gradient_explosion_rate', 'gradient_vanishing_rate'}"
)
FIVE = "{'total_anomalies', 'debug_history_length', 'total_steps', 'anomaly_rate', 'gradient_explosion_rate'}"
NO_PROBLEM = "[answer['problem'] for answer in it['answers']] == [None]"

WALK: list[Example] = [
    (
        "Basic Autograd Debugging",
        [
            "not run.active and run.steps_made == 1 and 'level basic' in repr(run)",
            "run.active and 'level advanced' in repr(run)",
            (
                "modes = watch_mode()",
                "modes == [True] and not torch.is_anomaly_enabled()",
            ),
        ],
    ),
    (
        "Training Debugger",
        [
            "(step_info.step, step_info.loss) == (2, loss.item()) and step_info.total_norm == approx(norm())",
            "it == (True, ())",
            "summary['total_steps'] == run.steps_made == 4 and it == 'Anomaly rate: 0.00%'",
        ],
    ),
    (
        "Diffusion Model Debugging",
        [
            "it == sum(parameter.numel() for parameter in pipeline.unet.parameters()) == 148",
            "step_info.ok and (step_info.step, step_info.std) == (2, approx(latents.std().item(), rel=0.01))",
            ("probe.monitor_diffusion_step(pipeline, 3, latents * math.nan)", "it == 1"),
        ],
    ),
    (
        "Tensor Analysis",
        [
            ("spoil(inputs)", "it[0] is True and math.isnan(it[1]) and tensor_info.nan_count == 1"),
            ("spoil(model[2].bias)", "it == ('2.bias',)"),
        ],
    ),
    (
        "Gradient Analysis",
        [
            ("backward()", "gradient_info.ok and gradient_info.total_norm == approx(norm())"),
            ("scale(1e6)", "exploded_params and set(it) == set(names)"),
            ("scale(1e-15)", "vanished_params and set(it) == set(names)"),
        ],
    ),
    (
        "Automatic Debugging in Training",
        [
            ("before, run = run, None", "run is before"),
            "progress_has(total_epochs=10, total_steps=1000)",
            ("spoil(inputs, math.inf)", "it is False and tensor_info['has_inf'] is True"),
            "events('custom')[-1].message == 'Loss tensor contains NaN values' "
            "and any(level == 'WARNING' and 'Loss tensor contains NaN' in text for level, text in logged())",
            (
                "backward()\nspoil(model[0].weight.grad)",
                "it == 1 and gradient_info['nan_params'] == [names[0]]",
            ),
        ],
    ),
    (
        "Custom Training Loop with Debugging",
        [
            (
                "spoil(inputs)\nbefore = run.steps_made",
                "run.steps_made == before + 2 and [event.data for event in events('exception')] == "
                "[{'category': 'training', 'context': {'epoch': epoch, 'step': 0}} for epoch in (0, 1)] "
                "and progress_has(epoch=1, step=run.steps_made)",
            )
        ],
    ),
    (
        "Debug Summary",
        [
            (
                "clean = inputs.clone()\ninputs[0] = math.nan\nbackward()\n"
                "inputs.copy_(clean)\ntrain_step()\nwait_for_page()\nown = run.get_training_summary()",
                "summary['training_debugger']['total_steps'] == run.steps_made > 4 "
                "and set(summary) == {'training_debugger', 'diffusion_debugger', 'general_debugger'}",
            )
        ],
    ),
    (
        "Debug Summary: response",
        [
            f"set(summary['training_debugger']) == {FIVE} "
            "and 1 / run.steps_made <= it[0] <= own['anomaly_rate'] and it[1] == 1 "
            "and it[2] >= len(events('custom') + events('exception')) == 3 "
            "and sum(part['debug_history_length'] for part in summary.values()) "
            "== run.get_debug_summary()['debug_history_length']",
        ],
    ),
    (
        "Training Debug Summary",
        [f"training == {{name: own[name] for name in {NINE}}} and training['loss_anomalies'] == 1"],
    ),
    ("Training Debug Summary: response", ["it == (0, 1 / run.steps_made)"]),
    (
        "Set Debug Level",
        [
            (
                "run.set_level('basic')\ntrain_step()\nassert 'level basic' in repr(run)",
                f"{NO_PROBLEM} and train_step() and 'level advanced' in repr(run)",
            )
        ],
    ),
    (
        "Clear Debug History",
        [
            (
                "assert run.get_debug_summary()['total_anomalies'] > 0",
                f"{NO_PROBLEM} and run.get_debug_summary()['total_anomalies'] == 0",
            )
        ],
    ),
    (
        "1. NaN Loss Values",
        [
            ("spoil(inputs)", "it == 1 and input_info.name == 'model_inputs'"),
            ("spoil(model[0].weight, math.inf)", "'0.weight' in str(it)"),
            (
                "change(optimizer.param_groups[0], 'lr', 2.0)",
                "'the learning rate of group 0 is 2, above 1' in it",
            ),
        ],
    ),
    ("2. Gradient Explosion", [("backward()\nscale(1e6)", "norm() == approx(1.0, rel=1e-4)")]),
    ("3. Gradient Vanishing", [("backward()\nscale(1e-15)", "set(it) == set(names)")]),
    (
        "4. Memory Issues",
        [
            "it is False and memory_profile.fits and memory_profile['activations'] > 0 "
            "and memory_profile['parameters'] == 4 * sum(p.numel() for p in model.parameters())"
        ],
    ),
    (
        "1. Enable Debugging During Development",
        [("before = run", "run is before and train_step() and events('level_changed')")],
    ),
    ("2. Monitor Critical Tensors", ["it is False", "it == 0"]),
    ("3. Set Appropriate Thresholds", ["it == ()", "it == ()"]),
    (
        "4. Regular Debug Summary",
        [
            (
                "before = run.get_debug_summary()['total_anomalies']\n"
                "run.record_event('planted', severity='warning')",
                "it == before + 1",
            )
        ],
    ),
    (
        "5. Clean Up Debug History",
        [
            "json.loads(it.read_text())['run'] == run.run "
            "and run.get_debug_summary()['total_anomalies'] == 0",
        ],
    ),
]
