"""Train a model by a plan on several devices and eagerly on one, and compare the two runs.

The devices are virtual devices of one process, or the processes that a launcher started.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import frontends.torch
import torch
import torch.distributed as dist
from costmodel import Cluster
from frontends.search.plan_options import Strategy
from torch import nn

from torch_zoo.groups import Recorder, Seen, check_groups
from torch_zoo.models import MODELS

N_DEVICES = 4
STEPS = 5
TOLERANCE = 1e-5
"""Largest relative difference that is accepted, of a loss and of all parameters together."""


@dataclass(frozen=True)
class Way:
    """The devices, and the strategy that lays the model over them."""

    cluster: Cluster
    strategy: Strategy


_ONE_HOST = Cluster.preset("virtual-cpu").resized(devices_per_host=4)
_TWO_HOSTS = Cluster.preset("two-hosts").resized(n_hosts=2, devices_per_host=2)
_FOUR_HOSTS = Cluster.preset("two-hosts").resized(n_hosts=4, devices_per_host=1)

WAYS: dict[str, Way] = {
    "4": Way(_FOUR_HOSTS, "data_parallel"),
    "2 x 2": Way(_ONE_HOST, "megatron"),
    "2 stages of 2": Way(_TWO_HOSTS, "equal_layers"),
    "searched": Way(_TWO_HOSTS, "auto"),
}
"""Data parallelism on a mesh of one axis, data and tensor parallelism on a mesh of two axes, a
pipeline of two sharded stages, and the plan that the planner chooses."""


@dataclass(frozen=True)
class Found:
    """How far the two runs are from each other, and what ran."""

    loss: float
    """The largest relative difference of a loss."""

    parameters: float
    """The norm of the difference of all parameters after training, over the norm of the eager
    ones."""

    n_parameters: int
    stages: tuple[tuple[int, ...], ...]
    """The shape of each stage's mesh."""

    schedule: str
    n_collectives: int
    """Collectives of a step, which were as planned in kind, count and bytes. In several processes:
    the calls that reached this process's process groups."""


def as_found(fields: Mapping[str, Any]) -> Found:
    """A `Found` from the fields that were kept as JSON."""
    return Found(**{**fields, "stages": tuple(map(tuple, fields["stages"]))})


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss that a model of the zoo computes for a batch."""
    loss: torch.Tensor = model(**batch)["loss"]
    return loss


def check(name: str, way: str) -> Found:
    """Train a model of the zoo for `STEPS` steps by a plan and eagerly, and compare.

    The optimizer is AdamW with an epsilon of 1e-6, as BERT's authors have it (Devlin et al., 2019).
    With a smaller epsilon, gradients that are zero but for rounding, such as those of the biases of
    attention's keys, would become updates as large as any other.
    """
    case, chosen = MODELS[name], WAYS[way]
    torch.manual_seed(0)
    model = case.make().train()
    batches = [case.batch() for _ in range(STEPS)]
    eager = copy.deepcopy(model)
    torch.manual_seed(1)
    expected = _train_eagerly(eager, batches)
    optimizer = _optimizer(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no sharding rule")
        step = frontends.torch.parallelize(
            model,
            optimizer,
            loss_of,
            batches[0],
            cluster=chosen.cluster,
            strategy=chosen.strategy,
            microbatches=case.microbatches,
        )
    step.compile(batches[0])
    torch.manual_seed(1)
    with Recorder() as recorder:
        losses = [float(step(batch)) for batch in batches]
    step.write_back()
    difference = norm = 0.0  # squared
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        a, b = ours.detach().double(), theirs.detach().double()
        difference += float((a - b).square().sum())
        norm += float(b.square().sum())
    return Found(
        max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)),
        math.sqrt(difference / norm),
        sum(p.numel() for p in model.parameters()),
        tuple(stage.mesh.shape for stage in step.plan.stages),
        step.plan.schedule,
        _verified(step, batches[0], recorder.seen),
    )


def _verified(
    step: frontends.torch.ParallelStep,
    batch: dict[str, torch.Tensor],
    seen: Seen,
) -> int:
    """The number of collectives of a step, after checking that all are as planned.

    Args:
        step: The step that was trained.
        batch: In one process nothing was recorded: there the step runs once more with this batch.
        seen: What reached the process groups in all steps; empty in one process.
    """
    if not dist.is_initialized():
        return step.verify(batch, n_steps=1).n_collectives
    a_step = Counter({key: n // STEPS for key, n in seen.items()})
    assert seen == Counter({key: n * STEPS for key, n in a_step.items()}), "steps are alike"
    results = {"loss": torch.float32.itemsize}
    return check_groups(step.runtime, dist.get_rank(), results, a_step)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)


def _train_eagerly(model: nn.Module, batches: list[dict[str, torch.Tensor]]) -> list[float]:
    optimizer, losses = _optimizer(model), []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses
