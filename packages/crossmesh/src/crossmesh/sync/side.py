"""`Side`: what a publisher and a subscriber have in common: a thread that serves until the end."""

import atexit
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Self

from crossmesh.errors import MissingExtraError, TransferError
from crossmesh.sync.board import NAP_S, Board, job_of, seconds
from crossmesh.sync.session import Round, Session

try:
    from torch._C._distributed_c10d import Store
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

_LOG = logging.getLogger("crossmesh.sync")


class Side(ABC):
    """A process of either job: where it meets the others, and its thread."""

    def __init__(
        self,
        store: Store,
        name: str,
        job: tuple[str | None, int | None, int | None, str | None],
        deadline_s: float,
        connect_s: float,
        silent_s: float,
    ) -> None:
        """Take the arguments that publishers and subscribers share; `job` is as for `job_of`."""
        self._board = Board(store, name)
        self._deadline_s = seconds("deadline_s", deadline_s)
        self._connect_s = seconds("connect_s", connect_s)
        self._silent_s = seconds("silent_s", silent_s)
        self._job = job_of(*job)
        self._lock = threading.Condition()
        self._session: Session | None = None
        self._error: Exception | None = None
        self._last_failure: Exception | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="crossmesh-sync", daemon=True)

    def close(self) -> None:
        """Stop; a version that is under way is given up: wait for one that has to arrive."""
        atexit.unregister(self.close)
        with self._lock:
            self._stopped = True
            self._lock.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _step(self) -> bool:
        """Do what is next; False if there is nothing."""

    @abstractmethod
    def _leave(self) -> None:
        """Say that this process does not come back; called once it was closed."""

    def _start(self) -> None:
        self._thread.start()
        atexit.register(self.close)

    def _serve(self) -> None:
        try:
            while not self._stopped:
                if not self._step():
                    time.sleep(NAP_S)
            self._leave()
        except Exception as error:
            self._error = error  # the caller gets it from its next call
        finally:
            with self._lock:
                self._lock.notify_all()
            self._leave_session()

    def _leave_session(self) -> None:
        if self._session is not None:
            with contextlib.suppress(TransferError):
                self._session.close()
            self._session = None

    def _note_failure(self, planned: Round, error: Exception) -> None:
        """End the session after a round that failed, and tell the leader."""
        self._last_failure = error
        _LOG.warning("%r: round %d failed: %s", self, planned.number, error)
        self._board.post(planned.broken, True)
        self._leave_session()

    def _limit_s(self, deadline_s: float | None) -> float:
        return self._deadline_s if deadline_s is None else seconds("deadline_s", deadline_s)

    def _why(self) -> str:
        return f"; the last round failed: {self._last_failure}" if self._last_failure else ""

    def _raise(self) -> None:
        """Raise what the thread failed with, or that it has ended."""
        what = type(self).__name__.lower()
        if self._error is not None:
            raise TransferError(f"the {what} failed: {self._error}; make another") from self._error
        if self._stopped:
            raise TransferError(f"a closed {what} does nothing more; make another")
