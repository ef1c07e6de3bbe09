"""What is tested and tabulated: small models in all their variants, and the papers' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import jax
from costmodel import Cluster

from zoo import bert, gpt, gpt_equinox, gpt_linen, gpt_nnx, moe, vit
from zoo.check import TWO_HOSTS
from zoo.example import Example, n_parameters
from zoo.optimizers import OPTIMIZERS

P3 = Cluster.preset("p3.16xlarge")
"""Hosts of eight V100 with 16 GB, Alpa's testbed."""


@dataclass(frozen=True)
class Case:
    """A model, a variant of it, and where it is to run."""

    module: ModuleType
    config: str
    cluster: Cluster = TWO_HOSTS
    batch: int = 8
    microbatches: int = 2
    variant: Mapping[str, Any] = field(default_factory=dict)

    def example(self) -> Example:
        """The training step and its arguments."""
        made: Example = self.module.make(
            self.module.CONFIGS[self.config], batch=self.batch, **self.variant
        )
        return made

    @property
    def n_parameters(self) -> int:
        """Of the model, and of an optimizer that lies in the same argument."""
        return n_parameters(jax.tree.leaves(self.example().arguments[0]))


def _gpt(**variant: Any) -> Case:
    return Case(gpt, "gpt-tiny", variant=variant)


SMALL: dict[str, Case] = {
    "gpt": _gpt(),
    "moe": Case(moe, "moe-tiny"),
    "bert": Case(bert, "bert-tiny"),
    "dnabert": Case(bert, "dnabert-tiny"),
    "vit": Case(vit, "vit-tiny"),
    "gpt, flax linen": Case(gpt_linen, "gpt-tiny"),
    "gpt, flax nnx": Case(gpt_nnx, "gpt-tiny"),
    "gpt, equinox": Case(gpt_equinox, "gpt-tiny"),
    "gpt, output layer of its own": _gpt(tied=False),
    "gpt, bfloat16": _gpt(dtype="bfloat16"),
    "gpt, rematerialised": _gpt(remat=True),
    "gpt, loss with its own gradient": _gpt(custom_vjp=True),
    "gpt, averaged weights": _gpt(average=0.9),
    **{f"gpt, {name}": _gpt(optimizer=make()) for name, make in OPTIMIZERS.items()},
}
del SMALL["gpt, adamw"]  # which "gpt" is

FULL: dict[str, Case] = {
    name: Case(module, name, P3.resized(n_hosts=hosts), 1024, microbatches, {"dtype": "bfloat16"})
    for module, name, hosts, microbatches in (
        (gpt, "gpt-2.6b", 1, 64),
        (gpt, "gpt-6.7b", 2, 64),
        (gpt, "gpt-15b", 4, 64),
        (gpt, "gpt-39b", 8, 64),
        (moe, "moe-2.4b", 1, 64),
        (moe, "moe-10b", 2, 64),
        (moe, "moe-27b", 4, 64),
        (moe, "moe-70b", 8, 64),
    )
}
"""Alpa's clusters and global batch (Table 4); its microbatches are tuned and not told."""
