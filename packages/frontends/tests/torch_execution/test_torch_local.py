"""Every strategy that a rule allows must compute, shard by shard, what the whole call computes."""

from collections.abc import Callable, Sequence
from typing import Any

import autoshard
import numpy as np
import pytest
import shardspec
import torch
from frontends.torch.base.calls import Call, Operand
from frontends.torch.lower.local import LocalCall, differing_axes, like
from shardspec import Layout, Mesh, Spec

aten = torch.ops.aten
MESH = Mesh((2, 2), ("x", "y"))
O = [Operand(i) for i in range(4)]  # noqa: E741


def numbers(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def places(high: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, high, shape))


def call(target: Any, *arguments: Any, **keywords: Any) -> Call:
    return Call(target, arguments, keywords)


A, B = numbers(4, 8), numbers(8, 4)
TABLE, TOKENS = numbers(16, 8), places(16, 4, 4)
PICKED = {
    "operand_batching_dims": (0,),
    "start_indices_batching_dims": (0,),
    "slice_sizes": (1, 1),
    "offset_dims": (),
    "collapsed_slice_dims": (1,),
    "start_index_map": (1,),
    "masked": True,
}
ROWS = {
    "slice_sizes": (1, 8),
    "offset_dims": (1,),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "masked": True,
}
ADDED = {
    "adds": True,
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "masked": True,
}

Case = tuple[str, dict[str, Any], Call, tuple[torch.Tensor, ...]]
"""A kind of autoshard or a rule as text, the kind's attributes, the call and its operands."""

CASES: dict[str, Case] = {
    "add": ("add", {}, call(aten.add.Tensor, O[0], O[1]), (A, A + 1)),
    "broadcast add": ("add", {}, call(aten.add.Tensor, O[0], O[1]), (A, numbers(8))),
    "mm": (
        "dot_general",
        {"contracting": ((1,), (0,))},
        call(aten.mm.default, O[0], O[1]),
        (A, B),
    ),
    "addmm": (
        "(a)(b,c)(c,a)->(b,a) {a=4, b=4, c=8 sum}",
        {},
        call(aten.addmm.default, O[0], O[1], O[2]),
        (numbers(4), A, B),
    ),
    "sum": ("reduce_sum", {"dims": (0,)}, call(aten.sum.dim_IntList, O[0], [0]), (A,)),
    "amax": ("reduce_max", {"dims": (1,)}, call(aten.amax.default, O[0], [1]), (A,)),
    "view": ("reshape", {}, call(aten.reshape.default, O[0], [4, 4, 2]), (A,)),
    "merge": ("reshape", {}, call(aten.reshape.default, O[0], [32]), (A,)),
    "expand": (
        "broadcast",
        {"dims": (0, 1)},
        call(aten.expand.default, O[0], [4, 8]),
        (numbers(4, 1),),
    ),
    "permute": (
        "transpose",
        {"permutation": (1, 0)},
        call(aten.permute.default, O[0], [1, 0]),
        (A,),
    ),
    "slice": ("slice", {}, call(aten.slice.Tensor, O[0], 1, 2, 6), (A,)),
    "slice of all": ("slice", {}, call(aten.slice.Tensor, O[0], 1, 0, 8), (A,)),
    "slice backward": (
        "pad",
        {"zeros": True},
        call(aten.slice_backward.default, O[0], [4, 16], 1, 2, 10, 1),
        (A,),
    ),
    "concatenate": (
        "concatenate",
        {"dim": 1},
        call(aten.cat.default, [O[0], O[1]], 1),
        (A, A),
    ),
    "arange": ("iota", {}, call(aten.arange.start_step, 3, 19, 2), ()),
    "eye": ("iota", {}, call(aten.eye.default, 8), ()),
    "full": ("full", {}, call(aten.full.default, [4, 8], 2.0), ()),
    "softmax": ("softmax", {"dims": (1,)}, call(aten._softmax.default, O[0], 1, False), (A,)),
    "layer norm": (
        "layer_norm",
        {},
        call(aten.native_layer_norm.default, O[0], [8], O[1], O[2], 1e-5),
        (A, numbers(8), numbers(8)),
    ),
    "embedding": ("embedding", {}, call(aten.embedding.default, O[0], O[1]), (TABLE, TOKENS)),
    "embedding backward": (
        "embedding_gradient",
        {},
        call(aten.embedding_dense_backward.default, O[0], O[1], 16, -1, False),
        (numbers(4, 4, 8), TOKENS),
    ),
    "embedding backward with padding": (
        "embedding_gradient",
        {},
        call(aten.embedding_dense_backward.default, O[0], O[1], 16, int(TOKENS[0, 0]), False),
        (numbers(4, 4, 8), TOKENS),
    ),
    "gather": ("gather", PICKED, call(aten.gather.default, O[0], 1, O[1]), (A, places(8, 4, 1))),
    "index select": (
        "gather",
        ROWS,
        call(aten.index_select.default, O[0], 0, O[1]),
        (TABLE, places(16, 4)),
    ),
    "index": (
        "gather",
        ROWS,
        call(aten.index.Tensor, O[0], [O[1]]),
        (TABLE, places(16, 4) - 16),
    ),
    "index add": (
        "scatter",
        ADDED,
        call(aten.index_add.default, O[0], 0, O[1], O[2]),
        (TABLE, places(16, 4), A),
    ),
    "index put": (
        "scatter",
        ADDED,
        call(aten.index_put.default, O[0], [O[1]], O[2], True),
        (TABLE, places(16, 4), A),
    ),
    "index put without adding": (
        "scatter",
        ADDED | {"adds": False},
        call(aten.index_put.default, O[0], [O[1]], O[2]),
        (TABLE, torch.tensor([3, 9, 14, 2]), A),
    ),
}
HAVE_INDEX_COLUMN = ("gather", "scatter")
"""Kinds whose rule has the indices as XLA has them: numbers of a place in their last dim."""


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_equals_the_whole_call(name: str) -> None:
    kind, attributes, whole_call, operands = CASES[name]
    wholes = whole_call(list(operands))
    seen = [_as_ruled(kind, i, tuple(t.shape)) for i, t in enumerate(operands)]
    results = [tuple(t.shape) for t in wholes]
    n_results = 1 if kind == "layer_norm" else len(results)
    if "->" in kind:
        rule = autoshard.Rule.parse(kind)
    else:
        rule = autoshard.rule_of(kind, tuple(seen), tuple(results[:n_results]), **attributes)
    strategies = autoshard.enumerate_strategies(rule, MESH.shape)
    assert len(strategies) > 1
    for strategy in strategies:
        specs = [
            Spec(spec.dims[: len(t.shape)], spec.partial)
            for spec, t in zip(strategy.operand_specs, operands, strict=True)
        ]
        made = _run(whole_call, operands, specs, wholes, strategy.result_specs[:n_results])
        for whole, result in zip(wholes[:n_results], made, strict=True):
            message = f"{whole_call.name} as {strategy}"
            np.testing.assert_allclose(result, whole.numpy(), rtol=1e-4, atol=1e-5, err_msg=message)


def _as_ruled(kind: str, place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1) if kind in HAVE_INDEX_COLUMN and place == 1 else shape


def _run(
    whole_call: Call,
    operands: Sequence[torch.Tensor],
    specs: Sequence[Spec],
    wholes: Sequence[torch.Tensor],
    result_specs: Sequence[Spec],
) -> list[np.ndarray]:
    """The call on shards, once for those that are equal, and its results put together."""
    layouts = [Layout(tuple(t.shape), MESH, s) for t, s in zip(operands, specs, strict=True)]
    shards = [
        shardspec.shard(layout, t.numpy()) for layout, t in zip(layouts, operands, strict=True)
    ]
    shapes = [t.shape for t in operands], [t.shape for t in wholes[: len(result_specs)]]
    local = LocalCall(whole_call, shapes, specs, result_specs, MESH)
    coordinates = [MESH.coordinates(device) for device in MESH.device_ids]
    same = like(coordinates, differing_axes(specs, local.axes))
    made = {
        device: local(
            [torch.from_numpy(np.ascontiguousarray(s[first])) for s in shards], coordinates[first]
        )
        for device, first in same.items()
    }
    return [
        shardspec.assemble(
            Layout(tuple(whole.shape), MESH, spec), {d: m[i].numpy() for d, m in made.items()}
        )
        for i, (whole, spec) in enumerate(zip(wholes, result_specs, strict=False))
    ]


def test_devices_that_do_the_same_do_it_once() -> None:
    coordinates = [MESH.coordinates(device) for device in MESH.device_ids]
    assert like(coordinates, ()) == dict.fromkeys(range(4), 0)
    assert like(coordinates, (1,)) == {0: 0, 1: 1, 2: 0, 3: 1}
    spec = Spec.parse("S1R")
    assert differing_axes([spec], (0,)) == (0, 1)


def test_what_counts_needs_no_operands_to_differ() -> None:
    local: Callable[..., Any] = LocalCall(
        call(aten.arange.default, 8), ([], [(8,)]), [], [Spec.parse("S1")], MESH
    )
    assert local.axes == (1,)
    assert [int(local([], (0, y))[0][0]) for y in (0, 1)] == [0, 4]
