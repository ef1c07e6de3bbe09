"""PyTorch models by name for the command line: those of Hugging Face, without their weights.

Whatever else `transformers` has is planned from its `config.json`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from frontends.errors import PlanError

if TYPE_CHECKING:
    import torch

_NAMES = {
    "n_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
}
"""What the sizes that can be changed are called by all configurations of `transformers`."""


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A configuration of `transformers`, and what a step of its training has."""

    architecture: str
    """The class of the model."""

    config: Mapping[str, Any]
    """What differs from the defaults of its configuration, `model_type` among it."""

    batch: int
    """Sequences."""

    sequence: int
    """Tokens of each."""

    source: str

    def make(self, sizes: Mapping[str, int]) -> tuple[Any, Any, Any, Any]:
        """Model, optimizer, loss and batch, all without values.

        Weights are float32; what autocast computes in bfloat16 is. Experts, if there are some, run
        as one batch, so that a step does the same whatever its tokens are.

        Args:
            sizes: Instead of the model's: `n_layers`, `d_model`, `n_heads`, `sequence`, `batch`.

        Raises:
            PlanError: There is no such model, it cannot have these sizes, or learns no tokens.
        """
        import torch
        import transformers

        changed = {_NAMES[size]: n for size, n in sizes.items() if size in _NAMES}
        sequence = sizes.get("sequence", self.sequence)
        kind = getattr(transformers, self.architecture, None)
        if kind is None:
            raise PlanError(
                f"a model is a class of transformers; version {transformers.__version__} has no "
                f"{self.architecture}"
            )
        try:
            config = transformers.AutoConfig.for_model(**{**self.config, **changed})
            with torch.device("meta"):
                model = kind(config)
        except Exception as error:  # of many kinds, for what a configuration may not have
            why = " ".join(str(error).split())
            raise PlanError(f"transformers makes no {self.architecture} so: {why}") from error
        _check(config, sequence)
        taken = inspect.signature(model.forward).parameters
        if not {"input_ids", "labels"} <= taken.keys():
            raise PlanError(
                f"models by name and by configuration learn tokens, in input_ids and labels; "
                f"{self.architecture} takes {', '.join(taken)}: plan it by FILE.py:FUNCTION"
            )
        if hasattr(config, "num_local_experts"):
            model.set_experts_implementation("batched_mm")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        shape = sizes.get("batch", self.batch), sequence
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        return model, optimizer, loss_of, {"input_ids": tokens, "labels": tokens}


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss that a model of `transformers` computes itself."""
    import torch

    with torch.autocast("cpu", torch.bfloat16):
        loss: torch.Tensor = model(**batch).loss
    return loss


def _check(config: Any, sequence: int) -> None:
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    if heads % shared:
        raise PlanError(
            "n_heads must be a multiple of the heads of keys and values, each of which serves as "
            f"many; got n_heads={heads} and {shared} heads of keys and values"
        )
    most = getattr(config, "max_position_embeddings", sequence)
    if sequence > most:
        raise PlanError(f"the model has {most} positions; got sequence={sequence}")


def from_config(path: Path) -> TorchModel:
    """The model of a `config.json`, as `save_pretrained` and the hub have them.

    Its batch is left open: whoever makes it says `batch` and `sequence`.

    Raises:
        PlanError: The file is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        (architecture, *_) = found["architectures"]
        found["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(
            "a configuration of transformers is a JSON object with model_type and architectures; "
            f"{path}: {type(error).__name__}: {error}"
        ) from error
    return TorchModel(architecture, found, 0, 0, str(path))


def _llama_3(width: int, n_layers: int, n_heads: int, inner: int) -> TorchModel:
    """A row of Table 3 of the paper; vocabulary and positions are those of its configuration."""
    config = {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": width,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": 8,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        "use_cache": False,
    }
    return TorchModel("LlamaForCausalLM", config, 64, 8192, "Llama 3 (arXiv 2407.21783), Table 3")


TORCH_MODELS: Mapping[str, TorchModel] = MappingProxyType(
    {
        "llama-tiny": TorchModel(
            "LlamaForCausalLM",
            {
                "model_type": "llama",
                "vocab_size": 64,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 64,
                "use_cache": False,
            },
            8,
            16,
            "for tests",
        ),
        "gpt2": TorchModel(
            "GPT2LMHeadModel",
            {"model_type": "gpt2", "use_cache": False},
            512,
            1024,
            "GPT-2 (Radford et al., 2019), Table 2, section 2.3",
        ),
        "bert-large": TorchModel(
            "BertForMaskedLM",
            {
                "model_type": "bert",
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
            256,
            512,
            "BERT (Devlin et al., NAACL 2019), section 3 and appendix A.2",
        ),
        "llama-3-8b": _llama_3(4096, 32, 32, 14_336),
        "llama-3-70b": _llama_3(8192, 80, 64, 28_672),
        "mixtral-8x7b": TorchModel(
            "MixtralForCausalLM",
            {
                "model_type": "mixtral",
                "vocab_size": 32_000,
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14_336,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "max_position_embeddings": 32_768,
                "use_cache": False,
            },
            64,
            4096,
            "Mixtral of Experts (arXiv 2401.04088), Table 1",
        ),
    }
)
"""By name, from small to large; batches are ours where the source says none."""
