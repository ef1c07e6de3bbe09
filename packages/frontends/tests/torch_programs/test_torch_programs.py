"""Programs as people write them do what eager PyTorch does, or are refused in time."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # the programs are a package there
from torch_programs.corpus import PROGRAMS

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
DAILY = [
    "asked.branch",
    "asked.drawn_for_nothing",
    "asked.aligned",
    "asked.found",
    "asked.listed",
    "asked.parts_of_what_was_written_are_returned",
    "batches.user_dict",
    "batches.a_bool",
    "batches.python_lists_of_numbers",
    "batches.other_lengths",
    "batches.the_same_tensor_twice",
    "batches.packed_sequences",
    "batches.examples_in_the_second_dim",
    "batches.parts_at_places_in_a_tensor",
    "batches.one_tensor_in_several_places",
    "dropout.on_a_transposed_tensor",
    "dropout.encoder_layer_batch_first",
    "dropout.encoder_with_masks",
    "gradients.never_zeroed",
    "gradients.accumulated_by_a_counter",
    "gradients.clipped_by_norm",
    "gradients.accumulated_here_updated_outside",
    "gradients.autocast_to_bfloat16",
    "gradients.unfrozen_in_a_step_that_only_adds_up",
    "hugging_face.gpt2",
    "losses.data_class_result",
    "losses.loss_function_that_returns_nothing",
    "losses.metrics_that_mix_examples",
    "loops.epochs_of_a_loader",
    "hostile.recurrent_state_in_a_tuple",
    "hostile.data_swapped_and_set_back",
    "hostile.environment_variable",
    "hostile.descriptors_of_a_module",
    "hostile.containers_made_anew",
    "hostile.copy_of_the_model_kept",
    "hostile.itself_and_its_parameters_returned",
    "hostile.functions_of_torch_replaced",
    "hostile.settings_of_torch",
    "hostile.asserted_by_torch",
    "hostile.variables_of_contexts_and_threads",
    "hostile.bytes_views_and_orders",
    "hostile.what_a_weak_reference_refers_to_is_gone",
    "hostile.objects_made_again_after_a_reset",
    "modules.bags_of_embeddings",
    "modules.lstm_that_carries_its_state",
    "modules.buffers_written_in_forward",
    "modules.layers_that_change_places",
    "modules.untied_later",
    "modules.on_one_device",
    "operators.grouped_products",
    "operators.solve",
    "operators.masked_write",
    "operators.powers_in_place",
    "optimizers.sgd_dampening",
    "optimizers.own_that_counts_in_python",
    "optimizers.muon_on_one_device",
    "optimizers.adversarial",
    "outside.ema_shadow",
    "outside.mean_teacher",
    "outside.momentum_contrast",
    "outside.total_of_losses",
    "outside.log_of_losses",
    "outside.methods_of_containers_as_callbacks",
    "outside.one_log_by_two_names",
    "python_state.annealed_attribute",
    "python_state.counter_in_forward",
    "python_state.numbers_of_the_batch_as_keys",
    "python_state.evaluation_mode",
    "python_state.frozen_and_unfrozen",
    "python_state.number_in_a_global",
    "python_state.printed_tensors",
    "python_state.skipped_when_the_loss_is_large",
    "python_state.layer_that_is_replaced",
    "reading.best_weights_restored",
    "reading.optimizer_round_trip",
    "reading.weights_scaled_through_data",
    "schedules.one_cycle",
    "schedules.scheduler_inside_the_step",
    "schedules.weight_decay_from_nothing",
    "schedules.a_group_added_later",
]
"""Each rule of what a step may do once or twice; the rest is run at night."""


@pytest.mark.parametrize("name", PROGRAMS if NIGHTLY else DAILY)
def test_a_program_is_equal_or_refused_as_it_always_was(name: str) -> None:
    program = PROGRAMS[name]
    verdict = program.judged()
    if verdict.name == "skipped":
        pytest.skip(verdict.detail)
    assert program.allows(verdict.name), f"{verdict.name}: {verdict.detail}"
