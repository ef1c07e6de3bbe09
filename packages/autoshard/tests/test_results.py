"""The search finds the strategies of the literature, recognised by their collectives."""

import math
from collections import Counter

import pytest
from autoshard import InfeasibleError, Output, collectives, shard
from autoshard.programs import (
    StepBuilder,
    deep_mlp_step,
    join_phases,
    mlp_step,
    moe_step,
    transformer_step,
)
from autoshard.programs.pieces import (
    attention,
    causal_mask,
    dense,
    gelu,
    layer_norm,
    mean_of_last,
)
from costmodel import Cluster, Device, Link
from shardspec import Mesh

FLAT = Mesh((4,), ("x",))
SLOW = Device("slow", (("float32", 1e6),), 2**30, 1e13, 0.0)


def cluster(flops):
    """Four equal devices with links of 1 us and 1 GB/s; `flops` decides what is expensive."""
    device = Device("d", (("float32", flops), ("int32", flops)), 2**30, 1e13, 1e-9)
    link = Link(1e-6, 1e9)
    return Cluster.uniform("c", 1, 4, device, link, link)


def found(graph, flops, **limits):
    """The sharding, within 0.1 % of its bound, and its collectives of more than one element."""
    sharding = shard(graph, FLAT, cluster(flops), compare=False, **limits)
    assert sharding.solution.gap < 1e-3
    sent = collectives(graph, sharding)
    return sharding, [c for c in sent if math.prod(graph.value(c.value).shape) > 1]


def kinds(sent):
    return Counter(c.step.kind for c in sent)


def stored(sharding):
    return {name: str(spec) for name, spec in sharding.input_specs}


