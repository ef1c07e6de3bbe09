"""The cases that are tested and tabulated: small models in all variants, and the papers' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import jax
from costmodel import Cluster

from zoo import bert, gpt, gpt_equinox, gpt_linen, gpt_nnx, moe, unet, vgg, vit, wide_resnet
from zoo.check import TWO_HOSTS, Reference, refer
from zoo.example import Example, adamw, n_parameters
from zoo.optimizers import OPTIMIZERS

P3 = Cluster.preset("p3.16xlarge")
"""Hosts of eight V100 with 16 GB each, as in Alpa's testbed."""


@dataclass(frozen=True)
class Case:
    """A model, its variant, and the cluster that it is to run on."""

    module: ModuleType
    config: str
    cluster: Cluster = TWO_HOSTS
    batch: int = 8
    microbatches: int = 2
    variant: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: int | None = None
    """Memory limit of a device, in place of the cluster's."""
    seed: int = 0
    """The seed of weights and batches."""
    nudge: bool = False
    """See `zoo.check.refer`."""

    def reference(self) -> Reference:
        """Some steps of the case on one device."""
        return refer(self.example(), seed=self.seed, nudge=self.nudge)

    def example(self) -> Example:
        """The training step and its arguments."""
        example: Example = self.module.make(
            self.module.CONFIGS[self.config], batch=self.batch, **self.variant
        )
        return example

    @property
    def n_parameters(self) -> int:
        """Parameters of the model, with those of an optimizer that is in the same argument."""
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
    "gpt, dropout": _gpt(dropout=0.1),
    "gpt, scan over layers": _gpt(scan=True),
    "gpt, scan with dropout and remat": _gpt(scan=True, dropout=0.1, remat=True),
    "gpt, mean over text without padding": _gpt(padded=True),
    **{f"gpt, {name}": _gpt(optimizer=make()) for name, make in OPTIMIZERS.items()},
}
SMALL |= {
    # With seed 0, two numbers in a window of its max pool are so close that changing the weights
    # by one unit in the last place moves first.kernel by 2 % on one device.
    "wide-resnet": Case(
        wide_resnet,
        "wide-resnet-small",
        variant={"optimizer": adamw(1e-3)},
        seed=1,
        nudge=True,
    ),
    # Norms over the batch amplify the rounding of each step in the next one. They do so less with
    # small steps and large batches, for which one device itself still keeps five digits.
    "wide-resnet, batch norm": Case(
        wide_resnet,
        "wide-resnet-tiny",
        batch=32,
        microbatches=1,
        variant={"norm": "batch", "optimizer": adamw(1e-3)},
    ),
    "unet": Case(unet, "unet-tiny"),
    "vgg13": Case(vgg, "vgg13-tiny", variant={"has_dropout": True}),
    "vgg19": Case(vgg, "vgg19-tiny"),
}
del SMALL["gpt, adamw"]  # it is the same as "gpt"

_MIXED = {"dtype": "float16"}  # a V100 has no bfloat16


def _full(
    module: ModuleType, name: str, hosts: int, batch: int, microbatches: int, **variant: Any
) -> Case:
    return Case(module, name, P3.resized(n_hosts=hosts), batch, microbatches, variant)


_MOE_70B = replace(
    _full(moe, "moe-70b", 8, 1024, 64, remat=True, **_MIXED), memory_bytes=32 * 2**30
)
"""State and gradients take 1.13 TB, but 64 devices of 16 GiB have only 1.10 TB."""


FULL: dict[str, Case] = {
    "gpt-2.6b": _full(gpt, "gpt-2.6b", 1, 1024, 64, remat=True, **_MIXED),
    "gpt-6.7b": _full(gpt, "gpt-6.7b", 2, 1024, 64, remat=True, **_MIXED),
    "gpt-15b": _full(gpt, "gpt-15b", 4, 1024, 64, remat=True, **_MIXED),
    "gpt-39b": _full(gpt, "gpt-39b", 8, 1024, 64, remat=True, **_MIXED),
    "moe-2.4b": _full(moe, "moe-2.4b", 1, 1024, 64, remat=True, **_MIXED),
    "moe-10b": _full(moe, "moe-10b", 2, 1024, 64, remat=True, **_MIXED),
    "moe-27b": _full(moe, "moe-27b", 4, 1024, 64, remat=True, **_MIXED),
    "moe-70b": _MOE_70B,
    "wide-resnet-2b": _full(wide_resnet, "wide-resnet-2b", 1, 1536, 24),
    "wide-resnet-4b": _full(wide_resnet, "wide-resnet-4b", 2, 1536, 48),
    "wide-resnet-6.8b": _full(wide_resnet, "wide-resnet-6.8b", 4, 1536, 24),
    "wide-resnet-13b": _full(wide_resnet, "wide-resnet-13b", 8, 1536, 24),
    "bert-large": _full(bert, "bert-large", 1, 256, 8),
    "vit-huge-14": _full(vit, "vit-huge-14", 1, 256, 8),
    "unet-93m": _full(unet, "unet-93m", 1, 64, 8),
    "vgg19-1m": _full(vgg, "vgg19-1m", 1, 256, 8),
}
"""GPT, mixtures of experts and Wide-ResNet on Alpa's clusters with Alpa's global batches (Table 4);
the paper does not say which numbers of microbatches it tuned. The others on one of Alpa's hosts
[chosen]."""
