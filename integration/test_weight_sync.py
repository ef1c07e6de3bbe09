"""The measurement of the weight sync moves what it says; `nox -s sync` measures."""

from pathlib import Path

import torch
from crossmesh.sync.maps import engine
from crossmesh.sync.states import checked
from crossmesh.sync.views import Published
from weight_sync.__main__ import BEGIN, END, PAGE
from weight_sync.rank import TENSOR_PARALLEL, engine_state, shapes


def test_the_engine_of_the_measurement_has_all_published_weights_once() -> None:
    published = shapes(64)
    state = engine_state(published)
    dtypes = dict.fromkeys(published, "float32")
    for rank in range(TENSOR_PARALLEL):
        views = engine(rank, TENSOR_PARALLEL)(Published(published, dtypes), checked(state))
        assert {read.source for view in views.values() for read in view.reads} == set(published)
    n_published = sum(rows * columns for rows, columns in published.values())
    assert sum(value.numel() for value in state.values()) * TENSOR_PARALLEL == n_published
    assert all(value.dtype == torch.bfloat16 for value in state.values())


def test_the_page_has_a_table() -> None:
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert Path(__file__).resolve().parent.parent / "docs" / "weight_sync.md" == PAGE
    assert "| ours |" in written
    assert "| gather and broadcast |" in written