@pytest.mark.parametrize("n_layers", [2, 4, 8])
def test_an_mlp_of_l_layers_sends_l_minus_1_all_reduces_as_megatron_does(n_layers):
    # only every other width can be split, so a sum cannot be scattered instead of reduced
    widths = (6, 64) * (n_layers // 2) + (6,)
    graph = join_phases(deep_mlp_step(batch=1, widths=widths, optimizer="sgd"))
    sharding, sent = found(graph, flops=1e7)
    assert kinds(sent) == {"all_reduce": n_layers - 1}
    specs = stored(sharding)
    assert {specs[f"w{layer}"] for layer in range(1, n_layers + 1, 2)} == {"RS0"}
    assert {specs[f"w{layer}"] for layer in range(2, n_layers + 1, 2)} == {"S0R"}


def transformer(n_layers, length):
    """Pre-norm layers whose norms have no parameters, so that the first norm has no gradient."""
    p = StepBuilder()
    x = p.input("x", 1, length, 16)
    mask = causal_mask(p, length)

    def norm(x):
        spread = p.unary("rsqrt", mean_of_last(p, p.mul(x, x)))
        return p.mul(x, p.broadcast(spread, *p.shape(x)))

    for layer in range(n_layers):
        x = p.add(x, attention(p, norm(x), mask, f"{layer}", heads=4))
        h = gelu(p, dense(p, norm(x), f"{layer}_up", 64, bias=True))
        x = p.add(x, dense(p, h, f"{layer}_down", 16, bias=True))
    return join_phases(p.finish(p.mean(p.mul(x, x)), optimizer="sgd"))


@pytest.mark.parametrize("n_layers", [1, 2])
def test_l_transformer_layers_send_4l_minus_1_all_reduces_as_megatron_does(n_layers):
    sharding, sent = found(transformer(n_layers, length=3), flops=1e9)
    assert kinds(sent) == {"all_reduce": 4 * n_layers - 1}
    specs = stored(sharding)
    for layer in range(n_layers):
        assert {specs[f"{layer}_{name}_w"] for name in ("q", "k", "v", "up")} == {"RS0"}
        assert {specs[f"{layer}_{name}_w"] for name in ("out", "down")} == {"S0R"}


def norm_and_mlp(length):
    """A layer norm before an MLP of which only the hidden width and the sequence can be split."""
    p = StepBuilder()
    x = p.input("x", 1, length, 6)
    h = gelu(p, dense(p, layer_norm(p, x, "norm"), "up", 64, bias=False))
    x = p.add(x, dense(p, h, "down", 6, bias=False))
    return join_phases(p.finish(p.mean(p.mul(x, x)), optimizer="sgd"))


def test_a_sequence_that_can_be_split_is_split_around_norms():
    """Korthikanti et al., "Reducing activation recomputation", 2022: g and g-bar."""
    whole, sent_whole = found(norm_and_mlp(length=7), flops=1e7)
    split, sent = found(norm_and_mlp(length=8), flops=1e7)
    assert stored(whole)["up_w"] == stored(split)["up_w"] == "RS0"
    activations = [c for c in sent if len(c.step.src.shape) == 3]
    assert kinds(activations) == {"all_gather": 2, "reduce_scatter": 2}
    assert {str(c.step.dst.spec) for c in activations if c.step.kind == "reduce_scatter"} == {
        "RS0R"
    }
    assert "reduce_scatter" not in kinds(c for c in sent_whole if len(c.step.src.shape) == 3)


def zero_stage(graph, sharding):
    """The stage of ZeRO: 2 if gradients are scattered in backward, 3 if parameters are split."""
    specs = stored(sharding)
    assert all(specs[name] != "RR" for name in specs if name[-2:] in ("_m", "_v"))
    sent = collectives(graph, sharding)
    scattered = [c.phase for c in sent if c.step.kind == "reduce_scatter"]
    assert len(scattered) == 2  # a gradient each
    gathered = {c.value for c in sent if c.step.kind == "all_gather"}
    if specs["w1"] != "RR" and specs["w2"] != "RR":
        assert gathered == {"w1", "w2"}
        return 3
    return 2 if 1 in scattered else 1


def test_less_memory_leads_from_zero_1_by_zero_2_to_zero_3():
    graph = mlp_step(batch=4096, width=64, hidden=64, microbatches=4)
    limit, stages, seconds = None, [], []
    while True:
        try:
            sharding, sent = found(graph, flops=1e12, memory_bytes=limit)
        except InfeasibleError:
            break
        assert "all_reduce" not in kinds(sent)  # each is a reduce-scatter and an all-gather
        stages.append(zero_stage(graph, sharding))
        seconds.append(sharding.objective_s)
        limit = int(sharding.peak_bytes) - 1
    assert sorted(set(stages)) == [1, 2, 3]
    assert stages == sorted(stages)
    assert seconds == sorted(seconds)


def test_experts_are_split_and_tokens_sent_to_them_by_all_to_all():
    graph = join_phases(
        moe_step(
            n_layers=1,
            batch=4,
            length=8,
            width=16,
            heads=4,
            experts=4,
            capacity=4,
            hidden=1024,
            vocabulary=8,
            optimizer="sgd",
        )
    )
    sharding, sent = found(graph, flops=1e9)
    specs = stored(sharding)
    assert specs["0_up"] == specs["0_down"] == "S0RR"
    tokens = [c for c in sent if graph.value(c.value).shape == (4, 4, 4, 16)]
    assert kinds(tokens) == {"all_to_all": 4}  # to the experts and back, forward and backward


def test_a_large_vocabulary_is_split_in_embedding_logits_and_loss():
    """Shoeybi et al., "Megatron-LM", 2019, section 3: nothing as large as the logits is sent."""
    graph = join_phases(
        transformer_step(
            n_layers=1, batch=1, length=3, width=6, heads=2, vocabulary=4096, optimizer="sgd"
        )
    )
    sharding, sent = found(graph, flops=1e9)
    assert stored(sharding)["embedding"] == "S0R"
    assert max(math.prod(graph.value(c.value).shape) for c in sent) <= 3 * 6
    kind = {op.outputs[0]: op.kind for op in graph.operators}
    summed = {kind[c.value] for c in sent if c.step.kind == "all_reduce"}
    assert {"embedding", "reduce_max", "reduce_sum", "pick"} <= summed


@pytest.mark.parametrize("side", [3, 4])
def test_the_communication_of_a_product_on_p_devices_scales_as_n2_over_p_to_two_thirds(side):
    """AutoDDL, 4.4.2: in the memory of three blocks of n^2 / p^(2/3) elements and a part of one."""
    n, block = 144, (144 // side) ** 2
    p = StepBuilder()
    x, y = p.input("x", n, n), p.input("y", n, n)
    p.outputs.append(Output(p.einsum("ik,kj->ij", x, y)))
    mesh = Mesh((side,) * 3, ("x", "y", "z"))
    prices = Cluster.uniform("c", 1, side**3, SLOW, Link(0.0, 1e9), Link(0.0, 1e9))
    limit = 4 * (3 * block + block // side)
    sharding = shard(p.graph(), mesh, prices, compare=False, memory_bytes=limit)
    assert 0 < sum(c.n_bytes for c in collectives(p.graph(), sharding)) <= 4 * block
    assert sharding.compute_s[0] == pytest.approx(2 * n**3 / side**3 / 1e6)
