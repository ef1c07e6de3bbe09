"""Compiles a plan of a model and computes its memory on each device; nothing is run or timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import frontends.jax as mw
from costmodel import Cluster
from frontends.jax.run.runtime import Runtime
from frontends.jax.run.verify import measured_peaks
from frontends.program.liveness import peaks_of
from frontends.search.plan_options import Strategy
from zoo import bert, gpt, moe, unet, vgg, vit, wide_resnet
from zoo.check import ONE_HOST, TWO_HOSTS
from zoo.example import Example

BATCH = 8

MEMORY_BYTES = 16 * 2**30
"""Memory of a device, as on a V100. The machine need not have it, because nothing runs."""

MODELS: dict[str, Callable[[], Example]] = {
    "gpt, width 512": lambda: gpt.make(
        gpt.Config(512, 2, 8, sequence=128, vocabulary=2048), batch=BATCH
    ),
    "gpt, width 32": lambda: gpt.make(gpt.CONFIGS["gpt-tiny"], batch=BATCH),
    "gpt, width 32, bfloat16": lambda: gpt.make(
        gpt.CONFIGS["gpt-tiny"], batch=BATCH, dtype="bfloat16"
    ),
    "moe, width 32": lambda: moe.make(moe.CONFIGS["moe-tiny"], batch=BATCH),
    "bert, width 32": lambda: bert.make(bert.CONFIGS["bert-tiny"], batch=BATCH),
    "vit, width 32": lambda: vit.make(vit.CONFIGS["vit-tiny"], batch=BATCH),
    "wide-resnet-250m": lambda: wide_resnet.make(wide_resnet.CONFIGS["wide-resnet-250m"], batch=16),
    "unet-29m": lambda: unet.make(unet.CONFIGS["unet-29m"], batch=32),
    "vgg13": lambda: vgg.make(vgg.CONFIGS["vgg13"], batch=16),
    "wide-resnet, 14 layers": lambda: wide_resnet.make(
        wide_resnet.CONFIGS["wide-resnet-small"], batch=BATCH
    ),
    "unet, tiny": lambda: unet.make(unet.CONFIGS["unet-tiny"], batch=BATCH),
    "vgg13, 50,000 classes": lambda: vgg.make(
        vgg.Config(vgg.VGG13, 4, 128, image=32, n_classes=50_000), batch=BATCH
    ),
}

CLUSTERS: dict[str, Cluster] = {"4": ONE_HOST, "2x2": TWO_HOSTS}

RUNS: tuple[tuple[str, str, Strategy, int], ...] = (
    ("gpt, width 512", "4", "data_parallel", 2),
    ("gpt, width 512", "4", "megatron", 2),
    ("gpt, width 512", "4", "zero", 2),
    ("gpt, width 512", "2x2", "equal_layers", 4),
    ("gpt, width 512", "2x2", "search", 2),
    ("gpt, width 32", "2x2", "equal_layers", 4),
    ("gpt, width 32, bfloat16", "2x2", "equal_layers", 4),
    ("moe, width 32", "2x2", "equal_layers", 4),
    ("bert, width 32", "2x2", "equal_layers", 4),
    ("vit, width 32", "4", "megatron", 2),
    ("wide-resnet-250m", "4", "zero", 2),
    ("wide-resnet-250m", "2x2", "equal_layers", 4),
    ("unet-29m", "4", "data_parallel", 2),
    ("unet-29m", "4", "zero", 2),
    ("unet-29m", "2x2", "equal_layers", 4),
    ("vgg13", "4", "data_parallel", 2),
    ("vgg13", "4", "zero", 2),
    ("vgg13", "2x2", "equal_layers", 4),
)
"""Model, cluster, strategy and microbatches."""

COPIED: tuple[tuple[str, str, Strategy, int], ...] = (
    ("wide-resnet, 14 layers", "4", "zero", 2),
    ("wide-resnet, 14 layers", "2x2", "equal_layers", 2),
    ("unet, tiny", "2x2", "equal_layers", 2),
    ("vgg13, 50,000 classes", "4", "megatron", 2),
    ("vgg13, 50,000 classes", "2x2", "equal_layers", 2),
)
"""Runs in which the copies that XLA makes on CPUs for convolutions are a large part of the peak."""


@dataclass(frozen=True, slots=True)
class Row:
    """The peak memory of one stage on a device, in bytes."""

    model: str
    cluster: str
    strategy: str
    microbatches: int
    schedule: str
    stage: int
    planned: int
    live: int
    """The peak by the live ranges of the instructions."""

    measured: int
    """The peak by XLA's account of the programs, and of the values between instructions."""


def measure(model: str, cluster: str, strategy: Strategy, microbatches: int) -> list[Row]:
    """The rows of one plan; its state is donated, as a plan assumes."""
    example, on = MODELS[model](), CLUSTERS[cluster]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "planned without microbatches")
        planned = mw.plan_for(
            example.step,
            example.arguments,
            on,
            strategy=strategy,
            microbatches=microbatches,
            batch_argnums=example.batch_argnums,
            memory_bytes=MEMORY_BYTES,
        )
    run = Runtime(planned.trace, planned.layered, planned.plan, on, donate=True)
    stages = zip(
        planned.plan.stages,
        peaks_of(run.program).stages,
        measured_peaks(run).stages,
        strict=True,
    )
    return [
        Row(
            model,
            cluster,
            strategy,
            microbatches,
            planned.plan.schedule,
            index,
            stage.memory_bytes,
            live.n_bytes,
            measured.n_bytes,
        )
        for index, (stage, live, measured) in enumerate(stages)
    ]
