"""JAX models by name for the command line: the GPT family of Alpa, and small ones.

Names agree with the model zoo in `integration/zoo`, which has more kinds of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from frontends.models.gpt import GPTConfig


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and the batch that it is trained with."""

    config: GPTConfig
    batch: int
    """Sequences in a step."""

    source: str


_ALPA = GPTConfig(sequence=1024, vocabulary=51_200, dtype="float16", remat=True)


def _alpa(width: int, n_layers: int, n_heads: int) -> Model:
    """A row of Alpa's Table 6.

    Batch and precision are from its Table 4, sequence and vocabulary from appendix B, remat from
    section 9.
    """
    config = replace(_ALPA, n_layers=n_layers, d_model=width, n_heads=n_heads)
    return Model(config, 1024, "Alpa (OSDI 2022), Table 6")


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "gpt-bytes": Model(GPTConfig(), 16, "the demo: learns text on a laptop"),
        "gpt-tiny": Model(GPTConfig(2, 32, 4, 8, vocabulary=64), 8, "for tests"),
        "gpt-small": Model(GPTConfig(4, 64, 4, 16, vocabulary=128), 8, "for tests"),
        "gpt-350m": _alpa(1024, 24, 16),
        "gpt-1.3b": _alpa(2048, 24, 32),
        "gpt-2.6b": _alpa(2560, 32, 32),
        "gpt-6.7b": _alpa(4096, 32, 32),
        "gpt-15b": _alpa(5120, 48, 32),
        "gpt-39b": _alpa(8192, 48, 64),
    }
)
"""By name, from small to large."""
