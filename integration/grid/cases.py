"""Models and clusters whose found plans are compared with the grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from costmodel import Cluster
from zoo import bert, gpt, moe, unet, vgg, vit, wide_resnet
from zoo.example import Example

CLUSTERS: dict[str, Cluster] = {
    name: Cluster.preset(name.split(":")[0]).resized(n_hosts=int(name.split(":")[1]))
    for name in (
        "p3.8xlarge:2",
        "p3.16xlarge:1",
        "p3.16xlarge:2",
        "dgx-a100:1",
        "h100-sxm:1",
        "h100-sxm:2",
    )
}


@dataclass(frozen=True)
class Case:
    """A model of the zoo in float32, and the examples of a step."""

    module: ModuleType
    config: str
    batch: int

    def example(self) -> Example:
        """The training step."""
        made: Example = self.module.make(self.module.CONFIGS[self.config], batch=self.batch)
        return made


MODELS: dict[str, Case] = {
    case.config: case
    for case in (
        Case(gpt, "gpt-350m", 256),
        Case(gpt, "gpt-1.3b", 128),
        Case(gpt, "gpt-2.6b", 128),
        Case(bert, "bert-base", 256),
        Case(bert, "bert-large", 256),
        Case(vit, "vit-base-16", 1024),
        Case(vit, "vit-huge-14", 512),
        Case(moe, "moe-380m", 128),
        Case(moe, "moe-2.4b", 128),
        Case(wide_resnet, "wide-resnet-250m", 128),
        Case(unet, "unet-29m", 64),
        Case(vgg, "vgg19-1m", 256),
    )
}

DAY: Mapping[str, tuple[Case, Cluster]] = {
    "gpt-tiny, four hosts": (
        Case(gpt, "gpt-tiny", 16),
        Cluster.preset("two-hosts").resized(n_hosts=4, devices_per_host=1),
    ),
    "vit-tiny, half a p3": (Case(vit, "vit-tiny", 64), Cluster.preset("p3.8xlarge")),
    "moe-tiny, two hosts": (Case(moe, "moe-tiny", 16), Cluster.preset("two-hosts")),
}
"""Small enough to plan in seconds."""
