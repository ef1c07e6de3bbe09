"""AutoDDL's savings over Megatron's grids hold in the cost model (sections 5.1 and 5.2)."""

import pytest
from autoddl import megatron
from autoddl.cases import VGG_MESHES, Result, mesh_of, piz_daint, transformer, vgg
from autoddl.megatron import Grid
from autoddl.report import as_json, page


@pytest.mark.parametrize("devices", VGG_MESHES)
def test_vgg_communicates_less_than_the_best_grid_by_what_autoddl_saved(devices):
    result = vgg(devices)
    assert result.saved >= result.published
    assert result.gap < 0.02


def test_a_transformer_layer_communicates_less_than_the_best_grid_by_what_autoddl_saved():
    result = transformer(64, n_layers=1)
    assert result.saved >= result.published


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [64, 128, 256])
def test_transformers_communicate_less_than_the_best_grid_by_what_autoddl_saved(devices):
    result = transformer(devices)
    assert result.saved >= result.published


def test_grids_of_model_parallelism_alone_pay_for_4l_minus_1_all_reduces_a_microbatch():
    mesh, cluster = mesh_of((4,)), piz_daint(4)

    def seconds(n_layers, microbatches):
        sent = megatron.transformer(n_layers, 512, 64, microbatches, data=(), model=(0,))
        return megatron.price(sent, mesh, cluster)

    once = seconds(1, 1) / 3
    assert seconds(1, 8) == pytest.approx(3 * 8 * once)
    assert seconds(5, 8) == pytest.approx(19 * 8 * once)


def test_a_grid_of_data_parallelism_alone_sends_gradients_only():
    sent = megatron.transformer(2, 512, 64, microbatches=8, data=(0,), model=())
    assert {one.times for one in sent} == {2}
    elements = sum(one.shape[0] * one.shape[1] for one in sent)
    assert elements == 12 * 64**2


def test_the_page_has_a_row_a_case_and_says_how_much_is_saved():
    grids = (Grid(1, 16, 2e-3), Grid(2, 8, 3e-3))
    one = Result("VGG13", 16, (2, 8), 1.5e-3, 0.01, grids, 0.10)
    assert one.saved == pytest.approx(0.25)
    assert "| VGG13 | 16 | 2x8 | 1 x 16 | 2.0 ms | 1.5 ms | 25.0% | 10.0% | 1.0% |" in page([one])
    assert '"found_s": 0.0015' in as_json([one])
