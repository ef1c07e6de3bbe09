"""`accelerate.Accelerator` for steps that run by a plan.

`prepare` would wrap a model for data parallelism, and give each process its share of the batches.
This accelerator believes that there is one device: it leaves the model as it is, and every process
gets whole batches, of which the plan gives it its part. What is written between `prepare` and the
end of a step (autocast, `backward`, clipping) is captured with the step.
"""

from __future__ import annotations

from typing import Any

import accelerate
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from frontends.torch.run.processes import join

__all__ = ["Accelerator", "see_one_device"]


class Accelerator(accelerate.Accelerator):
    """An accelerator for a step of `frontends.torch.parallelize_step`.

    Args:
        arguments: Those of `accelerate.Accelerator`.
        named: Those of `accelerate.Accelerator`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        PartialState(cpu=named.get("cpu", False))
        see_one_device()
        super().__init__(*arguments, **named)


def see_one_device() -> PartialState:
    """Let accelerate, and what builds on it, do in each process what they do on one device.

    All accelerators of a process have one state, so this holds until it is made anew. The number of
    the process stays, so that only process 0 prints and writes.
    """
    rank, state = join(), PartialState()
    if rank is not None:
        state.num_processes, state.distributed_type = 1, DistributedType.NO
        state.process_index = rank
        # accelerate calls a process's CPU cpu:0, which is another device for traced tensors
        state.device = torch.device(state.device.type)
    return state
