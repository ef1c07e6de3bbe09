"""Every private corner of PyTorch that we lean on still does what we lean on it for."""

from collections.abc import Sequence
from typing import Any

import torch
from frontends.torch.base.compat.marks import AFTER, BEFORE, DRAW, DURING, PHASE
from frontends.torch.base.compat.state import make_state, with_tensors
from frontends.torch.base.compat.traced import TracedFunction
from frontends.torch.base.compat.values import place_of, unwatched
from frontends.torch.base.compat.watched import watched_by
from frontends.torch.capture.writes import pure_form
from torch import nn


def program(function: Any, *tensors: torch.Tensor) -> TracedFunction:
    return TracedFunction(function, tensors)


def test_stand_ins_have_shapes_and_strides_on_the_cpu() -> None:
    given = torch.empty(4, 2, device="meta").t()
    seen: list[torch.Tensor] = []

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        seen.append(x)
        return [x + given]

    program(step, given)
    assert (seen[0].shape, seen[0].stride(), seen[0].device.type) == ((2, 4), (1, 2), "cpu")


def test_nodes_know_whether_autograd_made_them() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        x.sin().sum().backward()
        assert x.grad is not None
        return [x.grad * 2]

    nodes = program(step, torch.ones(3)).module.graph.nodes
    phases = {node.name: node.meta[PHASE] for node in nodes}
    assert (phases["sin"], phases["cos"], phases["mul_1"]) == (BEFORE, DURING, AFTER)


def test_equal_draws_are_told_by_the_generators_state() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        state = torch.get_rng_state()
        first, other = torch.rand(2), torch.rand(2)
        torch.set_rng_state(state)
        return [x + first, x + other, x + torch.rand(2)]

    before = torch.get_rng_state()
    nodes = program(step, torch.ones(2)).module.graph.nodes
    first, other, again = (node.meta[DRAW] for node in nodes if DRAW in node.meta)
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_taken_out_of_tensors_are_nodes() -> None:
    made = program(lambda x, n: [x * (1 - n.item() ** 2)], torch.ones(2), torch.tensor(3.0))
    names = {node.name for node in made.module.graph.nodes}
    assert {"_local_scalar_dense", "pow_1", "sub"} <= names


def test_writes_are_taken_out_by_functionalization() -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.clone()
        x[:, 0].fill_(1.0)
        return [x]

    targets = [node.target for node in program(step, torch.ones(2, 2)).without_writes().graph.nodes]
    assert torch.ops.aten.fill_.Tensor not in targets
    assert torch.ops.aten.fill_.Scalar not in targets


def test_a_write_and_the_operator_in_its_place_take_the_same_arguments() -> None:
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.removeprefix("aten::") for s in schemas if s.name.startswith("aten::")}
    packets = [getattr(torch.ops.aten, n) for n in names if n.endswith("_") and n[0] != "_"]
    n_found = 0
    for write in (getattr(packet, name) for packet in packets for name in packet.overloads()):
        pure = pure_form(write)
        if pure is not None:
            n_found += 1
            types = [str(a.type) for a in write._schema.arguments]
            assert types == [str(a.type) for a in pure._schema.arguments][: len(types)], write
    assert n_found > 200


def test_views_share_their_memory() -> None:
    x = torch.ones(4, 2)
    assert place_of(x)[0] == place_of(x[1])[0]
    assert place_of(x) == place_of(x.detach())
    assert place_of(x)[1] != place_of(x[1])[1]


def test_an_optimizer_makes_its_state_and_updates_nothing() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.Adam(layer.parameters())
    assert make_state(optimizer)
    assert optimizer.state[layer.weight]["exp_avg"].shape == (2, 2)
    assert float(optimizer.state[layer.weight]["step"]) == 0
    assert torch.equal(layer.weight, before)
    assert layer.weight.grad is None


def test_a_model_can_have_other_tensors() -> None:
    layer = nn.Linear(2, 2)
    ours = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    with with_tensors(layer, ours):
        assert not layer(torch.ones(2)).any()
    assert float(layer.weight.detach().abs().sum()) > 0


class Seen:
    """What watches; all tensors hold threes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.real: list[torch.Tensor] = []

    def given(self, stand_in: torch.Tensor, real: torch.Tensor) -> None:
        self.real.append(real)

    def call(self, function: Any, args: Any, named: Any) -> Any:
        self.names.append(function._schema.name)
        return function(*args, **named)

    def values(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.full(tensor.shape, 3.0) for tensor in tensors]


def test_a_watched_construction_has_no_memory_and_asks_for_its_numbers() -> None:
    seen, real = Seen(), torch.ones(())
    with watched_by(seen):
        model = nn.Linear(2, 2).to(torch.bfloat16)  # swaps parameters, which need no other owners
        assert real.item() == 3.0
        made = real + torch.ones(2)
        with unwatched():
            assert torch.ones(2).sum() == 2
    assert (model.weight.dtype, model.weight.device.type) == (torch.bfloat16, "cpu")
    assert {"aten::uniform_", "aten::_to_copy", "aten::add"} <= set(seen.names)
    assert seen.real == [real]
    assert made.untyped_storage().device.type == "meta"
