"""Process groups, and the store through which processes join.

Private interfaces of `distributed.distributed_c10d` of torch 2.13 in use: how a group is named, and
the store of the default group.
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
    """Return the store through which the processes of the default group joined."""
    return dist.distributed_c10d._get_default_store()


def new_group(
    ranks: Sequence[int], timeout: timedelta, backend: str | None = None
) -> dist.ProcessGroup:
    """Create a group by calls of its members only, each at any time.

    Torch derives the name of such a group from the number of groups that the process has. That
    number differs between processes whose stages have different meshes, so that they would wait for
    each other under two names. Here the name counts only the groups of the same members, which all
    members create in the same order.
    """
    members = tuple(ranks)
    _groups[members] += 1
    text = f"meshwright {members} {_groups[members]}"
    name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    with mock.patch.object(distributed_c10d, "_hash_ranks_to_str", return_value=name):
        group = dist.new_group(members, timeout, backend, use_local_synchronization=True)
    return cast("dist.ProcessGroup", group)
