"""What an event of each kind means and what to try: short sentences, of which `advice.py` chooses."""

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
        "The loss is finite: an operation in backward divided by zero or overflowed, and the optimizer step "
        "would make the weights NaN for good.",
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
        "These layers have almost stopped learning: what lies between them and the loss has saturated or "
        "died.",
        "Look between the first affected layer and the next healthy one: sigmoid or tanh in saturation, dead "
        "ReLUs, a gate near 0, a softmax that has become one-hot.",
        "Try a residual connection, a normalisation layer before the saturating one, a smaller learning "
        "rate, or GELU or LeakyReLU in place of ReLU.",
        "In half precision, check for underflow: use GradScaler or bfloat16.",
    ),
    "zero_gradient": (
        "The layers named are part of the graph but get exactly 0: they do not learn.",
        "Usual causes: all ReLUs of a layer dead, a clamp or hard sigmoid out of its range, a loss weight or "
        "mask of 0, a gate that is 0 and not trained, a softmax over one logit, weights that were all set to "
        "0, underflow in float16, an argmax, round or comparison on the way.",
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
    "data_gap": (
        "Metrics of these steps were lost (a full disk, the journal's size cap, or a kill in the middle of "
        "writing); training was not affected.",
    ),
    "custom": ("Recorded by the training script, by one of its rules, or by a watchpoint of this run.",),
    "nonfinite_activation": (
        "The module named returned NaN or +Inf; what comes after it spreads it, unless it is masked away.",
        "Look at the operations inside this module: a division, a root, a log or a softmax over nothing but "
        "-inf.",
        "In float16 a product above 65,504 is Inf, too.",
        "If it comes from padding that is dropped later, keep it from arising (`torch.where` before the "
        "operation, not after): in backward 0 times NaN is NaN.",
    ),
    "nonfinite_input": (
        "The batch itself holds NaN or Inf: nothing in the model is at fault.",
        "Look for missing values in the data, a division by a standard deviation of 0 in the normalisation, "
        "a log of 0, or a broken file.",
        "Check in the data loader: `assert torch.isfinite(x).all()`, with the index of the sample in its "
        "message.",
    ),
    "dead_units": (
        "Most units of the layer give 0 for every sample: they get no gradient and stay so.",
        "Usual cause: one update that was too large has pushed the biases far below 0. Lower the learning "
        "rate, warm it up, or clip gradients.",
        "It is so from the start: look for a bias that begins negative, or inputs that are not centred.",
        "LeakyReLU or GELU let such units recover; a normalisation layer in front keeps them alive.",
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
        "The loss does not get better. If it is what guessing gives (log of the number of classes), the "
        "output says nothing about the input.",
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
        "Without a gradient: look for a `.detach()`, `.item()`, `.numpy()`, `torch.tensor()` or "
        "`torch.no_grad()` on the way from the module to the loss, for an output that is never used, or for "
        "`requires_grad=True` on the loss itself, which hides the cut.",
        "With one of ordinary size, it is most likely not in the optimizer: a layer that was added or "
        "replaced after the optimizer was made, or kept in a plain list in place of `nn.ModuleList`.",
        "Or its group has a learning rate of 0, `optimizer.step()` is not called, or `zero_grad()` stands "
        "between `backward()` and `step()`.",
        "An update below 1/256 of the value in bfloat16, or a ten-millionth in float32, is lost in rounding: "
        "keep float32 weights and use autocast; gradients as small as that vanish on their way back.",
        "If it is meant to stay as it is, call `requires_grad_(False)`: that saves its share of backward and "
        "memory.",
    ),
    "poor_initialization": (
        "The signal shrinks or grows from layer to layer, or units begin as copies of each other: gradients "
        "will vanish, explode or be the same for all.",
        "Use `kaiming_normal_` (ReLU) or `xavier_uniform_` (tanh, sigmoid); never a constant for whole "
        "weight matrices.",
        "Normalisation layers and residual connections make depth safe; scale residual branches by "
        "1/sqrt(2 x layers).",
    ),
    "update_ratio_high": (
        "One update replaces a large share of the weights: what was learnt is lost, and units die.",
        "Divide the learning rate by 3 to 10; a healthy ratio of update to weight is about 1e-3.",
        "Warm the learning rate up: Adam's first updates are as large as the learning rate for every weight, "
        "however small the gradient.",
        "If it rose suddenly: an outlier batch, or a gradient that was not clipped.",
        "The optimizer has weight decay: every step takes learning rate times weight_decay of the weights "
        "away; 1e-4 is a lot.",
    ),
    "update_ratio_low": (
        "The updates are too small to change anything: at 1e-7 a step, a weight needs millions of steps.",
        "Raise the learning rate, or look at what the scheduler makes of it (`scheduler.get_last_lr()`): one "
        "that is meant for epochs and stepped at every batch has soon decayed to nothing.",
        "With SGD the update is as small as the gradient: check whether a loss weight, a clip norm or a "
        "division (by accumulation steps, twice) makes it tiny.",
        "In bfloat16 or float16 weights, updates this small are lost in rounding altogether.",
    ),
    "accumulated_gradient": (
        "The gradients are never cleared, so that every update is made with the sum over all steps so far: "
        "it works a little, like too large a learning rate with stale directions.",
        "Call `optimizer.zero_grad()` once for each update, before `loss.backward()`.",
        "For gradient accumulation, clear after every `optimizer.step()`, not never.",
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
        "More data or augmentation first; then weight decay, dropout, label smoothing, or a smaller model.",
        "Check that training and validation data are of the same kind, and that `model.eval()` is called.",
    ),
    "rank_divergence": (
        "Replicas that should be equal are not: from here on each rank trains a model of its own.",
        "Usual causes: other seeds before the model was made, parameters changed outside of the optimizer, "
        "or a rank that skipped an update that others made.",
        "Check that every parameter takes part in every step (`find_unused_parameters`), and that buffers "
        "are broadcast.",
        "Start again from a checkpoint that all ranks load; compare the first step that differs.",
    ),
    "input_out_of_range": (
        "An input is far larger than it usually is: an outlier, another unit, or a sample that was not "
        "normalised.",
        "Look at this batch and at where its samples come from; clamp or drop outliers in the data loader.",
        "If the new range is intended (a curriculum, another data set), nothing is wrong.",
    ),
    "output_degenerate": (
        "The model returns the same for every input: it has collapsed, or its input does not reach the "
        "output.",
        "Look for dead units or saturation further up, a gate or a mask that is 0, a softmax over a "
        "dimension of size 1.",
        "It was so from the start: check the last layer's initialization and the forward's wiring.",
        "It became so: lower the learning rate, and restart from before the collapse.",
    ),
    "diffusion_nonfinite": (
        "The latents of a sampling became NaN or Inf at the denoising step named; all later ones keep it.",
        "In float16 a VAE or an attention overflows at large scales: try bfloat16, or float32 for that part.",
        "Look at what `probe.analyze_diffusion_pipeline` says: parameters that are NaN, another dtype.",
        "At the first or last step, look at what the scheduler divides by there.",
    ),
    "diffusion_drift": (
        "The latents are much larger or smaller than data and noise in the scheduler's proportions would be.",
        "Check that model and scheduler agree on `prediction_type` (epsilon, v_prediction, sample), and that "
        "`scale_model_input` and `init_noise_sigma` are applied.",
        "Check the latents' scaling factor, and that `data_std` fits; strong guidance raises the scale.",
        "A model that is not trained yet drifts as a rule: compare after some training.",
    ),
    "high_resource_use": (
        "Memory, a processor or a device is nearly used up; look at what else runs here.",
        "Reduce the batch, the number of loader workers, or what is cached.",
        "Save a checkpoint now.",
    ),
    "performance_degradation": (
        "Steps take much longer than they did at first.",
        "Usual causes: a list that grows and is walked in every step, a cold or slow disk behind the data "
        "loader, memory that is swapped, a device that throttles when hot.",
        "Look at the module times (level advanced) of an early and a late step: the part that grew is "
        "the cause.",
        "Another program on the same machine or device has the same effect; longer sequences do, too.",
    ),
    "high_anomaly_rate": (
        "So many steps have a warning that they are no accidents: the run as a whole is unhealthy.",
        "Read the first event of this run: the later ones mostly follow from it.",
    ),
    "recovery": (
        "A recovery that was switched on has acted: it changed this step, so that the run can go on.",
    ),
    "snapshot": ("All numbers of this step were kept in a file, as a watchpoint or a person asked.",),
    "profile": ("A profile was taken over these steps; they took longer than others because of it.",),
    "cleared": ("Counts and rates of the run begin anew here; everything before it stays stored and shown.",),
    "control": (
        "Somebody has asked this of the training from outside; the message says who, from where, and whether "
        "it was accepted.",
        "Who may only look is given the address of `dashboard url --view`.",
    ),
    "level_changed": (
        "What is measured has changed from this step on: gaps in charts begin or end here.",
        "A jump that brings a closer look is a suspicion, not a fault: see what changed at the step it names "
        "(data, learning rate, loss terms), and which layers moved with it.",
    ),
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
    "input": "The batch itself holds NaN or Inf: check it in the data loader (`torch.isfinite(x).all()`).",
}


