"""FlexAttention: what programs with it compute is what their scores, written out, do."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from costmodel import Cluster
from frontends.torch import parallelize, parallelize_step
from frontends.torch.capture.flex import is_causal_mask
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from transformers import LlamaConfig, LlamaForCausalLM

T = 128
TOKENS = torch.randint(0, 64, (4, T), generator=torch.Generator().manual_seed(0))
CLUSTER = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
KERNEL = "_scaled_dot_product_flash_attention_for_cpu"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning"),
]
"""What importing torch's compiler says, and how transformers makes masks."""

Attend = Callable[..., torch.Tensor]


class Model(nn.Module):
    """Tokens that are mixed by some attention, and predicted."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.table, self.qkv, self.head = nn.Embedding(64, 32), nn.Linear(32, 96), nn.Linear(32, 64)
        self.slopes = nn.Parameter(torch.linspace(0.1, 0.4, 4))
        self.attend, self.mask = attend, CAUSAL

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return self.head(x + self.attend(self, tokens, q, k, v).transpose(1, 2).flatten(2))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def written_out(q: Any, k: Any, v: Any, score: Any = None, seen: Any = None) -> torch.Tensor:
    """Attention by all its scores, the functions of which see all indices at once."""
    scores = (q @ k.mT) / q.shape[-1] ** 0.5
    b, h, i, j = (torch.arange(n) for n in scores.shape)
    indices = b[:, None, None, None], h[:, None, None], i[:, None], j
    if score is not None:
        scores = score(scores, *indices)
    if seen is not None:
        scores = scores.masked_fill(~seen(*indices), -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


@cache
def compiled() -> Any:
    return torch.compile(flex_attention)


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def sliding(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < WINDOW[0])


def of_heads(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i - j >= h


def late(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.where(i > j + 2, score, -torch.inf)


def mask_of(function: Any) -> Any:
    return create_block_mask(function, None, None, T, T, device="cpu")


WINDOW = [16]
CAUSAL, SLIDING = mask_of(causal), mask_of(sliding)
OF_HEADS = create_block_mask(of_heads, None, 4, T, T, device="cpu")


def softcap(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 20 * torch.tanh(score / 20)


def slopes_of(model: Any) -> Any:
    return lambda score, b, h, i, j: score - model.slopes[h] * (i - j).abs()


def documents_of(tokens: torch.Tensor) -> Any:
    """A row sees what is before it in its document; token 7 begins one."""
    number = (tokens == 7).cumsum(1)
    return lambda b, h, i, j: (number[b, i] == number[b, j]) & (i >= j)


def by_documents(m: Any, t: torch.Tensor, *qkv: torch.Tensor) -> Any:
    mask = create_block_mask(documents_of(t), len(t), None, T, T, device="cpu")
    return flex_attention(*qkv, block_mask=mask)


def with_sums(m: Any, t: Any, *qkv: torch.Tensor) -> torch.Tensor:
    asked = AuxRequest(lse=True)
    result, more = flex_attention(*qkv, block_mask=CAUSAL, return_aux=asked)
    return result * more.lse[..., None].sigmoid()


def sums_written_out(m: Any, t: Any, q: Any, k: Any, v: Any) -> torch.Tensor:
    scores = ((q @ k.mT) / q.shape[-1] ** 0.5).masked_fill(
        ~torch.ones(T, T).tril().bool(), -torch.inf
    )
    return written_out(q, k, v, seen=causal) * scores.logsumexp(-1, keepdim=True).sigmoid()


CASES: dict[str, tuple[Attend, Attend, bool]] = {
    "nothing": (
        lambda m, t, *x: flex_attention(*x), lambda m, t, *x: written_out(*x), True,
    ),
    "causal": (
        lambda m, t, *x: flex_attention(*x, block_mask=m.mask),
        lambda m, t, *x: written_out(*x, seen=causal), True,
    ),
    "compiled": (
        lambda m, t, *x: compiled()(*x, block_mask=CAUSAL),
        lambda m, t, *x: written_out(*x, seen=causal), True,
    ),
    "sliding": (
        lambda m, t, *x: flex_attention(*x, block_mask=SLIDING),
        lambda m, t, *x: written_out(*x, seen=sliding), True,
    ),
    "shared heads": (
        lambda m, t, q, k, v: flex_attention(
            q, k[:, :2], v[:, :2], block_mask=CAUSAL, enable_gqa=True
        ),
        lambda m, t, q, k, v: written_out(
            q, *(x[:, :2].repeat_interleave(2, 1) for x in (k, v)), seen=causal
        ), True,
    ),
    "documents": (
        by_documents, lambda m, t, *x: written_out(*x, seen=documents_of(t)), True,
    ),
    "sums": (with_sums, sums_written_out, True),
    "a mask of each head": (
        lambda m, t, *x: flex_attention(*x, block_mask=OF_HEADS),
        lambda m, t, *x: written_out(*x, seen=of_heads), True,
    ),
    "a mask for all heads that looks at them": (
        lambda m, t, *x: flex_attention(*x, block_mask=mask_of(of_heads)),
        lambda m, t, *x: written_out(*x, seen=of_heads), True,
    ),
    "scores of rows that see nothing": (
        lambda m, t, *x: flex_attention(*x, score_mod=late),
        lambda m, t, *x: written_out(*x, late), False,
    ),
    "softcap": (
        lambda m, t, *x: flex_attention(*x, score_mod=softcap, block_mask=CAUSAL),
        lambda m, t, *x: written_out(*x, softcap, causal), False,
    ),
    "learned slopes": (
        lambda m, t, *x: flex_attention(*x, score_mod=slopes_of(m)),
        lambda m, t, *x: written_out(*x, slopes_of(m)), False,
    ),
}  # fmt: skip
"""FlexAttention, the same by hand, and whether a kernel runs it."""


def trained(attend: Attend, n_steps: int = 3) -> list[float]:
    """The losses of eager steps."""
    torch.manual_seed(0)
    model = Model(attend)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = loss_of(model, TOKENS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def parallelized(attend: Attend, **options: Any) -> Any:
    torch.manual_seed(0)
    model = Model(attend)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return parallelize(model, optimizer, loss_of, cluster=CLUSTER, stages=1, **options)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_with_its_scores_written_out(name: str) -> None:
    attend, by_hand, has_kernel = CASES[name]
    if name == "compiled":
        compiled()  # users do so before a step
    step = parallelized(attend)
    assert [float(step(TOKENS)) for _ in range(3)] == pytest.approx(trained(by_hand), rel=2e-6)
    kinds = {op.kind for op in step.plan.stages[0].sharding.graph.operators}
    assert (KERNEL in kinds) == has_kernel
    assert not step.plan.unsharded
    assert step.verify(TOKENS)


def test_causal_rows_are_split_and_need_no_mask() -> None:
    attend, by_hand, _ = CASES["causal"]
    pin = {KERNEL: "RRS0R,RRS0R", f"{KERNEL}_backward": "RRS0R,RRS0R,RRS0R"}
    step = parallelized(attend, mesh=(1, 4), microbatches=1, pin=pin)
    assert [float(step(TOKENS)) for _ in range(3)] == pytest.approx(trained(by_hand), rel=2e-6)
    values = step.plan.stages[0].sharding.graph.values
    assert not any(value.shape[-2:] == (T, T) for value in values)
    assert {"collective_permute"} <= {c.kind for c in step.plan.stages[0].collectives}


def test_masks_and_what_they_read_may_change_between_calls() -> None:
    def attend(m: Any, t: Any, *qkv: torch.Tensor) -> torch.Tensor:
        return flex_attention(*qkv, block_mask=m.mask)

    def losses(step: Any, model: Any) -> list[float]:
        found = [float(step())]
        model.mask = SLIDING
        found.append(float(step()))
        WINDOW[0] = 2
        found.append(float(step()))
        WINDOW[0] = 16
        return found

    parallel = parallelized(attend, microbatches=1)
    ours = losses(lambda: parallel(TOKENS), parallel.model)
    torch.manual_seed(0)
    model = Model(lambda m, t, *x: written_out(*x, seen=m.mask.mask_mod))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def eager() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, TOKENS)
        loss.backward()
        optimizer.step()
        return loss.item()

    assert ours == pytest.approx(losses(eager, model), rel=2e-6)


def test_a_model_of_hugging_face_compiles_its_attention_in_its_first_step() -> None:
    def losses(attention: str) -> list[float]:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=1, head_dim=16,
            num_attention_heads=4, num_key_value_heads=2, attn_implementation=attention,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(tokens: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = step
        if attention == "flex_attention":
            call = parallelize_step(step, model, optimizer, cluster=CLUSTER, stages=1)
        return [float(call(TOKENS)) for _ in range(3)]

    assert losses("flex_attention") == pytest.approx(losses("eager"), rel=2e-6)


def test_what_a_step_compiles_is_compiled_where_it_is_called_outside() -> None:
    compiled_there: list[Any] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        if not compiled_there:
            compiled_there.append(torch.compile(torch.sin, backend=backend))
        optimizer.zero_grad()
        loss = compiled_there[0](linear(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    graphs: list[Any] = []
    torch.manual_seed(0)
    linear = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(linear.parameters(), 0.1)
    parallel = parallelize_step(step, linear, optimizer, cluster=CLUSTER, stages=1)
    found = [float(parallel(torch.ones(8, 4))) for _ in range(2)]
    assert found[1] < found[0]
    assert not graphs
    (function,) = compiled_there
    assert torch.equal(function(torch.ones(2)), torch.ones(2).sin())
    assert len(graphs) == 1


def test_only_masks_that_cannot_be_anything_else_are_causal() -> None:
    for mask in (causal, lambda b, h, q, kv: kv <= q, lambda b, h, q, kv: ~(kv > q)):
        assert is_causal_mask(mask, 64)
    others: list[Any] = [
        lambda b, h, q, kv: q > kv,
        lambda b, h, q, kv: q <= kv,
        lambda b, h, q, kv: (q >= kv) & (q - kv < 10**6),  # a number, so not recognised
        lambda b, h, q, kv: (q >= kv) & (q >= WINDOW[0]),  # may change
        lambda b, h, q, kv, w=3000: (q >= kv) & (q - kv < w),
        of_heads,
        lambda b, h, q, kv: q >= kv + b,
        lambda b, h, q, kv: b,
        torch.ge,
    ]
    assert not any(is_causal_mask(mask, 64) for mask in others)
