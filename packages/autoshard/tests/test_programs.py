"""The programs are the models that they are named after, and their gradients are right."""

import math

import numpy as np
import pytest
from autoshard import verify
from autoshard.programs import (
    StepBuilder,
    block_step,
    deep_mlp_step,
    gpt_step,
    llama_step,
    mlp_step,
    moe_step,
    step_flops,
    transformer_step,
    vgg13_step,
)
from hypothesis import given
from hypothesis import strategies as st

SMALL = {"batch": 2, "length": 4, "width": 8, "heads": 2, "vocabulary": 16}
EVERY = {
    "block": block_step(batch=2, length=4, width=8, heads=2, hidden=16),
    "deep_mlp": deep_mlp_step(batch=4, widths=(8, 4, 2), optimizer="sgd"),
    "gpt": gpt_step(n_layers=2, **SMALL),
    "llama": llama_step(**SMALL | {"heads": 4}, n_layers=2, kv_heads=2, hidden=12),
    "mlp": mlp_step(batch=4, width=8, hidden=16, microbatches=3),
    "moe": moe_step(n_layers=2, experts=4, capacity=3, hidden=16, **SMALL),
    "transformer": transformer_step(n_layers=2, **SMALL),
    "vgg13": vgg13_step(batch=2),
}


def n_parameters(graph):
    return sum(math.prod(value.shape) for value in graph.values if value.role == "parameter")


def contractions(graph):
    return [op for op in graph.operators if op.kind in ("einsum", "convolution")]


@pytest.mark.parametrize("name", EVERY)
def test_programs_are_well_formed(name):
    verify(EVERY[name])


@pytest.mark.parametrize("name", EVERY)
def test_everything_that_is_made_is_read_or_leaves(name):
    graph = EVERY[name]
    used = {n for op in graph.operators for n in op.inputs} | {o.value for o in graph.outputs}
    assert not [op.name for op in graph.operators if used.isdisjoint(op.outputs)]


@pytest.mark.parametrize("name", EVERY)
def test_every_parameter_and_state_is_stored_back(name):
    graph = EVERY[name]
    kept = {v.name for v in graph.values if v.role in ("parameter", "optimizer_state")}
    assert kept == {output.alias for output in graph.outputs} - {None}


@pytest.mark.parametrize(
    ("graph", "published"),
    [
        # GPT-2 small: 124,439,808 in transformers' GPT2Model
        (
            transformer_step(
                n_layers=12, batch=1, length=1024, width=768, heads=12, vocabulary=50257
            ),
            124_439_808,
        ),
        # Llama 3 8B: 8,030,261,248 in meta-llama/Meta-Llama-3-8B's index of safetensors
        (llama_step(batch=1, length=8), 8_030_261_248),
        # VGG13: 133,047,848 in torchvision, of which 12,136 are biases, which are left out
        (vgg13_step(batch=1), 133_047_848 - 12_136),
    ],
    ids=["GPT-2", "Llama-3-8B", "VGG13"],
)
def test_parameters_are_as_many_as_published(graph, published):
    assert n_parameters(graph) == published


def test_a_traced_transformer_of_12_layers_has_5000_operators():
    graph = transformer_step(n_layers=12, **SMALL)
    assert len(graph.operators) == pytest.approx(5000, rel=0.01)


def test_flops_of_a_llama_are_six_a_parameter_and_token_and_those_of_attention():
    batch, length, width, layers = 2, 8, 64, 3
    graph = llama_step(
        batch=batch,
        length=length,
        n_layers=layers,
        width=width,
        heads=8,
        kv_heads=2,
        hidden=96,
        vocabulary=128,
    )
    tokens = batch * length
    norms = (2 * layers + 1) * width
    dense = n_parameters(graph) - 128 * width - norms  # without the embedding, which is looked up
    expected = 6 * tokens * dense + 12 * layers * tokens * length * width
    assert sum(op.flops for op in contractions(graph)) == expected
    assert step_flops(graph) > expected


def test_flops_of_vgg13_are_those_of_its_layers():
    # 11.3 billion multiplications an image forward: Simonyan and Zisserman's B, as torchvision says
    graph = vgg13_step(batch=1)
    forward = sum(op.flops for op in contractions(graph) if op.phase == 0)
    assert forward / 2 == pytest.approx(11.3e9, rel=0.01)


