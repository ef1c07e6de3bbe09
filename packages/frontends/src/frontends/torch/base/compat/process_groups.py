"""Process groups, and the store by which processes join.

Of `distributed.distributed_c10d` of torch 2.13 it touches how a group is named, and the store of
the default group.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast
from unittest import mock

import torch.distributed as dist
from torch.distributed import distributed_c10d

_groups: collections.Counter[tuple[int, ...]] = collections.Counter()


def default_store() -> Any:
    """What the processes of the default group joined by."""
    return dist.distributed_c10d._get_default_store()


def new_group(
    ranks: Sequence[int], timeout: timedelta, backend: str | None = None
) -> dist.ProcessGroup:
    """A group that only its members make, each at its own time.

    Torch names such a group by how many groups a process has, which differs between processes of
    stages that have different meshes: they would wait for each other under two names. Here the name
    counts those of the same members alone, which all of them make in the same order.
    """
    members = tuple(ranks)
    _groups[members] += 1
    text = f"meshwright {members} {_groups[members]}"
    name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    with mock.patch.object(distributed_c10d, "_hash_ranks_to_str", return_value=name):
        made = dist.new_group(members, timeout, backend, use_local_synchronization=True)
    return cast("dist.ProcessGroup", made)
