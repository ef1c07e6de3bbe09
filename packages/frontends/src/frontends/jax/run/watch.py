"""The heartbeat of processes that `jax.distributed` has joined."""

from __future__ import annotations

import functools
from typing import Any

import crossmesh
import jax

from frontends.base.heartbeat import Watch
from frontends.errors import DeviceError
from frontends.jax.base import _compat


class CoordinationStore:
    """The key-value store of `jax.distributed`, which process 0 keeps.

    Args:
        client: The client of `jax.distributed`.
    """

    keeper = "process 0"

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, text: str) -> None:
        """See `Store`."""
        try:
            self._client.key_value_set(key, text, allow_overwrite=True)
        except jax.errors.JaxRuntimeError as error:
            raise ConnectionError(str(error)) from error

    def read(self, folder: str, names: list[str]) -> dict[str, str]:
        """See `Store`."""
        try:
            texts = self._client.key_value_dir_get(folder)
        except jax.errors.JaxRuntimeError as error:
            raise ConnectionError(str(error)) from error
        return {key.removeprefix(folder): text for key, text in texts}

    def wait(self, key: str, seconds: float) -> str | None:
        """See `Store`."""
        try:
            text: str = self._client.blocking_key_value_get(key, round(seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise ConnectionError(str(error)) from error
        return text


def is_anothers(error: BaseException) -> bool:
    """Whether an error may be the consequence, in this process, of the end of another one."""
    return isinstance(error, jax.errors.JaxRuntimeError | crossmesh.TransferError)


def watch() -> Watch:
    """The watch of this process, which begins at the first call.

    Raises:
        DeviceError: `jax.distributed` was initialized again since, and the watch would still listen
            to the processes of the first time.
    """
    begun, client = _begun()
    if _compat.coordination_client() is not client:
        raise DeviceError(
            "the processes that train are those of the first jax.distributed.initialize; it was "
            "called again after shutdown: start new processes"
        )
    return begun


@functools.cache
def _begun() -> tuple[Watch, Any]:
    """The watch, and the client of `jax.distributed` that it uses."""
    client = _compat.coordination_client()
    return Watch(CoordinationStore(client), *_compat.process_of_distributed()), client
