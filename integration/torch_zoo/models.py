"""Small models with random weights: models of Hugging Face, and convolutions in plain torch.

Every model takes a batch as keywords and returns its loss, as the models of Hugging Face do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from torch_zoo.convolutions import UNet, Vgg, WideResNet

BATCH, TOKENS, WORDS, WIDTH = 8, 16, 64, 32


@dataclass(frozen=True)
class Case:
    """A model and the batches that it is trained on."""

    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]
    microbatches: int = 2


def _tokens() -> dict[str, torch.Tensor]:
    """Text with some padding, which the loss does not count."""
    tokens = torch.randint(1, WORDS, (BATCH, TOKENS))
    mask = torch.ones_like(tokens)
    mask[::3, -4:] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": torch.where(mask == 1, tokens, -100),
    }


def _images() -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.randn(BATCH, 3, 16, 16),
        "labels": torch.randint(0, 4, (BATCH,)),
    }


def _sounds() -> dict[str, torch.Tensor]:
    return {
        "input_features": torch.randn(BATCH, 8, 32),
        "labels": torch.randint(0, WORDS, (BATCH, TOKENS)),
    }


def _text(name: str, of: str, **sizes: Any) -> Case:
    """A model of text: `transformers.{name}For{of}` with a configuration `{name}Config`."""

    def make() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(vocab_size=WORDS, **sizes)
        model: nn.Module = getattr(transformers, f"{name}For{of}")(config)
        return model

    return Case(make, _tokens)


_LLAMA: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": TOKENS,
    "pad_token_id": 0,
}
_GPT: dict[str, Any] = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": TOKENS}
_BART: dict[str, Any] = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "decoder_start_token_id": 1,
}


def _vit() -> nn.Module:
    text = ("max_position_embeddings", "pad_token_id")
    sizes = {key: value for key, value in _LLAMA.items() if key not in text} | {"num_labels": 4}
    config = transformers.ViTConfig(image_size=16, patch_size=4, **sizes)
    return transformers.ViTForImageClassification(config)


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=WORDS,
        max_source_positions=16,
        max_target_positions=TOKENS,
        num_mel_bins=8,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **_BART,
    )
    return transformers.WhisperForConditionalGeneration(config)


MODELS: dict[str, Case] = {
    "GPT-2": Case(
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **_GPT)
        ),
        _tokens,
    ),
    "GPT-NeoX": _text("GPTNeoX", "CausalLM", **_LLAMA),
    "GPT-J": _text("GPTJ", "CausalLM", rotary_dim=4, bos_token_id=0, eos_token_id=0, **_GPT),
    "BLOOM": _text("Bloom", "CausalLM", hidden_size=WIDTH, n_layer=2, n_head=4),
    "OPT": _text(
        "OPT",
        "CausalLM",
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=TOKENS,
        word_embed_proj_dim=WIDTH,
    ),
    "Llama": _text("Llama", "CausalLM", num_key_value_heads=2, **_LLAMA),
    "Mistral": _text("Mistral", "CausalLM", num_key_value_heads=2, sliding_window=8, **_LLAMA),
    "Mixtral": _text("Mixtral", "CausalLM", num_key_value_heads=2, num_local_experts=4, **_LLAMA),
    "Qwen2": _text("Qwen2", "CausalLM", num_key_value_heads=2, **_LLAMA),
    "Phi": _text("Phi", "CausalLM", **_LLAMA),
    "Gemma": _text("Gemma", "CausalLM", num_key_value_heads=2, head_dim=8, **_LLAMA),
    "Falcon": _text(
        "Falcon",
        "CausalLM",
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "T5": _text(
        "T5",
        "ConditionalGeneration",
        d_model=WIDTH,
        num_layers=2,
        num_heads=4,
        d_kv=8,
        d_ff=64,
        decoder_start_token_id=0,
    ),
    "BART": _text("Bart", "ConditionalGeneration", max_position_embeddings=TOKENS, **_BART),
    "BERT": _text("Bert", "MaskedLM", **_LLAMA),
    "RoBERTa": _text("Roberta", "MaskedLM", **{**_LLAMA, "max_position_embeddings": TOKENS + 1}),
    "DistilBERT": _text(
        "DistilBert",
        "MaskedLM",
        dim=WIDTH,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=TOKENS,
    ),
    "ViT": Case(_vit, _images),
    "Whisper": Case(_whisper, _sounds),
    "VGG": Case(Vgg, _images),
    "Wide-ResNet": Case(WideResNet, _images, microbatches=1),
    "U-Net": Case(UNet, _images),
}
"""By the name under which a model is known."""