def test_flops_count_each_microbatch():
    one, three = (mlp_step(batch=4, width=8, hidden=8, microbatches=n) for n in (1, 3))
    apply = sum(op.flops for op in one.operators if op.phase == 2)
    microbatch = step_flops(one) - apply + n_parameters(one)  # each adds its gradients to a sum
    assert step_flops(three) - apply == 3 * microbatch


@pytest.mark.parametrize("n_layers", [1, 2, 5])
def test_the_input_of_an_mlp_has_no_gradient(n_layers):
    graph = deep_mlp_step(batch=4, widths=(2,) * (n_layers + 1))
    assert len(contractions(graph)) == 3 * n_layers - 1


def evaluate(program, values, upto):
    """Run the first operators of a program on numpy arrays; all constants are 3."""
    values = dict(values)
    for op in program.operators[:upto]:
        x = [values[name] for name in op.inputs]
        shape = op.rule.result_shapes[0]
        match op.kind:
            case "einsum":
                letters = ",".join(
                    "".join(chr(97 + f) for dim in dims for f in dim) for dims in op.rule.operands
                )
                result = "".join(chr(97 + f) for dim in op.rule.results[0] for f in dim)
                squeezed = [a.reshape([n for n in a.shape if n != 1]) for a in x]
                made = np.einsum(f"{letters}->{result}", *squeezed)
            case "reduce_sum":
                kept = {f for dim in op.rule.results[0] for f in dim}
                gone = [d for d, dim in enumerate(op.rule.operands[0]) if not kept & set(dim)]
                made = x[0].sum(axis=tuple(gone))
            case "broadcast":
                made = np.broadcast_to(x[0], shape)
            case "transpose":
                made = x[0].transpose([op.rule.operands[0].index(d) for d in op.rule.results[0]])
            case _:
                made = POINTWISE[op.kind](*x)
        values[op.outputs[0]] = made.reshape(shape)
    return values


POINTWISE = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "neg": np.negative,
    "mul": np.multiply,
    "mul_const": lambda x: 3.0 * x,
    "reshape": lambda x: x,
    "ones_like": np.ones_like,
    "tanh": np.tanh,
    "derivative": lambda g, x: g * (1.0 - np.tanh(x) ** 2),
}


@st.composite
def losses(draw):
    """A program whose loss depends on both of its parameters, a vector and a matrix."""
    p = StepBuilder()
    n = draw(st.sampled_from([2, 4]))
    pool = [p.parameter("w", n, n), p.input("x", n, n)]
    vector = p.parameter("v", n)
    pick = st.integers(0, 99)
    kinds = ["einsum", "add", "sub", "mul", "vector", "neg", "tanh", "centre", "turn", "flat"]
    for _ in range(draw(st.integers(1, 6))):
        a, b = pool[draw(pick) % len(pool)], pool[draw(pick) % len(pool)]
        match draw(st.sampled_from(kinds)):
            case "einsum":
                made = p.einsum("ki,kj->ij", a, b)
            case "add" | "sub" | "mul" as kind:
                made = getattr(p, kind)(a, b)
            case "vector":
                made = p.mul(a, p.broadcast(vector, n, n))
            case "neg":
                made = p.linear("neg", a)
            case "centre":
                made = p.sub(a, p.reduce(a, 1))
            case "turn":
                made = p.transpose(a, 1, 0)
            case "flat":
                made = p.reshape(p.mul(p.reshape(a, n * n), p.reshape(b, n * n)), n, n)
            case kind:
                made = p.unary(kind, a)
        pool.append(made)
    return p, p.mean(p.add(p.add(p.unary("tanh", pool[-1]), vector), "w"))


@given(losses(), st.integers(0, 2**32 - 1))
def test_gradients_are_the_slopes_of_the_loss(written, seed):
    p, loss = written
    forward = len(p.operators)
    gradients = p.backward(loss)
    rng = np.random.default_rng(seed)
    at = {name: rng.uniform(-0.5, 0.5, p.shape(name)) for name in p.inputs}
    made = evaluate(p, at, len(p.operators))
    for name in ("w", "v"):
        direction, step = rng.uniform(-1, 1, p.shape(name)), 1e-5
        ahead, behind = (
            evaluate(p, at | {name: at[name] + sign * step * direction}, forward)[loss].item()
            for sign in (1, -1)
        )
        slope = (made[gradients[name]] * direction).sum()
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-4)
