"""Programs as people write them do what eager PyTorch does, or are refused in time."""

import os
import sys
from pathlib import Path

import pytest
from frontends.torch.fuzzing import Written, judge, programs
from hypothesis import event, given, settings

sys.path.append(str(Path(__file__).parents[1]))  # the programs are a package there
from torch_programs.corpus import PROGRAMS

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
DAILY = [
    "batches.user_dict",
    "batches.data_class_with_a_number",
    "batches.plain_object",
    "batches.a_bool",
    "batches.none_that_becomes_a_tensor",
    "batches.a_string_that_says_which_task",
    "batches.python_lists_of_numbers",
    "batches.tensors_of_no_dims",
    "batches.other_lengths",
    "batches.short_last_batch_that_microbatches_do_not_divide",
    "batches.the_same_tensor_twice",
    "dropout.on_a_transposed_tensor",
    "dropout.encoder_layer_batch_first",
    "dropout.recurrent",
    "dropout.attention_with_weights",
    "dropout.functional_with_the_models_flag",
    "gradients.never_zeroed",
    "gradients.accumulated_by_a_counter",
    "gradients.clipped_by_norm",
    "gradients.accumulated_here_updated_outside",
    "gradients.hooks_on_modules",
    "gradients.penalty_on_the_gradient",
    "gradients.autocast_to_bfloat16",
    "hugging_face.gpt2",
    "losses.data_class_result",
    "losses.model_output_result",
    "losses.mean_over_what_is_not_masked",
    "losses.loss_function_that_returns_nothing",
    "loops.epochs_of_a_loader",
    "loops.stopped_and_resumed",
    "loops.curriculum",
    "loops.counters_and_meters_everywhere",
    "modules.lstm_that_carries_its_state",
    "modules.buffers_written_in_forward",
    "modules.embedding_with_max_norm",
    "modules.untied_later",
    "modules.parameters_used_now_and_then",
    "modules.stack_with_sharded_state",
    "modules.on_one_device",
    "operators.solve",
    "operators.masked_write",
    "operators.nonzero_mask",
    "operators.jacobian",
    "optimizers.sgd_dampening",
    "optimizers.own_that_counts_in_python",
    "optimizers.muon_on_one_device",
    "optimizers.own_that_wraps_another",
    "optimizers.adversarial",
    "outside.ema_shadow",
    "outside.mean_teacher",
    "outside.momentum_contrast",
    "outside.total_of_losses",
    "outside.log_of_losses",
    "outside.features_kept_by_a_closure",
    "python_state.annealed_attribute",
    "python_state.counter_in_forward",
    "python_state.evaluation_mode",
    "python_state.frozen_and_unfrozen",
    "python_state.number_in_a_global",
    "python_state.random_of_python",
    "python_state.skipped_when_the_loss_is_large",
    "python_state.layer_that_is_replaced",
    "python_state.trainer_object",
    "reading.first_reading_by_a_kept_parameter",
    "reading.best_weights_restored",
    "reading.optimizer_round_trip",
    "reading.weights_scaled_through_data",
    "reading.double_from_the_third_call",
    "reading.eager_updates_between_calls",
    "schedules.one_cycle",
    "schedules.scheduler_inside_the_step",
    "schedules.weight_decay_from_nothing",
    "schedules.momentum_that_begins",
    "schedules.a_group_added_later",
    "schedules.dropout_rate",
]
"""Each rule of what a step may do once or twice; the rest is run at night."""


@pytest.mark.parametrize("name", PROGRAMS if NIGHTLY else DAILY)
def test_a_program_is_equal_or_refused_as_it_always_was(name: str) -> None:
    program = PROGRAMS[name]
    verdict = program.judged()
    if verdict.name == "skipped":
        pytest.skip(verdict.detail)
    assert program.allows(verdict.name), f"{verdict.name}: {verdict.detail}"


@settings(max_examples=1500 if NIGHTLY else 20)
@given(programs())
def test_random_programs_are_equal_or_refused(written: Written) -> None:
    verdict = judge(written.program(), devices=written.devices, **written.options)
    event(verdict.name)
    assert verdict.name in ("equal", "typed"), f"{verdict.name}: {verdict.detail}"
