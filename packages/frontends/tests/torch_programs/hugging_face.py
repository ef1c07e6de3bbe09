"""Models of transformers from small configurations, with random weights and their usual loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, needed

_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def _tokens(data: Data, n: int = 4, length: int = 8) -> dict[str, Tensor]:
    tokens = data.classes(32, n, length)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _trained(way: Any, model: Any, batches: Any, lr: float = 0.1) -> Iterator[Any]:
    """The loop of the library's examples: a linear schedule, and `model(**batch).loss`."""
    transformers = needed("transformers")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, 8)
    step = way.loss(model, optimizer, lambda m, b: m(**b).loss)
    for batch in batches:
        yield step(batch)
        schedule.step()


def _encoded(batch: dict[str, Tensor]) -> Any:
    return needed("transformers").BatchEncoding(batch)


@program(rtol=1e-4)
def gpt2(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = transformers.GPT2LMHeadModel(config)
    yield from _trained(way, model, (_encoded(_tokens(data, n)) for n in (4, 4, 2, 4)))


@program(rtol=1e-4, devices=4)
def mixtral(way: Any) -> Iterator[Any]:
    """Experts without capacity, which sort the rows of a batch."""
    transformers, data = needed("transformers"), Data()
    config = transformers.MixtralConfig(
        vocab_size=32, num_key_value_heads=1, num_local_experts=4, **_SMALL
    )
    model = transformers.MixtralForCausalLM(config)
    yield from _trained(way, model, (_encoded(_tokens(data, n)) for n in (4, 4, 2, 4)))


@program(rtol=1e-4, devices=4)
def llama_of_other_lengths(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=1, **_SMALL)
    model = transformers.LlamaForCausalLM(config)
    yield from _trained(way, model, (_tokens(data, 4, n) for n in (8, 6, 8, 12)))


@program(rtol=1e-4)
def bert_with_padding(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.BertConfig(vocab_size=32, num_labels=3, **_SMALL)
    model = transformers.BertForSequenceClassification(config)

    def batches() -> Iterator[Any]:
        for i in range(4):
            mask = (torch.arange(8) < torch.tensor([[8], [3 + i], [5], [8 - i]])).long()
            tokens = data.classes(32, 4, 8)
            labels = data.classes(3, 4)
            yield _encoded({"input_ids": tokens, "attention_mask": mask, "labels": labels})

    yield from _trained(way, model, batches())


@program(rtol=1e-4)
def t5(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    yield from _trained(way, model, (_encoded(_tokens(data)) for _ in range(4)))


@program(rtol=1e-4)
def vit(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **_SMALL)
    model = transformers.ViTForImageClassification(config)
    batches = (
        {"pixel_values": data.normal(n, 3, 8, 8), "labels": data.classes(3, n)}
        for n in (4, 4, 3, 4)
    )
    yield from _trained(way, model, batches)


@program(rtol=1e-4)
def evaluated_between(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=2, **_SMALL)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = way.loss(model, optimizer, lambda m, b: m(**b).loss)
    for _ in range(3):
        model.train()
        loss = step(_encoded(_tokens(data)))
        model.eval()
        with torch.no_grad():
            yield loss, model(**_tokens(data)).loss


@program(rtol=1e-4)
def whole_step_returning_the_output(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.DistilBertConfig(
        vocab_size=32, dim=16, n_layers=2, n_heads=2, hidden_dim=24
    )
    model = transformers.DistilBertForMaskedLM(config)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(batch: Any) -> Any:
        output = model(**batch)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return output

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(_encoded(_tokens(data)))["loss"].detach()


@program(rtol=1e-4)
def frozen_backbone_then_all(way: Any) -> Iterator[Any]:
    transformers, data = needed("transformers"), Data()
    config = transformers.BertConfig(vocab_size=32, num_labels=3, **_SMALL)
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = way.loss(model, optimizer, lambda m, b: m(**b).loss)
    for i in range(4):
        model.bert.requires_grad_(i >= 2)
        tokens, labels = data.classes(32, 4, 8), data.classes(3, 4)
        yield step({"input_ids": tokens, "labels": labels})


@program(rtol=1e-4)
def low_rank_adapters(way: Any) -> Iterator[Any]:
    """LoRA by hand: the backbone is frozen, its layers are wrapped, the adapters are merged."""
    transformers, data = needed("transformers"), Data()
    config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=2, **_SMALL)
    model = transformers.LlamaForCausalLM(config).requires_grad_(False)

    class Adapted(torch.nn.Module):
        def __init__(self, base: torch.nn.Linear) -> None:
            super().__init__()
            self.base, self.scale = base, 1.0
            self.a = torch.nn.Parameter(torch.randn(2, base.in_features) * 0.1)
            self.b = torch.nn.Parameter(torch.zeros(base.out_features, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)

    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.5)
    step = way.loss(model, optimizer, lambda m, b: m(**b).loss)
    for i in range(4):
        for layer in model.model.layers:
            layer.self_attn.q_proj.scale = 1.0 + i
        yield step(_tokens(data))
