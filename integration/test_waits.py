"""Every wait has a deadline: these tests find calls that may never return, in all packages.

A deadline is passed by the caller, or is a constant, or belongs to the object that is waited for. A
process group of torch has one, so for its collectives only the creation of groups is checked. Calls
that end for another reason are listed in `ENDS` with that reason.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

WAIT = frozenset(
    {"wait", "join", "acquire", "get", "result", "exception", "communicate", "recv", "shutdown"}
)
"""Methods that wait forever if they are called without an argument; `str.join` has one."""

TAKES_TIMEOUT = {
    "subprocess": frozenset({"run", "call", "check_call", "check_output"}),
    "dist": frozenset({"init_process_group", "new_group", "monitored_barrier"}),
    "select": frozenset({"select", "poll", "epoll"}),
    "distributed": frozenset({"initialize"}),
}
"""Functions of modules that wait forever, or for long, without an argument for the time."""

MPI = {
    *("bcast", "gather", "allgather", "allreduce", "reduce", "scatter", "alltoall", "barrier"),
    *("Bcast", "Gather", "Allgather", "Allreduce", "Reduce", "Scatter", "Alltoall", "Barrier"),
    *("Send", "Recv", "Ssend", "Sendrecv", "Probe", "Wait", "Waitall", "Split", "Dup"),
    *("Create_group", "Finalize"),
}
"""Calls of MPI that wait for other processes; none of MPI's calls has a deadline."""

ENDS = {
    "autoshard/solvers/bound_and_search.py bounding.result()": (
        "computes, as the search beside it does"
    ),
    "autoshard/solvers/progress.py self._thread.join()": (
        "it prints a line, and has been told to end"
    ),
    "frontends/jax/lower/compile.py result.result()": "XLA compiles",
    "frontends/run/feed.py ahead.result()": "the user's data set reads an example",
    "stagecut/base/workers.py future.result()": (
        "the user's function; a process that ends breaks it"
    ),
    "stagecut/base/workers.py pool.shutdown()": "as above, or the processes have been told to end",
    "stagecut/base/workers.py parent.poll(None)": (
        "a thread whose one work is to wait for the parent"
    ),
    "pipesched/testing/interpret.py _Run(program).result()": "its own: it computes",
    "frontends/torch/run/process_group.py work.wait()": "gloo, as long as the group was made for",
    "crossmesh/torch.py local.wait()": "as long as the group of the tensor was made for",
    "crossmesh/engines/torch_batched.py work.wait()": (
        "as long as the group of the caller was made for"
    ),
    "crossmesh/sync/session.py self._publishers.allreduce([magnitudes], options).wait()": (
        "gloo, as long as its options say, which is the deadline of the round"
    ),
    "costmodel/calibrate/torch.py sent.wait()": "gloo, for as long as the group was made for",
    "costmodel/calibrate/mpi.py": "a thread ends the process when its deadline has passed",
    "frontends/jax/run/processes.py import_mpi().COMM_WORLD.allgather((doing, what))": (
        "the watch ends this process if another one ends, or is later than a step may be"
    ),
    "frontends/run/mpi.py world.bcast(address)": (
        "roll_call has seen all processes of this host come"
    ),
    "frontends/run/mpi.py world.Create_group(world.group.Incl(lane.processes), number)": (
        "all processes have just agreed on the plan, and the watch sees who ends"
    ),
}
"""By file and call, the reason why the call returns without a deadline."""


@dataclass(frozen=True, slots=True)
class Found:
    """A call without a deadline."""

    line: int
    call: str


def find(source: str) -> Iterator[Found]:
    """The calls in a source that may wait forever."""
    uses_mpi = "mpi4py" in source or "import_mpi" in source
    has_queues = "queue" in source or "multiprocessing" in source
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_endless(node, node.func, uses_mpi, has_queues)
        ):
            yield Found(node.lineno, ast.unparse(node))


