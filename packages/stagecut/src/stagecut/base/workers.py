"""Processes that call a function, which each of them is sent once.

They end with the work that they were started for, however that ends: also if a call fails, if the
user interrupts it, or if the process that started them is killed.
"""

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import starmap
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

from stagecut.errors import InvalidInputError

R = TypeVar("R")
Calls = Sequence[tuple[Any, ...]]
"""The arguments of each call."""

MOST_PROCESSES = 1024
"""More are a slip of the finger: each takes some 40 MB."""

_CHUNK = 16
"""Calls that a process is sent at once, if there are many: it hides that sending one takes longer
than a short call, and is little beside long ones."""


@contextmanager
def workers(
    function: Callable[..., R], n_processes: int
) -> Iterator[Callable[[Calls], Iterator[R]]]:
    """What makes calls of the function and yields their results in order.

    Args:
        function: What to call; with several processes one that can be pickled.
        n_processes: How many others call it at the same time; 1 for none but this one.

    Raises:
        InvalidInputError: There is no such number of processes, the function cannot be sent to
            them, or one of them ended in a call.
    """
    if not 1 <= n_processes <= MOST_PROCESSES:
        raise InvalidInputError(
            f"work is shared by a number of processes from 1 to {MOST_PROCESSES:,}; "
            f"got processes={n_processes}"
        )
    if n_processes == 1:
        yield lambda calls: starmap(function, calls)
        return
    _check_sendable(function)
    # Not fork: a copy of a process that has threads, as jax and torch have, can hang.
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        n_processes, mp_context=context, initializer=_begin, initargs=(function, theirs)
    )

    def calling(calls: Calls) -> Iterator[R]:
        size = max(1, min(_CHUNK, len(calls) // (8 * n_processes)))
        chunks = [calls[at : at + size] for at in range(0, len(calls), size)]
        # Not pool.map, which cancels the rest if one fails: a pool whose processes end then
        # complains of futures that were cancelled (Python 3.11).
        with _interrupts_held():
            futures = [pool.submit(_call_each, chunk) for chunk in chunks]
        return (result for future in futures for result in future.result())

    try:
        yield calling
    except BrokenProcessPool as error:
        raise InvalidInputError(
            "with processes, cost is a function that each can import, and that does not end it; a "
            f"process ended when asked for {function!r} (it prints why): put the function into a "
            "module, and what a script does under if __name__ == '__main__', or take processes=1"
        ) from error
    except BaseException:
        ours.close()  # so they end at once
        raise
    finally:
        pool.shutdown()
        ours.close()
        theirs.close()


def _check_sendable(function: Callable[..., object]) -> None:
    try:
        pickle.dumps(function)
    except Exception as error:  # pickle has no one error of its own
        raise InvalidInputError(
            "with processes, cost is a function that can be sent to them, such as one of a module; "
            f"got {function!r}: {error}"
        ) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that are started in it do not hear Ctrl-C: the one that started them ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_function: Callable[..., object]
"""What a process was started to call; it has one for all its life."""


def _begin(function: Callable[..., object], parent: Connection) -> None:
    global _function
    _function = function
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection) -> None:
    parent.poll(None)  # until the other end is closed, by whom or what ever
    os._exit(1)


def _call_each(calls: Calls) -> list[Any]:
    return list(starmap(_function, calls))
