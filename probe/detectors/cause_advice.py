"""What to do where more than the kind of an event is known: the advice of findings that know their cause.

Detectors give it with the finding, and it stands alone. Pure text.
"""

from __future__ import annotations

from typing import Final

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
NO_GRADIENT: Final = (
    "Look for a `.detach()`, `.item()`, `.numpy()`, `torch.tensor()` or `torch.no_grad()` on the way from "
    "the module to the loss, for an output that is never used, or for `requires_grad=True` on the loss "
    "itself, which hides the cut.",
)
"""Of parameters that no gradient reaches, for a reason that is not known."""
CUT: Final = (
    "Remove what cuts the graph: a `.detach()`, `.item()` or `torch.no_grad()`, or a tensor made anew from "
    "numbers.",
)
"""The same where the calls show that the graph is cut."""
MEANT: Final = (
    "If it is meant to stay as it is, call `requires_grad_(False)`: that saves its share of backward and "
    "memory.",
)
"""Of some of the parameters."""
NOT_CALLED: Final = (
    "Look at why it is never called in a forward: a branch that is not taken, an early return, or a layer "
    "that `forward` forgets.",
)
NOT_IN_OPTIMIZER: Final = (
    "It is most likely not in the optimizer: a layer that was added or replaced after the optimizer was "
    "made, or kept in a plain list in place of `nn.ModuleList`. Or its parameter group has a learning rate "
    "of 0.",
)
"""Of parameters with a gradient that do not change."""
LOST_IN_ROUNDING: Final = (
    "Look at what makes the gradient so small between these parameters and the loss: a saturated "
    "activation, or a factor near 0.",
    "Keep the weights in float32 and use autocast: in bfloat16 an update below 1/256 of a weight is lost.",
)
"""Of parameters whose updates are too small to change them."""
STEP: Final = ("Call `optimizer.step()` after `loss.backward()`, once for each update.",)
ZERO_GRAD_ORDER: Final = (
    "Call `zero_grad()` before `loss.backward()`, or after `optimizer.step()`, never between the two.",
)
FROZEN: Final = (
    "If it should learn, call `requires_grad_(True)` on it before the optimizer is made; if not, leave it "
    "out of the optimizer.",
)
"""Of random weights that are frozen."""
ONE_ROW: Final = ("Look at what makes the indices, and whether a mask is upside down.",)
"""Of an embedding of which one row gets all of the gradient."""
COPIES: Final = (
    "Initialise the weight matrices at random, for example by `torch.nn.init.kaiming_normal_`: units that "
    "begin equal get equal gradients, and stay equal.",
)
"""Of weight matrices that hold one number throughout."""
BLANK_INPUT: Final = (
    "Look at what makes this input: a loader that returns the same buffer, a scale or mask of 0, or a "
    "source that has run dry.",
)
"""Of an input that varied and no longer does."""
SOFTMAX_OF_ONE: Final = (
    "A softmax over a dimension of size 1 returns 1 for every input: check its `dim`, and the number of "
    "outputs of the last layer.",
)
"""Of outputs that are all 1."""
DRIFTED: Final = (
    "Prepare the data here as in training: the same normalisation, units and order of channels.",
    "If the data are meant to differ, the model may be wrong on them: check its outputs against labels.",
)
"""Of a model that is given, or returns, other values than in training."""
SLOW_REGION: Final = ("Look at what the region does, or raise its limit if this time is expected.",)
"""Of a region of the script that takes longer than the script allows."""
CLOSER_LOOK: Final = (
    "This is no fault of its own: see what changed at the step that the message names (data, learning rate, "
    "loss terms), and which layers changed with it.",
)
"""Of a level that a detector's suspicion has raised for some steps."""
FULL_JOURNAL: Final = ("To keep more, raise `journal_cap_mib`.",)
KEPT_FOLDER: Final = ("Have nothing delete or unmount the folder of a training that is running.",)
