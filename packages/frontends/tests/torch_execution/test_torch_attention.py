"""Attention in PyTorch, split by examples, heads and rows: the eager step, at an honest price."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from costmodel import Cluster
from frontends import Plan, PlanError
from frontends.torch import parallelize, plan_for
from frontends.torch.capture.capture import training_step
from frontends.torch.lower.attention_rows import BY_ROW
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
CLUSTER = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa", use_cache=False,
)  # fmt: skip
TOKENS = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(0))


class Causal(nn.Module):
    """Attention that is told that it is causal, so that no mask is in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.project, self.head = nn.Linear(32, 64), nn.Linear(32, 64)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        mixed = self.project(self.embedding(input_ids)).unflatten(-1, (8, 8)).transpose(1, 2)
        q, k, v = mixed.split((4, 2, 2), dim=1)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        logits = self.head(found.transpose(1, 2).flatten(2))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits.mT, labels))


class Padded(nn.Module):
    """A model of Hugging Face that makes a mask, as the last tokens are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(CONFIG)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        mask = (torch.arange(input_ids.shape[1]) < input_ids.shape[1] - 3).expand_as(input_ids)
        return self.model(input_ids=input_ids, labels=labels, attention_mask=mask)


MODELS: dict[str, Callable[[], nn.Module]] = {"padded": Padded, "causal": Causal}


def example(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: nn.Module = MODELS[name]()
    return model, torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-3)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def eager_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = loss_of(model, TOKENS)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("RRS0R", {"mesh": (1, 4)}),
    "rows on two axes": ("RRS01R", {"mesh": (2, 2)}),
    "rows and examples": ("S0RS1R", {"mesh": (2, 2)}),
    "rows and heads": ("RS0S1R", {"mesh": (2, 2)}),
    "stages": ("RRS0R", {"stages": 2, "microbatches": 2}),
}
RINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "all rows": ("RRS0R,RRS0R", {"mesh": (1, 4)}),
    "some rows": ("RRS01R,RRS1R", {"mesh": (2, 2)}),
    "computed again": ("RRS01R,RRS01R", {"mesh": (2, 2), "remat": "all"}),
    "heads": ("RS0S1R,RS0S1R", {"mesh": (2, 2), "microbatches": 2}),
    "stages": ("RRS0R,RRS0R", {"stages": 2, "microbatches": 2}),
}
GRADIENT = f"{KERNEL}_backward"


def of_gradient(spec: str) -> str:
    """The pin of the gradient, whose first operand is the result's gradient."""
    return f"{spec.split(',')[0]},{spec}"


@pytest.mark.parametrize("name", ["padded", "causal"])
@pytest.mark.parametrize("way", ROWS)
def test_rows_of_attention_are_split_and_the_step_stays_the_same(way: str, name: str) -> None:
    spec, options = ROWS[way]
    check_step(name, {KERNEL: spec}, options)


@pytest.mark.parametrize(
    ("way", "name"),
    [*((way, "causal") for way in RINGS), ("some rows", "padded"), ("stages", "padded")],
)
def test_keys_go_round_in_a_ring_and_the_step_stays_the_same(way: str, name: str) -> None:
    spec, options = RINGS[way]
    plan = check_step(name, {KERNEL: spec, GRADIENT: of_gradient(spec)}, options)
    sent = [c.kind for stage in plan.stages for c in stage.collectives]
    assert "collective_permute" in sent


class Own(nn.Module):
    """Attention with a mask of large numbers, a row of which sees nothing; keys may be frozen."""

    def __init__(self, is_frozen: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)
        self.is_frozen = is_frozen

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.embedding(input_ids)
        q, k = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (self.q, self.k))
        n, mask = input_ids.shape[1], None
        if self.is_frozen:
            k = k.detach()
        else:
            seen = (torch.arange(n)[:, None] >= torch.arange(n)) & (torch.arange(n)[:, None] != 5)
            mask = torch.where(seen, 0.0, -1e9)
        found = nn.functional.scaled_dot_product_attention(
            q, k, k, attn_mask=mask, is_causal=self.is_frozen
        )
        logits = self.head(found.transpose(1, 2).flatten(2))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits.mT, labels))