def _is_endless(node: ast.Call, function: ast.Attribute, uses_mpi: bool, has_queues: bool) -> bool:
    name = function.attr
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    if any(_is_for_ever(keyword) for keyword in node.keywords):
        return True
    if name in TAKES_TIMEOUT.get(ast.unparse(function.value).rpartition(".")[2], ()):
        words = [keyword.arg or "" for keyword in node.keywords] + [*map(ast.unparse, node.args)]
        return not any("time" in word.lower() for word in words)
    if name == "wait_for":
        return len(arguments) == 1
    if name == "poll":
        return bool(arguments) and all(map(_is_none, arguments))
    if uses_mpi and name in MPI:
        return True
    is_wait = name in WAIT and (name != "get" or has_queues)
    return is_wait and all(map(_is_none, arguments))


def _is_for_ever(keyword: ast.keyword) -> bool:
    """Whether an argument is a deadline that never passes."""
    is_deadline = keyword.arg is not None and keyword.arg in ("timeout", "deadline_s")
    return is_deadline and (_is_none(keyword.value) or ast.unparse(keyword.value) == "math.inf")


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


@cache
def findings() -> dict[str, list[str]]:
    """The places of all calls without a deadline, by file and call."""
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        name = path.relative_to(next(p for p in path.parents if p.name == "src")).as_posix()
        for item in find(path.read_text()):
            places.setdefault(f"{name} {item.call}", []).append(f"{path}:{item.line}")
    return places


def _reason(call: str) -> str | None:
    return next((key for key in ENDS if call == key or call.split(" ")[0] == key), None)


def test_every_wait_in_the_packages_has_a_deadline() -> None:
    unexplained = {call: where for call, where in findings().items() if _reason(call) is None}
    assert not unexplained, "give it a deadline, or say in ENDS why it ends: " + str(unexplained)


def test_every_process_that_tests_start_has_a_deadline() -> None:
    """Pytest can show where its own process hangs, but not where another process does."""
    folders = ("packages/*/tests", "packages/*/benchmarks", "integration")
    paths = sorted(path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py"))
    offenders = [
        f"{path}:{item.line} {item.call}"
        for path in paths
        if path != Path(__file__)  # this file has examples of such calls
        for item in find(path.read_text())
        if item.call.startswith("subprocess.")
    ]
    assert not offenders, "\n".join(offenders)


def test_every_reason_is_needed() -> None:
    assert {_reason(call) for call in findings()} - {None} == ENDS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "event.wait()",
        "event.wait(None)",
        "condition.wait_for(is_there)",
        "thread.join()",
        "thread.join(timeout=None)",
        "lock.acquire()",
        "from queue import Queue\nself._messages.get()",
        "future.result()",
        "process.communicate()",
        "connection.recv()",
        "pool.shutdown()",
        "connection.poll(None)",
        "subprocess.run(command, check=True)",
        "subprocess.run(command, timeout=None)",
        "dist.init_process_group('gloo')",
        "dist.new_group(ranks, use_local_synchronization=True)",
        "jax.distributed.initialize(where, 2, 0)",
        "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()",
        "crossmesh.Execution(plan, deadline_s=math.inf)",
    ],
)
def test_a_wait_without_a_deadline_is_found(source: str) -> None:
    assert len(list(find(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "event.wait(1.0)",
        "thread.join(timeout=5)",
        "', '.join(names)",
        "found.get(key)",
        "place.get()",
        "import queue\nmessages.get(timeout=1.0)",
        "process.poll()",
        "pool.shutdown(wait=False)",
        "subprocess.run(command, timeout=limit_s)",
        "dist.init_process_group('gloo', timeout=timedelta(seconds=60))",
        "jax.distributed.initialize(where, 2, 0, initialization_timeout=300)",
        "program.broadcast(x)\ngroups.gather(words)",
        "watch.wait_for(process, key, doing)",
        "condition.wait_for(is_there, 1.0)",
    ],
)
def test_a_call_that_ends_is_not_found(source: str) -> None:
    assert not list(find(source))
