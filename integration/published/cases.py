"""The measurements, and for each the step, the cluster and the plan in the words of its authors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoshard import Graph
from costmodel import Cluster
from frontends.jax.trace.trace import trace
from frontends.layers.layers import LayeredStep, layer
from zoo import gpt, moe, wide_resnet

from published.llama import LLAMA_3_8B, Llama, llama_step
from published.transformer import Decoder, Step, decoder_step

MEASURED = Path(__file__).parent / "measured.json"
GIB = 2**30
_ZERO = {"data_parallel": 0, "zero2": 2, "zero": 3}
"""By strategy without tensor parallelism, the stage of ZeRO."""

RESERVED = 1.5 * GIB
"""Bytes of a device that a framework takes beside what a step holds: CUDA's context, libraries and
the buffers of NCCL [chosen: what these take on NVIDIA's devices, 1 to 2 GiB]."""


@dataclass(frozen=True)
class Group:
    """A step that was measured, in one plan or several."""

    name: str
    family: str
    source: str
    model: Mapping[str, Any]
    batch: int
    microbatches: int
    hardware: str
    n_devices: int
    plans: tuple[Measured, ...]

    def step(self) -> Step:
        """The training step, and the shapes of its arguments; the last one is the batch."""
        return _MODELS[self.model["kind"]](self.model, self.batch, self.hardware)

    @property
    def is_known(self) -> bool:
        """Whether there is a model of its kind."""
        return self.model["kind"] in _MODELS

    def cluster(self) -> Cluster:
        """The cluster that it ran on."""
        preset, changes = _HARDWARE[self.hardware]
        cluster = Cluster.preset(preset)
        per_host = cluster.devices_per_host
        n_hosts, rest = divmod(self.n_devices, per_host)
        if rest:
            n_hosts, per_host = 1, rest
        cluster = cluster.resized(n_hosts=n_hosts, devices_per_host=per_host)
        device = replace(cluster.device, **changes)
        return replace(cluster, hosts=tuple(replace(h, device=device) for h in cluster.hosts))


@dataclass(frozen=True)
class Measured:
    """A plan that ran, or ran out of memory."""

    name: str
    fields: Mapping[str, Any]
    model: Mapping[str, Any]

    @property
    def seconds(self) -> float | None:
        """The time of a step; None if it ran out of memory."""
        seconds: float | None = self.fields["measured_s"]
        return seconds

    @property
    def gib(self) -> float | None:
        """The peak memory of a device, if it is told."""
        return self.fields.get("measured_gib")

    @property
    def usable_bytes(self) -> int:
        """What a device has for a step."""
        return int(self.fields["limit_gib"] * GIB - RESERVED)

    @property
    def fits(self) -> bool:
        """Whether it ran."""
        return bool(self.fields["fits"])

    def options(self, layered: LayeredStep) -> dict[str, Any]:
        """The plan as options of `plan_for`.

        Args:
            layered: The step; its layers are the model's, and one each for what is before and
                after, unless the model has blocks of several sizes.
        """
        f, n_layers = self.fields, layered.n_layers
        if "strategy" in f:
            return {"stages": 1, "zero": _ZERO[f["strategy"]]}
        if "mesh" in f:
            return {"mesh": tuple(f["mesh"]), "stages": 1}
        if "whole" in f:
            return {"stages": 1}
        if "stages" in f and self.model["kind"] == "wresnet":  # its blocks are not our layers
            return {"stages": len(f["stages"]), "schedule": "1f1b"}
        if "stages" in f:
            counts = _with_ends([stage[0] for stage in f["stages"]], n_layers)
            stages = zip(counts, f["stages"], strict=True)
            return {"stages": tuple((n, *stage[1:]) for n, stage in stages), "schedule": "1f1b"}
        n_stages = f["pp"] * f["v"]
        ways: dict[str, Any] = {"dp": f["dp"], "tp": f["tp"], "zero": f.get("zero", 0)}
        if f["tp"] > 1 and "kv" not in self.model:
            ways["pin"] = _whole_sums(layered.step.graph, self.model, f["dp"])
        if n_stages == 1:
            return ways | {"stages": 1}
        if f.get("zb") or f.get("uneven"):  # ends count as layers
            counts = [n_layers // n_stages] * n_stages
        else:
            counts = _with_ends([(n_layers - 2) // n_stages] * n_stages, n_layers)
        chunks = {"chunks": f["v"]} if f["v"] > 1 else {}
        return ways | {"stages": tuple(counts), "schedule": f["schedule"]} | chunks


def _with_ends(counts: list[int], n_layers: int) -> list[int]:
    """Layers of stages that have some blocks each, with those before and after all blocks.

    A layer has several blocks if blocks of different kinds take turns.
    """
    blocks_a_layer = sum(counts) // (n_layers - 2)
    counts = [count // blocks_a_layer for count in counts]
    if len(counts) == 1:
        return [n_layers]
    return [counts[0] + 1, *counts[1:-1], counts[-1] + 1]


def _whole_sums(graph: Graph, model: Mapping[str, Any], dp: int) -> dict[str, str]:
    """Pins of Megatron's tensor parallelism as it was before sequence parallelism.

    What blocks add up is whole on each tensor parallel device, which computes all of its norm and
    dropout.
    """
    size = (model["s"], model["h"])
    spec = "S0RR" if dp > 1 else "RRR"
    sums = (op.outputs[0] for op in graph.operators if op.name.startswith("add"))
    return {name: spec for name in sums if graph.value(name).shape[1:] == size}


def groups(path: Path = MEASURED) -> list[Group]:
    """The measurements of a file."""
    return [
        Group(
            each["id"],
            each["family"],
            each["source"],
            each["model"],
            each["batch"],
            each["microbatches"],
            each["hardware"],
            each["n"],
            tuple(Measured(plan["id"], plan, each["model"]) for plan in each["plans"]),
        )
        for each in json.loads(path.read_text(encoding="utf-8"))["groups"]
    ]


def layers_of(step: Step, microbatches: int) -> LayeredStep:
    """A step, cut into layers."""
    function, arguments = step
    last = len(arguments) - 1
    traced = trace(function, arguments, batch_argnums=(last,), microbatches=microbatches)
    return layer(traced.step)


def _gpt(model: Mapping[str, Any], batch: int, hardware: str) -> Step:
    if hardware == "p3":
        config = gpt.Config(
            model["h"], model["L"], model["heads"], sequence=model["s"], vocabulary=model["V"]
        )
        example = gpt.make(config, batch=batch, tied=False, remat=model["remat"], dtype="float16")
        return example.step, example.arguments
    sizes = (model["L"], model["h"], model["heads"], model["s"], model["V"], model["remat"])
    return decoder_step(Decoder(*sizes), batch)


def _moe(model: Mapping[str, Any], batch: int, hardware: str) -> Step:
    config = moe.CONFIGS.get(model.get("config", ""))
    if config is None:
        sizes = (model["h"], model["L"], model["heads"], model["E"])
        config = moe.Config(*sizes, sequence=model["s"], vocabulary=model["V"])
    example = moe.make(config, batch=batch, dtype="float16", remat=True)
    return example.step, example.arguments


def _wide_resnet(model: Mapping[str, Any], batch: int, hardware: str) -> Step:
    config = wide_resnet.CONFIGS.get(model.get("config", ""))
    if config is None:
        config = wide_resnet.Config(model["L"], model["C"], model["W"])
    example = wide_resnet.make(config, batch=batch, norm=model.get("norm", "group"))
    return example.step, example.arguments


def _llama(model: Mapping[str, Any], batch: int, hardware: str) -> Step:
    if "name" in model:
        return llama_step(replace(_LLAMAS[model["name"]], sequence=model["s"]), batch)
    n_layers, width, heads, kv_heads, hidden, vocabulary, sequence = (
        model[key] for key in ("L", "h", "heads", "kv", "ff", "V", "s")
    )
    sizes = n_layers, width, heads, kv_heads, hidden, vocabulary, sequence
    # The source recomputes nothing; what does not fit is computed again as the plan chooses.
    return llama_step(Llama(*sizes, half_weights=True), batch)


_LLAMAS = {"llama-3-8b": LLAMA_3_8B}

_MODELS: dict[str, Callable[[Mapping[str, Any], int, str], Step]] = {
    "gpt": _gpt,
    "llama": _llama,
    "llama-torch": _llama,
    "moe": _moe,
    "wresnet": _wide_resnet,
}

_HARDWARE: dict[str, tuple[str, dict[str, Any]]] = {
    "selene": ("dgx-a100", {}),
    "p3": ("p3.16xlarge", {}),
    "h100-titan": (
        "h100-sxm",
        {"memory_bytes": 96 * 10**9, "memory_bandwidth_bytes_per_s": 2.4e12},
    ),
    "h100": ("h100-sxm", {}),
}