MODELS |= {"frozen keys": lambda: Own(True), "hidden rows": lambda: Own(False)}


@pytest.mark.parametrize("name", ["frozen keys", "hidden rows"])
def test_a_ring_sends_what_is_read_and_keeps_the_shares_of_hidden_rows(name: str) -> None:
    spec, options = RINGS["all rows"]
    check_step(name, {KERNEL: spec, GRADIENT: of_gradient(spec)}, options)


def test_operands_that_no_way_of_attention_has_are_refused() -> None:
    def plan(pin: str) -> None:
        model, optimizer = example("causal")
        parallelize(model, optimizer, loss_of, cluster=CLUSTER, pin={KERNEL: pin})(TOKENS)

    with pytest.raises(PlanError, match="no way with 'RRRS0,RRRR'; close are RR"):
        plan("RRRS0,RRRR")
    with pytest.raises(PlanError, match="is for the first operands of a kind of operators"):
        plan(",".join(["RRRR"] * 9))
    with pytest.raises(PlanError, match="no way with 'RRRR,RRS0R'"):
        plan("RRRR,RRS0R")


def check_step(name: str, pin: dict[str, str], options: dict[str, Any]) -> Plan:
    """Compare pinned steps of a model with eager ones, and the programs with the plan."""
    model, optimizer = example(name)
    eager = [eager_step(model, optimizer) for _ in range(3)]
    ours, its = example(name)
    options = {"microbatches": 1, "stages": 1} | options
    parallel = parallelize(ours, its, loss_of, cluster=CLUSTER, pin=pin, **options)
    assert [float(parallel(TOKENS)) for _ in range(3)] == pytest.approx(eager, abs=2e-5)
    found = {
        str(p.results[0])
        for stage in parallel.plan.stages
        for p in stage.placements
        if p.operator.startswith(KERNEL) and "backward" not in p.operator
    }
    assert found == {pin[KERNEL].split(",")[0]}
    for key, weight in model.named_parameters():
        torch.testing.assert_close(ours.get_parameter(key), weight, atol=2e-4, rtol=1e-3)
    assert parallel.verify(TOKENS)
    return parallel.plan


def test_a_model_of_hugging_face_makes_a_mask_only_where_something_is_padded() -> None:
    def of_batch(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(**batch, labels=batch["input_ids"]).loss
        return loss

    def made(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, torch.optim.SGD(model.parameters(), 0.1)

    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(LlamaForCausalLM(CONFIG))
    whole = torch.ones_like(TOKENS)
    padded = whole.index_fill(1, torch.tensor([14, 15]), 0)
    batches = [{"input_ids": TOKENS, "attention_mask": mask} for mask in (whole, padded, whole)]
    step = parallelize(*made(models[0]), of_batch, cluster=CLUSTER, stages=1, microbatches=1)
    model, optimizer = made(models[1])
    for batch in batches:
        optimizer.zero_grad()
        loss = of_batch(model, batch)
        loss.backward()
        optimizer.step()
        assert float(step(batch)) == pytest.approx(loss.item(), rel=1e-5)
    n_read = [
        {
            len(op.inputs)
            for op in variant.plan.stages[0].sharding.graph.operators
            if op.kind == KERNEL
        }
        for variant in step.variants
    ]
    assert n_read == [{3}, {4}]


def test_the_last_rows_see_most_keys_which_the_price_counts() -> None:
    with torch.device("meta"):
        model = Causal()
        tokens = torch.zeros(1, 4096, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options: Any = {"stages": 1, "mesh": (1, 4), "microbatches": 1, "pin": {KERNEL: "RRS0R"}}
    plan = plan_for(training_step(loss_of), model, optimizer, tokens, CLUSTER, **options).plan
    sharding = plan.stages[0].sharding
    assert sharding is not None
    found = [op for op in sharding.graph.operators if op.kind in BY_ROW]
    assert len(found) == 2
    for op in found:
        (rows,) = (factor for factor in op.rule.factors if factor.rises)
        assert rows.size == 4096
        assert rows.share(4) == pytest.approx(7 / 16, abs=1e-3)
        n_products = 5 if "backward" in op.kind else 2
        assert op.flops == n_products * 4 * (4096 * 4097 / 2) * 2 * 8
