"""In which set-ups C follows no step, and why; who extends what it follows takes names out.

A name is a test's, with its parameters in brackets where C follows the steps of others.
"""

from __future__ import annotations

from typing import Final

RUN_ONCE: Final = frozenset(
    {"test_setups_distributed", "test_setups_cuda", "test_setups_table", "test_setups_versions"}
)
"""Modules whose tests train in processes of their own, or on a device, or not at all."""
NEVER_FOLLOWED: Final[dict[str, tuple[str, ...]]] = {
    "the forward or the update is compiled": (
        "test_compiled_model_has_the_numbers_of_its_run_without_the_probe",
        "test_attaching_and_detaching_between_steps_compiles_nothing_anew",
        "test_inductor_model_has_the_numbers_of_its_run_without_the_probe",
        "test_compiled_update_ends_a_step_at_the_next_forward_and_says_so",
        "test_compiled_update_after_accumulation_is_one_step",
        "test_compiled_training_step_ends_at_the_next_backward",
        "test_compiled_model_and_hooked_update_in_one_function_add_no_graph",
        "test_checkpoint_inside_a_compiled_model_is_one_forward",
        "test_compiled_model_is_replayed_eagerly",
        "test_fault_of_the_compiled_code_alone_is_told_as_such",
        "test_compiled_function_that_clears_gradients_stays_one_graph",
    ),
    "a GradScaler scales the loss": (
        "test_scaled_step_says_which_gradient_it_has[False-AdamW fused]",
        "test_scaled_step_says_which_gradient_it_has[False-SGD fused]",
        "test_scaled_step_says_which_gradient_it_has[True-AdamW fused]",
        "test_scaled_step_says_which_gradient_it_has[True-SGD fused]",
        "test_overflow_is_a_counted_step_without_an_update[False-AdamW fused]",
        "test_overflow_is_a_counted_step_without_an_update[False-SGD fused]",
        "test_scaler_of_two_losses_gives_their_unscaled_sum",
    ),
    "a step has several forwards or backwards": (
        "test_every_level_has_the_same_gradients_and_weights[False-extreme]",
        "test_every_level_has_the_same_gradients_and_weights[True-extreme]",
        "test_accumulation_that_ends_early_is_a_step_of_fewer_micro_steps",
        "test_bad_micro_batch_of_an_accumulation_is_named",
        "test_two_backwards_through_one_graph_are_one_step",
        "test_gradients_of_each_loss_kept_apart_and_put_together_are_one_step",
        "test_judge_of_adversaries_has_its_own_loss_and_gradients",
        "test_adversaries_watched_as_one_are_two_frames_of_one_step",
        "test_two_passes_called_one_by_one_are_one_step_with_the_gradients_of_the_second",
        "test_fault_is_named_with_its_op_module_and_line[several roots]",
        "test_fault_is_named_with_its_op_module_and_line[called twice]",
    ),
    "another model has its backward between the forward and the backward of this one": (
        "test_generator_of_adversaries_has_its_own_loss_and_gradients",
    ),
    "the update calls a closure": (
        "test_closure_or_none_gives_the_gradients_of_its_update[positional",
        "test_closure_or_none_gives_the_gradients_of_its_update[keyword",
        "test_lbfgs_step_is_its_first_evaluation",
        "test_closure_that_accumulates_is_one_step_of_its_micro_steps",
        "test_two_passes_with_a_closure_are_one_step_with_the_gradients_of_the_closure",
        "test_subclass_that_calls_super_step_counts_once[True]",
        "test_closure_of_lbfgs_is_named",
    ),
    "the model returns no plain tensor, or is called with none": (
        "test_gradient_penalty_with_create_graph_is_one_step",
        "test_recurrent_model_on_packed_sequences_has_every_gradient",
        "test_watched_root_that_is_itself_checkpointed_is_one_forward",
        "test_step_that_cannot_be_replayed_says_why[is a Generator]",
        "test_step_that_cannot_be_replayed_says_why[torch.func]",
    ),
    "the loss is no plain scalar of the forward, or not finite": (
        "test_several_losses_of_one_step_are_summed",
        "test_backward_of_a_vector_has_gradients_and_no_loss",
        "test_half_gradients_whose_squares_overflow_have_a_finite_norm",
        "test_lightning_module_is_named",
    ),
    "gradients are clipped in a way that does not tell their norm": (
        "test_clipped_step_has_the_gradients_before_clipping[by largest]",
        "test_clipped_step_has_the_gradients_before_clipping[by value]",
        "test_clipped_step_has_the_gradients_before_clipping[by known norm]",
    ),
    "there are several optimizers": (
        "test_two_optimizers_after_one_backward_are_two_frames_of_one_step",
        "test_sparse_adam_beside_adam_is_one_step",
        "test_optimizer_in_backward_leaves_a_frame_of_every_backward",
        "test_optimizer_in_backward_gives_every_parameter_its_own_gradient",
    ),
    "there is no optimizer": (
        "test_update_by_hand_ends_a_step_at_the_next_forward",
        "test_update_by_hand_with_accumulation_is_followed_by_its_backwards",
    ),
    "the model is averaged over ranks": (
        "test_rank_that_only_received_the_bad_values_leaves_the_bundle_to_the_others",
    ),
    "the steps are too few, or too unlike each other": (
        "test_evaluation_between_steps_changes_no_number",
        "test_frames_of_another_loop_would_not_pass",
        "test_mixed_dtypes_in_one_model_keep_their_places",
        "test_model_saved_with_the_probe_attached_loads_where_there_is_no_probe",
        "test_watched_model_is_copied_while_a_step_is_under_way",
        "test_bad_value_is_counted_before_clipping_spreads_it",
    ),
    "a recovery waits for the verdict of every step": (
        "test_recovery_leaves_what_the_same_action_by_hand_leaves",
        "test_recovery_declines_a_compiled_update_and_says_what_to_do",
        "test_recovery_leaves_an_overflow_to_the_scaler_of_a_trainer",
        "test_end_of_an_accelerated_run_leaves_the_step_of_another_thread_alone",
    ),
}
NOT_FOLLOWED_ON_RANKS: Final = frozenset(
    {
        *(
            "sharded",
            "sharded later",
            "sharded and accumulated",
            "split",
            "split, normalised",
            "replicated",
            "bad on one rank",
        ),
        *("own gradients", "own gradients, accumulated", "own gradients in bucket views"),
        *("own gradients, averaged each time", "own gradients, scaled"),
    }
)
"""Loops of `ranks.py` of which C follows no step: their parameters are distributed tensors, or more is
measured of each step than C does."""


def reason_of(name: str) -> str | None:
    """Return why C follows no step of a test; None where it does."""
    for reason, names in NEVER_FOLLOWED.items():
        if any(name == known or name.startswith((f"{known}[", f"{known}-")) for known in names):
            return reason
    return None