BEFORE_IT_LEARNS: Final = (
    "What is learnt all at once (a parity, modular arithmetic) stays at the level of guessing for long: "
    "it may take many more steps.",
    "To see whether model and loss can learn at all, overfit a single batch; if they can, check that targets "
    "belong to their inputs.",
)
"""Of a `loss_plateau` whose weights still change."""
FREE_SPACE: Final = "Free space, or give the spool a larger place with `NANSCOPE_SPOOL`."
"""Of a `data_gap` whose reason is the disk."""
UNSEEN_GRADIENTS: Final = (
    "What `loss.backward()` computes is seen, and so is what "
    "`torch.autograd.grad(loss, list(model.parameters()))` returns; training itself is not affected.",
    "Where `torch.func` is to stay, put its gradients into `parameter.grad` and have an optimizer step.",
)
"""Of a `data_gap` that is no loss of records: no step was seen at all."""
NEW_TASK: Final = (
    "The inputs have another size from this step on, the loss has jumped with it, and it falls again step by "
    "step: what a curriculum does that goes on to longer sequences or larger images.",
    "If the size was not meant to change, look at the data source: what it gives from this step on.",
    "If the loss settles too high, make the change smaller, or lower the learning rate for its first steps.",
)
"""Of a `loss_spike` that is information: a new level from which the loss falls."""
EDGE_BURST: Final = (
    "The updates are a little too long for the sharpest direction of the loss: the weights oscillate along "
    "it and the gradient grows step by step, until they reach where the loss is flatter. Nothing is broken.",
    "If this bothers you, lower the learning rate, or warm it up for longer.",
    "If the bursts get higher from one to the next, the run may be about to diverge: a lower learning rate.",
)
"""Of a `gradient_explosion` that is information: a burst that grew step by step, and may come back."""
LOSS_INPUT: Final = (
    "The loss function is given something else than it expects: see its documentation for what its input is.",
)
"""Of a loss whose graph shows what it is given."""
LOSS_BOUND: Final = ("Check the values of the targets, and what the loss function expects.",)
"""Of a loss below what its function can return."""
BROADCAST: Final = ("Give predictions and targets one shape, say by `predictions.squeeze(-1)`.",)
"""Of a loss that compares every prediction with every target."""
RAW_INPUT: Final = (
    "Normalise the input: subtract its mean and divide by its standard deviation, taken from the training "
    "data.",
    "A normalisation layer before the first layer has the same effect.",
)
"""Of an input that was never normalised; it is no outlier."""
