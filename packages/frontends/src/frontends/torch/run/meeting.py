"""The store in which processes that torchrun started again find each other, and no others.

torchrun's agent keeps one store for all starts of its processes (torch 2.13), with the addresses of
those that are gone. So the processes of a start agree on a name first, under which they meet.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from frontends.base.boundary import first_line
from frontends.errors import DeviceError

_NAP_S = 0.02
_FOLDER = "meshwright/meeting"


def is_agents_store() -> bool:
    """Whether torchrun's agent has the store in which processes meet."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_of_this_start(timeout: timedelta, start_s: float) -> tuple[Store, int, int]:
    """The part of the agent's store that the processes of this start share.

    Args:
        timeout: How long the store waits for a key.
        start_s: How long to wait for processes that have not started.

    Returns:
        The store, the number of this process, and the number of processes.

    Raises:
        DeviceError: A process has not started, which the message names, or the store is gone.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = TCPStore(*where, size, is_master=False, timeout=timeout)
        return PrefixStore(_agreed(store, rank, size, start_s), store), rank, size
    except RuntimeError as error:
        raise DeviceError(
            f"the processes of a run meet in the store of torchrun's agent, at {where[0]}:"
            f"{where[1]}; process {rank} cannot use it: {first_line(error)}: see whether the "
            "agent of that host still runs"
        ) from error


def _agreed(store: Store, rank: int, size: int, start_s: float) -> str:
    """A name that all processes of this start know, and none of another.

    Each process says hello with a word of its own. Process 0 invites by a name and the words that
    it has heard, again and again, as some may be of processes that are gone. A process takes the
    invitation that has its word, and accepts it.
    """
    word, until_s = uuid.uuid4().hex, time.monotonic() + start_s
    store.set(f"{_FOLDER}/hello/{rank}", word)
    name = uuid.uuid4().hex
    heard: list[str] = []
    while True:
        if rank == 0:
            words = [_read(store, f"{_FOLDER}/hello/{other}") for other in range(size)]
            if words != heard:
                heard = words
                store.set(f"{_FOLDER}/invitation", json.dumps([name, heard]))
            missing = [r for r in range(1, size) if not _read(store, f"{_FOLDER}/{name}/{r}")]
        else:
            invited, words = json.loads(_read(store, f"{_FOLDER}/invitation") or '["", []]')
            missing = [0]
            if words[rank : rank + 1] == [word]:
                name, missing = invited, []
                store.set(f"{_FOLDER}/{name}/{rank}", "accepted")
        if not missing:
            return f"{_FOLDER}/{name}"
        if time.monotonic() > until_s:
            raise DeviceError(
                f"all {size} processes of a run start; process {missing[0]} has not, and process "
                f"{rank} has waited {start_s:g} s for it"
            )
        time.sleep(_NAP_S)


def _read(store: Store, key: str) -> str:
    """The text under a key; empty if there is none."""
    return store.get(key).decode() if store.check([key]) else ""
