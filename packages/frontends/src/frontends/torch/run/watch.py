"""The watch over processes that `torch.distributed` joins."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import crossmesh
import torch.distributed as dist

from frontends.base.boundary import first_line
from frontends.base.heartbeat import PATIENCE_S, Watch
from frontends.errors import DeviceError, ExchangeError, FrontendsError
from frontends.torch.base.compat.process_groups import default_store

GROUP_TIMEOUT = timedelta(seconds=PATIENCE_S)
"""How long a collective waits: some processes plan for longer than others. In a step, where nothing
stands still for so long, the watch is the first to say who is at fault."""


class DistributedStore:
    """The key-value store that the processes joined by: torchrun keeps it, or process 0."""

    def __init__(self) -> None:
        # Kept, as it may be the server; a thread that waits in a store holds it alone.
        self._joined = default_store()
        self._store = self._joined.clone()
        self._waiting = self._joined.clone()
        is_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.keeper = "torchrun's store" if is_torchruns else "process 0"

    def put(self, key: str, text: str) -> None:
        """See `Store`."""
        try:
            self._store.set(key, text)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def read(self, folder: str, names: list[str]) -> dict[str, str]:
        """See `Store`."""
        try:
            there = [name for name in names if self._store.check([folder + name])]
            texts = self._store.multi_get([folder + name for name in there])
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error
        return dict(zip(there, (text.decode() for text in texts), strict=True))

    def wait(self, key: str, seconds: float) -> str | None:
        """See `Store`."""
        try:
            self._waiting.wait([key], timedelta(seconds=seconds))
            return bytes(self._waiting.get(key)).decode()
        except dist.DistStoreError:
            return None
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error


@contextmanager
def exchanging() -> Iterator[None]:
    """Around what needs other processes.

    Raises:
        ExchangeError: Torch says that one of them failed or is gone.
    """
    try:
        yield
    except FrontendsError:
        raise
    except Exception as error:
        if not is_anothers(error):
            raise
        raise ExchangeError(
            "processes of a step exchange values until it is done; this one gets none any more: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def is_anothers(error: BaseException) -> bool:
    """Whether an error is what another process's end looks like from here.

    Torch's own errors are of the same type: of gloo's, the text says where it is from.
    """
    if isinstance(error, crossmesh.TransferError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


def watch() -> Watch:
    """The watch of this process, which begins when it is first asked for.

    Raises:
        DeviceError: the processes joined again since, so it would hear those of before.
    """
    begun, group = _begun()
    if dist.group.WORLD is not group:
        raise DeviceError(
            "the processes that train are those of the first init_process_group, and it was called"
            " again after destroy_process_group; start new processes"
        )
    return begun


@functools.cache
def _begun() -> tuple[Watch, dist.ProcessGroup | None]:
    """The watch, and the group that it is of."""
    return Watch(DistributedStore(), dist.get_rank(), dist.get_world_size()), dist.group.WORLD
