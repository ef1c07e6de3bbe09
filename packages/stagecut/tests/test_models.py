import pytest
from stagecut import UnknownNameError, cluster_operators
from stagecut.models import model, model_names

# Alpa, tables 6 to 8: billions of parameters.
PUBLISHED = {
    "gpt-350m": 0.35, "gpt-1.3b": 1.3, "gpt-2.6b": 2.6,
    "gpt-6.7b": 6.7, "gpt-15b": 15, "gpt-39b": 39,
    "moe-380m": 0.38, "moe-1.3b": 1.3, "moe-2.4b": 2.4,
    "moe-10b": 10, "moe-27b": 27, "moe-70b": 70,
    "wide-resnet-250m": 0.25, "wide-resnet-1b": 1, "wide-resnet-2b": 2,
    "wide-resnet-4b": 4, "wide-resnet-6.8b": 6.8, "wide-resnet-13b": 13,
}  # fmt: skip


@pytest.mark.parametrize("name", model_names())
def test_models_have_as_many_parameters_as_published(name):
    operators = model(name).operators
    total = sum(operator.parameters for operator in operators)
    if not name.startswith("wide-resnet"):
        total -= operators[-1].parameters  # the words' table, which both ends hold
    assert total / 1e9 == pytest.approx(PUBLISHED[name], rel=0.05)


@pytest.mark.parametrize("name", model_names())
def test_operators_read_operators_before_them(name):
    found = model(name)
    for index, operator in enumerate(found.operators):
        assert all(0 <= source < index for source in operator.reads)
        assert operator.reads or index == 0
    readers = {k for operator in found.operators for k in operator.reads}
    assert readers == set(range(len(found.operators) - 1))


def test_a_gpt_block_has_the_products_of_a_transformer_layer():
    gpt = model("gpt-39b")
    s, h = 1024, 8192
    block = [each for each in gpt.operators if each.name.startswith("block 7 ")]
    products = sum(each.flops for each in block if each.flops > 1e3 * s * h)
    assert products == 24 * s * h**2 + 4 * s**2 * h  # Narayanan et al., SC 2021, appendix


def test_every_second_mlp_of_an_moe_has_experts():
    operators = model("moe-10b").operators
    experts = {each.name.split()[1] for each in operators if each.n_experts == 32}
    assert experts == {str(block) for block in range(1, 16, 2)}


def test_as_many_layers_as_blocks_are_the_blocks():
    found = model("gpt-39b")
    layers = cluster_operators(found.flops, found.boundaries, found.n_blocks)
    names = [found.operators[first].name for first, _ in layers]
    assert names == ["embedding", *(f"block {block} norm" for block in range(1, found.n_blocks))]


def test_an_unknown_model_is_told_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"a model is one of gpt-350m, .*; got 'gpt-5'"):
        model("gpt-5")
