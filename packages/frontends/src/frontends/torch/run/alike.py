"""Checks that all processes are given the same batch."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from frontends.errors import BatchError
from frontends.torch.base.trees import leaves_of
from frontends.torch.run.processes import gather, join


def check_alike(batch: Any) -> None:
    """Raise `BatchError` if processes have different batches; all have to call it.

    Libraries that shuffle and shard data for one process each do not know of the plan, which gives
    each process its part of one batch.
    """
    if join() is None:
        return
    crc = 0
    for leaf in leaves_of(batch):
        if isinstance(leaf, torch.Tensor):
            part: Any = leaf.detach().contiguous().view(-1).view(torch.uint8).numpy()
        else:
            part = repr(leaf).encode()
        crc = zlib.crc32(part, crc)
    words = gather(f"{crc:08x}")
    if len(set(words)) > 1:
        other = next(rank for rank, word in enumerate(words) if word != words[0])
        raise BatchError(
            "all processes have the same batch, of which the plan gives each its part; processes "
            f"0 and {other} have different ones: seed what draws or shuffles examples equally"
        )
