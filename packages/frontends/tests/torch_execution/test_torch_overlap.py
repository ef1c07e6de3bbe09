"""Whatever a plan communicates, in buckets it is the same, as early as it may be."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from frontends.layers.layers import layer
from frontends.program.program import build_program
from frontends.testing import random_plan
from frontends.torch.lower import bucketing
from frontends.torch.lower.bucketing import overlapped
from frontends.torch.lower.lower import lower_chunk
from frontends.torch.lower.nodes import Begin, Communicate, Finish, LocalProgram
from frontends.torch.trace.trace import Capture
from shardspec import Mesh
from torch import nn

MESH = Mesh((2, 2), ("x", "y"))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """Gradients are scaled by the norm of all of them."""
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.detach()


def programs(microbatches: int) -> list[LocalProgram]:
    """Of a random plan."""
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.Tanh())))
    optimizer = torch.optim.AdamW(model.parameters())
    trace = Capture(step, model, optimizer, torch.zeros(8, 8)).at(microbatches)
    layered = layer(trace.step, 4)
    plan = random_plan(layered, (MESH,), random.Random(0), "gpipe")
    chunks = build_program(layered.step, plan).chunks
    return [lower_chunk(chunk, trace, layered.step.graph, MESH) for chunk in chunks]


def sent(program: LocalProgram) -> Counter[Communicate]:
    """The collectives that a program lists, without what follows from their place."""
    nodes = [n for n in program.nodes if isinstance(n, Communicate)]
    return Counter(replace(node, last=()) for node in nodes)


@pytest.mark.parametrize("bucket_bytes", [0, 100, 2**20])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_buckets_hold_what_the_program_sends_and_fit_in_their_place(
    microbatches: int, bucket_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", bucket_bytes)
    n_parts = n_buckets = 0
    for program in programs(microbatches):
        found = overlapped(program)
        begun = [node for node in found.nodes if isinstance(node, Begin)]
        assert Counter(replace(p, last=()) for node in begun for p in node.parts) == sent(program)
        assert not sent(found), "all are in buckets"
        for node in begun:
            steps = [part.step for part in node.parts]
            assert len({(s.kind, s.mesh_axes, s.reduction) for s in steps}) == 1
            assert len({found.kinds[register].dtype for register in node.operands}) == 1
            assert len(steps) == 1 or sum(s.src.local_bytes(4) for s in steps) <= bucket_bytes
        check_registers(found)
        n_parts += sum(len(node.parts) for node in begun)
        n_buckets += len(begun)
    assert (n_buckets == n_parts) == (bucket_bytes == 0)


def check_registers(program: LocalProgram) -> None:
    """Each node reads what is there, and what it lets go is not read later."""
    there = set(program.reads)
    for node in program.nodes:
        assert there.issuperset(node.operands), node
        there = (there | set(node.results)) - set(node.last)
    assert there.issuperset({*program.totals, *program.writes})


def test_sums_begin_as_soon_as_their_operand_is_made_and_end_as_late_as_possible() -> None:
    n_apart = 0
    for program in programs(1):
        nodes = overlapped(program).nodes
        last_finish = {node.operands: i for i, node in enumerate(nodes) if isinstance(node, Finish)}
        received = {r for node in nodes if isinstance(node, Finish) for r in node.results}
        for i, node in enumerate(nodes):
            if not isinstance(node, Begin) or node.parts[0].step.kind != "all_reduce":
                continue
            if received.isdisjoint(node.operands):
                made = [n for n in nodes[:i] if not isinstance(n, Begin)][-1]
                assert set(made.results) & set(node.operands), "it waits for nothing else"
            end = last_finish[node.results]
            results = set(nodes[end].results)
            after = [n for n in nodes[end + 1 :] if not isinstance(n, Finish)]
            assert not after or results & set(after[0].operands), "its results are read at once"
            n_apart += end - i > 1
    assert n_apart, "and others run meanwhile"
