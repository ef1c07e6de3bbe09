"""PyTorch models by name for the command line: models of Hugging Face, without their weights.

Other models of `transformers` can be planned from their `config.json`.
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
"""By size that can be changed, its name in all configurations of `transformers`."""


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A configuration of `transformers`, and the batch that it is trained with."""

    architecture: str
    """The class of the model."""

    config: Mapping[str, Any]
    """The `model_type`, and the entries that differ from the defaults of its configuration."""

    batch: int
    """Sequences in a step."""

    sequence: int
    """Tokens of a sequence."""

    source: str

    def make(self, sizes: Mapping[str, int]) -> tuple[Any, Any, Any, Any]:
        """Model, optimizer, loss and batch, all without values.

        Weights are float32, operators under autocast bfloat16. All experts of a model run as one
        batched product, so that the operators of a step do not depend on the tokens.

        Args:
            sizes: Sizes that replace the model's: `n_layers`, `d_model`, `n_heads`, `sequence`,
                `batch`.

        Raises:
            PlanError: transformers does not have the model, it cannot have these sizes, or it does
                not learn tokens.
        """
        import torch
        import transformers

        changed = {_NAMES[size]: n for size, n in sizes.items() if size in _NAMES}
        sequence = sizes.get("sequence", self.sequence)
        kind = getattr(transformers, self.architecture, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            raise PlanError(
                f"a model is a class of transformers; version {transformers.__version__} has no "
                f"model {self.architecture}"
            )
        try:
            config = transformers.AutoConfig.for_model(**{**_data_of(self.config), **changed})
            with torch.device("meta"):
                model = kind(config)
        except Exception as error:  # an invalid configuration raises errors of many types
            why = " ".join(str(error).split())
            raise PlanError(
                f"transformers cannot make a {self.architecture} of this configuration: {why}"
            ) from error
        _check(config, sequence)
        parameters = inspect.signature(model.forward).parameters
        if not {"input_ids", "labels"} <= parameters.keys():
            raise PlanError(
                f"models by name and by configuration learn tokens, in input_ids and labels; "
                f"{self.architecture} takes {', '.join(parameters)}: plan it by FILE.py:FUNCTION"
            )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        shape = sizes.get("batch", self.batch), sequence
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        return model, optimizer, loss_of, {"input_ids": tokens, "labels": tokens}


def _data_of(config: Any) -> Any:
    """A configuration without the names of code that transformers would fetch for it, and run."""
    if isinstance(config, list):
        return [_data_of(value) for value in config]
    if not isinstance(config, Mapping):
        return config
    return {
        key: _data_of(value)
        for key, value in config.items()
        if key not in ("auto_map", "custom_pipelines") and "_implementation" not in key
    }


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss that a model of `transformers` computes itself, under autocast to bfloat16."""
    import torch

    with torch.autocast("cpu", torch.bfloat16):
        loss: torch.Tensor = model(**batch).loss
    return loss


def _check(config: Any, sequence: int) -> None:
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    if heads % shared:
        raise PlanError(
            "n_heads must be a multiple of the number of heads of keys and values, each of which "
            f"serves equally many; got n_heads={heads} and {shared} heads of keys and values"
        )
    most = getattr(config, "max_position_embeddings", sequence)
    if sequence > most:
        raise PlanError(f"the model has {most} positions; got sequence={sequence}")


def from_config(path: Path) -> TorchModel:
    """The model of a `config.json`, as `save_pretrained` writes it.

    It has no batch: `make` needs sizes with `batch` and `sequence`.

    Raises:
        PlanError: The file is not such a configuration.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        (architecture, *_) = config["architectures"]
        if not isinstance(architecture, str) or not isinstance(config["model_type"], str):
            raise TypeError(f"{architecture!r:.60} and {config['model_type']!r:.60} are names")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PlanError(
            "a configuration of transformers is a JSON object with model_type and architectures; "
            f"{path}: {type(error).__name__}: {error}"
        ) from error
    return TorchModel(architecture, config, 0, 0, str(path))


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
"""By name, from small to large; batches are our choice if the source does not state one."""
