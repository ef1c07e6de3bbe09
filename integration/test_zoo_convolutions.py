"""Convolutional networks of the zoo: their sizes, and what makes them hard to cut."""

import frontends.jax as mw
import jax
import pytest
from frontends.errors import AccumulationError
from frontends.jax.trace.trace import Capture
from frontends.step.step import APPLY
from zoo import unet, vgg, wide_resnet
from zoo.cases import SMALL
from zoo.example import n_parameters

mw.init(8)

SIZES = {
    "wide-resnet-250m": 250e6,
    "wide-resnet-1b": 1e9,
    "wide-resnet-2b": 2e9,
    "wide-resnet-4b": 4e9,
    "wide-resnet-6.8b": 6.8e9,
    "wide-resnet-13b": 13e9,
    "unet-29m": 29e6,
    "unet-93m": 93e6,
    "vgg13": 133e6,  # Simonyan & Zisserman, Table 2
    "vgg19": 144e6,
    "vgg19-1m": 4.2e9,  # Rhino Table 3
}

MODELS = {
    name: (module, config)
    for module in (wide_resnet, unet, vgg)
    for name, config in module.CONFIGS.items()
}


@pytest.mark.parametrize("name", SIZES)
def test_full_sizes_are_those_of_the_papers(name: str) -> None:
    module, config = MODELS[name]
    weights = jax.eval_shape(lambda key: module.init(config, key), jax.random.key(0))
    assert n_parameters(weights) == pytest.approx(SIZES[name], rel=0.03)


def test_a_step_with_norms_over_the_batch_runs_in_one_microbatch_only() -> None:
    example = SMALL["wide-resnet, batch norm"].example()
    capture = Capture(example.step, example.arguments, example.batch_argnums)
    with pytest.raises(AccumulationError, match="single examples with a sum over all of them"):
        capture.at(2)
    averages = [a.name for a in capture.at(1).arguments if "averages" in a.name]
    assert len(averages) == 2 * (1 + 4 * 4)


def test_values_of_a_unet_skip_over_layers() -> None:
    example = SMALL["unet"].example()
    trace = Capture(example.step, example.arguments, example.batch_argnums).at(2)
    operators = [op for op in trace.step.graph.operators if op.phase != APPLY]
    position = {name: i for i, op in enumerate(operators) for name in op.outputs}
    gaps = [
        i - position[name]
        for i, op in enumerate(operators)
        if op.kind == "concatenate"
        for name in op.inputs
        if name in position
    ]
    assert max(gaps) > len(operators) // 5
