import pytest
from costmodel import Cluster
from hypothesis import given
from hypothesis import strategies as st
from stagecut import InvalidInputError, cluster_operators, submesh_shapes
from stagecut.models import model
from stagecut.profiles import LayerProfile

CLUSTER = Cluster.preset("p3.16xlarge:4")


def profile(name, n_layers=None, n_microbatches=None):
    of = model(name)
    layers = cluster_operators(of.flops, of.boundaries, n_layers or of.n_blocks, delta=2.0)
    return LayerProfile(of, layers, CLUSTER, n_microbatches or of.n_microbatches)


PROFILES = [profile(name) for name in ("gpt-2.6b", "moe-2.4b", "wide-resnet-4b")]
profiles = st.sampled_from(PROFILES)
submeshes = st.sampled_from(submesh_shapes(4, 8))


@st.composite
def stages(draw):
    of = draw(profiles)
    first = draw(st.integers(0, len(of.layers) - 1))
    return of, first, draw(st.integers(first, len(of.layers) - 1)), draw(submeshes)


def by_option(options):
    return {each.option: each for each in options or ()}


@given(stages(), st.data())
def test_a_stage_costs_what_its_parts_cost(stage, data):
    of, first, last, submesh = stage
    cut = data.draw(st.integers(first, last))
    if cut == last:
        return
    whole = by_option(of.cost(first, last, submesh))
    left, right = (by_option(of.cost(*part, submesh)) for part in ((first, cut), (cut + 1, last)))
    for option in whole.keys() & left.keys() & right.keys():
        parts = left[option], right[option]
        assert whole[option].time_s == pytest.approx(sum(each.time_s for each in parts))
        assert whole[option].once_s == pytest.approx(sum(each.once_s for each in parts))
        assert whole[option].fixed_bytes == sum(each.fixed_bytes for each in parts)
        assert whole[option].activation_bytes == sum(each.activation_bytes for each in parts)
        assert whole[option].temporary_bytes == max(each.temporary_bytes for each in parts)


@given(stages())
def test_no_stage_is_faster_than_the_peak_of_its_devices(stage):
    of, first, last, submesh = stage
    flops = sum(of.flops[first : last + 1]) * of.model.batch / of.n_microbatches
    peak = CLUSTER.device.peak(of.model.dtype) * submesh[0] * submesh[1]
    for each in of.cost(first, last, submesh) or ():
        assert each.time_s >= 4 * flops / peak * (1 - 1e-9)


@given(stages())
def test_no_option_is_outdone_and_each_is_a_mesh_of_the_devices(stage):
    of, first, last, submesh = stage
    options = of.cost(first, last, submesh) or ()
    for each in options:
        d, t = each.option
        assert d * t == submesh[0] * submesh[1]
        assert of.model.batch // of.n_microbatches % d == 0
        for other in options:
            assert other is each or not (
                other.time_s <= each.time_s
                and other.once_s <= each.once_s
                and other.fixed_bytes <= each.fixed_bytes
                and other.activation_bytes <= each.activation_bytes
                and other.temporary_bytes <= each.temporary_bytes
            )


def test_one_sequence_is_shared_by_splitting_operators_only():
    of = profile("gpt-2.6b", n_microbatches=1024)
    assert [each.option for each in of.cost(0, 3, (1, 8))] == [(1, 8)]


def test_a_device_keeps_16_bytes_a_parameter_and_replicas_share_12_of_them():
    of = profile("gpt-1.3b", n_layers=1)
    total = sum(each.parameters for each in of.model.operators)
    assert by_option(of.cost(0, 0, (1, 1)))[1, 1].fixed_bytes == 16 * total
    assert by_option(of.cost(0, 0, (1, 8)))[8, 1].fixed_bytes == pytest.approx(
        5.5 * total, rel=1e-6
    )


def test_gradients_are_reduced_once_a_step_if_the_batch_is_shared():
    of = profile("gpt-2.6b")
    options = by_option(of.cost(0, 0, (1, 8)))
    assert options[8, 1].once_s > options[4, 2].once_s > options[1, 8].once_s == 0


def test_blocks_of_a_gpt_hand_on_one_hidden_state():
    of = profile("gpt-2.6b")
    hidden = 1024 * 2560 * 2 * of.model.batch // of.n_microbatches
    assert [(edge.n_bytes, edge.consumers) for edge in of.edges] == [
        (hidden, (layer,)) for layer in range(1, 32)
    ]


def test_a_transfer_takes_the_cards_of_the_side_with_fewer_hosts():
    of = PROFILES[0]
    one, two = of.transfer_s(10**9, (1, 8), (2, 8)), of.transfer_s(10**9, (2, 8), (2, 8))
    assert one == of.transfer_s(10**9, (2, 8), (1, 2))
    latency_s = CLUSTER.inter_host.latency_s
    assert one - 2 * latency_s == pytest.approx(2 * (two - 2 * latency_s))


def test_within_a_host_a_transfer_takes_the_links_of_the_side_with_fewer_devices():
    of = PROFILES[0]
    inside = LayerProfile(of.model, of.layers, Cluster.preset("p3.16xlarge"), of.n_microbatches)
    assert inside.transfer_s(10**9, (1, 2), (1, 4)) == inside.transfer_s(10**9, (1, 4), (1, 2))
    assert inside.transfer_s(10**9, (1, 2), (1, 4)) < of.transfer_s(10**9, (1, 2), (1, 4)) / 40


@given(profiles, st.data())
def test_entering_a_stage_takes_what_all_values_that_cross_take(of, data):
    layer = data.draw(st.integers(1, len(of.layers) - 1))
    crossing = [e for e in of.edges if e.producer < layer and max(e.consumers) >= layer]
    latency_s = 2 * CLUSTER.inter_host.latency_s
    each = [of.transfer_s(edge.n_bytes, (1, 8), (1, 2)) - latency_s for edge in crossing]
    assert of.boundary_s(layer) == pytest.approx(latency_s + sum(each))


@pytest.mark.parametrize("n_microbatches", [0, 7, -1])
def test_rejects_microbatches_that_do_not_divide_the_batch(n_microbatches):
    of = model("gpt-350m")
    with pytest.raises(InvalidInputError, match=f"n_microbatches={n_microbatches} for the 1024"):
        LayerProfile(of, [(0, len(of.operators) - 1)], CLUSTER, n_microbatches)


@pytest.mark.parametrize("layers", [[], [(0, 5)], [(1, 290)], [(0, 100), (102, 290)]])
def test_rejects_layers_that_are_not_all_operators(layers):
    with pytest.raises(InvalidInputError, match="runs of all 291 operators of gpt-350m"):
        LayerProfile(model("gpt-350m"), layers, CLUSTER, 512)
