"""Worker processes that call one function many times; the function is sent to each of them once.

The processes end when the work that they were started for ends, however that happens: also if a
call fails, if the user interrupts the work, or if the process that started them is killed.
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
"""A larger number is taken for a typing error: each process takes some 40 MB."""

_CHUNK = 16
"""The most calls that are sent to a process at once. Sending takes longer than a short call, so
calls are sent together; a chunk of this size is still small if calls are long."""


@contextmanager
def workers(
    function: Callable[..., R], n_processes: int
) -> Iterator[Callable[[Calls], Iterator[R]]]:
    """A function that takes the arguments of calls and yields their results in order.

    Args:
        function: The function to call; with several processes it must be picklable.
        n_processes: Number of processes that call it at the same time; with 1, this process makes
            the calls and no other is started.

    Raises:
        InvalidInputError: The number of processes is not allowed, the function cannot be sent to
            them, or one of them ended during a call.
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
    # Not "fork": a forked copy of a process with threads, as jax and torch start them, can hang.
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        n_processes, mp_context=context, initializer=_begin, initargs=(function, theirs)
    )

    def calling(calls: Calls) -> Iterator[R]:
        size = max(1, min(_CHUNK, len(calls) // (8 * n_processes)))
        chunks = [calls[at : at + size] for at in range(0, len(calls), size)]
        # Not pool.map: if a call fails it cancels the others, and a pool whose processes then end
        # complains about the cancelled futures (Python 3.11).
        with _interrupts_held():
            futures = [pool.submit(_call_each, chunk) for chunk in chunks]
        return (result for future in futures for result in future.result())

    try:
        yield calling
    except BrokenProcessPool as error:
        raise InvalidInputError(
            "with processes, cost is a function that each process can import, and that does not "
            f"end the process; one ended in a call of {function!r} (it prints why): put the "
            "function into a module, and what a script does under if __name__ == '__main__', or "
            "take processes=1"
        ) from error
    except BaseException:
        ours.close()  # so that the processes end at once
        raise
    finally:
        pool.shutdown()
        ours.close()
        theirs.close()


def _check_sendable(function: Callable[..., object]) -> None:
    try:
        pickle.dumps(function)
    except Exception as error:  # pickle raises many kinds of errors
        raise InvalidInputError(
            "with processes, cost is a function that can be pickled, such as one of a module; "
            f"got {function!r}: {error}"
        ) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started in this context ignore Ctrl-C: their parent process ends them instead."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_function: Callable[..., object]
"""The function that this worker process calls; set once, when the process starts."""


def _begin(function: Callable[..., object], parent: Connection) -> None:
    global _function
    _function = function
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Connection) -> None:
    parent.poll(None)  # waits until the other end is closed, for whatever reason
    os._exit(1)


def _call_each(calls: Calls) -> list[Any]:
    return list(starmap(_function, calls))
