"""The models of the command line are those of the papers."""

import math

import jax
import pytest
from frontends.cli.demo.models import MODELS
from frontends.models import gpt

ALPA = ["gpt-350m", "gpt-1.3b", "gpt-2.6b", "gpt-6.7b", "gpt-15b", "gpt-39b"]


@pytest.mark.parametrize("name", ALPA)
def test_a_model_has_as_many_parameters_as_its_name_says(name: str) -> None:
    config = MODELS[name].config
    shapes = jax.eval_shape(lambda: gpt.init(jax.random.key(0), config))
    number = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    unit = {"m": 1e6, "b": 1e9}[name[-1]]
    assert number / unit == pytest.approx(float(name[4:-1]), rel=0.2)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {"float32"}
    assert MODELS[name].batch == 1024


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_float32_of_every_token(name: str) -> None:
    config = MODELS[name].config
    params = jax.eval_shape(lambda: gpt.init(jax.random.key(0), config))
    tokens = jax.ShapeDtypeStruct((2, config.sequence), jax.numpy.int32)
    logits = jax.eval_shape(lambda p, t: gpt.forward(p, t, config), params, tokens)
    assert logits.shape == (2, config.sequence, config.vocabulary)
    assert logits.dtype.name == "float32"


def test_remat_and_a_cast_to_the_same_type_change_nothing() -> None:
    config = MODELS["gpt-tiny"].config
    params = jax.jit(gpt.init, static_argnums=1)(jax.random.key(0), config)
    batch = (jax.numpy.arange(16).reshape(2, 8),) * 2
    again = gpt.GPTConfig(*(getattr(config, n) for n in ("n_layers", "d_model", "n_heads")),
                          sequence=8, vocabulary=64, remat=True)  # fmt: skip
    gradient = jax.jit(jax.grad(gpt.loss), static_argnums=2)
    plain, recomputed = gradient(params, batch, config), gradient(params, batch, again)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(recomputed), strict=True):
        assert jax.numpy.allclose(one, other, rtol=1e-4, atol=1e-6)
