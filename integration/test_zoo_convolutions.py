"""Networks of convolutions from the zoo: planned, run on four devices, equal to one device."""

import frontends.jax as mw
import jax
import pytest
from frontends.errors import AccumulationError
from frontends.jax.rules import has_rule
from frontends.jax.trace import Capture
from frontends.step import APPLY
from zoo import unet, vgg, wide_resnet
from zoo.check import ONE_HOST, TWO_HOSTS, check
from zoo.example import Example, n_parameters

mw.init(8)

TOLERANCE = 1e-5
"""Of parameters after five steps, in float32, relative to each array's magnitude."""

SMALL: dict[str, Example] = {
    "wide-resnet": wide_resnet.make(wide_resnet.CONFIGS["wide-resnet-tiny"], batch=8),
    "batch norm": wide_resnet.make(wide_resnet.CONFIGS["wide-resnet-tiny"], batch=8, norm="batch"),
    "unet": unet.make(unet.CONFIGS["unet-tiny"], batch=8),
    "vgg13": vgg.make(vgg.CONFIGS["vgg13-tiny"], batch=8, has_dropout=True),
    "vgg19": vgg.make(vgg.CONFIGS["vgg19-tiny"], batch=8),
}

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


@pytest.mark.parametrize("name", ["wide-resnet", "unet", "vgg13"])
def test_every_operator_has_a_rule_and_the_batch_can_be_cut(name: str) -> None:
    example = SMALL[name]
    found = Capture(example.step, example.arguments, example.batch_argnums).at(4)
    assert all(has_rule(e.primitive.name) for e in found.equations.values())
    assert found.step.summed


def test_norms_over_the_batch_run_in_one_microbatch() -> None:
    example = SMALL["batch norm"]
    capture = Capture(example.step, example.arguments, example.batch_argnums)
    with pytest.raises(AccumulationError, match="single examples with a sum over all of them"):
        capture.at(2)
    averages = [a.name for a in capture.at(1).arguments if "averages" in a.name]
    assert len(averages) == 2 * (1 + 4 * 4)


def test_values_skip_over_layers_of_a_unet() -> None:
    example = SMALL["unet"]
    found = Capture(example.step, example.arguments, example.batch_argnums).at(2)
    operators = [op for op in found.step.graph.operators if op.phase != APPLY]
    place = {name: i for i, op in enumerate(operators) for name in op.outputs}
    gaps = [
        i - place[name]
        for i, op in enumerate(operators)
        if op.kind == "concatenate"
        for name in op.inputs
        if name in place
    ]
    assert max(gaps) > len(operators) // 5


def test_a_pipeline_computes_what_one_device_does() -> None:
    checked = check(SMALL["vgg13"], TWO_HOSTS, strategy="equal_layers", microbatches=2, n_steps=2)
    assert checked.difference < TOLERANCE
    assert checked.whole_share == 0
    assert not checked.plan.unsharded


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
@pytest.mark.parametrize(
    ("strategy", "microbatches"),
    [
        ("data_parallel", 1),
        ("megatron", 2),
        ("zero", 2),
        ("equal_layers", 4),
        ("search", 2),
        ("auto", None),
    ],
)
@pytest.mark.parametrize("name", [name for name in SMALL if name != "batch norm"])
def test_every_plan_computes_what_one_device_does(
    name: str, strategy: str, microbatches: int | None, cluster: object
) -> None:
    checked = check(SMALL[name], cluster, strategy=strategy, microbatches=microbatches)
    assert checked.difference < TOLERANCE
    assert checked.whole_share == 0
