"""Prices of single operators: those of autoshard, at the rate of what operators multiply."""

import autoshard
import frontends.torch
import pytest
import torch
from autoshard import Graph, Operator
from costmodel import Cluster
from frontends.answer.plan import Plan
from frontends.layers.expand import operator_seconds
from torch import Tensor, nn
from torch.nn import functional

H100 = Cluster.preset("h100-sxm").resized(devices_per_host=1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (4, -1)).transpose(1, 2)
        found: Tensor = functional.scaled_dot_product_attention(heads, heads, heads)
        return found


def planned(dtype: torch.dtype) -> Plan:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with torch.device("meta"):
        model, x = Attention().to(dtype), torch.zeros(8, 16, 64, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return frontends.torch.plan_for(step, model, optimizer, x, H100, microbatches=1).plan


def dtypes_of(graph: Graph, op: Operator) -> tuple[str, ...]:
    return tuple(graph.value(name).dtype for name in (*op.inputs, *op.outputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_flash_attention_runs_at_the_rate_of_its_queries_both_ways(dtype: torch.dtype) -> None:
    sharding = planned(dtype).stages[0].sharding
    assert sharding is not None
    flash = [op for op in sharding.graph.operators if "flash_attention" in op.kind]
    assert len(flash) == 2
    for op in flash:
        dtypes = dtypes_of(sharding.graph, op)
        assert "float32" in dtypes, "of the normalisers"
        assert autoshard.arithmetic_dtype(op.rule, dtypes) == str(dtype).removeprefix("torch.")


def test_operators_are_priced_as_the_search_prices_them() -> None:
    sharding = planned(torch.bfloat16).stages[0].sharding
    assert sharding is not None
    graph, device = sharding.graph, H100.device
    seconds = [0.0] * len(graph.phases)
    for op, strategy in zip(graph.operators, sharding.strategies, strict=True):
        once = operator_seconds(graph, op, strategy, sharding.mesh.shape, device)
        seconds[op.phase] += once * graph.phases[op.phase].repeats
    assert seconds == pytest.approx(sharding.compute_s)
