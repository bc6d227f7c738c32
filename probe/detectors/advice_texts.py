"""What an event of each kind means and what to try: short sentences, of which `advice.py` chooses.

What is said where the detector knows the cause is in `cause_advice.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NONFINITE_NEXT: Final = (
    "The parameters that hold NaN are where it spread to, not where it began: start from the origin "
    "above, or from the first event of this run.",
    "Check the batch of this step: missing values, empty samples, targets out of range.",
)

ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    "nonfinite_loss": (
        "The forward pass or the loss produced NaN or Inf; backward spreads it to every parameter it "
        "reaches.",
        "Skip the update of this step (`if not torch.isfinite(loss): continue`).",
        "Restart from the last good checkpoint: the weights are NaN or Inf already.",
        *_NONFINITE_NEXT,
    ),
    "nonfinite_gradient": (
        "The loss is finite, so NaN or Inf began in backward; an update with these gradients makes the "
        "weights NaN for good.",
        "`clip_grad_norm_` does not help: one NaN makes all gradients NaN, one Inf makes all others 0. Pass "
        "`error_if_nonfinite=True`, or skip the step.",
        *_NONFINITE_NEXT,
    ),
    "nonfinite_parameter": (
        "The weights themselves are NaN or Inf: every further step is lost. Stop, and restart from a "
        "checkpoint from before this step.",
        "No loss and no gradient was NaN or Inf before: look at the optimizer (learning rate, eps, weight "
        "decay), or for code that writes to parameters directly.",
    ),
    "gradient_explosion": (
        "One gradient was much larger than usual: a bad batch, a learning rate at the edge of stability, or "
        "an unbounded operation in the layer named.",
        "Clip by norm at a few times the run's median "
        "(`torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`), after unscaling under GradScaler.",
        "If it repeats: lower the learning rate, lengthen its warm-up, or with Adam try beta2 = 0.95.",
        "Look at the batch of this step; several in a row with growing norms mean divergence, not bad luck.",
    ),
    "gradient_vanishing": (
        "These layers have almost stopped learning: next to no gradient reaches them.",
        "Look between the first affected layer and the next healthy one: sigmoid or tanh in saturation, dead "
        "ReLUs, a gate near 0, a softmax that has become one-hot.",
        "Try a residual connection, a normalisation layer before the saturating one, a smaller learning "
        "rate, or GELU or LeakyReLU in place of ReLU.",
        "In half precision, check for underflow: use GradScaler or bfloat16.",
    ),
    "zero_gradient": (
        "The layers named are part of the graph but get exactly 0: they do not learn.",
        "Usual causes: all ReLUs of a layer dead, a clamp or hard sigmoid out of its range, a mask or gate "
        "of 0, a softmax over one logit, weights that were all set to 0, or an argmax, round or comparison "
        "on the way to the loss.",
        "No layer gets anything, so look at the loss: a weight or mask of 0, a clamp out of its range, or an "
        "argmax, round or comparison between the model and it.",
        "Small gradients become 0 in float16: use GradScaler or bfloat16.",
        "If it began after a large step, the layer died: lower the learning rate, or re-initialise it.",
        "If it is intended (an auxiliary branch that is switched off), freeze it with "
        "`requires_grad_(False)`.",
    ),
    "loss_spike": (
        "If the loss comes back within some steps, it was one batch or one bad update, and training "
        "survives.",
        "If a gradient explosion came first, treat that: clip gradients, lower the learning rate.",
        "Otherwise look at the batch: outliers, wrong labels, a very long sequence, another data source.",
        "If the loss does not come back, restart from before the spike with other data order or a lower "
        "learning rate.",
    ),
    "exception": ("The exception left the training loop unchanged; the stack shows where it was raised.",),
    "out_of_memory": (
        "Reduce the batch size or the sequence length; gradient accumulation keeps the effective batch.",
        "Trade time for memory: activation checkpointing (`torch.utils.checkpoint`).",
        "Autocast to bfloat16 halves what the forward keeps for backward.",
        "If memory grew step by step, something holds graphs: append `loss.item()` to a list, never `loss`.",
        "On a GPU: if allocated is far below reserved, it is fragmentation; try "
        "`PYTORCH_ALLOC_CONF=expandable_segments:True`.",
    ),
    "replayed": (
        "The failing step was run again to find where the value began; weights, gradients, buffers and "
        "random state were restored, but Python side effects of `forward` (counters, prints) happened twice.",
    ),
    "data_gap": ("Metrics of these steps were lost; training was not affected.",),
    "custom": ("Recorded by the training script, by one of its rules, or by a watchpoint of this run.",),
    "nonfinite_activation": (
        "The module named returned NaN or +Inf; what comes after it spreads it, unless it is masked away.",
        "Look at the operations inside this module: a division, a root, a log or a softmax over nothing but "
        "-Inf.",
        "In float16 a product above 65,504 is Inf, too.",
        "If it comes from padding that is dropped later, keep it from arising (`torch.where` before the "
        "operation, not after): in backward 0 times NaN is NaN.",
    ),
    "nonfinite_input": (
        "The batch itself holds NaN or Inf: nothing in the model is at fault.",
        "Look for missing values in the data, a standard deviation of 0 in the normalisation, or a broken "
        "file.",
        "It is Inf, not NaN: look for a log of 0, a division by 0, or a value that is too large for the "
        "dtype.",
    ),
    "dead_units": (
        "Most units of the layer give 0 for every sample: they get no gradient and stay so.",
        "Usual cause: one update that was too large has pushed the biases far below 0. Lower the learning "
        "rate, warm it up, or clip gradients.",
        "It is so from the start: look for a bias that begins negative, or inputs that are not centred.",
        "LeakyReLU or GELU let such units recover.",
    ),
    "saturated_activation": (
        "Nearly all outputs of the layer are at its limits, where the derivative is about 0: nothing before "
        "it learns.",
        "Check the scale of the inputs first: pixels of 0..255, or features that are not standardised, "
        "saturate tanh and sigmoid at once.",
        "It became so during training: lower the learning rate, add weight decay, or put a normalisation "
        "layer in front.",
        "Initialise for the activation (`xavier_uniform_` with its gain), or use ReLU or GELU in hidden "
        "layers.",
    ),
    "loss_divergence": (
        "A loss that keeps rising: the learning rate is too large for where the run is now. Go back to a "
        "checkpoint from before the rise with a third of it; clip gradients.",
        "A loss that falls ever faster below zero has no minimum: a wrong sign, or a term without a bound.",
        "With Adam, a larger eps or beta2 = 0.95 helps where the second moment is too small.",
    ),
    "loss_plateau": (
        "The loss does not get better.",
        "If it is what guessing gives (log of the number of classes), the output says nothing about the "
        "input.",
        "Check the wiring: the optimizer has this model's parameters, `step()` is called, nothing is "
        "detached, targets belong to their inputs.",
        "Check the loss: `cross_entropy` and `binary_cross_entropy_with_logits` want raw logits, `nll_loss` "
        "log-probabilities; a softmax or sigmoid too many makes learning very slow.",
        "Check the learning rate: far too small shows in the update ratios (about 1e-3 is usual), far too "
        "large in dead units. Try to overfit a single batch.",
        "It stopped after learning well: lower the learning rate now, or end the training.",
    ),
    "parameter_not_updated": (
        "Training does not change these parameters: no gradient reaches them, or nothing makes use of it.",
    ),
    "poor_initialization": (
        "The weights were made too large or too small for the depth of the model: gradients vanish or "
        "explode.",
        "Use `kaiming_normal_` (ReLU) or `xavier_uniform_` (tanh, sigmoid).",
        "Normalisation layers and residual connections make depth safe; scale residual branches by "
        "1/sqrt(2 x layers).",
    ),
    "update_ratio_high": (
        "One update replaces a large share of the weights: what was learnt may be lost, and units may die.",
        "Divide the learning rate by 3 to 10; a healthy ratio of update to weight is about 1e-3.",
        "Warm the learning rate up: Adam's first updates are as large as the learning rate for every weight, "
        "however small the gradient.",
        "If it rose suddenly: an outlier batch, or a gradient that was not clipped.",
        "The optimizer has weight decay: every step takes learning rate times weight_decay of the weights "
        "away; 1e-4 is a lot.",
    ),
    "update_ratio_low": (
        "The updates are too small to change anything: at 1e-7 per step, a weight needs millions of steps.",
        "Raise the learning rate, or look at what the scheduler makes of it (`scheduler.get_last_lr()`): one "
        "that is meant for epochs and stepped at every batch has soon decayed to nothing.",
        "With SGD the update is as small as the gradient: check whether a loss weight, a clip norm or a "
        "division (by accumulation steps, twice) makes it tiny.",
        "In bfloat16 or float16 weights, updates this small are lost in rounding altogether.",
    ),
    "accumulated_gradient": (
        "The gradients are never cleared, so every update is made with the sum over all steps so far: this "
        "acts like a learning rate that is too large, with stale directions.",
        "Call `optimizer.zero_grad()` once for each update, before `loss.backward()`.",
        "With several optimizers, each has to clear its own parameters.",
    ),
    "memory_leak": (
        "Memory grows step by step: something keeps what each step makes.",
        "Most often a list of losses with their graphs: append `loss.item()`, never `loss`; the same for "
        "outputs and hidden states (`.detach()`).",
        "Look for a cache without a limit, hooks registered in every step, `retain_graph=True`, or a hidden "
        "state that is carried over without `detach()`.",
        "On the host: data loader workers that hold Python objects, or figures and logs that are kept.",
    ),
    "hang": (
        "Nothing has happened for far longer than a step takes; the stack shows where the main thread "
        "stands.",
    ),
    "killed": (
        "The process is gone without an exception or an exit that Python knows of: a signal has ended it, it "
        "crashed in C code, or it left through `os._exit`.",
    ),
    "overfitting": (
        "The model learns the training samples by heart: the validation loss rises while the training loss "
        "falls.",
        "Keep the checkpoint of the lowest validation loss, and stop here.",
        "To go further, try more data or augmentation first; then weight decay, dropout, or a smaller model.",
    ),
    "rank_divergence": (
        "Replicas that should be equal are not: from here on each rank trains a model of its own.",
        "Start again from a checkpoint that all ranks load.",
    ),
    "input_out_of_range": (
        "An input is far larger than usual, or than the limit that was set: an outlier, another unit, or a "
        "sample that was not normalised.",
        "Look at this batch and at where its samples come from.",
    ),
    "output_degenerate": (
        "The model returns the same for every input: it has collapsed, or its input does not reach the "
        "output.",
        "Look for dead units or saturation further up, or a gate or a mask that is 0.",
        "It was so from the start: check the last layer's initialization and the forward's wiring.",
        "It became so: lower the learning rate, and restart from before the collapse.",
    ),
    "diffusion_nonfinite": (
        "The latents of a sampling became NaN or Inf at the denoising step named; all later ones keep it.",
        "In float16 a VAE or an attention overflows at large scales: try bfloat16, or float32 for that part.",
        "Look at what `probe.analyze_diffusion_pipeline` says: parameters that are NaN, another dtype.",
    ),
    "diffusion_drift": (
        "The latents are much larger or smaller than data and noise in the scheduler's proportions would be.",
        "Check that model and scheduler agree on `prediction_type` (epsilon, v_prediction, sample), and that "
        "`scale_model_input` and `init_noise_sigma` are applied.",
        "Check the latents' scaling factor, and that `data_std` fits.",
        "A model that is not trained yet drifts as a rule: compare after some training.",
    ),
    "high_resource_use": (
        "Memory, a processor or a device is nearly used up; look at what else runs here.",
        "Reduce the batch, the number of loader workers, or what is cached.",
        "Save a checkpoint now.",
    ),
    "performance_degradation": (
        "Steps take much longer than they did at first.",
        "Usual causes: a list that grows and is walked in every step, longer sequences, a slow disk, or "
        "memory that is swapped.",
        "Compare the module times (level `advanced`) of an early and a late step: the part that grew is the "
        "cause.",
        "The step's own work takes as long as before: look for another program on this machine.",
    ),
    "high_anomaly_rate": (
        "So many steps have a warning that they are no accidents: the run as a whole is unhealthy.",
        "Read the first event of this run first: later ones often follow from it.",
    ),
    "recovery": (
        "A recovery that was switched on has acted: it changed this step, so that the run can go on.",
    ),
    "snapshot": ("All numbers of this step were kept in a file, as a watchpoint or a person asked.",),
    "profile": ("A profile was taken over these steps; they took longer than others because of it.",),
    "cleared": (
        "Counts and rates of the run start again from 0 here; what was recorded before is kept and shown.",
    ),
    "control": (
        "Somebody has asked this of the training from outside; the message says who, from where, and whether "
        "it was accepted.",
    ),
    "level_changed": ("What is measured has changed from this step on: gaps in charts begin or end here.",),
    "throttled": (
        "A measurement takes place less often, to keep the probe's share of the step below its limit.",
        "Raise `overhead_limit` if you would rather have the numbers.",
    ),
    "amp_overflow": (
        "GradScaler found Inf, skipped the step and lowered its scale: normal at the start and now and then.",
    ),
}

PHASES: Final[Mapping[str, str]] = {
    "backward": "Forward was finite; only the derivative is not. Keep the input away from the point where "
    "the derivative is infinite: masking the output afterwards does not help.",
    "input": "Check each batch before the model's call: `assert torch.isfinite(x).all()`, with the index of "
    "the sample in its message.",
}
