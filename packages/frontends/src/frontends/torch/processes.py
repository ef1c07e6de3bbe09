"""Several processes as one run: found in the environment that a launcher left, joined by gloo."""

from __future__ import annotations

import os

import torch.distributed as dist


def n_processes() -> int:
    """How many processes the launcher started; 1 where there is none."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def join() -> int | None:
    """Join the other processes, if there are some.

    Returns:
        This process's rank; None if it is alone.
    """
    if n_processes() == 1:
        return None
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank()
