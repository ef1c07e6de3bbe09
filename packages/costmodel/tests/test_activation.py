"""Activations of a layer against the papers' formulas and printed figures."""

import itertools

import pytest
from costmodel import QuantityError, UnknownNameError, transformer_layer_bytes
from hypothesis import given
from hypothesis import strategies as st

RECOMPUTE = ("none", "selective", "full")


@st.composite
def layers(draw):
    """(sequence, batch, hidden, heads) and tensor parallelism that divides heads and sequence."""
    t = draw(st.sampled_from([1, 2, 4, 8]))
    heads = t * draw(st.integers(1, 4))
    sizes = (t * draw(st.integers(1, 64)), draw(st.integers(1, 4)), heads * draw(st.integers(1, 9)))
    return (*sizes, heads), t


# Korthikanti et al., Table 2, as printed.
TABLE_2 = {
    (False, "none"): lambda s, b, h, a, t: s * b * h * (10 + 24 / t + 5 * a * s / (h * t)),
    (True, "none"): lambda s, b, h, a, t: s * b * h * (34 / t + 5 * a * s / (h * t)),
    (False, "selective"): lambda s, b, h, a, t: s * b * h * (10 + 24 / t),
    (True, "selective"): lambda s, b, h, a, t: s * b * h * (34 / t),
    (False, "full"): lambda s, b, h, a, t: s * b * h * 2,
}


@pytest.mark.parametrize(("sequence_parallel", "recompute"), TABLE_2)
@given(layer=layers())
def test_every_row_of_table_2_comes_out(sequence_parallel, recompute, layer):
    sizes, t = layer
    kept = transformer_layer_bytes(
        *sizes,
        "bfloat16",
        recompute=recompute,
        tensor_parallel=t,
        sequence_parallel=sequence_parallel,
    ).kept
    assert kept == pytest.approx(TABLE_2[sequence_parallel, recompute](*sizes, t), rel=1e-12)


@given(layer=layers())
def test_kept_is_the_sum_of_the_tensors_that_the_paper_lists(layer):
    (s, b, h, a), _ = layer
    attention = [2, 2, 2, 2, 2, 1]  # shared input of Q, K, V; Q; K; V; projection's input; mask
    mlp = [2, 8, 8, 1]  # inputs of both linear layers and of GeLU; mask
    norms = [2, 2]
    scores = [2, 1, 2]  # softmax, its dropout's mask and output
    expected = sum(attention + mlp + norms) * s * b * h + sum(scores) * a * s * s * b
    assert transformer_layer_bytes(*layer[0], "float16", recompute="none").kept == expected


@pytest.mark.parametrize(
    ("heads", "hidden", "saved"), [(96, 12288, "70%"), (128, 20480, "65%")], ids=["GPT-3", "MT-NLG"]
)
def test_selective_recomputation_saves_what_the_paper_prints(heads, hidden, saved):
    sizes = (2048, 1, hidden, heads, "float16")
    options = {"tensor_parallel": 8, "sequence_parallel": True}
    whole = transformer_layer_bytes(*sizes, recompute="none", **options).kept
    kept = transformer_layer_bytes(*sizes, recompute="selective", **options).kept
    assert f"{1 - kept / whole:.0%}" == saved


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@given(layer=layers())
def test_recomputation_brings_back_what_it_did_not_keep(recompute, sequence_parallel, layer):
    sizes, t = layer
    options = {"tensor_parallel": t, "sequence_parallel": sequence_parallel}
    layer_bytes = transformer_layer_bytes(*sizes, "float32", recompute=recompute, **options)
    everything = transformer_layer_bytes(*sizes, "float32", recompute="none", **options)
    assert layer_bytes.kept + layer_bytes.temporary == everything.kept
    assert everything.temporary == 0


@given(layer=layers())
def test_weight_gradients_wait_for_what_the_zero_bubble_paper_prints(layer):
    (s, b, h, _), _ = layer
    for recompute in RECOMPUTE:
        waiting = transformer_layer_bytes(*layer[0], "float16", recompute=recompute).weight_gradient
        assert waiting == 32 * s * b * h


@given(layer=layers())
def test_weight_gradients_wait_for_inputs_and_gradients_of_the_four_products(layer):
    (s, b, h, a), t = layer
    # Width of each weight's input and output on one device, in column- and row-parallel pairs.
    products = [(h, 3 * h // t), (h // t, h), (h, 4 * h // t), (4 * h // t, h)]
    expected = sum(4 * s * b * (rows + columns) for rows, columns in products)
    layer_bytes = transformer_layer_bytes(
        s, b, h, a, "float32", recompute="none", tensor_parallel=t
    )
    assert layer_bytes.weight_gradient == expected


@given(layer=layers(), grown=st.integers(0, 3))
def test_larger_layers_keep_more_and_more_devices_keep_less(layer, grown):
    sizes, t = layer
    larger = [size + (index == grown) for index, size in enumerate(sizes)]
    for recompute, together in itertools.product(RECOMPUTE, (False, True)):

        def kept(sizes, t, recompute=recompute, together=together):
            return transformer_layer_bytes(
                *sizes,
                "float16",
                recompute=recompute,
                tensor_parallel=t,
                sequence_parallel=together,
            ).kept

        assert kept(larger, t) >= kept(sizes, t)
        assert kept(sizes, 2 * t) <= kept(sizes, t)


def test_rejects_another_recomputation():
    message = "recompute is one of none, selective, full; got 'some'"
    with pytest.raises(UnknownNameError, match=message):
        transformer_layer_bytes(1, 1, 1, 1, "float16", recompute="some")


@pytest.mark.parametrize("name", ["sequence", "batch", "hidden", "heads", "tensor_parallel"])
@pytest.mark.parametrize("bad", [0, -1, 1.5, float("nan"), "8"], ids=repr)
def test_rejects_sizes_that_count_nothing(name, bad):
    sizes = {"sequence": 8, "batch": 1, "hidden": 8, "heads": 2, "tensor_parallel": 1, name: bad}
    with pytest.raises(QuantityError, match=f"{name} is a finite whole number >= 1; got"):
        transformer_layer_bytes(**sizes, dtype="float16", recompute="none")
