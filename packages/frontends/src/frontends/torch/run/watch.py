"""Watches the processes that `torch.distributed` joins."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import crossmesh
import torch.distributed as dist

from frontends.base.boundary import first_line
from frontends.base.heartbeat import PATIENCE_S, Watch
from frontends.errors import DeviceError, ExchangeError, FrontendsError
from frontends.torch.base.compat.process_groups import default_store
from frontends.torch.run.meeting import is_agents_store

GROUP_TIMEOUT = timedelta(seconds=PATIENCE_S)
"""How long a collective waits. It is long, as some processes plan longer than others. A step that
makes no progress is ended much earlier by the watch, which names the process at fault."""


class DistributedStore:
    """The key-value store through which the processes joined; torchrun or process 0 hosts it."""

    def __init__(self) -> None:
        # Keep it, as it may be the server. A thread that waits blocks its store, so use copies.
        self._joined = default_store()
        self._store = self._joined.clone()
        self._waiting = self._joined.clone()
        self.keeper = "torchrun's store" if is_agents_store() else "process 0"

    def put(self, key: str, text: str) -> None:
        """See `Store`."""
        try:
            self._store.set(key, text)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def read(self, folder: str, names: list[str]) -> dict[str, str]:
        """See `Store`."""
        try:
            existing = [name for name in names if self._store.check([folder + name])]
            texts = self._store.multi_get([folder + name for name in existing])
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error
        return dict(zip(existing, (text.decode() for text in texts), strict=True))

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
    """Inside, this process communicates with others; explain errors of torch.

    Raises:
        ExchangeError: Torch reports that another process failed or is gone.
    """
    try:
        yield
    except FrontendsError:
        raise
    except Exception as error:
        if not is_anothers(error):
            raise
        raise ExchangeError(
            "processes of a step exchange values until it is done; this one receives none any "
            f"more: {type(error).__name__}: {first_line(error)}"
        ) from error


def is_anothers(error: BaseException) -> bool:
    """Return whether an error looks like the end of another process.

    Torch's other errors have the same type; the text of gloo's contains its name.
    """
    if isinstance(error, crossmesh.TransferError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


def watch() -> Watch:
    """Return the watch of this process, which begins at the first call.

    Raises:
        DeviceError: The processes joined again since, so that it would watch the previous ones.
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
    """Return the watch, and the group that it watches."""
    return Watch(DistributedStore(), dist.get_rank(), dist.get_world_size()), dist.group.WORLD
